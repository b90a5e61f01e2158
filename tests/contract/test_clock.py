"""A clock that jumps neither shortens nor revives a lease, and stops neither timers nor claims."""

from __future__ import annotations

import math

import pytest

from deltaci.core import attempt
from deltaci.core.attempt import Attempt
from deltaci.core.instants import SECOND
from deltaci.engine import engine
from deltaci.engine.clock import MonotonicClock
from tests.contract.backends import Backend, in_memory, on_loop, runner_message
from tests.support.lab import START

HOUR = 3600


class Elapsed:
    """This machine's monotonic clock, moved by hand."""

    def __init__(self) -> None:
        self.nanoseconds = 7

    def __call__(self) -> int:
        return self.nanoseconds

    def after(self, seconds: float) -> None:
        self.nanoseconds += round(seconds * 1_000_000_000)


@pytest.fixture
def elapsed(monkeypatch: pytest.MonkeyPatch) -> Elapsed:
    """Every engine that is made from now on measures with this."""
    found = Elapsed()
    monkeypatch.setattr(engine, "MonotonicClock", lambda: MonotonicClock(found, math.inf))
    return found


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Elapsed:
    """Use the default limit of a jump, as outside of the tests."""
    found = Elapsed()
    monkeypatch.setattr(engine, "MonotonicClock", lambda: MonotonicClock(found))
    return found


def test_a_clock_that_goes_forward_is_followed() -> None:
    """While the store's clock behaves, it alone decides."""
    elapsed = Elapsed()
    clock = MonotonicClock(elapsed)

    assert clock.read(START) == START
    elapsed.after(50)
    assert clock.read(START + SECOND) == START + SECOND
    assert clock.read(START + 54 * SECOND) == START + 54 * SECOND
    assert clock.lead == 0


def test_after_a_jump_ahead_time_passes_at_the_real_pace() -> None:
    """A jump of an hour ends no lease; when the clock is right again, it is followed again."""
    elapsed = Elapsed()
    clock = MonotonicClock(elapsed)
    clock.read(START)

    elapsed.after(2)
    assert clock.read(START + HOUR * SECOND) == START + 2 * SECOND
    assert clock.lead == (2 - HOUR) * SECOND
    elapsed.after(2)
    assert clock.read(START + HOUR * SECOND) == START + 4 * SECOND
    elapsed.after(2)
    assert clock.read(START + 6 * SECOND + 1) == START + 6 * SECOND + 1


def test_a_late_response_does_not_make_the_next_one_a_jump() -> None:
    """A store that was busy for a minute returns an old time; the next one is right."""
    elapsed = Elapsed()
    clock = MonotonicClock(elapsed)
    clock.read(START)

    elapsed.after(60)
    assert clock.read(START + SECOND) == START + SECOND
    assert clock.read(START + 60 * SECOND) == START + 60 * SECOND


def test_the_time_of_a_record_is_believed() -> None:
    """Another server wrote at a later time: with an earlier time, leases would last too long."""
    elapsed = Elapsed()
    clock = MonotonicClock(elapsed)
    clock.read(START)
    clock.advance_to(START + HOUR * SECOND)

    elapsed.after(3)

    assert clock.read(START + (HOUR + 4) * SECOND) == START + (HOUR + 4) * SECOND
    assert clock.read(START + SECOND) == START + (HOUR + 4) * SECOND


def test_after_a_jump_back_time_passes_at_the_real_pace() -> None:
    """Time neither repeats itself nor stops until the clock has caught up."""
    elapsed = Elapsed()
    clock = MonotonicClock(elapsed)
    clock.read(START)

    readings = []
    for _ in range(3):
        elapsed.after(1.5)
        readings.append(clock.read(START - HOUR * SECOND))

    assert readings == [START + n * 3 * SECOND // 2 for n in (1, 2, 3)]
    assert clock.read(START + 5 * SECOND) == START + 5 * SECOND


def test_with_a_stuck_monotonic_clock_time_still_never_goes_back() -> None:
    """Even a broken monotonic clock must not reverse time."""
    readings = iter((1000, 900, 100))
    clock = MonotonicClock(lambda: next(readings))

    assert [clock.read(START), clock.read(START - 1)] == [START, START]


@pytest.mark.proves("MOD-4")
@in_memory
@on_loop
async def test_a_jump_back_does_not_shorten_a_lease(backend: Backend, elapsed: Elapsed) -> None:
    """A runner keeps its lease for the promised time."""
    async with backend.server() as server:
        await server.enqueue("a")
        lease = await server.take()
        before = await server.send(attempt.Start, lease)
        backend.after(-HOUR)

        renewed = await server.send(attempt.Extend, lease)
        elapsed.after(115)
        later = await server.send(attempt.Extend, lease)

        for earlier, after in ((before, renewed), (renewed, later)):
            assert earlier.lease is not None
            assert after.lease is not None
            assert after.lease.expires_at >= earlier.lease.expires_at
            assert after.updated_at >= earlier.updated_at
        await server.verified()


@pytest.mark.proves("MOD-4")
@in_memory
@on_loop
async def test_a_jump_back_does_not_revive_a_lease(backend: Backend, elapsed: Elapsed) -> None:
    """A runner that was ordered to stop must not be allowed to continue."""
    async with backend.server() as server:
        lease = await server.running()
        backend.after(121)
        assert (await server.refused(runner_message(attempt.Extend, lease))).code == "stale_lease"

        backend.after(-HOUR)

        assert (await server.refused(runner_message(attempt.Extend, lease))).code == "stale_lease"
        await server.verified()


@pytest.mark.proves("MOD-4")
@in_memory
@on_loop
async def test_timers_go_on_after_a_jump_back(backend: Backend, elapsed: Elapsed) -> None:
    """An hour that the clock repeats must not be an hour in which nothing expires."""
    async with backend.server() as server:
        await server.tick()  # The timers run, as they always do.
        await server.running()
        backend.after(-HOUR)

        elapsed.after(115)
        await server.tick()
        assert await server.state("a") == attempt.RUNNING
        elapsed.after(10)
        await server.tick()

        assert await server.state("a") == attempt.QUEUED
        assert (await server.find("a", Attempt)).lost_leases == 1
        await server.verified()


@in_memory
@on_loop
async def test_a_new_server_after_a_jump_back_keeps_the_log_in_order(backend: Backend, elapsed: Elapsed) -> None:
    """A restart forgets earlier times of its clock; the records have them."""
    async with backend.server() as server:
        lease = await server.running()
    backend.after(-HOUR)

    async with backend.server() as server:
        renewed = await server.send(attempt.Extend, lease)
        await server.send(attempt.Complete, lease, is_success=True, exit_code=0)

        assert renewed.lease is not None
        times = [event.at for event in await server.verified()]
        assert times == sorted(times)


@pytest.mark.proves("MOD-4")
@in_memory
@on_loop
async def test_a_jump_ahead_ends_no_lease(backend: Backend, strict: Elapsed) -> None:
    """Setting a clock right must not stop every job; the lease of a silent runner still ends."""
    async with backend.server() as server:
        await server.tick()
        lease = await server.running()
        backend.after(HOUR)

        await server.tick()
        strict.after(60)
        await server.send(attempt.Extend, lease)
        strict.after(119)
        await server.tick()
        assert await server.state("a") == attempt.RUNNING
        strict.after(2)
        await server.tick()

        assert await server.state("a") == attempt.QUEUED
        await server.verified()


@on_loop
async def test_work_is_claimed_after_a_jump_back(backend: Backend, elapsed: Elapsed) -> None:
    """A new job must not wait until the store's clock has caught up."""
    async with backend.server() as server:
        await server.tick()
        backend.after(-HOUR)
        elapsed.after(1)
        await server.enqueue("a")

        lease = await server.take()

        assert (await server.send(attempt.Start, lease)).state == attempt.RUNNING
        await server.verified()


@in_memory
@on_loop
async def test_timers_fire_after_a_jump_back_and_a_restart(backend: Backend, elapsed: Elapsed) -> None:
    """A new server learns the time from the records: the death of a runner is detected in time."""
    async with backend.server() as server:
        lease = await server.running()
    backend.after(-HOUR)

    async with backend.server() as server:
        await server.send(attempt.Extend, lease)
        elapsed.after(121)
        await server.tick()

        assert await server.state("a") == attempt.QUEUED
        await server.verified()
