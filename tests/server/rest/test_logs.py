"""Logs over the API: ranges, and logs that are still being written."""

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
from tests.contract.backends import Backend, on_loop
from tests.server.rest.following import open_response
from tests.server.rest.site import ApiSite, gate, opened, task

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]

TEXT = b"one\ntwo\nthr\xc3\xa9\xc3\xa9\n"
SIZES = st.integers(0, 40)
NUMBERS = st.integers(0, 50)


@pytest.fixture
def backend(tmp_path: Path) -> Backend:
    """Return the SQLite store: logs do not depend on the store."""
    from deltaci.storage.port import wall_clock
    from deltaci.storage.sqlite import SqliteStore

    return Backend(
        "sqlite", lambda backend: SqliteStore(str(tmp_path / "api.db"), clock=backend.now), origin=wall_clock
    )


# -- ranges


@given(size=SIZES, first=NUMBERS, last=st.none() | NUMBERS)
def test_a_range_is_a_slice(size: int, first: int, last: int | None) -> None:
    """Like a Python slice of bytes, unless it is empty."""
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
def test_a_suffix_range_is_the_end_of_the_file(size: int, length: int) -> None:
    """It has the last bytes, or the whole file if that is shorter."""
    data = bytes(range(size))
    if not length:
        with pytest.raises(BadRange):
            requested_range("bytes=-0", size)
        return
    span = requested_range(f"bytes=-{length}", size)
    assert data[span.start : span.stop] == data[-length:]
    assert span.status == (206 if size else 200)


@given(size=SIZES, header=st.text(max_size=30) | st.from_regex(r"bytes=[-0-9, ]{0,12}", fullmatch=True))
def test_any_range_header_gives_bytes_or_a_refusal(size: int, header: str) -> None:
    """No header causes an internal error."""
    try:
        span = requested_range(header, size)
    except BadRange:
        return
    assert 0 <= span.start <= span.stop <= size
    assert span.is_part or (span.start, span.stop) == (0, size)


@pytest.mark.parametrize("header", ["", "bytes", "bytes=", "bytes=-", "lines=0-1", "bytes=0-1,3-4", "bytes=a-b", "0-1"])
def test_a_header_without_a_single_range_gives_the_whole_file(header: str) -> None:
    """As RFC 9110 allows."""
    assert requested_range(header, 10) == requested_range("", 10)


def test_numbers_of_any_length_are_parsed() -> None:
    """Python's int() refuses to parse very long numbers."""
    assert requested_range("bytes=0-" + "9" * 5000, 10).stop == 10
    assert requested_range("bytes=-" + "9" * 5000, 10).start == 0
    assert requested_range("bytes=" + "0" * 5000 + "3-", 10).start == 3
    with pytest.raises(BadRange):
        requested_range("bytes=" + "9" * 5000 + "-", 10)


def test_a_follower_may_start_at_the_end() -> None:
    """That byte does not exist yet but may be appended."""
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
async def test_missing_logs_and_those_of_other_tenants_get_the_same_response(site: Opened) -> None:
    """No response reveals what another tenant has."""
    async with site() as here:
        ada, eve, runner = await here.key(), await here.key("eve", tenant="other"), await here.register_runner()
        id = await ada.start(task("build"))
        await runner.log(await runner.take(), TEXT)

        for path in ("/jobs/build/log", "/jobs/build/attempts/1/log", "/jobs/no/log", "/jobs/build/attempts/2/log"):
            theirs, never = await eve.get(f"/runs/{id}{path}"), await eve.get(f"/runs/never{path}")
            assert theirs.status == never.status == 404
            assert theirs.body["message"].replace(id, "never") == never.body["message"]
        for path in ("/jobs/no/log", "/jobs/build/attempts/2/log", "/jobs/build.1/log", "/jobs/build/log?lease=2"):
            assert (await ada.get(f"/runs/{id}{path}")).code == "not_found", path
        assert (await ada.get("/runs/w1/jobs/build/log")).code == "not_found"
        assert (await ada.get(f"/runs/{id}/jobs/build/log?follow=-1")).code == "bad_message"


@on_loop
async def test_a_range_outside_the_log_is_refused_with_its_size(site: Opened) -> None:
    """So that the client can request an existing range."""
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("build"))
        await runner.log(await runner.take(), TEXT)

        for query in ("", "?follow=5"):
            reply = await ada.get(f"/runs/{id}/jobs/build/log{query}", range=f"bytes={len(TEXT) + 1}-")
            assert (reply.status, reply.code) == (416, "bad_range")
            assert reply.headers["content-range"] == f"bytes */{len(TEXT)}"


# -- what there is


@on_loop
async def test_a_log_is_read_whole_and_in_ranges(site: Opened) -> None:
    """By job and by attempt, as text that no browser interprets as anything else."""
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("build"))
        await runner.log(await runner.take(), TEXT)

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
async def test_an_unclaimed_attempt_has_an_empty_log(site: Opened) -> None:
    """So has a job without attempts."""
    async with site() as here:
        ada = await here.key()
        id = await ada.start(task("build"), gate("ask"), task("later"))

        for path in ("build/log", "build/attempts/1/log", "ask/log", "later/log"):
            reply = await ada.get(f"/runs/{id}/jobs/{path}")
            assert (reply.status, reply.body, reply.headers["delta-lease-number"]) == (200, b"", "0")


@on_loop
async def test_the_log_of_a_lost_lease_is_kept(site: Opened) -> None:
    """Each lease has its own log; the default is the last one."""
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("build"))
        first = await runner.take()
        await runner.log(first, b"first")
        await runner.hand_back(first)
        await runner.log(await runner.take(), b"second")
        path = f"/runs/{id}/jobs/build/log"

        assert (await ada.get(path)).body == b"second"
        assert (await ada.get(f"{path}?lease=1")).body == b"first"
        async with open_response(here.url, f"{path}?lease=1&follow=60", ada.token) as old:
            assert await old.read_all() == b"first"  # That lease is over: nothing will be added.


@on_loop
async def test_an_index_has_the_positions_of_lines_and_steps(site: Opened) -> None:
    """Of the present log or of another lease, and whether it may still grow."""
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("build"))
        path = f"/runs/{id}/jobs/build/attempts/1/log/index"
        nobody = (await ada.get(path)).body
        lease = await runner.take()
        writer = SectionWriter(new_nonce())
        log = writer.header() + writer.begin(0, "make") + b"one\n" * 20_000
        await runner.log(lease, log)
        first = (await ada.get(f"{path}?lease=1")).body
        end = writer.output(b"open") + writer.end(0, 2, 1.5)
        await runner.log(lease, end, len(log))
        await runner.finish(lease)
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
async def test_a_log_can_be_downloaded(site: Opened) -> None:
    """With a file name that identifies the job; a browser never interprets it as a page of this server."""
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("build (linux)"))
        await runner.log(await runner.take(), TEXT)
        path = f"/runs/{id}/jobs/build%20(linux)/attempts/1/log"

        saved, shown = await ada.get(f"{path}?download=true"), await ada.get(path)

        assert saved.body == shown.body == TEXT
        assert saved.headers["content-disposition"].startswith('attachment; filename="build__linux_-1.log"')
        assert "content-disposition" not in shown.headers
        assert shown.headers["content-security-policy"] == "sandbox"


# -- what is added


@on_loop
async def test_a_log_is_followed_until_its_lease_ends(site: Opened) -> None:
    """Chunks arrive as the runner sends them, then the response ends."""
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("build"))
        lease = await runner.take()
        await runner.log(lease, b"a" * 5)
        async with open_response(
            here.url, f"/runs/{id}/jobs/build/log?follow=60", ada.token, range="bytes=2-"
        ) as answer:
            assert (answer.status, answer.headers["transfer-encoding"]) == (200, "chunked")
            assert (answer.headers["delta-offset"], answer.headers["delta-lease-number"]) == ("2", "1")
            assert await answer.read_bytes(3) == b"aaa"
            for n in range(20):
                await runner.log(lease, b"%05d" % n, 5 + 5 * n)
                assert await answer.read_bytes(5) == b"%05d" % n
            await runner.log(lease, b"the end", 105)
            await runner.finish(lease)

            assert await answer.read_all() == b"the end"


@on_loop
async def test_a_log_is_followed_while_another_server_appends(site: Opened) -> None:
    """The other server sends no notification; the log is polled."""
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("build"))
        lease = await runner.take()
        other = LogStore(here.folder / "logs")
        async with open_response(here.url, f"/runs/{id}/jobs/build/log?follow=60", ada.token) as answer:
            await asyncio.to_thread(other.append, f"{id}/build.1", 1, 0, b"from afar")
            assert await answer.read_bytes(9) == b"from afar"
            await runner.finish(lease)

            assert await answer.read_all() == b""


@on_loop
async def test_following_before_the_first_lease_waits_for_it(site: Opened) -> None:
    """Also for a job whose first attempt does not exist yet."""
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("build"), task("later"))

        async def follow(path: str) -> tuple[str, bytes]:
            async with open_response(here.url, f"/runs/{id}/jobs/{path}?follow=60", ada.token) as answer:
                return answer.headers["delta-lease-number"], await answer.read_all()

        paths = ("build/log", "build/attempts/1/log", "later/log")
        following = [asyncio.create_task(follow(path)) for path in paths]
        async with asyncio.timeout(30):
            while here.service.control_plane.event_streams.subscription_count < len(paths):
                await ada.get("/me")
        for name in (b"build", b"later"):
            lease = await runner.take()
            await runner.log(lease, name)
            await runner.finish(lease)

        assert await asyncio.gather(*following) == [("1", b"build"), ("1", b"build"), ("1", b"later")]


@on_loop
async def test_following_ends_when_the_job_can_no_longer_start(site: Opened) -> None:
    """A job that was cancelled before it was claimed keeps an empty log."""
    async with site() as here:
        ada = await here.key()
        id = await ada.start(task("build"), gate("ask"))

        async def follow(name: str) -> Any:
            async with open_response(here.url, f"/runs/{id}/jobs/{name}/log?follow=60", ada.token) as answer:
                return answer.headers["delta-lease-number"], await answer.read_all()

        following = [asyncio.create_task(follow(name)) for name in ("build", "ask")]
        async with asyncio.timeout(30):
            while here.service.control_plane.event_streams.subscription_count < 2:
                await ada.get("/me")
        await ada.post(f"/runs/{id}/cancel")

        assert await asyncio.gather(*following) == [("0", b"")] * 2


@on_loop
async def test_following_ends_after_the_given_time_and_when_the_server_stops(site: Opened) -> None:
    """The response ends normally; a client can continue at the next byte."""
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("build"))
        await runner.log(await runner.take(), b"so far")
        path = f"/runs/{id}/jobs/build/log"

        async with open_response(here.url, f"{path}?follow=1", ada.token) as answer:
            assert await answer.read_all() == b"so far"
        async with open_response(here.url, f"{path}?follow=60", ada.token, range="bytes=6-") as answer:
            here.service.stop_waiting()
            assert await answer.read_all() == b""


@on_loop
async def test_a_disconnected_follower_is_removed(backend: Backend, tmp_path: Path) -> None:
    """Neither the event streams nor the log store keep a reference to it."""
    async with opened(backend, tmp_path / "data") as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("build"))
        lease = await runner.take()
        async with open_response(here.url, f"/runs/{id}/jobs/build/log?follow=60", ada.token):
            assert here.service.control_plane.event_streams.subscription_count == 1

        async with asyncio.timeout(30):
            while here.service.control_plane.event_streams.subscription_count:
                await ada.get("/me")
        await runner.log(lease, b"nobody hears it")
        assert (await ada.get(f"/runs/{id}/jobs/build/log")).body == b"nobody hears it"
