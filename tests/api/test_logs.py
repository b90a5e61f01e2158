"""Logs over the API: any part of one, and one that is being written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.runner.log.sections import SectionWriter, new_nonce
from deltaci.server.rest.http.ranges import BadRange, requested_range, requested_start
from deltaci.storage.blobs.logs import LogStore
from tests.api.following import asked
from tests.api.site import ApiSite, gate, opened, task
from tests.contract.places import Place, on_loop

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]

TEXT = b"one\ntwo\nthr\xc3\xa9\xc3\xa9\n"
SIZES = st.integers(0, 40)
NUMBERS = st.integers(0, 50)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """What is shown here does not depend on the store."""
    from deltaci.storage.memory import wall_clock
    from deltaci.storage.sqlite import SqliteStore

    return Place("sqlite", lambda place: SqliteStore(str(tmp_path / "api.db"), clock=place.now), origin=wall_clock)


# -- ranges


@given(size=SIZES, first=NUMBERS, last=st.none() | NUMBERS)
def test_a_range_is_a_slice(size: int, first: int, last: int | None) -> None:
    """As Python slices bytes, unless there is nothing in it."""
    data = bytes(range(size))
    header = f"bytes={first}-{'' if last is None else last}"
    if last is not None and last < first:
        assert not requested_range(header, size).is_part  # No range at all: so all of it.
        return
    wanted = data[first : None if last is None else last + 1]
    if not wanted:
        with pytest.raises(BadRange) as caught:
            requested_range(header, size)
        assert caught.value.size == size
        return
    span = requested_range(header, size)
    assert data[span.start : span.stop] == wanted
    assert span.status == 206
    assert span.headers["Content-Range"] == f"bytes {first}-{first + len(wanted) - 1}/{size}"
    assert span.headers["Content-Length"] == str(len(wanted))


@given(size=SIZES, length=NUMBERS)
def test_a_suffix_is_the_end(size: int, length: int) -> None:
    """So many of the last bytes, or as many as there are."""
    data = bytes(range(size))
    if not length:
        with pytest.raises(BadRange):
            requested_range("bytes=-0", size)
        return
    span = requested_range(f"bytes=-{length}", size)
    assert data[span.start : span.stop] == data[-length:]
    assert span.status == (206 if size else 200)


@given(size=SIZES, header=st.text(max_size=30) | st.from_regex(r"bytes=[-0-9, ]{0,12}", fullmatch=True))
def test_whatever_is_asked_the_answer_is_some_bytes_or_a_refusal(size: int, header: str) -> None:
    """Nothing that somebody sends is an error of ours."""
    try:
        span = requested_range(header, size)
    except BadRange:
        return
    assert 0 <= span.start <= span.stop <= size
    assert span.is_part or (span.start, span.stop) == (0, size)


@pytest.mark.parametrize("header", ["", "bytes", "bytes=", "bytes=-", "lines=0-1", "bytes=0-1,3-4", "bytes=a-b", "0-1"])
def test_what_is_no_single_range_is_answered_with_everything(header: str) -> None:
    """As RFC 9110 allows."""
    assert requested_range(header, 10) == requested_range("", 10)


def test_numbers_of_any_length_are_read() -> None:
    """Python itself would refuse to read the longest ones."""
    assert requested_range("bytes=0-" + "9" * 5000, 10).stop == 10
    assert requested_range("bytes=-" + "9" * 5000, 10).start == 0
    assert requested_range("bytes=" + "0" * 5000 + "3-", 10).start == 3
    with pytest.raises(BadRange):
        requested_range("bytes=" + "9" * 5000 + "-", 10)


def test_who_waits_for_more_may_begin_at_the_end() -> None:
    """There is no such byte yet, but there will be."""
    assert [requested_start(header, 5) for header in ("", "bytes=0-", "bytes=3-", "bytes=5-", "bytes=-2")] == [
        0,
        0,
        3,
        5,
        3,
    ]
    with pytest.raises(BadRange):
        requested_start("bytes=6-", 5)


# -- refusals


@on_loop
async def test_logs_that_are_not_there_and_logs_of_others_look_the_same(site: Opened) -> None:
    """Nobody learns by asking what another tenant has."""
    async with site() as here:
        ada, eve, player = await here.key(), await here.key("eve", tenant="other"), await here.player()
        id = await ada.start(task("build"))
        await player.log(await player.take(), TEXT)

        for path in ("/jobs/build/log", "/jobs/build/attempts/1/log", "/jobs/no/log", "/jobs/build/attempts/2/log"):
            theirs, never = await eve.get(f"/runs/{id}{path}"), await eve.get(f"/runs/never{path}")
            assert theirs.status == never.status == 404
            assert theirs.body["message"].replace(id, "never") == never.body["message"]
        for path in ("/jobs/no/log", "/jobs/build/attempts/2/log", "/jobs/build.1/log", "/jobs/build/log?lease=2"):
            assert (await ada.get(f"/runs/{id}{path}")).code == "not_found", path
        assert (await ada.get("/runs/w1/jobs/build/log")).code == "not_found"
        assert (await ada.get(f"/runs/{id}/jobs/build/log?follow=-1")).code == "bad_message"


@on_loop
async def test_bytes_that_do_not_exist_are_refused_with_how_many_do(site: Opened) -> None:
    """So that whoever asks can ask again for some that do."""
    async with site() as here:
        ada, player = await here.key(), await here.player()
        id = await ada.start(task("build"))
        await player.log(await player.take(), TEXT)

        for query in ("", "?follow=5"):
            reply = await ada.get(f"/runs/{id}/jobs/build/log{query}", range=f"bytes={len(TEXT) + 1}-")
            assert (reply.status, reply.code) == (416, "bad_range")
            assert reply.headers["content-range"] == f"bytes */{len(TEXT)}"


# -- what there is


@on_loop
async def test_a_log_is_read_whole_and_in_parts(site: Opened) -> None:
    """Of a job and of its attempt, as text that no browser takes for anything else."""
    async with site() as here:
        ada, player = await here.key(), await here.player()
        id = await ada.start(task("build"))
        await player.log(await player.take(), TEXT)

        for path in (f"/runs/{id}/jobs/build/log", f"/runs/{id}/jobs/build/attempts/1/log?lease=1"):
            whole = await ada.get(path)
            assert (whole.status, whole.body) == (200, TEXT)
            assert whole.headers["content-type"] == "text/plain; charset=utf-8"
            assert whole.headers["x-content-type-options"] == "nosniff"
            assert (whole.headers["accept-ranges"], whole.headers["delta-lease-number"]) == ("bytes", "1")
            part = await ada.get(path, range="bytes=4-6")
            assert (part.status, part.body) == (206, b"two")
            assert part.headers["content-range"] == f"bytes 4-6/{len(TEXT)}"
            assert (await ada.get(path, range="bytes=-6")).body == TEXT[-6:]
            assert (await ada.get(path, range="bytes=0-1,3-4")).body == TEXT
            assert (await ada.get(path, range="bytes=4-6", if_range='"x"')).body == TEXT


@on_loop
async def test_an_attempt_that_nobody_took_has_an_empty_log(site: Opened) -> None:
    """As has a job without any attempt."""
    async with site() as here:
        ada = await here.key()
        id = await ada.start(task("build"), gate("ask"), task("later"))

        for path in ("build/log", "build/attempts/1/log", "ask/log", "later/log"):
            reply = await ada.get(f"/runs/{id}/jobs/{path}")
            assert (reply.status, reply.body, reply.headers["delta-lease-number"]) == (200, b"", "0")


@on_loop
async def test_the_log_of_a_lease_that_was_lost_is_still_there(site: Opened) -> None:
    """Each lease has its own; the last one is shown unless another is asked for."""
    async with site() as here:
        ada, player = await here.key(), await here.player()
        id = await ada.start(task("build"))
        first = await player.take()
        await player.log(first, b"first")
        await player.hand_back(first)
        await player.log(await player.take(), b"second")
        path = f"/runs/{id}/jobs/build/log"

        assert (await ada.get(path)).body == b"second"
        assert (await ada.get(f"{path}?lease=1")).body == b"first"
        async with asked(here.url, f"{path}?lease=1&follow=60", ada.token) as old:
            assert await old.rest() == b"first"  # That lease is over: nothing will be added.


@on_loop
async def test_an_index_says_where_lines_and_steps_are(site: Opened) -> None:
    """As far as the log is now; of another lease if that is asked for; whether more may come."""
    async with site() as here:
        ada, player = await here.key(), await here.player()
        id = await ada.start(task("build"))
        path = f"/runs/{id}/jobs/build/attempts/1/log/index"
        nobody = (await ada.get(path)).body
        lease = await player.take()
        writer = SectionWriter(new_nonce())
        log = writer.header() + writer.begin(0, "make") + b"one\n" * 20_000
        await player.log(lease, log)
        first = (await ada.get(f"{path}?lease=1")).body
        end = writer.output(b"open") + writer.end(0, 2, 1.5)
        await player.log(lease, end, len(log))
        await player.finish(lease)
        last = (await ada.get(f"{path}?block=1")).body

        assert (nobody["lease"], nobody["lines"], nobody["is_open"]) == (0, 0, True)
        assert (first["size"], first["lines"], first["is_open"], first["has_header"]) == (len(log), 20_002, True, True)
        assert first["blocks"] == [0, log[:65_536].count(b"\n")]
        section = {"index": 0, "name": "make", "first_line": 2, "last_line": None, "is_over": False}
        assert first["sections"] == [{**section, "exit_code": None, "seconds": None}]
        assert (last["first_block"], last["blocks"], last["is_open"]) == (1, first["blocks"][1:], False)
        ended = {"last_line": 20_004, "is_over": True, "exit_code": 2, "seconds": 1.5}
        assert last["sections"] == [{**section, **ended}]
        assert (await ada.get(f"{path}?lease=2")).code == "not_found"
        assert (await ada.get(f"{path}?block=-1")).code == "bad_message"


@on_loop
async def test_a_log_can_be_taken_as_a_file(site: Opened) -> None:
    """Under a name that says whose it is; otherwise it is only shown. It is never a page of ours."""
    async with site() as here:
        ada, player = await here.key(), await here.player()
        id = await ada.start(task("build (linux)"))
        await player.log(await player.take(), TEXT)
        path = f"/runs/{id}/jobs/build%20(linux)/attempts/1/log"

        saved, shown = await ada.get(f"{path}?download=true"), await ada.get(path)

        assert saved.body == shown.body == TEXT
        assert saved.headers["content-disposition"].startswith('attachment; filename="build__linux_-1.log"')
        assert "content-disposition" not in shown.headers
        assert shown.headers["content-security-policy"] == "sandbox"


# -- what is added


@on_loop
async def test_a_log_is_followed_until_its_lease_is_over(site: Opened) -> None:
    """Part by part as the runner sends it, then the answer ends by itself."""
    async with site() as here:
        ada, player = await here.key(), await here.player()
        id = await ada.start(task("build"))
        lease = await player.take()
        await player.log(lease, b"a" * 5)
        async with asked(here.url, f"/runs/{id}/jobs/build/log?follow=60", ada.token, range="bytes=2-") as answer:
            assert (answer.status, answer.headers["transfer-encoding"]) == (200, "chunked")
            assert (answer.headers["delta-offset"], answer.headers["delta-lease-number"]) == ("2", "1")
            assert await answer.take(3) == b"aaa"
            for n in range(20):
                await player.log(lease, b"%05d" % n, 5 + 5 * n)
                assert await answer.take(5) == b"%05d" % n
            await player.log(lease, b"the end", 105)
            await player.finish(lease)

            assert await answer.rest() == b"the end"


@on_loop
async def test_what_another_server_appends_is_followed_too(site: Opened) -> None:
    """It tells nobody here, but the folder is the same."""
    async with site() as here:
        ada, player = await here.key(), await here.player()
        id = await ada.start(task("build"))
        lease = await player.take()
        other = LogStore(here.folder / "logs")
        async with asked(here.url, f"/runs/{id}/jobs/build/log?follow=60", ada.token) as answer:
            await asyncio.to_thread(other.append, f"{id}/build.1", 1, 0, b"from afar")
            assert await answer.take(9) == b"from afar"
            await player.finish(lease)

            assert await answer.rest() == b""


@on_loop
async def test_who_follows_before_there_is_a_lease_waits_for_the_first(site: Opened) -> None:
    """Also of a job whose first attempt is not there yet."""
    async with site() as here:
        ada, player = await here.key(), await here.player()
        id = await ada.start(task("build"), task("later"))

        async def follow(path: str) -> tuple[str, bytes]:
            async with asked(here.url, f"/runs/{id}/jobs/{path}?follow=60", ada.token) as answer:
                return answer.headers["delta-lease-number"], await answer.rest()

        paths = ("build/log", "build/attempts/1/log", "later/log")
        following = [asyncio.create_task(follow(path)) for path in paths]
        async with asyncio.timeout(30):
            while here.service.control_plane.streams.count < len(paths):
                await ada.get("/me")
        for name in (b"build", b"later"):
            lease = await player.take()
            await player.log(lease, name)
            await player.finish(lease)

        assert await asyncio.gather(*following) == [("1", b"build"), ("1", b"build"), ("1", b"later")]


@on_loop
async def test_who_follows_what_never_begins_is_told_when_that_is_sure(site: Opened) -> None:
    """A job that was cancelled before anybody took it has an empty log for ever."""
    async with site() as here:
        ada = await here.key()
        id = await ada.start(task("build"), gate("ask"))

        async def follow(name: str) -> Any:
            async with asked(here.url, f"/runs/{id}/jobs/{name}/log?follow=60", ada.token) as answer:
                return answer.headers["delta-lease-number"], await answer.rest()

        following = [asyncio.create_task(follow(name)) for name in ("build", "ask")]
        async with asyncio.timeout(30):
            while here.service.control_plane.streams.count < 2:
                await ada.get("/me")
        await ada.post(f"/runs/{id}/cancel")

        assert await asyncio.gather(*following) == [("0", b"")] * 2


@on_loop
async def test_following_ends_when_the_time_is_over_and_when_the_server_stops(site: Opened) -> None:
    """In order; whoever wants more asks for what comes next."""
    async with site() as here:
        ada, player = await here.key(), await here.player()
        id = await ada.start(task("build"))
        await player.log(await player.take(), b"so far")
        path = f"/runs/{id}/jobs/build/log"

        async with asked(here.url, f"{path}?follow=1", ada.token) as answer:
            assert await answer.rest() == b"so far"
        async with asked(here.url, f"{path}?follow=60", ada.token, range="bytes=6-") as answer:
            here.service.stop_waiting()
            assert await answer.rest() == b""


@on_loop
async def test_who_hangs_up_is_no_longer_followed_for(place: Place, tmp_path: Path) -> None:
    """Neither the hub nor the logs keep anything of it."""
    async with opened(place, tmp_path / "data") as here:
        ada, player = await here.key(), await here.player()
        id = await ada.start(task("build"))
        lease = await player.take()
        async with asked(here.url, f"/runs/{id}/jobs/build/log?follow=60", ada.token):
            assert here.service.control_plane.streams.count == 1

        async with asyncio.timeout(30):
            while here.service.control_plane.streams.count:
                await ada.get("/me")
        await player.log(lease, b"nobody hears it")
        assert (await ada.get(f"/runs/{id}/jobs/build/log")).body == b"nobody hears it"
