"""Log uploads: no gaps, no duplicates, and only the holder of the lease writes."""

from __future__ import annotations

import pytest

from deltaci.core import ids
from deltaci.storage.blobs import disk_reserve
from tests.contract.backends import on_loop
from tests.server.site import OpenSite, RunnerLease, Site, stale_reason


async def held_lease(site: Site, id: str = "q1") -> RunnerLease:
    """A runner with a lease."""
    runner = await site.runner()
    await site.server.enqueue(id)
    return await runner.take()


def kept(lease: RunnerLease) -> bytes:
    """The log as it is kept."""
    ref = ids.lease_ref(lease.id)
    return lease.runner.site.logs.read(ref.attempt_id, ref.number)


# -- refusals


@on_loop
async def test_a_gap_is_refused_with_the_offset_to_continue_from(site: OpenSite) -> None:
    """A log with a gap misleads its readers."""
    async with site() as here:
        lease = await held_lease(here)
        await lease.log(0, b"hello")

        reply = await here.refused(lambda: lease.log(7, b"world"))

        assert (reply.status, reply.code) == (409, "log_gap")
        assert "ends at byte 5, not at 7" in reply.message
        assert kept(lease) == b"hello"
        assert (await lease.log(await lease.log_size(), b" world")).body == {"size": 11}


@on_loop
async def test_a_log_has_an_end(site: OpenSite) -> None:
    """A job that prints for ever must not fill the disk. This site takes 1000 bytes."""
    async with site() as here:
        lease = await held_lease(here)
        await lease.log(0, b"x" * 990)

        reply = await here.refused(lambda: lease.log(990, b"y" * 11))

        assert (reply.status, reply.code) == (409, "log_full")
        assert (await lease.log(990, b"y" * 10)).body == {"size": 1000}


@pytest.mark.parametrize("offset", ["", "x", "-1", "1.5", "9" * 16, "٣"])
@on_loop
async def test_an_offset_that_is_no_number_is_refused(site: OpenSite, offset: str) -> None:
    """Guessing zero would double the log."""
    async with site() as here:
        lease = await held_lease(here)

        reply = await here.refused(
            lambda: lease.runner.request("POST", "log", b"x", delta_lease=lease.id, delta_offset=offset)
        )

        assert (reply.status, reply.code) == (400, "bad_request")
        assert "Delta-Offset" in reply.message
        assert kept(lease) == b""


@on_loop
async def test_a_part_that_is_too_large_is_refused(site: OpenSite) -> None:
    """Long logs come in parts."""
    async with site() as here:
        lease = await held_lease(here)
        parts = [b"x" * 1024 * 1024] * 10

        reply = await here.refused(
            lambda: lease.runner.request("POST", "log", *parts, delta_lease=lease.id, delta_offset="0")
        )

        assert (reply.status, reply.code) == (413, "too_large")
        assert reply.parts_read <= 5
        assert kept(lease) == b""


@on_loop
async def test_only_the_holder_of_the_lease_writes(site: OpenSite) -> None:
    """Another runner with the same lease id, another lease of the same runner, and no lease at all."""
    async with site() as here:
        lease = await held_lease(here)
        other, foreign = await here.runner("w2"), await here.runner("w3", tenant="other")
        guessed = RunnerLease(lease.runner, lease.granted)
        guessed.id = lease.id[:-4] + "0000"

        for by in (other, foreign):
            stolen = await here.refused(lambda by=by: lease.log(0, b"x", by))  # type: ignore[misc]
            assert stale_reason(stolen, lease.id) == "UNKNOWN_LEASE"
        assert stale_reason(await here.refused(lambda: guessed.log(0, b"x")), guessed.id) == "UNKNOWN_LEASE"
        for headers in ({}, {"delta_lease": ""}, {"delta_lease": "x" * 3000}):
            reply = await here.refused(
                lambda told=headers: lease.runner.request("POST", "log", b"x", delta_offset="0", **told)  # type: ignore[misc]
            )
            assert (reply.status, reply.code) == (400, "bad_request")
        assert kept(lease) == b""


@pytest.mark.parametrize("is_found", [False, True])
@on_loop
async def test_nothing_is_written_after_the_lease_expired(site: OpenSite, is_found: bool) -> None:
    """Also before the expiry is recorded."""
    async with site() as here:
        lease = await held_lease(here)
        await lease.send("Heartbeat")
        await lease.log(0, b"before")
        here.backend.after(120)
        if is_found:
            await here.server.tick()

        written = await here.refused(lambda: lease.log(6, b"after"))
        asked = await here.refused(lambda: lease.runner.request("GET", "log", delta_lease=lease.id))

        assert [stale_reason(reply, lease.id) for reply in (written, asked)] == ["LEASE_EXPIRED"] * 2
        assert kept(lease) == b"before"


@on_loop
async def test_nothing_is_written_after_the_end(site: OpenSite) -> None:
    """The log that was there when the result was accepted is the log."""
    async with site() as here:
        lease = await held_lease(here)
        await lease.log(0, b"all of it")
        await lease.send("Complete")

        reply = await here.refused(lambda: lease.log(9, b", and more"))

        assert stale_reason(reply, lease.id) == "LEASE_COMPLETED"
        assert kept(lease) == b"all of it"


# -- what is kept


@on_loop
async def test_parts_are_appended_and_repeats_are_skipped(site: OpenSite) -> None:
    """A lost answer is no reason to lose or to double a line."""
    async with site() as here:
        lease = await held_lease(here, "r ü/1")
        sizes = [await lease.log_size()]

        for offset, data in ((0, b"one "), (0, b"one "), (4, b"two "), (0, b"one two three"), (13, b""), (2, b"e")):
            sizes.append((await lease.log(offset, data)).body["size"])

        assert sizes == [0, 4, 4, 8, 13, 13, 13]
        assert kept(lease) == b"one two three"
        assert await lease.log_size() == 13


@on_loop
async def test_every_lease_has_its_own_log(site: OpenSite) -> None:
    """A runner that lost its lease can damage only its own log; the next lease begins at 0."""
    async with site() as here:
        lease = await held_lease(here)
        await lease.send("Heartbeat")
        await lease.log(0, b"first")
        here.backend.after(120)
        await here.server.tick()
        second = await (await here.runner("w2")).take()

        await second.log(0, b"second")

        assert second.attempt_id == lease.attempt_id
        assert (kept(lease), kept(second)) == (b"first", b"second")


@on_loop
async def test_a_log_is_refused_while_the_disk_is_full(site: OpenSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner keeps it and repeats; its heartbeats and its result are accepted meanwhile."""
    async with site() as here:
        lease = await held_lease(here)
        with monkeypatch.context() as patch:
            patch.setattr(disk_reserve, "MAX_RESERVE_BYTES", 2**62)
            patch.setattr(disk_reserve, "RESERVE_DIVISOR", 1)

            reply = await here.refused(lambda: lease.log(0, b"hello"))

        assert (reply.status, reply.code) == (503, "unavailable")
        assert "the disk is full" in reply.message
        assert (await lease.log(0, b"hello")).body == {"size": 5}
