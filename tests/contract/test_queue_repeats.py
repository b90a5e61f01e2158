"""Repeated requests and reused request ids: neither changes anything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from deltaci.engine.queue import NewJob, QueueJob
from tests.contract.backends import EVERYTHING, Backend, legal, on_loop
from tests.contract.test_queue import claim_one, started
from tests.contract.test_queue_refusals import unchanged

# -- one at a time


@pytest.mark.proves("QUE-C5", "QUE-R2")
@on_loop
async def test_a_repeat_with_the_same_request_id_changes_nothing_and_gets_the_same_response(backend: Backend) -> None:
    """A request whose response was lost must be safe to repeat, in any order."""
    async with backend.queue() as queue:

        async def twice(ask: Callable[[], Awaitable[QueueJob]]) -> QueueJob:
            first = await ask()
            before = await queue.log("", 0, EVERYTHING)
            assert await ask() == first
            assert await queue.log("", 0, EVERYTHING) == before
            return first

        new = await twice(lambda: queue.enqueue({"n": 1}, request_id="enqueue"))
        job = await claim_one(queue)
        await twice(lambda: queue.heartbeat(job.lease_id, request_id="beat"))
        await twice(lambda: queue.start(job.lease_id, request_id="start"))
        await twice(lambda: queue.stall(new.id, request_id="stall"))
        await twice(lambda: queue.requeue_stalled(new.id, request_id="early requeue"))
        backend.after(121)
        await twice(lambda: queue.requeue_stalled(new.id, request_id="requeue"))
        job = await claim_one(queue, "w2")
        await queue.start(job.lease_id)
        done = await twice(lambda: queue.complete(job.lease_id, {"n": 2}, request_id="complete"))

        assert (done.attempt, done.result) == (2, {"n": 2})
        legal(await queue.log("", 0, EVERYTHING))


@on_loop
async def test_a_cancel_and_a_failure_may_be_repeated_too(backend: Backend) -> None:
    """The orders that end a job leave the hot table with it; their repeats must still be known."""
    async with backend.queue() as queue:
        waiting = await queue.enqueue(1)
        first = await queue.cancel(waiting.id, request_id="c")
        assert await queue.cancel(waiting.id, request_id="c") == first
        job = await started(queue, 2)
        failed = await queue.fail(job.lease_id, "boom", request_id="f")

        assert await queue.fail(job.lease_id, "boom", request_id="f") == failed
        legal(await queue.log("", 0, EVERYTHING))


@pytest.mark.parametrize(
    "other", [{"payload": 2}, {"payload": 1, "priority": 1}, {"payload": 1, "labels": ["x"]}], ids=repr
)
@on_loop
async def test_a_request_id_with_another_job_is_refused(backend: Backend, other: dict[str, Any]) -> None:
    """Two different wishes under one name: one of them would be lost."""
    async with backend.queue() as queue:
        await queue.enqueue(1, request_id="r")

        await unchanged(queue, queue.enqueue(**other, request_id="r"), "request_id_reused")

        assert len(await queue.claim_next("w1", limit=9, labels=["x"])) == 1


@on_loop
async def test_a_request_id_with_another_order_is_refused(backend: Backend) -> None:
    """The id names one request, not one client."""
    async with backend.queue() as queue:
        job = await started(queue)
        await queue.heartbeat(job.lease_id, request_id="r")

        await unchanged(queue, queue.stall(job.id, request_id="r"), "request_id_reused")
        await unchanged(queue, queue.complete(job.lease_id, 1, request_id="r"), "request_id_reused")

        await queue.stall(job.id, request_id="s")
        await unchanged(queue, queue.cancel(job.id, request_id="s"), "request_id_reused")


@pytest.mark.proves("QUE-C5")
@on_loop
async def test_an_enqueue_may_be_repeated_in_any_state_of_its_job(backend: Backend) -> None:
    """The job's id follows from the request: a repeat is recognised in any state."""
    new: dict[str, Any] = {"payload": {"n": 1}, "request_id": "first", "run_at": backend.moment(-5)}
    async with backend.queue() as queue:
        job = await queue.enqueue(**new)
        running = await claim_one(queue)
        for n in range(20):
            await queue.heartbeat(running.lease_id, request_id=f"h{n}")
        assert (await queue.enqueue(**new)).owner == "w1"
        await queue.hand_back(job.id)  # This moves the time from which on it may be claimed.
        assert (await queue.enqueue(**new)).status == "queued"
        running = await claim_one(queue)
        await queue.start(running.lease_id)
        done = await queue.complete(running.lease_id, "done")

        assert await queue.enqueue(**new) == done
        assert done.id == job.id
        await unchanged(queue, queue.enqueue(**{**new, "payload": {"n": 2}}), "request_id_reused")


# -- many at once


@on_loop
async def test_one_reused_request_id_refuses_its_whole_batch(backend: Backend) -> None:
    """After a refusal, the caller must not wonder which jobs were enqueued."""
    async with backend.queue() as queue:
        await queue.enqueue(1, request_id="x")

        for jobs in (
            [NewJob(payload="a"), NewJob(payload=2, request_id="x")],
            [NewJob(payload=2, request_id="x"), *(NewJob(payload=n) for n in range(1500))],
            [NewJob(payload="a", request_id="y"), NewJob(payload="b", dedupe_key="k"), NewJob(request_id="x")],
            [NewJob(payload="a", request_id="y"), NewJob(payload="b", request_id="y")],
        ):
            await unchanged(queue, queue.enqueue_all(jobs), "request_id_reused")

        assert [job.payload for job in await queue.claim_next("w1", limit=9)] == [1]


@pytest.mark.proves("QUE-C5")
@on_loop
async def test_a_batch_may_be_repeated_in_whole_and_in_part(backend: Backend) -> None:
    """Each job has its own request: existing ones are returned unchanged, missing ones are added."""
    async with backend.queue() as queue, backend.queue() as other:
        jobs = [NewJob(payload=n, request_id=f"r{n}") for n in range(3)]
        first = await queue.enqueue_all([*jobs[:2], jobs[0], NewJob(dedupe_key="k"), NewJob(dedupe_key="k")])
        assert [job.id for job in first] == [first[n].id for n in (0, 1, 0, 3, 3)]
        running = await claim_one(queue)

        again = await other.enqueue_all([*jobs, NewJob(payload="other", dedupe_key="k")])

        assert [job.id for job in again[:2]] == [job.id for job in first[:2]]
        assert [job.status for job in again].count("claimed") == 1
        assert again[3] == first[3] or running.id == first[3].id
        assert (await queue.enqueue(2, request_id="r2")) == again[2]
        assert [event.trigger for event in legal(await queue.log())].count("enqueued") == 4
