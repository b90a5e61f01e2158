"""Whole runs through the engine, from the request to the published outcome, on every store."""

from __future__ import annotations

from typing import Any

import pytest

from deltaci.audit.projections.transitions import TransitionsExporter
from deltaci.audit.verify import verify
from deltaci.core import attempt, job, run, worker
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import CancelJob, Plan
from deltaci.core.failures import Facts
from deltaci.core.job import Job, JobSpec
from deltaci.core.run import Run
from deltaci.core.worker import Worker
from tests.contract.backends import Backend, Server, on_loop
from tests.support.lab import TENANT, Lease, gate, task


async def planned(server: Server, *specs: JobSpec, id: str = "r1", **fields: Any) -> None:
    """A run with these jobs that has begun."""
    await server.do(NewRecord(id=id, record=Run(id=id, run_id=id, tenant=TENANT, **fields)))
    await server.do(run.BeginPlanning(id=id))
    await server.do(Plan(id=id, jobs=specs, plan_hash="hash"))


async def finish(server: Server, lease: Lease, *, ok: bool = True, **fields: Any) -> Attempt:
    """The runner reports its result."""
    return await server.send(attempt.Complete, lease, is_success=ok, exit_code=0 if ok else 1, **fields)


async def states(server: Server, *names: str, id: str = "r1") -> list[str]:
    """The states of these jobs."""
    return [await server.state(f"{id}/{name}") for name in names]


@on_loop
async def test_a_plan_that_makes_no_sense_leaves_the_run_as_it_was(backend: Backend) -> None:
    """A refused plan must not leave a single job behind."""
    async with backend.server() as server:
        await server.do(NewRecord(id="r1", record=Run(id="r1", run_id="r1", tenant=TENANT)))
        await server.do(run.BeginPlanning(id="r1"))

        for jobs, code in (
            ((task("a", "b"), task("b", "a")), "dependency_cycle"),
            ((task("a"), task("a")), "bad_request"),
            ((task("a", "nobody"),), "bad_request"),
        ):
            refusal = await server.refused(Plan(id="r1", jobs=jobs))
            assert refusal.code == code

        assert await server.store.find("r1/a") is None
        assert (await server.find("r1", Run)).state == run.PLANNING


@on_loop
async def test_a_run_with_dependencies_and_an_approval_succeeds_and_is_reported(backend: Backend) -> None:
    """The way that everything else is an exception to."""
    async with backend.server() as server:
        await server.register("w1", slots=2, labels=("linux",))
        await planned(
            server, task("build"), task("test", "build", queue_key="linux"), gate("ok", "test"), task("ship", "ok")
        )

        for name in ("build", "test"):
            lease = await server.take(labels=("linux",))
            assert lease.ref.attempt_id == f"r1/{name}.1"
            assert (await server.find("w1", Worker)).tasks == (f"r1/{name}.1",)
            await server.send(attempt.Ack, lease)
            await server.send(attempt.Heartbeat, lease)
            await finish(server, lease, result={"name": name})
        assert (await server.find("r1", Run)).state == run.WAITING_APPROVAL
        assert await server.claim() == []

        await server.do(job.Approve(id="r1/ok", actor="user:ada"))
        await finish(server, await server.take())
        assert (await server.find("r1", Run)).state == run.SUCCESS
        await server.do(run.Report(id="r1", actor="reporter"))

        ended = await server.find("r1", Run)
        assert (ended.state, ended.conclusion, ended.tally.open) == (run.REPORTED, run.SUCCESS, 0)
        assert (await server.find("w1", Worker)).state == worker.IDLE
        assert await states(server, "build", "test", "ok", "ship") == [job.SUCCEEDED] * 4
        events = await server.verified()
        report = verify([_line(each) for each in TransitionsExporter().export(events)], "transitions")
        assert report.is_legal, report.violations


def _line(told: Any) -> bytes:
    import msgspec

    return msgspec.json.encode(told)


@on_loop
async def test_a_finished_run_can_be_read_in_full(backend: Backend) -> None:
    """History is what people need most: the outcome, the result, the person and the time."""
    async with backend.server() as server:
        await planned(server, task("a", work={"image": "x"}))
        await finish(server, await server.take(), result={"n": [1, 2]}, report={"files": ["a"]})
        await server.do(run.Report(id="r1", actor="reporter"))

        done = await server.find("r1/a.1", Attempt)
        of = await server.find("r1/a", Job)

        assert (done.state, done.result, done.report) == (attempt.SUCCEEDED, {"n": [1, 2]}, {"files": ["a"]})
        assert (done.spec, done.lease, done.claims) == ({"image": "x"}, None, 1)
        assert (of.state, of.attempts, of.completed_at) == (job.SUCCEEDED, 1, done.updated_at)
        assert [event.run_id for event in await server.log(run_id="r1")] == ["r1"] * len(await server.log())
        assert [event.to for event in await server.log(entity_id="r1/a.1")][-1] == attempt.SUCCEEDED


@on_loop
async def test_a_failed_required_job_fails_the_run_when_nothing_else_can_go_on(backend: Backend) -> None:
    """Without fail-fast the rest is carried to its end: its results are worth having."""
    async with backend.server() as server:
        await planned(server, task("a"), task("b"), task("after-a", "a"))

        await finish(server, await server.take(), ok=False)
        assert await states(server, "a", "b", "after-a") == [job.FAILED, job.QUEUED, job.CANCELED]
        assert (await server.find("r1", Run)).state == run.RUNNING
        await finish(server, await server.take("w2"))

        ended = await server.find("r1", Run)
        assert (ended.state, ended.reason) == (run.FAILED, "JOB_FAILED")
        assert (await server.find("r1/after-a", Job)).reason == job.BLOCKED
        await server.verified()


@on_loop
async def test_fail_fast_cancels_the_rest_at_once(backend: Backend) -> None:
    """One failure fans out: to jobs that wait, that are queued, that run and that wait for people."""
    async with backend.server() as server:
        for name in ("w1", "w2"):
            await server.register(name)
        many = [task(f"n{n}") for n in range(40)]
        await planned(
            server,
            task("bad", priority=9),
            task("running", priority=8),
            *many,
            task("later", "n1"),
            gate("ok"),
            is_fail_fast=True,
        )
        bad, running = await server.take("w1"), await server.take("w2")
        await server.send(attempt.Heartbeat, running)

        await finish(server, bad, ok=False)

        assert (await server.find("r1", Run)).state == run.FAILED
        assert set(await states(server, *(spec.name for spec in many), "later", "ok")) == {job.CANCELED}
        assert (await server.find("r1/n1", Job)).reason == job.NOT_NEEDED
        assert await server.state("r1/running.1") == attempt.CANCEL_REQUESTED
        assert await server.claim(limit=50) == []
        await server.send(attempt.CancelAck, running)
        assert await states(server, "running") == [job.CANCELED]
        assert (await server.find("w2", Worker)).state == worker.IDLE
        await server.verified()


@on_loop
async def test_a_canceled_run_waits_for_its_runners_and_then_is_over(backend: Backend) -> None:
    """A cancel that does not reach the machines is only a word."""
    async with backend.server() as server:
        await planned(server, task("a"), task("b", "a"))
        lease = await server.take()

        await server.do(run.Cancel(id="r1", actor="user:ada"))
        assert (await server.find("r1", Run)).state == run.CANCEL_REQUESTED
        late = await finish(server, lease, result={"kept": True}, report={"logs": 1})

        assert (late.state, late.report) == (attempt.CANCELED, {"logs": 1})
        assert (await server.find("r1", Run)).state == run.CANCELED
        assert await states(server, "a", "b") == [job.CANCELED] * 2
        await server.verified()


@on_loop
async def test_one_job_is_canceled_and_the_run_continues(backend: Backend) -> None:
    """Cancelling one job concerns that job and its dependents."""
    async with backend.server() as server:
        await planned(server, task("a", is_required=False), task("b"))

        await server.do(CancelJob(id="r1/a", actor="user:ada", request_id="c1"))
        again = await server.do(CancelJob(id="r1/a", actor="user:ada", request_id="c1"))
        await finish(server, await server.take())

        assert again.events == []
        assert await states(server, "a", "b") == [job.CANCELED, job.SUCCEEDED]
        assert (await server.find("r1", Run)).state == run.SUCCESS
        await server.verified()


@on_loop
async def test_a_failure_worth_a_retry_is_retried_under_a_new_attempt(backend: Backend) -> None:
    """The second attempt is a record of its own; the first one stays as it ended."""
    async with backend.server() as server:
        await planned(server, task("a", max_attempts=2, base_delay_seconds=10))
        await finish(server, await server.take(), ok=False, facts=Facts(error_code="CHECKOUT"))
        assert await states(server, "a") == [job.RETRYING]

        backend.after(21)
        await server.tick()
        lease = await server.take("w2")
        await finish(server, lease)

        assert lease.ref.attempt_id == "r1/a.2"
        assert [await server.state(f"r1/a.{n}") for n in (1, 2)] == [attempt.FAILED, attempt.SUCCEEDED]
        assert (await server.find("r1", Run)).state == run.SUCCESS
        await server.verified()


@on_loop
async def test_a_worker_gets_no_more_jobs_than_it_has_slots(backend: Backend) -> None:
    """The registered number of slots counts more than the one in a claim."""
    async with backend.server() as server:
        await server.register("w1", slots=2)
        await planned(server, *(task(f"n{n}") for n in range(5)))

        first = await server.claim("w1", 5)
        none = await server.claim("w1", 5)
        await finish(server, Lease("w1", first[0].lease_id))
        next_one = await server.claim("w1", 5)

        assert [len(first), len(none), len(next_one)] == [2, 0, 1]
        assert len((await server.find("w1", Worker)).tasks) == 2
        await server.verified()


@on_loop
async def test_jobs_of_a_silent_worker_restart_only_after_its_leases_end(backend: Backend) -> None:
    """The silent worker may still run the job: its successor waits until it has certainly stopped."""
    async with backend.server() as server:
        for name in ("w1", "w2"):
            await server.register(name)
        await planned(server, task("a"))
        lease = await server.take("w1")
        await server.send(attempt.Heartbeat, lease)

        await server.do(worker.MissHealthChecks(id="w1"))
        too_early = await server.claim("w2")
        backend.after(121)
        await server.tick()
        after = await server.take("w2")

        assert too_early == []
        assert after.ref.attempt_id == lease.ref.attempt_id
        await finish(server, after)
        assert (await server.find("r1", Run)).state == run.SUCCESS
        await server.verified()


@pytest.mark.parametrize("size", [60])
@on_loop
async def test_a_wide_run_is_canceled_in_one_decision(backend: Backend, size: int) -> None:
    """Fan-out must be one transaction however wide it is, and readers must see none or all of it."""
    async with backend.server() as server:
        await planned(server, *(task(f"n{n}") for n in range(size)))

        await server.do(run.Cancel(id="r1", actor="user:ada"))

        events = await server.verified()
        assert (await server.find("r1", Run)).state == run.CANCELED
        assert sum(event.to == job.CANCELED and event.entity == "job" for event in events) == size
        assert len({event.at for event in events if event.to == "CANCELED"}) == 1
