"""The queue library: document 004's contract through `AsyncQueue`, on every store."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest

from deltaci.audit.verify import verify
from deltaci.core.errors import JobCanceled, StaleLease
from deltaci.engine.queue import AsyncQueue, ClaimedJob, JobOutcome, NewJob, QueueJob
from tests.contract.backends import EVERYTHING, Backend, attempt_of, legal, on_loop, refused

WAIT = 40.0  # So long a claim may wait for work in these cases; it must come much sooner.


async def claim_one(queue: AsyncQueue, worker: str = "w1", **options: Any) -> ClaimedJob:
    """Claim the only claimable job."""
    [job] = await queue.claim_next(worker, **options)
    return job


async def started(queue: AsyncQueue, payload: Any = None, **fields: Any) -> ClaimedJob:
    """A job that runs."""
    await queue.enqueue(payload, **fields)
    job = await claim_one(queue)
    await queue.start(job.lease_id)
    return job


def words(events: list[dict[str, Any]]) -> list[str]:
    """The types of the events, in order."""
    return [event["type"] for event in events]


# -- the life of a job


@on_loop
async def test_a_job_is_enqueued_claimed_started_extended_and_completed(backend: Backend) -> None:
    """Document 004's path from queued to succeeded, with the fields of each status."""
    async with backend.queue() as queue:
        new = await queue.enqueue({"n": 1}, labels=["linux", "arm"], priority=3)
        assert (new.status, new.attempt, new.rev, new.owner, new.lease_expires_at) == ("queued", 0, 1, None, None)
        assert (new.payload, new.labels, new.priority, new.run_at) == ({"n": 1}, ("arm", "linux"), 3, None)

        job = await claim_one(queue, labels=["arm", "linux", "gpu"])
        assert (job.id, job.status, job.attempt, job.owner) == (new.id, "claimed", 1, "w1")
        assert job.lease_expires_at is not None
        assert attempt_of(job.lease_id) == job.id
        kept = await queue.heartbeat(job.lease_id)
        assert kept.status == "claimed"
        running = await queue.start(job.lease_id, worker="w1")
        assert (running.status, running.result, running.error) == ("running", None, None)
        assert (await queue.heartbeat(job.lease_id)).status == "running"
        done = await queue.complete(job.lease_id, {"sum": [1, 2]})

        assert (done.status, done.result, done.error) == ("succeeded", {"sum": [1, 2]}, None)
        assert (done.owner, done.lease_expires_at, done.attempt) == (None, None, 1)
        assert await queue.get(new.id) == done


@on_loop
async def test_a_failed_job_has_its_error(backend: Backend) -> None:
    """The error is the first thing that people read."""
    async with backend.queue() as queue:
        job = await started(queue)

        failed = await queue.fail(job.lease_id, "first line\ncurl: Could not resolve host: example.org")

        assert (failed.status, failed.result) == ("failed", None)
        assert failed.error is not None
        assert (failed.error.code, failed.error.failure_class) == ("FAILED", "INFRA")
        assert "Could not resolve host" in failed.error.line
        assert failed.error.message == "first line"
        assert await queue.get(job.id) == failed


@on_loop
async def test_a_released_job_can_be_claimed_at_once(backend: Backend) -> None:
    """A worker that stops in order causes no delay, and no attempt is counted."""
    async with backend.queue() as queue:
        job = await started(queue, max_lost_leases=0)

        back = await queue.hand_back(job.id)

        assert back.status == "queued"
        assert (await claim_one(queue, "w2")).attempt == 2


@on_loop
async def test_a_canceled_job_ends_at_once_or_with_its_worker(backend: Backend) -> None:
    """Document 004 knows no cancel: it sees the job fail, taken over or by its worker's own word."""
    async with backend.queue() as queue:
        waiting = await queue.enqueue(1)
        assert (await queue.cancel(waiting.id)).status == "failed"
        job = await started(queue, 2)

        asked = await queue.cancel(job.id, "NOT_NEEDED", request_id="c")
        assert asked.status == "running"
        with pytest.raises(JobCanceled):
            await queue.complete(job.lease_id, {"late": True})

        done = await queue.get(job.id)
        assert (done.status, done.result) == ("failed", None)
        assert done.error is not None
        assert done.error.code == "CANCELED"
        assert await queue.claim_next("w2") == []


@pytest.mark.proves("QUE-C7")
@pytest.mark.parametrize("name", ["complete", "fail", "finish_all"])
@on_loop
async def test_a_result_after_a_cancel_is_a_typed_error(backend: Backend, name: str) -> None:
    """A program that reads the returned job as a success would believe that its result was stored."""
    async with backend.queue() as queue:
        job = await started(queue)
        await queue.cancel(job.id, "NOT_NEEDED")

        async def finish() -> None:
            if name != "finish_all":
                await getattr(queue, name)(job.lease_id, "late")
                return
            [answer] = await queue.finish_all([JobOutcome(lease_id=job.lease_id, result="late")], "w1")
            assert isinstance(answer, JobCanceled)
            raise answer

        for _ in range(2):  # A repeat has the same answer and changes nothing.
            with pytest.raises(JobCanceled, match="NOT_NEEDED") as canceled:
                await finish()
            assert (canceled.value.code, canceled.value.reason) == ("job_canceled", "NOT_NEEDED")
            assert (await queue.get(job.id)).status == "failed"
        assert [event["type"] for event in await queue.events(job.id)].count("failed") == 1
        legal(await queue.log("", 0, EVERYTHING))


@on_loop
async def test_a_second_result_is_accepted_only_if_it_equals_the_first(backend: Backend) -> None:
    """The first result is stored: accepting another one would be a lie."""
    async with backend.queue() as queue:
        job = await started(queue)
        done = await queue.complete(job.lease_id, {"n": 1})

        assert await queue.complete(job.lease_id, {"n": 1}) == done
        with pytest.raises(StaleLease, match="COMPLETED"):
            await queue.complete(job.lease_id, {"n": 2})
        assert (await queue.get(job.id)).result == {"n": 1}


@on_loop
async def test_payloads_and_results_are_returned_unchanged(backend: Backend) -> None:
    """Any JSON value."""
    payloads: list[Any] = [None, 0, "", "ß", [], {}, {"a": [1, {"b": None}]}, 2.5, True, False]
    payloads += [-(2**63), 2**64 - 1, "a\0b", 1e308, {"": 0}, [[1, 2]] * 300]
    async with backend.queue() as queue:
        for payload in payloads:
            job = await started(queue, payload)
            assert job.payload == payload

            await queue.complete(job.lease_id, payload)

            found = await queue.get(job.id)
            assert (found.payload, found.result) == (payload, {} if payload is None else payload)


@on_loop
async def test_a_tuple_is_returned_as_a_list(backend: Backend) -> None:
    """JSON has one kind of list, and every response shows it."""
    async with backend.queue() as queue:
        job = await queue.enqueue({"n": (1, (2,))})

        assert job.payload == {"n": [1, [2]]}
        assert (await queue.get(job.id)).payload == {"n": [1, [2]]}


@on_loop
async def test_a_job_is_not_changed_through_objects_of_its_callers(backend: Backend) -> None:
    """Handlers modify payloads, and callers reuse theirs: the job stays as it was enqueued."""
    async with backend.queue() as queue:
        given = {"n": [1]}
        job = await queue.enqueue(given)
        given["n"].append(2)
        job.payload["n"].append(3)
        mine = await claim_one(queue)
        mine.payload["n"].append(4)
        await queue.start(mine.lease_id)
        result = {"r": [1]}
        done = await queue.complete(mine.lease_id, result)
        result["r"].append(2)
        done.result["r"].append(3)

        found = await queue.get(job.id)

        assert (found.payload, found.result) == ({"n": [1]}, {"r": [1]})


@on_loop
async def test_an_error_with_any_text_fails_its_job(backend: Backend) -> None:
    """The output of programs is not always Unicode."""
    async with backend.queue() as queue:
        for error in ("No space left on device \udc80", "\ud800", "a\0b", ""):
            job = await started(queue)

            assert (await queue.fail(job.lease_id, error, request_id="f")).status == "failed"
            assert (await queue.get(job.id)).status == "failed"


# -- dedupe


@pytest.mark.proves("QUE-T13")
@on_loop
async def test_one_dedupe_key_is_one_job(backend: Backend) -> None:
    """A repeated enqueue returns the existing job in any state."""
    async with backend.queue() as queue, backend.queue() as other:
        first = await queue.enqueue({"n": 1}, dedupe_key="k")

        again = await other.enqueue({"n": 2}, dedupe_key="k", priority=9)
        assert again == first
        job = await claim_one(queue)
        assert (await other.enqueue(3, dedupe_key="k")).status == "claimed"
        await queue.start(job.lease_id)
        await queue.complete(job.lease_id, "done")

        ended = await other.enqueue(4, dedupe_key="k")
        assert (ended.id, ended.status, ended.result, ended.payload) == (first.id, "succeeded", "done", {"n": 1})
        assert await queue.claim_next("w2") == []
        assert words(await queue.events(first.id))[0] == "enqueued"
        assert words(await queue.events(first.id)).count("enqueued") == 1


@pytest.mark.proves("QUE-T13")
@on_loop
async def test_fifty_concurrent_enqueues_with_one_key_create_one_job(backend: Backend) -> None:
    """Webhooks arrive in bursts, and at every server."""
    async with backend.queue() as one, backend.queue() as two:
        results = await asyncio.gather(
            *((one, two)[n % 2].enqueue({"n": n}, dedupe_key="burst") for n in range(50)),
            one.enqueue("another"),
        )

        assert len({job.id for job in results[:50]}) == 1
        assert len({msgspec.json.encode(job.payload) for job in results[:50]}) == 1
        assert len(await two.claim_next("w1", limit=100)) == 2
        assert [event.trigger for event in legal(await one.log())].count("enqueued") == 2


@pytest.mark.proves("QUE-B1")
@on_loop
async def test_a_dedupe_key_means_nothing_but_itself(backend: Backend) -> None:
    """The key is opaque: nothing is folded, trimmed, parsed or taken for a pattern."""
    keys = ["a", "A", "a ", " a", "1", "01", "q-x", "x", "ä", "a\u0308", "a/b", "a.b", "a.1", "%", "_", "a,b", "b,a"]
    async with backend.queue() as queue:
        jobs = [await queue.enqueue(key, dedupe_key=key) for key in keys]

        assert len({job.id for job in jobs}) == len(keys)
        for key, job in zip(keys, jobs, strict=True):
            assert await queue.enqueue("again", dedupe_key=key) == job
        assert sorted(job.payload for job in await queue.claim_next("w1", limit=99)) == sorted(keys)


@on_loop
async def test_dedupe_keys_are_separate_per_tenant(backend: Backend) -> None:
    """Two tenants with the same key have two jobs, and neither can see the other's."""
    async with backend.queue(tenant="one") as one, backend.queue(tenant="two") as two:
        first, second = await one.enqueue(1, dedupe_key="k"), await two.enqueue(2, dedupe_key="k")

        assert first.id != second.id
        await refused(two.get(first.id), "not_found")
        await refused(two.events(first.id), "not_found")


# -- many at once, and in which order


@on_loop
async def test_many_jobs_are_enqueued_in_one_go(backend: Backend) -> None:
    """A batch is one wait, and every job of it is a job like any other."""
    async with backend.queue() as queue:
        found = await queue.enqueue_all(
            [NewJob(payload=n, priority=n % 2, dedupe_key="k" * (n == 3)) for n in range(50)]
        )
        again = await queue.enqueue_all([NewJob(dedupe_key="k"), NewJob(dedupe_key="k"), NewJob(payload="new")])

        assert [job.payload for job in found] == list(range(50))
        assert [job.id for job in again[:2]] == [found[3].id] * 2
        assert await queue.enqueue_all([]) == []
        order = [job.payload for job in await queue.claim_next("w1", limit=25)]
        assert {payload % 2 for payload in order} == {1}
        assert len(await queue.claim_next("w1", limit=1000)) == 26


@on_loop
async def test_the_most_urgent_job_is_claimed_first(backend: Backend) -> None:
    """Priority, then time."""
    async with backend.queue() as queue:
        for priority in (0, 5, -3, 2):
            await queue.enqueue(priority, priority=priority)

        assert [(await claim_one(queue)).payload for _ in range(4)] == [5, 2, 0, -3]


@on_loop
async def test_a_job_is_claimed_by_a_worker_that_has_its_labels(backend: Backend) -> None:
    """A worker needs all labels of a job; further labels do no harm."""
    async with backend.queue() as queue:
        await queue.enqueue("gpu", labels=["gpu", "linux", "gpu"])

        assert await queue.claim_next("w1") == []
        assert await queue.claim_next("w1", labels=["linux"]) == []
        assert (await claim_one(queue, labels=["linux", "big", "gpu"])).payload == "gpu"


@on_loop
async def test_a_job_is_not_claimed_before_its_time(backend: Backend) -> None:
    """`run_at` is by the store's clock."""
    async with backend.queue() as queue:
        job = await queue.enqueue(1, run_at=backend.moment(60))
        assert job.run_at is not None
        assert await queue.claim_next("w1") == []

        backend.after(55)
        assert await queue.claim_next("w1") == []
        backend.after(6)

        assert (await claim_one(queue)).id == job.id


# -- waiting for work


@on_loop
async def test_a_waiting_claim_is_woken_when_a_job_arrives(backend: Backend) -> None:
    """Work starts when it arrives, not at the next poll."""
    async with backend.queue() as queue, backend.queue() as other:
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        waiting = asyncio.ensure_future(queue.claim_next("w1", wait_seconds=WAIT))
        elsewhere = asyncio.ensure_future(other.claim_next("w2", wait_seconds=WAIT))
        await asyncio.wait({waiting, elsewhere}, timeout=0.05)
        assert not waiting.done()

        await queue.enqueue("a")
        await queue.enqueue("b")

        assert sorted(job.payload for job in (*await waiting, *await elsewhere)) == ["a", "b"]
        assert loop.time() - asked_at < WAIT / 2


@on_loop
async def test_a_waiting_claim_times_out(backend: Backend) -> None:
    """The caller sets the longest wait."""
    async with backend.queue() as queue:
        loop = asyncio.get_running_loop()
        asked_at = loop.time()

        assert await queue.claim_next("w1", wait_seconds=0.1) == []

        assert 0.1 <= loop.time() - asked_at < WAIT / 2


@on_loop
async def test_a_job_whose_run_at_passes_while_a_claim_waits_is_found(backend: Backend) -> None:
    """There is no commit when `run_at` passes: the waiting claim must poll."""
    async with backend.queue() as queue:
        await queue.enqueue("later", run_at=backend.moment(60))
        waiting = asyncio.ensure_future(queue.claim_next("w1", wait_seconds=WAIT))
        await asyncio.wait({waiting}, timeout=0.05)

        backend.after(61)

        [job] = await waiting
        assert job.payload == "later"


# -- the log


@pytest.mark.proves("QUE-E1", "QUE-E2", "QUE-B3")
@on_loop
async def test_the_events_of_a_job_are_document_004s_words(backend: Backend) -> None:
    """The same words on every store, and a log that the verifier finds legal."""
    async with backend.queue() as queue:
        job = await started(queue, 1)
        await queue.heartbeat(job.lease_id, request_id="h")
        await queue.stall(job.id)
        backend.after(121)
        await queue.requeue_stalled(job.id)
        again = await claim_one(queue, "w2")
        await queue.start(again.lease_id)
        await queue.complete(again.lease_id, {})

        events = await queue.events(job.id)

        assert words(events) == [
            "enqueued", "claimed", "started", "heartbeat", "stalled", "requeued",
            "claimed", "started", "succeeded",
        ]  # fmt: skip
        assert [event["rev"] for event in events] == list(range(1, len(events) + 1))
        assert [event["attempt"] for event in events][-1] == 2
        assert events[3]["request_id"] == "h"
        assert {event["job_id"] for event in events} == {job.id}
        report = verify([msgspec.json.encode(event) for event in events], "job-events")
        assert report.is_legal, report.violations
        legal(await queue.log())


@pytest.mark.proves("MOD-13")
@on_loop
async def test_the_history_has_no_heartbeat_that_nobody_sent(backend: Backend) -> None:
    """A program that debugs a lost lease reads from it when its worker was last heard from."""
    async with backend.queue() as queue:
        job = await started(queue, 1)
        await queue.complete(job.lease_id, {})

        assert words(await queue.events(job.id)) == ["enqueued", "claimed", "started", "succeeded"]
        log = await queue.log(job.id)
        assert "heartbeat" not in {event.trigger for event in log}
        assert [(event.trigger, event.metadata.get("implied_by")) for event in log] == [
            ("enqueued", None),
            ("claimed", None),
            ("acknowledged", "Start"),
            ("started", None),
            ("upload_began", "Finish"),
            ("succeeded", None),
        ]


@pytest.mark.proves("MOD-13")
@on_loop
async def test_the_history_says_who_canceled_a_job_and_why(backend: Backend) -> None:
    """Document 004 has no cancel: the steps that it forces are marked, whoever they are attributed to."""
    async with backend.queue() as queue:
        job = await started(queue, 1)
        await queue.cancel(job.id, "NOT_NEEDED")
        with pytest.raises(JobCanceled):
            await queue.complete(job.lease_id, {})
        waiting = await queue.enqueue(2)
        await queue.cancel(waiting.id, "TOO_LATE")

        acknowledged, forced = await queue.events(job.id), await queue.events(waiting.id)

        assert words(acknowledged)[2:] == ["started", "failed"]
        assert acknowledged[-1]["metadata"] == {"takeover": {"by": "orchestrator", "reason": "NOT_NEEDED"}}
        assert "metadata" not in acknowledged[2]
        assert words(forced)[1:] == ["claimed", "started", "failed"]
        for event in forced[1:]:
            assert event["metadata"] == {"takeover": {"by": "orchestrator", "reason": "TOO_LATE"}}


@pytest.mark.proves("MOD-2")
@on_loop
async def test_an_attempt_that_the_orchestrator_ends_is_a_takeover(backend: Backend) -> None:
    """Document 004 sees a stall, a claim by the orchestrator, a start and a failure."""
    async with backend.queue() as queue:
        waiting = await queue.enqueue(1)
        await queue.cancel(waiting.id)

        events = await queue.events(waiting.id)

        assert words(events) == ["enqueued", "claimed", "started", "failed"]
        assert [event["actor"] for event in events[1:]] == ["orchestrator"] * 3
        assert verify([msgspec.json.encode(event) for event in events], "job-events").is_legal


# -- many messages at once


@on_loop
async def test_each_of_many_messages_has_its_own_response(backend: Backend) -> None:
    """They share one transaction; one stale lease among them is one refusal."""
    async with backend.queue() as queue:
        await queue.enqueue_all([NewJob(payload=n) for n in range(4)])
        jobs = await queue.claim_next("w1", limit=4)
        leases = [job.lease_id for job in jobs]
        await queue.hand_back(jobs[1].id)

        starts = await queue.start_all(leases, "w1")
        beats = await queue.heartbeat_all(leases, "w1")
        ends = await queue.finish_all(
            [
                JobOutcome(lease_id=leases[0], result={"n": 0}),
                JobOutcome(lease_id=leases[1]),
                JobOutcome(lease_id=leases[2], error="boom"),
            ],
            "w1",
        )

        for answers in (starts, beats):
            assert [isinstance(answer, QueueJob) for answer in answers] == [True, False, True, True]
        assert [answer.status if isinstance(answer, QueueJob) else "" for answer in ends] == ["succeeded", "", "failed"]
        legal(await queue.log())


# -- leases


@pytest.mark.proves("PRO-Q1", "MOD-L1")
@on_loop
async def test_a_lease_id_cannot_be_guessed(backend: Backend) -> None:
    """Every lease has 128 random bits, and no stored or sent value reveals them."""
    async with backend.queue() as queue:
        await queue.enqueue_all([NewJob(payload=n) for n in range(100)])
        jobs = await queue.claim_next("w1", limit=100)
        secrets = [job.lease_id.removeprefix(f"{job.id}.1.") for job in jobs]

        assert len(set(secrets)) == 100
        assert all(re.fullmatch(r"[0-9a-f]{32}", secret) for secret in secrets)
        for position in range(32):  # Every character carries chance; a counter or a clock would not.
            assert len({secret[position] for secret in secrets}) > 10
        document = msgspec.json.encode([await queue.log(), [(await queue.get(job.id)).to_dict() for job in jobs]])
        records = msgspec.json.encode([await queue._store.find(job.id) for job in jobs])
        assert not [secret for secret in secrets if secret.encode() in document or secret.encode() in records]

        swapped = f"{jobs[0].id}.1.{secrets[1]}"
        refusal = await refused(queue.start(swapped), "stale_lease")
        assert isinstance(refusal, StaleLease)
        assert refusal.reason == "UNKNOWN_LEASE"
