"""The rules of docs/spec/queue.md, through the queue library: every operation on a job in every status.

What depends on the store is in tests/contract/test_queue.py and its neighbours.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from deltaci.core.errors import Refused
from deltaci.core.instants import rfc3339
from deltaci.core.lease import TTL_SECONDS
from deltaci.engine.queue import AsyncQueue, QueueJob
from deltaci.storage.memory import MemoryStore
from tests.contract.backends import Backend, on_loop

STATUSES: Final = ("queued", "claimed", "running", "succeeded", "failed", "stalled")
OPERATIONS: Final[dict[str, Callable[[AsyncQueue, str, str], Awaitable[Any]]]] = {
    "claim_next": lambda queue, _id, _lease: queue.claim_next("w1"),
    "start": lambda queue, _id, lease: queue.start(lease, worker="w1"),
    "heartbeat": lambda queue, _id, lease: queue.heartbeat(lease, worker="w1"),
    "complete": lambda queue, _id, lease: queue.complete(lease, {"n": 1}, worker="w1"),
    "fail": lambda queue, _id, lease: queue.fail(lease, "no", worker="w1"),
    "stall": lambda queue, id, _lease: queue.stall(id),
    "requeue_stalled": lambda queue, id, _lease: queue.requeue_stalled(id),
}
# The operations by which a new job gets into each status.
PATHS: Final = {
    "queued": (),
    "claimed": ("claim_next",),
    "running": ("claim_next", "start"),
    "succeeded": ("claim_next", "start", "complete"),
    "failed": ("claim_next", "start", "fail"),
    "stalled": ("claim_next", "start", "stall"),
}
ALLOWED: Final = {
    ("claim_next", "queued"): "claimed",
    ("start", "claimed"): "running",
    ("heartbeat", "claimed"): "claimed",
    ("heartbeat", "running"): "running",
    ("complete", "running"): "succeeded",
    ("fail", "running"): "failed",
    ("stall", "claimed"): "stalled",
    ("stall", "running"): "stalled",
    ("requeue_stalled", "stalled"): "queued",
}
# Repeats that end in the same status, and the reclaim of a stalled job, which lease policy decides.
ELSEWHERE: Final = {
    *(("start", "running"), ("complete", "succeeded"), ("fail", "failed"), ("stall", "stalled")),
    *(("requeue_stalled", "queued"), ("claim_next", "stalled")),
}


def memory_backend() -> Backend:
    """Return an empty memory store with its clock."""
    backend = Backend("memory", lambda _: store)
    store = MemoryStore(clock=backend.now)
    return backend


def memory_queue() -> AsyncQueue:
    """Return a queue over an empty memory store."""
    return memory_backend().queue()


async def job_in(queue: AsyncQueue, status: str) -> tuple[QueueJob, str]:
    """Return a job in this status, and the id of its last lease."""
    id, lease_id = (await queue.enqueue({"n": 0})).id, f"q.1.{'s' * 32}"
    for name in PATHS[status]:
        response = await OPERATIONS[name](queue, id, lease_id)
        if name == "claim_next":
            lease_id = response[0].lease_id
    job = await queue.get(id)
    assert job.status == status
    return job, lease_id


@pytest.mark.parametrize(
    ("operation", "status"),
    [
        pytest.param("claim_next", "queued", marks=pytest.mark.proves("QUE-T2")),
        pytest.param("start", "claimed", marks=pytest.mark.proves("QUE-T4")),
        pytest.param("heartbeat", "claimed", marks=pytest.mark.proves("QUE-T5")),
        pytest.param("heartbeat", "running", marks=pytest.mark.proves("QUE-T6")),
        pytest.param("complete", "running", marks=pytest.mark.proves("QUE-T7")),
        pytest.param("fail", "running", marks=pytest.mark.proves("QUE-T8")),
        pytest.param("stall", "claimed", marks=pytest.mark.proves("QUE-T9")),
        pytest.param("stall", "running", marks=pytest.mark.proves("QUE-T10")),
        pytest.param("requeue_stalled", "stalled", marks=pytest.mark.proves("QUE-T11")),
    ],
)
@pytest.mark.proves("QUE-A2", "QUE-A3", "QUE-R1", "QUE-E1")
@on_loop
async def test_an_operation_leads_to_its_status(operation: str, status: str) -> None:
    """`attempt` grows with a claim only, `rev` with every operation, and each has an event."""
    backend = memory_backend()
    async with backend.queue() as queue:
        before, lease_id = await job_in(queue, status)
        count = len(await queue.events(before.id))
        if status == "stalled":
            backend.after(TTL_SECONDS)  # Before, its last owner might still execute it.

        await OPERATIONS[operation](queue, before.id, lease_id)

        after = await queue.get(before.id)
        assert after.status == ALLOWED[operation, status]
        assert after.attempt == before.attempt + (operation == "claim_next")
        assert after.rev > before.rev
        [event] = (await queue.events(before.id))[count:]
        is_of_worker = operation in ("claim_next", "start", "heartbeat", "complete", "fail")
        assert (event["from_status"], event["to_status"]) == (status, after.status)
        assert (event["at"], event["actor"]) == (
            *(rfc3339(backend.now()), "worker:w1" if is_of_worker else "orchestrator"),
        )


@pytest.mark.proves("QUE-T12", "QUE-S7", "QUE-C6", "QUE-C3", "QUE-S4", "QUE-S5")
@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("operation", OPERATIONS)
@on_loop
async def test_no_other_operation_changes_a_job(operation: str, status: str) -> None:
    """It is refused, or a claim gets nothing; a terminal job stays as it is."""
    if (operation, status) in ALLOWED or (operation, status) in ELSEWHERE:
        return
    async with memory_queue() as queue:
        before, lease_id = await job_in(queue, status)

        try:
            response = await OPERATIONS[operation](queue, before.id, lease_id)
        except Refused as refusal:
            response = refusal

        assert response == [] or isinstance(response, Refused)
        assert await queue.get(before.id) == before


@pytest.mark.parametrize(
    ("status", "has_owner", "has_result", "has_error"),
    [
        pytest.param("queued", False, False, False, marks=pytest.mark.proves("QUE-N1", "QUE-S1")),
        pytest.param("claimed", True, False, False, marks=pytest.mark.proves("QUE-N2", "QUE-S2")),
        pytest.param("running", True, False, False, marks=pytest.mark.proves("QUE-N3", "QUE-S3")),
        pytest.param("succeeded", False, True, False, marks=pytest.mark.proves("QUE-N4", "QUE-S4")),
        pytest.param("failed", False, False, True, marks=pytest.mark.proves("QUE-N5", "QUE-S5")),
        pytest.param("stalled", False, False, False, marks=pytest.mark.proves("QUE-N6", "QUE-S6")),
    ],
)
@on_loop
async def test_a_status_has_its_fields(status: str, has_owner: bool, has_result: bool, has_error: bool) -> None:
    """Owner and lease are there together, and only while a worker is responsible."""
    async with memory_queue() as queue:
        job, _ = await job_in(queue, status)

        assert job.owner == ("w1" if has_owner else None)
        assert (job.lease_expires_at is not None) == has_owner
        assert (job.result is not None, job.error is not None) == (has_result, has_error)


@pytest.mark.proves("QUE-T1", "QUE-A1", "QUE-S1")
@on_loop
async def test_a_new_job_is_queued_and_was_never_claimed() -> None:
    """A worker can claim it."""
    async with memory_queue() as queue:
        job = await queue.enqueue({"n": 1})

        assert (job.status, job.attempt, job.rev) == ("queued", 0, 1)
        [claimed] = await queue.claim_next("w1")
        assert (claimed.id, claimed.attempt) == (job.id, 1)


@pytest.mark.proves("QUE-C2", "QUE-S2")
@pytest.mark.parametrize("operation", ["start", "heartbeat", "complete", "fail"])
@on_loop
async def test_only_the_owner_executes_a_job(operation: str) -> None:
    """Another worker is refused even with the id of the lease, and no second worker can claim the job."""
    async with memory_queue() as queue:
        before, lease_id = await job_in(queue, "claimed" if operation == "start" else "running")

        with pytest.raises(Refused, match="stale_lease"):
            await getattr(queue, operation)(lease_id, worker="w3")

        assert await queue.get(before.id) == before
        assert await queue.claim_next("w3") == []


@pytest.mark.proves("QUE-C3")
@pytest.mark.parametrize(("operation", "status"), [("stall", "running"), ("requeue_stalled", "stalled")])
@on_loop
async def test_a_system_operation_needs_no_owner_but_the_current_revision(operation: str, status: str) -> None:
    """Both operations compare and set."""
    backend = memory_backend()
    async with backend.queue() as queue:
        before, _ = await job_in(queue, status)
        if status == "stalled":
            backend.after(TTL_SECONDS)

        with pytest.raises(Refused, match="stale_rev"):
            await getattr(queue, operation)(before.id, expected_rev=before.rev - 1)
        assert await queue.get(before.id) == before

        after = await getattr(queue, operation)(before.id, expected_rev=before.rev)
        assert after.rev > before.rev


@pytest.mark.proves("QUE-S6", "QUE-A3")
@on_loop
async def test_a_stalled_job_is_not_over_and_its_last_owner_cannot_continue() -> None:
    """It returns to the queue by a step of its own."""
    backend = memory_backend()
    async with backend.queue() as queue:
        job, lease_id = await job_in(queue, "stalled")

        with pytest.raises(Refused, match="stale_lease"):
            await queue.complete(lease_id, {"n": 1})
        backend.after(TTL_SECONDS)
        requeued = await queue.requeue_stalled(job.id)

        assert (requeued.status, requeued.attempt, requeued.result) == ("queued", job.attempt, None)


@pytest.mark.proves("QUE-B2", "QUE-S3", "QUE-T6")
@pytest.mark.parametrize("ttl_seconds", [30, 600])
@on_loop
async def test_how_long_a_lease_lasts_is_an_option_of_the_caller(ttl_seconds: int) -> None:
    """The contract says that it ends and that a heartbeat extends it, not when."""
    backend = Backend("memory", lambda _: store)
    store = MemoryStore(clock=backend.now)
    async with backend.queue() as queue:
        await queue.enqueue({})
        [job] = await queue.claim_next("w1", ttl_seconds=ttl_seconds)
        await queue.start(job.lease_id)
        backend.after(ttl_seconds - 1)
        extended = await queue.heartbeat(job.lease_id)
        backend.after(ttl_seconds - 1)
        assert str((await queue.heartbeat(job.lease_id)).lease_expires_at) > str(extended.lease_expires_at)
        backend.after(ttl_seconds)

        with pytest.raises(Refused, match="stale_lease"):
            await queue.heartbeat(job.lease_id)
