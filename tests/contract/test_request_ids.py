"""A request id means the same request as long as its record exists, in every process and after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from deltaci.audit.projections.canonical import canonical_lines
from deltaci.audit.projections.job_events import job_events
from deltaci.audit.verify import verify
from deltaci.core.events import Event
from deltaci.core.machine import REQUESTS_IN_RECORD
from deltaci.engine import waiters
from deltaci.engine.queue import AsyncQueue, ClaimedJob, JobOutcome
from deltaci.storage.port import ClaimGrant, FindClaim, FindRequests, Load, MovedRequest, Transaction
from tests.contract.backends import EVERYTHING, Backend, T, Wrapped, ask, in_memory, legal, on_loop
from tests.contract.test_queue import claim_one, started
from tests.contract.test_queue_refusals import unchanged
from tests.contract.test_runs import planned
from tests.support.lab import TENANT, task

MANY = 2 * REQUESTS_IN_RECORD + 3


async def reclaimed(backend: Backend, queue: AsyncQueue) -> ClaimedJob:
    """Let one worker lose a job to `stall(request_id="STALL-1")`, and return it running with a second worker."""
    job = await started(queue, request_id="NEW-1")
    await queue.stall(job.id, request_id="STALL-1")
    backend.after(121)
    await queue.requeue_stalled(job.id, request_id="REQUEUE-1")
    again = await claim_one(queue, "w2")
    await queue.start(again.lease_id, request_id="START-2")
    return again


# -- the same request, much later


@pytest.mark.proves("QUE-C5", "QUE-R2")
@pytest.mark.parametrize("heartbeats", [6, MANY])
@on_loop
async def test_a_late_repeat_of_a_stall_leaves_the_next_worker_its_job(backend: Backend, heartbeats: int) -> None:
    """The answer to the first stall was lost; its repeat must not take the job from a worker that runs it."""
    async with backend.queue() as queue:
        job = await reclaimed(backend, queue)
        for n in range(heartbeats):
            await queue.heartbeat(job.lease_id, request_id=f"BEAT-{n}")
        before = await queue.get(job.id)

        assert await queue.stall(job.id, request_id="STALL-1") == before

        assert (before.status, before.owner) == ("running", "w2")
        assert await queue.get(job.id) == before
        await queue.complete(job.lease_id)
        legal(await queue.log())


@pytest.mark.proves("QUE-C5", "QUE-R2")
@on_loop
async def test_every_repeat_changes_nothing_after_a_restart(backend: Backend) -> None:
    """What was applied is stored with the job: another process recognises the oldest request, too."""
    async with backend.queue() as queue:
        job = await reclaimed(backend, queue)
        for n in range(MANY):
            await queue.heartbeat(job.lease_id, request_id=f"BEAT-{n}")

    async with backend.queue() as queue:
        before = await queue.log("", 0, EVERYTHING)
        await queue.enqueue(request_id="NEW-1")
        await queue.stall(job.id, request_id="STALL-1")
        await queue.requeue_stalled(job.id, request_id="REQUEUE-1")
        await queue.start(job.lease_id, request_id="START-2")
        for n in range(MANY):
            await queue.heartbeat(job.lease_id, request_id=f"BEAT-{n}")
        assert await queue.log("", 0, EVERYTHING) == before

        await queue.complete(job.lease_id, 1, request_id="DONE")
        before = await queue.log("", 0, EVERYTHING)
        await queue.stall(job.id, request_id="STALL-1")
        await queue.complete(job.lease_id, 1, request_id="DONE")
        assert legal(await queue.log("", 0, EVERYTHING)) == before


@pytest.mark.proves("QUE-C5")
@on_loop
async def test_a_record_of_an_older_version_keeps_the_requests_that_it_has(backend: Backend) -> None:
    """It had the first request and the latest seven; nothing says which others there were."""
    async with backend.queue() as queue:
        job = await started(queue, request_id="NEW-1")
        for n in range(7):
            await queue.heartbeat(job.lease_id, request_id=f"BEAT-{n}")
    async with backend.opened() as store:
        [[stored]] = await ask(store, Load((job.id,)))
        assert len(stored.record.requests) == 8
        assert (await ask(store, FindRequests(((job.id, "BEAT-0"),)))) == [[]]

    async with backend.queue() as queue:
        for n in range(7, MANY):
            await queue.heartbeat(job.lease_id, request_id=f"BEAT-{n}")
        before = await queue.log("", 0, EVERYTHING)
        await queue.enqueue(request_id="NEW-1")
        for n in range(MANY):
            await queue.heartbeat(job.lease_id, request_id=f"BEAT-{n}")
        assert await queue.log("", 0, EVERYTHING) == before


@on_loop
async def test_an_old_request_id_is_refused_for_another_call(backend: Backend) -> None:
    """A reused id is a mistake of the caller, however long ago the id was used."""
    async with backend.queue() as queue:
        job = await started(queue)
        for n in range(MANY):
            await queue.heartbeat(job.lease_id, request_id=f"BEAT-{n}")

        await unchanged(queue, queue.stall(job.id, request_id="BEAT-5"), "request_id_reused")
        await unchanged(queue, queue.complete(job.lease_id, request_id="BEAT-40"), "request_id_reused")


@pytest.mark.proves("QUE-C4", "QUE-C5")
@on_loop
async def test_a_call_for_many_jobs_may_be_repeated(backend: Backend) -> None:
    """The answers for all jobs are lost together."""
    async with backend.queue() as queue:
        for n in range(3):
            await queue.enqueue(n)
        lease_ids = [job.lease_id for job in await queue.claim_next("w1", limit=3)]
        await queue.heartbeat(lease_ids[0], request_id="alone")

        for _ in range(2):
            await queue.start_all(lease_ids, "w1", request_id="start")
            await queue.heartbeat_all(lease_ids, "w1", request_id="beat")
        outcomes = [JobOutcome(lease_id=lease_id, result=1) for lease_id in lease_ids]
        finished = await queue.finish_all(outcomes, "w1", request_id="finish")
        assert await queue.finish_all(outcomes, "w1", request_id="finish") == finished

        events = legal(await queue.log())
        assert [event.trigger for event in events].count("heartbeat") == 4
        assert {event.request_id for event in events if event.trigger == "started"} == {"start"}
        assert {event.request_id for event in events if event.trigger == "succeeded"} == {"finish"}


# -- claims


@pytest.mark.proves("QUE-C4", "QUE-C8", "QUE-A2")
@pytest.mark.parametrize("starts", [False, True])
@on_loop
async def test_a_repeated_claim_gets_the_same_leases(backend: Backend, starts: bool) -> None:
    """A claim whose answer was lost: the worker gets its jobs, not further ones, in any process."""
    async with backend.queue() as queue:
        for n in range(4):
            await queue.enqueue(n)
        first = await queue.claim_next("w1", limit=2, starts=starts, request_id="claim")
        before = await queue.log("", 0, EVERYTHING)
        assert {event.request_id for event in before if event.actor == "worker:w1"} == {"claim"}
        repeated = await queue.claim_next("w1", limit=2, starts=starts, request_id="claim")
    async with backend.queue() as queue, backend.queue() as other:
        after_restart = await queue.claim_next("w1", limit=2, wait_seconds=60, request_id="claim")
        elsewhere = await other.claim_next("w1", limit=2, request_id="claim")

        assert len(first) == 2
        for jobs in (repeated, after_restart, elsewhere):
            assert [(job.lease_id, job.rev) for job in jobs] == [(job.lease_id, job.rev) for job in first]
        assert legal(await queue.log("", 0, EVERYTHING)) == before
        assert (await queue.heartbeat(first[1].lease_id)).owner == "w1"


@pytest.mark.proves("QUE-C8")
@in_memory
@on_loop
async def test_a_repeated_claim_waits_for_nothing(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other workers wait for work; this one has its job already."""
    has_waiter = asyncio.Event()
    wait = waiters.Waiter.wait

    async def turn(waiter: waiters.Waiter, *, is_first: bool = False) -> waiters.ClaimPermit | None:
        has_waiter.set()
        return await wait(waiter, is_first=is_first)

    monkeypatch.setattr(waiters.Waiter, "wait", turn)
    async with backend.queue() as queue:
        await queue.enqueue(1)
        first = await claim_one(queue, request_id="claim")
        waiting = asyncio.create_task(queue.claim_next("w2", wait_seconds=300))
        await has_waiter.wait()

        repeated = await queue.claim_next("w1", wait_seconds=20, request_id="claim")

        assert [job.lease_id for job in repeated] == [first.lease_id]
        assert not waiting.done()
        waiting.cancel()


@in_memory
@on_loop
async def test_a_claim_with_a_request_id_may_start_a_job_of_a_run(backend: Backend) -> None:
    """The queue of a tenant also has the jobs of its runs; their other records change with them."""
    async with backend.server() as server, backend.queue(tenant=TENANT) as queue:
        await server.register("w1")
        await planned(server, task("a"))
        job = await claim_one(queue, starts=True, request_id="claim")
        assert (job.status, await server.state("r1/a"), await server.state("w1")) == ("running", "RUNNING", "BUSY")
        assert (await claim_one(queue, request_id="claim")).lease_id == job.lease_id

        await queue.complete(job.lease_id)

        assert await server.state("r1") == "SUCCESS"
        await server.verified()


@pytest.mark.proves("QUE-C8")
@on_loop
async def test_a_claim_is_stale_after_its_leases_have_ended(backend: Backend) -> None:
    """The worker has lost the job, or finished it; a further job would be one that it does not know of."""
    async with backend.queue() as queue:
        await queue.enqueue(1)
        finished = await claim_one(queue, starts=True, request_id="one")
        await queue.enqueue(2)
        await queue.enqueue(3)
        expired = await queue.claim_next("w1", limit=2, request_id="two")
        await queue.start(expired[0].lease_id)

        await queue.complete(finished.lease_id)
        await unchanged(queue, queue.claim_next("w1", request_id="one"), "stale_lease")
        await queue.complete(expired[0].lease_id)
        still_held = await queue.claim_next("w1", limit=2, request_id="two")
        assert [job.lease_id for job in still_held] == [expired[1].lease_id]
        backend.after(121)
        await unchanged(queue, queue.claim_next("w1", request_id="two"), "stale_lease")
    async with backend.queue() as queue:
        await queue.stall(expired[1].id)
        await queue.requeue_stalled(expired[1].id)
        backend.after(121)
        assert len(await queue.claim_next("w1", request_id="three")) == 1
        await unchanged(queue, queue.claim_next("w1", request_id="two"), "stale_lease")
        legal(await queue.log())


@pytest.mark.proves("QUE-C8")
@on_loop
async def test_a_claim_that_got_nothing_is_not_remembered(backend: Backend) -> None:
    """A worker that asks again wants work, not the old answer."""
    async with backend.queue() as queue:
        assert await queue.claim_next("w1", request_id="claim") == []
        await queue.enqueue(1)

        assert len(await queue.claim_next("w1", request_id="claim")) == 1


@on_loop
async def test_the_request_id_of_a_claim_is_its_workers(backend: Backend) -> None:
    """Two workers that count their claims do not know of each other, also if they get the same job."""
    async with backend.queue() as queue:
        await queue.enqueue(1)
        first = await claim_one(queue, "w1", request_id="1", starts=True)
        await unchanged(queue, queue.heartbeat(first.lease_id, request_id="1"), "request_id_reused")
        await queue.hand_back(first.id)

        second = await claim_one(queue, "w2", request_id="1", starts=True)

        assert (second.id, second.owner) == (first.id, "w2")
        await unchanged(queue, queue.claim_next("w1", request_id="1"), "stale_lease")
        legal(await queue.log())


@pytest.mark.proves("QUE-C8")
@on_loop
async def test_the_same_claim_sent_twice_at_once_is_granted_once(backend: Backend) -> None:
    """A client that repeats before the first answer has come reaches another server with it."""
    async with backend.queue() as queue, backend.queue() as other:
        for n in range(6):
            await queue.enqueue(n)
        for round in range(5):
            claims = await asyncio.gather(
                *(q.claim_next("w1", request_id=f"claim-{round}") for q in (queue, other, queue, other))
            )
            assert len({job.lease_id for jobs in claims for job in jobs}) == 1, claims

        assert [event.trigger for event in legal(await queue.log())].count("claimed") == 5


@on_loop
async def test_a_request_id_that_cannot_be_stored_is_refused(backend: Backend) -> None:
    """The error names the argument, before anything is claimed."""
    async with backend.queue() as queue:
        await queue.enqueue(1)

        await unchanged(queue, queue.claim_next("w1", request_id="a\0b"), "bad_request")
        await unchanged(queue, queue.heartbeat_all([], "w1", request_id=5), "bad_request")  # type: ignore[arg-type]


# -- the verifier


async def story(backend: Backend) -> list[Event]:
    """The log of a job that is stalled twice, with many heartbeats in between."""
    async with backend.queue() as queue:
        await queue.enqueue(request_id="NEW-1")
        job = await claim_one(queue, request_id="CLAIM-1")
        await queue.stall(job.id, request_id="STALL-1")
        backend.after(121)
        await queue.requeue_stalled(job.id, request_id="REQUEUE-1")
        again = await claim_one(queue, "w2", request_id="CLAIM-2", starts=True)
        for n in range(12):
            backend.after(1)
            await queue.heartbeat(again.lease_id, request_id=f"BEAT-{n}")
        backend.after(1)
        await queue.stall(job.id, request_id="STALL-2")
        backend.after(121)
        await queue.requeue_stalled(job.id, request_id="REQUEUE-2")
        last = await claim_one(queue, "w1", request_id="CLAIM-3", starts=True)
        backend.after(1)
        await queue.complete(last.lease_id, request_id="DONE")
        return legal(await queue.log())


def broken_rules(events: Sequence[Event], changes: dict[str, str]) -> list[set[str]]:
    """Rename request ids in a log. Return the rules that it breaks as canonical log, and as log of document 004."""
    altered = [msgspec.structs.replace(e, request_id=changes.get(e.request_id, e.request_id)) for e in events]
    reports = [
        verify(canonical_lines(altered), "canonical"),
        verify([msgspec.json.encode(event) for event in job_events(altered)], "job-events"),
    ]
    return [{violation.rule for violation in report.violations} for report in reports]


@pytest.mark.proves("QUE-C5")
@in_memory
@on_loop
async def test_the_verifier_finds_a_request_that_was_applied_twice_however_late(backend: Backend) -> None:
    """The log must show a forgotten request, also after any number of others."""
    events = await story(backend)
    for changes in ({"STALL-2": "STALL-1"}, {"REQUEUE-2": "REQUEUE-1"}, {"BEAT-11": "BEAT-0"}, {"CLAIM-3": "CLAIM-1"}):
        assert broken_rules(events, changes) == [{"QUE-C5"}] * 2, changes
    # Document 004 calls only the repeat of the same transition a repeat; our queue accepts an id for one call only.
    for changes in ({"DONE": "STALL-1"}, {"DONE": "CLAIM-2"}, {"BEAT-3": "NEW-1"}):
        assert broken_rules(events, changes) == [{"QUE-C5"}, set()], changes


@in_memory
@on_loop
async def test_the_verifier_accepts_what_is_no_repeat(backend: Backend) -> None:
    """The ids of claims are their workers', and a request to a worker may change each of its jobs, at any time."""
    events = await story(backend)
    assert broken_rules(events, {"CLAIM-2": "CLAIM-1"}) == [set(), set()]

    for event in events:
        if event.to == "STALE":
            event.metadata["reason"] = "WORKER_LOST"
    found = broken_rules(events, {"STALL-2": "STALL-1", "REQUEUE-2": "REQUEUE-1"})[0]
    assert "QUE-C5" not in found


# -- what is stored, and when it is deleted


@on_loop
async def test_requests_are_deleted_with_their_record(backend: Backend) -> None:
    """Neither earlier nor later: an id must not mean two things, and the store must not grow for ever."""
    async with backend.queue() as queue:
        job = await reclaimed(backend, queue)
        for n in range(MANY):
            await queue.heartbeat(job.lease_id, request_id=f"BEAT-{n}")
        kept = await queue.enqueue(2)
        await claim_one(queue, "w3", request_id="kept")
        await queue.complete(job.lease_id)
    async with backend.opened() as store:
        lookups = (FindRequests(((job.id, "STALL-1"), (job.id, "never"))), FindClaim("default", "w3", "kept"))
        [moved], [grant] = await ask(store, *lookups)
        assert isinstance(moved, MovedRequest)
        assert grant == ClaimGrant("default", "w3", "kept", 0, kept.id, 1)

        await store.prune(finished_before=backend.now() + 1, events_before=0, limit=100)

        assert await ask(store, *lookups) == [[], [grant]]


@in_memory
@on_loop
async def test_a_claim_without_a_request_id_has_no_extra_query(backend: Backend) -> None:
    """Claims are the hot path of the queue: only a claim that may be a repeat pays for it."""
    queries: set[str] = set()

    class Spy(Wrapped):
        async def transact(self, work: Callable[[], Transaction[T]]) -> T:
            return await super().transact(lambda: self.watch(work()))

        def watch(self, transaction: Transaction[T]) -> Transaction[T]:
            answer: Any = None
            while True:
                try:
                    request = transaction.send(answer)
                except StopIteration as end:
                    result: T = end.value
                    return result
                queries.add(type(request).__name__)
                answer = yield request

    async with backend.queue(Spy) as queue:
        await queue.enqueue(1)
        queries.clear()

        job = await claim_one(queue, starts=True)
        for n in range(REQUESTS_IN_RECORD):
            await queue.heartbeat(job.lease_id, request_id=f"BEAT-{n}")
        await queue.complete(job.lease_id)

        assert queries == {"BeginClaim", "Begin", "Write"}
