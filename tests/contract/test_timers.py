"""Deadlines by the store's clock: nothing happens before its time, and everything soon after it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from deltaci.core import attempt, job, lease, run
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Plan
from deltaci.core.failures import Facts
from deltaci.core.job import Job, JobSpec
from deltaci.core.run import Run
from deltaci.storage.port import Load, StoredRecord
from tests.contract.backends import Backend, Server, ask, new_attempt, on_loop, refused, runner_message
from tests.support.lab import TENANT, gate, task

MANY: Final = 1000


async def planned(server: Server, *specs: JobSpec, **fields: Any) -> None:
    """A run with these jobs that has begun."""
    await server.do(NewRecord(id="r1", record=Run(id="r1", run_id="r1", tenant=TENANT, **fields)))
    await server.do(run.BeginPlanning(id="r1"))
    await server.do(Plan(id="r1", jobs=specs))


async def due_at(server: Server, id: str) -> int | None:
    """Return when the timers will check this record."""
    [[stored]] = await ask(server.store, Load((id,)))
    assert isinstance(stored, StoredRecord)
    return stored.due_at


@on_loop
async def test_a_waiting_attempt_is_never_due(backend: Backend) -> None:
    """A job waits for a worker without a limit."""
    async with backend.server() as server:
        await server.enqueue("a")
        backend.after(365 * 86400)

        assert await server.tick() == 0
        assert await server.state("a") == attempt.QUEUED


@pytest.mark.proves("PRO-Q4", "MOD-L4")
@on_loop
async def test_an_unacknowledged_lease_is_revoked_after_the_accept_window(backend: Backend) -> None:
    """A claim whose response was lost must not keep its job until the end of the lease."""
    async with backend.server() as server:
        await server.enqueue("a")
        held = await server.take(accept_seconds=30)
        backend.after(15)
        await server.tick()
        assert await server.state("a") == attempt.LEASED

        backend.after(16)
        await server.tick()

        assert await server.state("a") == attempt.QUEUED
        late = await refused(server.do(runner_message(attempt.Ack, held)), "stale_lease")
        assert "REVOKED" in late.message
        assert (await server.take("w2")).ref.number == 2
        await server.verified()


@pytest.mark.proves("PRO-F1", "PRO-F2")
@on_loop
async def test_a_lease_that_is_not_renewed_expires_and_the_attempt_is_queued_again(backend: Backend) -> None:
    """A crash of a runner costs one lease, not the job."""
    async with backend.server() as server:
        held = await server.running()
        backend.after(105)
        await server.tick()
        assert await server.state("a") == attempt.RUNNING

        backend.after(16)
        await server.tick()

        again = await server.find("a", Attempt)
        assert (again.state, again.lost_leases, again.lease) == (attempt.QUEUED, 1, None)
        await refused(server.do(runner_message(attempt.Complete, held, is_success=True, exit_code=0)), "stale_lease")
        assert (await server.take("w2")).ref.number == 2
        await server.verified()


@on_loop
async def test_a_message_after_the_end_of_the_lease_is_stale_even_if_no_timer_ran(backend: Backend) -> None:
    """The lease ends by the clock, not by the loop that notices it."""
    async with backend.server() as server:
        held = await server.running()
        backend.after(121)

        refusal = await server.refused(runner_message(attempt.Extend, held))

        assert (refusal.code, await server.state("a")) == ("stale_lease", attempt.RUNNING)


@on_loop
async def test_a_job_that_loses_too_many_leases_fails(backend: Backend) -> None:
    """A job that kills its runners must not kill all of them."""
    async with backend.server() as server:
        await server.enqueue("a", max_lost_leases=2)
        for _ in range(3):
            await server.take(accept_seconds=600)
            backend.after(125)
            await server.tick()

        ended = await server.find("a", Attempt)
        assert ended.state == attempt.FAILED
        assert ended.error is not None
        assert (ended.error.code, ended.claims) == ("LEASE_LOST", 4)
        assert await server.claim() == []
        await server.verified()


@on_loop
async def test_a_heartbeat_does_not_move_the_timer_and_the_lease_still_ends_on_time(backend: Backend) -> None:
    """The most frequent write must not change an index; the timer fires too early once and corrects itself."""
    async with backend.server() as server:
        held = await server.running()
        first = await due_at(server, "a")
        for _ in range(3):
            backend.after(60)
            await server.send(attempt.Extend, held)
            await server.send(attempt.Extend, held)
        assert await due_at(server, "a") == first

        assert await server.tick() >= 1
        renewed = (await server.find("a", Attempt)).lease
        assert renewed is not None
        assert await due_at(server, "a") == renewed.expires_at
        assert await server.tick() == 0

        backend.after(105)
        await server.tick()
        assert await server.state("a") == attempt.RUNNING
        backend.after(16)
        await server.tick()
        assert await server.state("a") == attempt.QUEUED
        await server.verified()


@on_loop
async def test_an_earlier_deadline_is_written_at_once(backend: Backend) -> None:
    """A later deadline may be found later; an earlier one may not."""
    async with backend.server() as server:
        held = await server.running()
        await server.send(attempt.Extend, held)
        before = await due_at(server, "a")

        await server.do(attempt.Cancel(id="a", reason="CANCELED", deadline_seconds=5))

        after = await due_at(server, "a")
        assert before is not None
        assert after is not None
        assert after < before


@on_loop
async def test_heartbeats_do_not_delay_the_timeout_of_a_job(backend: Backend) -> None:
    """A heartbeat proves that the runner lives, not that its job will end."""
    async with backend.server() as server:
        held = await server.running(timeout_seconds=100)
        backend.after(60)
        await server.send(attempt.Heartbeat, held)
        backend.after(25)
        await server.send(attempt.Heartbeat, held)
        await server.tick()
        assert await server.state("a") == attempt.RUNNING

        backend.after(16)
        await server.tick()

        ended = await server.find("a", Attempt)
        assert ended.state == attempt.TIMED_OUT
        assert ended.error is not None
        assert (ended.error.code, ended.claims) == ("TIMED_OUT", 2)
        assert ended.ended_lease is not None
        assert ended.ended_lease.state == lease.REVOKED
        await server.verified()


@on_loop
async def test_a_retry_waits_for_its_backoff(backend: Backend) -> None:
    """The next attempt starts after the backoff and not before."""
    async with backend.server() as server:
        await planned(server, task("a", max_attempts=3, base_delay_seconds=10))
        for index, wait in ((1, 20), (2, 40)):
            held = await server.take()
            assert held.ref.attempt_id == f"r1/a.{index}"
            await server.send(
                attempt.Complete, held, is_success=False, exit_code=1, facts=Facts(error_code="IMAGE_PULL")
            )
            backend.after(wait - 15)
            await server.tick()
            assert await server.state("r1/a") == job.RETRYING
            backend.after(16)
            await server.tick()
            assert await server.state("r1/a") == job.QUEUED

        await server.verified()


@on_loop
async def test_a_cancel_that_the_runner_ignores_is_forced_at_its_deadline(backend: Backend) -> None:
    """A cancelled job ends with or without the runner's help."""
    async with backend.server() as server:
        held = await server.running()
        await server.do(attempt.Cancel(id="a", reason="CANCELED"))
        backend.after(15)
        await server.send(attempt.Heartbeat, held)
        await server.tick()
        assert await server.state("a") == attempt.CANCEL_REQUESTED

        backend.after(16)
        await server.tick()

        assert await server.state("a") == attempt.CANCELED
        await refused(server.do(runner_message(attempt.CancelAck, held)), "stale_lease")
        await server.verified()


@on_loop
async def test_an_unanswered_approval_expires(backend: Backend) -> None:
    """A run does not wait for people for ever if its plan has a limit."""
    async with backend.server() as server:
        await planned(server, gate("ok", approval_seconds=60), task("ship", "ok"))
        backend.after(45)
        await server.tick()
        assert await server.state("r1") == run.WAITING_APPROVAL

        backend.after(16)
        await server.tick()

        assert (await server.find("r1/ok", Job)).reason == "APPROVAL_EXPIRED"
        assert (await server.find("r1/ship", Job)).reason == job.BLOCKED
        assert await server.state("r1") == run.FAILED
        await server.verified()


@on_loop
async def test_planning_times_out(backend: Backend) -> None:
    """A planner that hangs must not leave a run in the air."""
    async with backend.server() as server:
        await server.do(NewRecord(id="r1", record=Run(id="r1", run_id="r1", tenant=TENANT)))
        await server.do(run.BeginPlanning(id="r1"))
        backend.after(45)
        await server.tick()
        assert await server.state("r1") == run.PLANNING

        backend.after(16)
        await server.tick()

        ended = await server.find("r1", Run)
        assert (ended.state, ended.reason) == (run.FAILED, "PLAN_TIMEOUT")
        await server.verified()


@on_loop
async def test_a_run_times_out_with_everything_in_it(backend: Backend) -> None:
    """The run's time is over for its jobs too; its runners get their deadline to stop."""
    async with backend.server() as server:
        await planned(server, task("a"), task("b"), timeout_seconds=100)
        held = await server.take(ttl_seconds=600)
        await server.send(attempt.Heartbeat, held)
        backend.after(85)
        await server.tick()
        assert await server.state("r1") == run.RUNNING

        backend.after(16)
        await server.tick()

        assert await server.state("r1") == run.TIMEOUT
        assert await server.state("r1/b") == job.CANCELED
        stopping = held.ref.attempt_id
        assert await server.state(stopping) == attempt.CANCEL_REQUESTED
        backend.after(31)
        await server.tick()
        assert await server.state(stopping) == attempt.CANCELED
        await server.verified()


@on_loop
async def test_a_thousand_that_are_due_at_once_take_a_few_ticks(backend: Backend) -> None:
    """When a rack loses its power, all of its leases end in the same second."""
    async with backend.server() as server:
        await server.engine.do_all([new_attempt(f"a{n}") for n in range(MANY)])
        assert len(await server.claim(limit=MANY)) == MANY
        backend.after(35)

        counts = [await server.engine.tick() for _ in range(3)]

        assert sum(counts) == MANY
        assert counts[-1] == 0
        events = await server.verified()
        assert sum(event.trigger == "requeued" for event in events) == MANY
        assert len(await server.claim(limit=MANY)) == MANY


@on_loop
async def test_a_tick_applies_no_more_than_its_limit_the_oldest_first(backend: Backend) -> None:
    """A transaction stays short, however much is due."""
    async with backend.server() as server:
        for n in range(5):
            await server.enqueue(f"a{n}", priority=-n)
            await server.take(accept_seconds=30 + n)
        backend.after(60)

        assert await server.engine.tick(2) == 2
        queued = [n for n in range(5) if await server.state(f"a{n}") == attempt.QUEUED]

        assert queued == [0, 1]
        assert await server.tick() == 3


@on_loop
async def test_the_timers_of_two_servers_apply_everything_once(backend: Backend) -> None:
    """Each server takes what the others have not."""
    async with backend.server() as one, backend.server() as two:
        await one.engine.do_all([new_attempt(f"a{n}") for n in range(100)])
        await one.claim(limit=100)
        backend.after(35)

        for _ in range(4):
            await asyncio.gather(one.engine.tick(30), two.engine.tick(30), one.engine.tick(30), two.engine.tick(30))

        events = await two.verified()
        assert sum(event.trigger == "stalled" for event in events) == 100
        assert sum(event.trigger == "requeued" for event in events) == 100
