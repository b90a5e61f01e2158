"""What the queue library refuses, and with which code: a refusal changes nothing."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from deltaci.core.errors import Refused, StaleLease
from deltaci.core.json_values import MAX_DEPTH, MAX_PAYLOAD_BYTES
from deltaci.engine.queue import AsyncQueue, JobOutcome, NewJob, QueueJob
from deltaci.engine.validation import MAX_CLAIM, MAX_LABELS, MAX_SECONDS, MAX_TEXT
from deltaci.storage.memory import MemoryStore
from tests.contract.backends import EVERYTHING, Backend, in_memory, on_loop, refused
from tests.contract.test_queue import claim_one, started

Ask = Callable[[AsyncQueue], Awaitable[Any]]

SECRET = "s" * 22


async def unchanged(queue: AsyncQueue, ask: Awaitable[Any], code: str) -> str:
    """The message of a refusal that left no trace."""
    before = await queue.log("", 0, EVERYTHING)
    refusal = await refused(ask, code)
    assert await queue.log("", 0, EVERYTHING) == before
    return refusal.message


# -- what is asked for makes no sense


class NotJson:
    """Nothing that JSON has a word for."""


def endless() -> list[Any]:
    """A list that contains itself."""
    found: list[Any] = []
    found.append(found)
    return found


def deep(levels: int) -> list[Any]:
    """Lists in lists."""
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


JOBS: list[dict[str, Any]] = [
    {"payload": NotJson()},
    {"payload": {"deep": [NotJson()]}},
    {"payload": endless()},
    {"payload": deep(MAX_DEPTH + 1)},
    {"payload": "\ud800"},
    {"payload": {"\udc80": 1}},
    {"payload": 2**64},
    {"payload": [-(2**63) - 1]},
    {"payload": 10**5000},
    {"payload": float("nan")},
    {"payload": {"a": [float("inf")]}},
    {"payload": {1, 2}},
    {"payload": {1: 2}},
    {"payload": b"bytes"},
    {"payload": datetime(2026, 1, 4)},
    {"payload": ({"a": {"b"}},)},
    {"payload": "x" * MAX_PAYLOAD_BYTES},
    {"labels": "linux"},
    {"labels": None},
    {"labels": 5},
    {"labels": {"linux": True}},
    {"labels": [""]},
    {"labels": ["a,b"]},
    {"labels": ["a\nb"]},
    {"labels": ["\ud800"]},
    {"labels": [7]},
    {"labels": ["x" * (MAX_TEXT + 1)]},
    {"labels": [str(n) for n in range(MAX_LABELS + 1)]},
    {"dedupe_key": "x" * (MAX_TEXT + 1)},
    {"dedupe_key": "a\0b"},
    {"dedupe_key": "\ud800"},
    {"dedupe_key": 7},
    {"dedupe_key": 0},
    {"request_id": "x" * (MAX_TEXT + 1)},
    {"request_id": "\ud800"},
    {"request_id": None},
    {"priority": "high"},
    {"priority": 1.5},
    {"priority": True},
    {"priority": 2**31},
    {"timeout_seconds": 0},
    {"max_lost_leases": -1},
    {"run_at": "tomorrow"},
    {"run_at": 1767513600},
    {"run_at": datetime(2026, 1, 4)},
    {"run_at": datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12)))},
    {"run_at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=12)))},
    {"prority": 1},
]


@in_memory
@on_loop
async def test_an_invalid_job_is_not_enqueued(backend: Backend) -> None:
    """The error is raised before anything is written, in the caller."""
    async with backend.queue() as queue:
        for fields in JOBS:
            message = await unchanged(queue, queue.enqueue(**fields), "bad_request")
            assert len(message) < 500
            assert re.search("; give|; see|; use|: store it elsewhere", message), message

        assert await queue.claim_next("w1", limit=9) == []


@in_memory
@on_loop
async def test_one_invalid_job_refuses_its_whole_batch(backend: Backend) -> None:
    """After an error, the caller must not wonder which jobs were enqueued."""
    async with backend.queue() as queue:
        await unchanged(queue, queue.enqueue_all([NewJob(payload=1), NewJob(labels=["a,b"])]), "bad_request")

        assert await queue.claim_next("w1", limit=9) == []


CLAIMS: list[dict[str, Any]] = [
    {"worker": ""},
    {"worker": "x" * (MAX_TEXT + 1)},
    {"worker": "a\tb"},
    {"limit": 0},
    {"limit": -1},
    {"limit": MAX_CLAIM + 1},
    {"labels": "linux"},
    {"labels": ["a,b"]},
    {"labels": [None]},
    {"labels": None},
    {"labels": 5},
    {"limit": "1"},
    {"limit": 1.5},
    {"limit": True},
    {"ttl_seconds": 0},
    {"ttl_seconds": -5},
    {"ttl_seconds": 31.5},
    {"ttl_seconds": 10**30},
    {"accept_seconds": 0},
    {"accept_seconds": "x"},
    {"wait_seconds": "x"},
    {"wait_seconds": None},
    {"wait_seconds": True},
    {"wait_seconds": -1},
    {"wait_seconds": float("nan")},
    {"wait_seconds": float("inf")},
    {"wait_seconds": MAX_SECONDS + 1},
]


@in_memory
@on_loop
async def test_a_claim_that_makes_no_sense_gets_nothing(backend: Backend) -> None:
    """A claim changes jobs: it is checked before it touches one."""
    async with backend.queue() as queue:
        job = await queue.enqueue(1)

        for options in CLAIMS:
            await unchanged(queue, queue.claim_next(**{"worker": "w1", **options}), "bad_request")

        assert (await queue.get(job.id)).status == "queued"


@pytest.mark.parametrize("name", ["start", "heartbeat", "complete", "fail", "stall", "requeue_stalled", "cancel"])
@in_memory
@on_loop
async def test_an_option_that_makes_no_sense_is_refused(backend: Backend, name: str) -> None:
    """A misspelled guard is no guard."""
    async with backend.queue() as queue:
        job = await started(queue)
        target = job.id if name in ("stall", "requeue_stalled", "cancel") else job.lease_id

        for options in OPTIONS:
            await unchanged(queue, getattr(queue, name)(target, **options), "bad_request")


OPTIONS: list[dict[str, Any]] = [
    {"request": "x"},
    {"request_id": 7},
    {"request_id": "x" * (MAX_TEXT + 1)},
    {"request_id": "\ud800"},
    {"request_id": "a\0b"},
    {"request_id": None},
    {"expected_rev": "1"},
    {"expected_rev": True},
]


@in_memory
@on_loop
async def test_an_invalid_result_leaves_the_job_running(backend: Backend) -> None:
    """Its worker can still send a valid one."""
    async with backend.queue() as queue:
        job = await started(queue)

        for result in (NotJson(), "x" * MAX_PAYLOAD_BYTES, 2**64, float("nan"), "\ud800"):
            await unchanged(queue, queue.complete(job.lease_id, result), "bad_request")
        nameless: list[Any] = ["", "a\0b", "\ud800", 7]
        for worker in nameless:
            await unchanged(queue, queue.complete(job.lease_id, worker=worker), "bad_request")
            await unchanged(queue, queue.start_all([job.lease_id], worker), "bad_request")

        assert (await queue.complete(job.lease_id, 1)).status == "succeeded"


# -- who is not there, and who is not the owner


@pytest.mark.parametrize("tenant", ["", "a\0b", "\ud800", "x" * (MAX_TEXT + 1), None])
def test_a_tenant_without_a_name_is_refused(tenant: Any) -> None:
    """The name separates tenants."""
    with pytest.raises(Refused, match=r"tenant is .*; give"):
        AsyncQueue(MemoryStore(), tenant=tenant)


UNKNOWN: list[Any] = ["", "nobody", "q-" + "0" * 32, "x" * 1000, "a/b.1", None, 7, "a\0b", "\ud800"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda queue, id: queue.get(id),
        lambda queue, id: queue.events(id),
        lambda queue, id: queue.stall(id),
        lambda queue, id: queue.requeue_stalled(id),
        lambda queue, id: queue.hand_back(id),
        lambda queue, id: queue.cancel(id),
    ],
    ids=["get", "events", "stall", "requeue_stalled", "hand_back", "cancel"],
)
@on_loop
async def test_an_unknown_job_is_not_found(backend: Backend, ask: Callable[[AsyncQueue, Any], Awaitable[Any]]) -> None:
    """An unknown id is the caller's mistake, and creates nothing."""
    async with backend.queue() as queue:
        for id in UNKNOWN:
            await unchanged(queue, ask(queue, id), "not_found")


GARBAGE: list[Any] = [
    "x",
    "a.1",
    "..",
    f"a.1.{SECRET}",
    f"a.x.{SECRET}",
    f"a.-1.{SECRET}",
    f".1.{SECRET}",
    "a.1.short",
    f"a.9999999999.{SECRET}",
    f"a\0b.1.{SECRET}",
    f"a.1.\ud800{SECRET}",
    "x" * 1000,
    "",
    None,
    7,
]


@pytest.mark.parametrize("name", ["start", "heartbeat", "complete", "fail"])
@on_loop
async def test_an_invalid_lease_id_is_stale(backend: Backend, name: str) -> None:
    """A worker that cannot prove its lease must stop, whatever the text was."""
    async with backend.queue() as queue:
        for lease_id in GARBAGE:
            await unchanged(queue, getattr(queue, name)(lease_id), "stale_lease")
            await unchanged(queue, getattr(queue, name)(lease_id, worker="w1"), "stale_lease")


@on_loop
async def test_an_invalid_message_among_many_is_refused_alone(backend: Backend) -> None:
    """An invalid message must not cost the others their leases."""
    async with backend.queue() as queue:
        job = await claimed_one(queue)
        no_end: Any = "no end"

        for say in (queue.start_all, queue.heartbeat_all):
            *garbage, good = await say([*GARBAGE, job.lease_id], "w1")
            assert [answer.code for answer in garbage if isinstance(answer, Refused)] == ["stale_lease"] * len(GARBAGE)
            assert isinstance(good, QueueJob)
        ends = [JobOutcome(lease_id=lease_id) for lease_id in GARBAGE]
        ends += [
            JobOutcome(lease_id=job.lease_id, result=result) for result in (NotJson(), 2**64, "x" * MAX_PAYLOAD_BYTES)
        ]
        *bad, good = await queue.finish_all([*ends, no_end, JobOutcome(lease_id=job.lease_id, result=1)], "w1")

        codes = ["stale_lease"] * len(GARBAGE) + ["bad_request"] * 4
        assert [answer.code for answer in bad if isinstance(answer, Refused)] == codes
        assert (await queue.get(job.id)).result == 1


@pytest.mark.proves("QUE-C2")
@pytest.mark.parametrize("name", ["start", "heartbeat", "complete", "fail"])
@in_memory
@on_loop
async def test_only_the_owner_of_a_lease_may_use_it(backend: Backend, name: str) -> None:
    """The token alone is not enough if its owner is known."""
    async with backend.queue() as queue:
        job = await started(queue) if name != "start" else await claimed_one(queue)
        forged = job.lease_id[:-1] + ("A" if job.lease_id[-1] != "A" else "B")
        number = job.lease_id.replace(f"{job.id}.1.", f"{job.id}.2.")

        say = getattr(queue, name)
        await unchanged(queue, say(job.lease_id, worker="somebody"), "stale_lease")
        await unchanged(queue, say(forged), "stale_lease")
        await unchanged(queue, say(number), "stale_lease")

        assert (await say(job.lease_id, worker="w1")).owner in ("w1", None)


async def claimed_one(queue: AsyncQueue) -> Any:
    """A job that was claimed and nothing else."""
    await queue.enqueue(1)
    return await claim_one(queue)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (lambda queue, job: queue.complete(job.lease_id), "LEASE_COMPLETED"),
        (lambda queue, job: queue.stall(job.id), "LEASE_REVOKED"),
        (lambda queue, job: queue.hand_back(job.id), "LEASE_REVOKED"),
    ],
    ids=["completed", "stalled", "handed back"],
)
@on_loop
async def test_an_ended_lease_is_stale_with_the_reason(
    backend: Backend, end: Callable[[AsyncQueue, Any], Awaitable[Any]], reason: str
) -> None:
    """The worker learns that it must stop, and its people learn why."""
    async with backend.queue() as queue:
        job = await started(queue)
        await end(queue, job)

        refusal = await refused(queue.heartbeat(job.lease_id), "stale_lease")

        assert isinstance(refusal, StaleLease)
        assert refusal.reason == reason


# -- what does not apply now


@pytest.mark.parametrize(
    ("name", "code"),
    [("stall", "wrong_state"), ("requeue_stalled", "wrong_state"), ("hand_back", "wrong_state")],
)
@in_memory
@on_loop
async def test_an_order_that_does_not_apply_is_refused(backend: Backend, name: str, code: str) -> None:
    """A queued job has no owner to take it from."""
    async with backend.queue() as queue:
        job = await queue.enqueue(1)

        await unchanged(queue, getattr(queue, name)(job.id), code)


@pytest.mark.proves("QUE-T12")
@in_memory
@on_loop
async def test_only_a_running_job_can_be_finished(backend: Backend) -> None:
    """No status is skipped: a job that never started cannot have succeeded."""
    async with backend.queue() as queue:
        job = await claimed_one(queue)

        await unchanged(queue, queue.complete(job.lease_id), "wrong_state")
        await unchanged(queue, queue.fail(job.lease_id), "wrong_state")


@pytest.mark.proves("QUE-C6")
@on_loop
async def test_a_job_that_is_over_never_changes_again(backend: Backend) -> None:
    """Terminal records are final, on every store and after every restart."""
    async with backend.queue() as queue:
        job = await started(queue)
        done = await queue.complete(job.lease_id, 1)

        for ask in (queue.stall, queue.requeue_stalled, queue.hand_back, queue.cancel):
            await unchanged(queue, ask(job.id), "wrong_state")
        await unchanged(queue, queue.fail(job.lease_id, "no"), "stale_lease")
        await unchanged(queue, queue.start(job.lease_id), "stale_lease")

        assert await queue.get(job.id) == done


# -- compare and set


@pytest.mark.proves("QUE-C1")
@on_loop
async def test_an_outdated_revision_is_refused(backend: Backend) -> None:
    """A caller that decided by an older record must read it again."""
    async with backend.queue() as queue:
        job = await started(queue)
        rev = (await queue.get(job.id)).rev
        asks: list[Callable[..., Awaitable[QueueJob]]] = [queue.heartbeat, queue.complete, queue.fail]

        for stale in (0, rev - 1, rev + 1):
            for ask in asks:
                await unchanged(queue, ask(job.lease_id, expected_rev=stale), "stale_rev")
            await unchanged(queue, queue.stall(job.id, expected_rev=stale), "stale_rev")
            await unchanged(queue, queue.cancel(job.id, expected_rev=stale), "stale_rev")

        assert (await queue.heartbeat(job.lease_id, expected_rev=rev)).rev == rev + 1
        assert (await queue.stall(job.id, expected_rev=rev + 1)).status == "stalled"
