"""After a restart, the stored state alone is enough to keep every promise."""

from __future__ import annotations

import pytest

from deltaci.core import attempt, job, run
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Plan
from deltaci.core.run import Run
from tests.contract.backends import Backend, on_loop, refused, runner_message
from tests.support.lab import TENANT, gate, task


@pytest.mark.proves("PRO-F4")
@on_loop
async def test_a_lease_within_its_ttl_outlives_a_restart(backend: Backend) -> None:
    """A runner must not notice that the orchestrator was gone for a while."""
    async with backend.server() as server:
        lease = await server.running()
    backend.after(100)

    async with backend.server() as server:
        assert await server.tick() == 0 or await server.state("a") == attempt.RUNNING
        renewed = await server.send(attempt.Extend, lease)
        done = await server.send(attempt.Complete, lease, is_success=True, exit_code=0, result={"n": 1})

        assert renewed.lease is not None
        assert (done.state, done.result, done.claims) == (attempt.SUCCEEDED, {"n": 1}, 1)
        await server.verified()


@pytest.mark.proves("PRO-F4")
@on_loop
async def test_a_lease_that_ran_out_during_a_restart_expires_as_usual(backend: Backend) -> None:
    """Time without a server counts like any other."""
    async with backend.server() as server:
        lease = await server.running()
    backend.after(121)

    async with backend.server() as server:
        await refused(server.do(runner_message(attempt.Extend, lease)), "stale_lease")
        assert await server.tick() >= 1

        again = await server.find("a", Attempt)
        assert (again.state, again.lost_leases) == (attempt.QUEUED, 1)
        assert (await server.take("w2")).ref.number == 2
        await refused(server.do(runner_message(attempt.Complete, lease, is_success=True, exit_code=0)), "stale_lease")
        await server.verified()


@pytest.mark.proves("PRO-F4")
@on_loop
async def test_a_run_continues_after_a_restart_at_every_step(backend: Backend) -> None:
    """A new server recovers the whole state from the database."""
    async with backend.server() as server:
        await server.register("w1")
        await server.do(NewRecord(id="r1", record=Run(id="r1", run_id="r1", tenant=TENANT)))
        await server.do(run.BeginPlanning(id="r1"))
    async with backend.server() as server:
        await server.do(Plan(id="r1", jobs=(task("a"), gate("ok", "a"), task("b", "ok"))))
    async with backend.server() as server:
        lease = await server.take()
    async with backend.server() as server:
        await server.send(attempt.Complete, lease, is_success=True, exit_code=0)
    async with backend.server() as server:
        await server.do(job.Approve(id="r1/ok", actor="user:ada", request_id="once"))
    async with backend.server() as server:
        again = await server.do(job.Approve(id="r1/ok", actor="user:ada", request_id="once"))
        assert again.events == []
        lease = await server.take()
    async with backend.server() as server:
        await server.send(attempt.Complete, lease, is_success=True, exit_code=0)
        await server.do(run.Report(id="r1", actor="reporter"))
    async with backend.server() as server:
        assert (await server.find("r1", Run)).state == run.REPORTED
        await server.verified()


@on_loop
async def test_a_repeat_is_recognised_after_a_restart(backend: Backend) -> None:
    """A repeated request may reach another process; the store has the request id."""
    async with backend.queue() as queue:
        first = await queue.enqueue({"n": 1}, request_id="r")
        [claimed] = await queue.claim_next("w1")
        await queue.start(claimed.lease_id, request_id="s")
        done = await queue.complete(claimed.lease_id, 1, request_id="c")

    async with backend.queue() as queue:
        assert (await queue.enqueue({"n": 1}, request_id="r")).id == first.id
        assert await queue.complete(claimed.lease_id, 1, request_id="c") == done
        assert len([event for event in await queue.events(first.id) if event["type"] == "succeeded"]) == 1
