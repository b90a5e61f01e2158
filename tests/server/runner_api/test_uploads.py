"""Artifacts and caches over HTTP: only under a live lease, only for paths of the attempt's own record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import sha256
from typing import Any, BinaryIO
from urllib.parse import unquote

import pytest

from deltaci.core import ids
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.storage.blobs import keys
from deltaci.storage.blobs.store import BlobStat, BlobStoreUnavailable
from tests.contract.backends import on_loop
from tests.server.site import BOUNDS, OpenSite, Reply, RunnerLease, Site, stale_reason
from tests.support.lab import TENANT


async def held_lease(site: Site, id: str = "q1", runner: str = "w1", **spec: Any) -> RunnerLease:
    """A runner with a lease for a job of this kind."""
    await site.server.enqueue(id, spec=spec)
    return await (await site.runner(runner)).take()


async def put(held: RunnerLease, name: str, *parts: bytes, **headers: str) -> Reply:
    """Send a body under the lease."""
    return await held.runner.request("PUT", name, *parts, delta_lease=held.id, **headers)


async def get(held: RunnerLease, name: str) -> Reply:
    """Read something under the lease."""
    return await held.runner.request("GET", name, delta_lease=held.id)


def left_by(held: RunnerLease) -> dict[str, bytes]:
    """The lease's artifacts, as others will read them."""
    ref, blobs = ids.lease_ref(held.id), held.runner.site.blobs
    return {
        artifact.path: b"".join(keys.read_artifact(blobs, TENANT, ref.attempt_id, ref.number, artifact.path))
        for artifact in keys.artifacts(blobs, TENANT, ref.attempt_id, ref.number)
    }


def everything(site: Site) -> dict[str, bytes]:
    """All blobs."""
    return {each.key: site.blobs.get(each.key) for each in site.blobs.list()}


def _pass(site: Site, seconds: float) -> None:
    site.backend.after(seconds)


def meanwhile(site: Site, monkeypatch: pytest.MonkeyPatch, way: str, event: Callable[[], None]) -> None:
    """Let something happen right when the bytes have been kept."""
    keep = getattr(site.blobs, way)

    def kept(key: str, source: BinaryIO) -> BlobStat | None:
        stored: BlobStat | None = keep(key, source)
        event()
        return stored

    monkeypatch.setattr(site.blobs, way, kept)


# -- refusals


BAD_PATHS = ["..", "../x", "a/../x", "./a", "a//b", "a/", "/etc/passwd", "a\nb", "a\0b", "x" * 201, "x/" * 301 + "x"]


@pytest.mark.parametrize("path", BAD_PATHS)
@on_loop
async def test_a_path_that_leads_elsewhere_is_refused(site: OpenSite, path: str) -> None:
    """It comes from a file name, and a file name comes from a job. The server has already undone its escapes."""
    async with site() as here:
        lease = await held_lease(here)

        reply = await here.refused(lambda: put(lease, f"artifacts/{path}", b"x"))

        assert (reply.status, reply.code) == (400, "bad_request")
        assert everything(here) == {}


@on_loop
async def test_too_much_is_refused_and_nothing_is_kept_of_it(site: OpenSite) -> None:
    """By file, by lease, by number; a repeat of what is there counts once."""
    async with site() as here:
        held = await held_lease(here)

        told = await here.refused(lambda: put(held, "artifacts/a", b"x" * 1001, content_length="1001"))
        untold = await here.refused(lambda: put(held, "artifacts/a", b"x" * 600, b"x" * 600, b"x" * 600))
        for name in ("a", "b", "a"):
            await put(held, f"artifacts/{name}", b"x" * 1000)
        lease = await here.refused(lambda: put(held, "artifacts/c", b"x" * 501))
        for name in ("c", "d", "e"):
            await put(held, f"artifacts/{name}", b"x")
        number = await here.refused(lambda: put(held, "artifacts/f", b""))

        assert [reply.code for reply in (told, untold, lease, number)] == ["too_large"] * 4
        assert untold.parts_read == 2
        assert "at most 5 files" in number.message
        assert sorted(left_by(held)) == ["a", "b", "c", "d", "e"]


@on_loop
async def test_a_body_that_is_not_what_was_said_is_refused(site: OpenSite) -> None:
    """Damage on the way must not become an artifact or a cache."""
    async with site() as here:
        lease = await held_lease(here)

        for name in ("artifacts/a", "caches/k"):
            reply = await here.refused(lambda name=name: put(lease, name, b"x", delta_sha256="0" * 64))  # type: ignore[misc]
            assert (reply.status, reply.code) == (400, "bad_request")

        assert everything(here) == {}
        assert (await put(lease, "artifacts/a", b"x", delta_sha256=sha256(b"x").hexdigest())).status == 200


@on_loop
async def test_only_the_holder_of_the_lease_uploads_or_downloads(site: OpenSite) -> None:
    """Not another runner with the same lease id, not another tenant, not a guessed id."""
    async with site() as here:
        lease = await held_lease(here)
        await put(lease, "caches/k", b"mine")
        before = everything(here)
        thieves = [
            RunnerLease(await here.runner("w2"), lease.granted),
            RunnerLease(await here.runner("w3", "other"), lease.granted),
        ]
        guess = RunnerLease(lease.runner, lease.granted)
        guess.id = lease.id[:-4] + "0000"

        for thief in (*thieves, guess):
            for ask in (
                lambda thief=thief: put(thief, "artifacts/a", b"x"),
                lambda thief=thief: put(thief, "caches/other", b"x"),
                lambda thief=thief: get(thief, "caches/k"),
                lambda thief=thief: get(thief, "secrets"),
            ):
                assert stale_reason(await here.refused(ask), thief.id) == "UNKNOWN_LEASE"

        assert everything(here) == before


@pytest.mark.parametrize("is_found", [False, True])
@on_loop
async def test_a_runner_without_a_live_lease_uploads_and_downloads_nothing(site: OpenSite, is_found: bool) -> None:
    """Also before the end of its lease is recorded."""
    async with site() as here:
        lease = await held_lease(here)
        await lease.send("Heartbeat")
        await put(lease, "caches/k", b"before")
        before = everything(here)
        here.backend.after(120)
        if is_found:
            await here.server.tick()

        asked = [
            await here.refused(lambda: put(lease, "artifacts/a", b"x")),
            await here.refused(lambda: put(lease, "caches/late", b"x")),
            await here.refused(lambda: get(lease, "caches/k")),
            await here.refused(lambda: get(lease, "secrets")),
        ]

        assert {stale_reason(reply, lease.id) for reply in asked} == {"LEASE_EXPIRED"}
        assert everything(here) == before


@pytest.mark.parametrize("name", ["artifacts/a", "caches/k", "log"])
@on_loop
async def test_a_lease_that_ends_while_the_body_comes_keeps_nothing(site: OpenSite, name: str) -> None:
    """A slow upload is no way around the fence."""
    async with site() as here:
        lease = await held_lease(here)
        await lease.send("Heartbeat")
        taken: list[dict[str, Any]] = [{"body": b"x", "more_body": True}, {"body": b"y"}]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if len(taken) == 1:
                here.backend.after(121)
            return {"type": "http.request", **taken.pop(0)}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        headers = {"authorization": f"Bearer {lease.runner.credential}", "delta-lease": lease.id, "delta-offset": "0"}
        told = [(key.encode(), value.encode()) for key, value in headers.items()]
        method = "POST" if name == "log" else "PUT"
        await here.app({"type": "http", "method": method, "path": f"/runner/v1/{name}", "headers": told}, receive, send)

        assert sent[0]["status"] == 409
        assert b"LEASE_EXPIRED" in sent[1]["body"]
        assert everything(here) == {}
        assert here.logs.size(lease.attempt_id, 1) == 0


@pytest.mark.parametrize(("name", "way"), [("artifacts/a", "put"), ("caches/k", "put_if_absent")])
@on_loop
async def test_what_was_written_for_a_lost_lease_is_removed(
    site: OpenSite, monkeypatch: pytest.MonkeyPatch, name: str, way: str
) -> None:
    """The store of blobs may be slower than the lease is long."""
    async with site() as here:
        lease = await held_lease(here)
        await lease.send("Heartbeat")
        meanwhile(here, monkeypatch, way, lambda: _pass(here, 121))

        reply = await here.refused(lambda: put(lease, name, b"x"))

        assert stale_reason(reply, lease.id) == "LEASE_EXPIRED"
        assert everything(here) == {}


@on_loop
async def test_artifacts_of_a_lost_lease_are_removed_by_the_next_attempt(site: OpenSite) -> None:
    """No record refers to the artifacts of a runner that died."""
    async with site() as here:
        lease = await held_lease(here)
        await lease.send("Heartbeat")
        await put(lease, "artifacts/old", b"x")
        here.backend.after(120)
        await here.server.tick()
        second = await (await here.runner("w2")).take()

        await put(second, "artifacts/new", b"y")

        assert (left_by(lease), left_by(second)) == ({}, {"new": b"y"})


@on_loop
async def test_what_a_lost_lease_left_is_removed_with_the_result(site: OpenSite) -> None:
    """Also when the successor brings nothing of its own; and not before there is a result."""
    async with site() as here:
        lease = await held_lease(here)
        await lease.send("Heartbeat")
        await put(lease, "artifacts/old", b"x")
        here.backend.after(120)
        await here.server.tick()
        second = await (await here.runner("w2")).take()
        await second.send("AckLease")
        before = left_by(lease)

        await second.send("Complete")

        assert (before, left_by(lease)) == ({"old": b"x"}, {})


@on_loop
async def test_a_store_that_is_away_is_no_mistake_of_the_runner(
    site: OpenSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says the same again later; so does it when the disk is full."""
    async with site() as here:
        lease = await held_lease(here)

        for trouble in (BlobStoreUnavailable("away"), OSError(28, "No space left on device")):

            def fail(*_: Any, trouble: Exception = trouble) -> Any:
                raise trouble

            with monkeypatch.context() as patch:
                patch.setattr(here.blobs, "put", fail)
                reply = await here.refused(lambda: put(lease, "artifacts/a", b"x"))
            assert (reply.status, reply.code) == (503, "unavailable")

        assert (await put(lease, "artifacts/a", b"x")).status == 200


@on_loop
async def test_a_body_that_breaks_off_leaves_nothing(site: OpenSite) -> None:
    """Half an artifact is worse than none."""
    async with site() as here:
        lease = await held_lease(here)
        taken: list[dict[str, Any]] = [{"type": "http.request", "body": b"x", "more_body": True}]
        taken.append({"type": "http.disconnect"})
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return taken.pop(0)

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        told = [(b"authorization", f"Bearer {lease.runner.credential}".encode()), (b"delta-lease", lease.id.encode())]
        await here.app(
            {"type": "http", "method": "PUT", "path": "/runner/v1/artifacts/a", "headers": told}, receive, send
        )

        assert sent[0]["status"] == 400
        assert everything(here) == {}


# -- artifacts


@pytest.mark.proves("PRO-C4")
@on_loop
async def test_artifacts_are_kept_under_their_lease_and_can_be_sent_again(site: OpenSite) -> None:
    """A lost answer is no reason to lose or to double a file; the completion refers to what the server said."""
    async with site() as here:
        lease = await held_lease(here, "r ü/1")
        parts = [b"ab", b"", b"cd"]

        first = await put(lease, "artifacts/out/report ä%.txt", *parts)
        again = await put(lease, "artifacts/out/report ä%.txt", *parts)
        empty = await put(lease, "artifacts/empty", b"")
        said = [{"type": "file", "uri": reply.body["uri"], "bytes": reply.body["bytes"]} for reply in (first, empty)]
        await lease.send("Complete", artifacts=said)

        assert first.body == again.body
        assert first.body["bytes"] == 4
        assert first.body["sha256"] == sha256(b"abcd").hexdigest()
        assert left_by(lease) == {"out/report ä%.txt": b"abcd", "empty": b""}
        record = await here.server.find("r ü/1", Attempt)
        assert record.report["artifacts"][0]["uri"] == first.body["uri"]
        assert first.body["uri"].startswith("artifact:")
        assert lease.id not in first.body["uri"]


# -- caches


@on_loop
async def test_a_cache_is_written_once_and_read_by_all_runs_of_its_scope(site: OpenSite) -> None:
    """The first upload of a key stays; later ones get that response."""
    async with site() as here:
        first = await held_lease(here, "q1")
        missing = await here.refused(lambda: get(first, "caches/deps:1"))

        stored = await put(first, "caches/deps:1", b"one")
        again = await put(first, "caches/deps:1", b"other", b"more")
        second = await held_lease(here, "q2", "w2")
        found = await get(second, "caches/deps:1")

        assert (missing.status, missing.code) == (404, "not_found")
        digest = sha256(b"one").hexdigest()
        assert stored.body == {"stored": True, "bytes": 3, "sha256": digest}
        assert again.body == {"stored": False, "bytes": 3, "sha256": digest}
        assert again.parts_read == 2  # All of it was taken: nobody is cut off while it sends.
        assert found.body == b"one"


@on_loop
async def test_of_many_who_write_one_cache_one_is_first(site: OpenSite) -> None:
    """Two jobs finish in the same moment."""
    async with site() as here:
        leases = [await held_lease(here, f"q{n}", f"w{n}") for n in range(4)]

        replies = await asyncio.gather(*(put(lease, "caches/k", b"%d" % n) for n, lease in enumerate(leases)))

        [winner] = [n for n, reply in enumerate(replies) if reply.body["stored"]]
        assert (await get(leases[0], "caches/k")).body == b"%d" % winner


TRICKS = [
    "k",
    "trusted/k",
    "../trusted/k",
    "..%2Ftrusted%2Fk",
    "/k",
    "//k",
    "k/",
    ".",
    "..",
    "of-/k",
    "of-fork/k",
    "../../other/trusted/k",
    "%2e%2e/trusted/k",
    "k\0",
    "_" + sha256(b"k").hexdigest(),
    "x" * 3000,
    "\N{FULLWIDTH SOLIDUS}k",
]


@pytest.mark.parametrize("key", TRICKS)
@on_loop
async def test_an_untrusted_run_never_writes_a_cache_of_trusted_runs(site: OpenSite, key: str) -> None:
    """A fork could otherwise run its code with the secrets of trusted runs."""
    async with site() as here:
        trusted = await held_lease(here, "q1")
        await put(trusted, "caches/theirs", b"trusted")
        before = everything(here)
        fork = await held_lease(here, "q2", "w2", cache_scope="fork")
        other_fork = await held_lease(here, "q3", "w3", cache_scope="fork/../trusted")

        for each in (fork, other_fork):
            for spelled in (key, unquote(key)):
                await put(each, f"caches/{spelled}", b"poison")

        added = set(everything(here)) - set(before)
        scopes = {"fork": "of-fork", "fork/../trusted": "of-fork%2F..%2Ftrusted"}
        assert {name.split("/")[2] for name in added} <= set(scopes.values())
        assert {name: content for name, content in everything(here).items() if name in before} == before
        for spelled in (key, unquote(key)):
            assert (await get(trusted, f"caches/{spelled}")).status == 404


@on_loop
async def test_an_untrusted_run_reads_its_own_scope_first_and_then_the_trusted_one(site: OpenSite) -> None:
    """Caches of trusted code are for all runs; those of another fork are not."""
    async with site() as here:
        trusted = await held_lease(here, "q1")
        await put(trusted, "caches/k", b"trusted")
        fork = await held_lease(here, "q2", "w2", cache_scope="fork-1")
        other = await held_lease(here, "q3", "w3", cache_scope="fork-2")

        before = await get(fork, "caches/k")
        await put(fork, "caches/k", b"fork")
        await put(fork, "caches/own", b"own")

        assert before.body == b"trusted"
        assert (await get(fork, "caches/k")).body == b"fork"
        assert (await get(trusted, "caches/k")).body == (await get(other, "caches/k")).body == b"trusted"
        assert [(await get(each, "caches/own")).status for each in (trusted, other, fork)] == [404, 404, 200]


@on_loop
async def test_the_scope_is_the_records_never_the_requests(site: OpenSite) -> None:
    """Nothing that a runner sends changes whose caches it writes."""
    async with site() as here:
        fork = await held_lease(here, cache_scope="fork")

        await fork.runner.request("PUT", "caches/k", b"x", delta_lease=fork.id, delta_scope="", cache_scope="")

        kept = [key for key in everything(here) if not key.startswith("recent/acme/of-fork/")]
        assert kept == [keys.cache_key(TENANT, "fork", "k")]


@on_loop
async def test_a_cache_names_nothing_of_another_tenant(site: OpenSite) -> None:
    """The same key is another cache there."""
    async with site() as here:
        lease = await held_lease(here)
        await put(lease, "caches/k", b"mine")
        await here.server.do(NewRecord(id="f1", record=Attempt(id="f1", tenant="other", spec={})))
        other = await (await here.runner("w9", tenant="other")).take()

        assert (await get(other, "caches/k")).status == 404
        await put(other, "caches/k", b"theirs")
        await put(other, "artifacts/a", b"theirs")

        assert (await get(lease, "caches/k")).body == b"mine"
        assert {name.split("/")[1] for name in everything(here)} == {TENANT, "other"}


@on_loop
async def test_a_large_cache_comes_in_parts(site: OpenSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is ever held in memory as a whole."""
    async with site() as here:
        monkeypatch.setattr(keys.read_all, "__defaults__", (300,))
        lease = await held_lease(here)
        content = bytes(range(250)) * 4
        assert len(content) == BOUNDS.cache_bytes

        await put(lease, "caches/k", content)

        assert (await get(lease, "caches/k")).body == content
