"""Tenants of one deployment are separate: records of another tenant do not exist for a caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from deltaci.core.errors import Refused, StaleLease
from deltaci.engine.feed import follow
from deltaci.engine.queue import AsyncQueue, JobOutcome
from tests.contract.backends import EVERYTHING, Backend, legal, on_loop, refused
from tests.contract.test_queue import claim_one, started

Ask = Callable[[AsyncQueue, str], Awaitable[Any]]

NOBODY = "q-" + "0" * 32

# -- refusals


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
async def test_another_tenants_job_is_not_found(backend: Backend, ask: Ask) -> None:
    """The response equals the one for an unknown id, so that it does not reveal the job."""
    async with backend.queue(tenant="a") as ours, backend.queue(tenant="b") as theirs:
        job = await started(ours)
        before = await ours.get(job.id)

        refusal = await refused(ask(theirs, job.id), "not_found")
        unknown = await refused(ask(theirs, NOBODY), "not_found")

        assert refusal.message.replace(job.id, NOBODY) == unknown.message
        assert await ours.get(job.id) == before


@pytest.mark.parametrize("name", ["start", "heartbeat", "complete", "fail"])
@on_loop
async def test_another_tenants_lease_is_unknown(backend: Backend, name: str) -> None:
    """A lease id proves something only where it was given: elsewhere it is one that never was."""
    async with backend.queue(tenant="a") as ours, backend.queue(tenant="b") as theirs:
        job = await started(ours)
        before = await ours.get(job.id)
        nobodys = job.lease_id.replace(job.id, NOBODY)

        for options in ({}, {"worker": "w1"}):
            refusal = await refused(getattr(theirs, name)(job.lease_id, **options), "stale_lease")
            unknown = await refused(getattr(theirs, name)(nobodys, **options), "stale_lease")
            assert isinstance(refusal, StaleLease)
            assert refusal.reason == "UNKNOWN_LEASE"
            assert refusal.message.replace(job.id, NOBODY) == unknown.message

        assert await ours.get(job.id) == before


@pytest.mark.parametrize(
    "ask",
    [
        lambda queue, id: queue.start_all([id], "w1"),
        lambda queue, id: queue.heartbeat_all([id], "w1"),
        lambda queue, id: queue.finish_all([JobOutcome(lease_id=id)], "w1"),
    ],
    ids=["start_all", "heartbeat_all", "finish_all"],
)
@on_loop
async def test_another_tenants_lease_is_unknown_among_many_too(backend: Backend, ask: Ask) -> None:
    """The short way of the worker checks no less than the long one."""
    async with backend.queue(tenant="a") as ours, backend.queue(tenant="b") as theirs:
        job = await started(ours)
        before = await ours.get(job.id)

        [answer] = await ask(theirs, job.lease_id)

        assert isinstance(answer, Refused)
        assert answer.code == "stale_lease"
        assert await ours.get(job.id) == before
        assert not isinstance((await ask(ours, job.lease_id))[0], Refused)


@on_loop
async def test_a_finished_lease_of_another_tenant_is_not_taken_for_a_repeat(backend: Backend) -> None:
    """The response to a repeat contains the job, which is only for its tenant."""
    async with backend.queue(tenant="a") as ours, backend.queue(tenant="b") as theirs:
        job = await started(ours)
        await ours.complete(job.lease_id, "secret", request_id="r")

        await refused(theirs.complete(job.lease_id, "secret", worker="w1", request_id="r"), "stale_lease")
        [answer] = await theirs.finish_all([JobOutcome(lease_id=job.lease_id, result="secret")], "w1")

        assert isinstance(answer, Refused)


# -- what is everyone's own


@on_loop
async def test_a_worker_claims_only_its_tenants_jobs(backend: Backend) -> None:
    """For any urgency and any labels."""
    async with backend.queue(tenant="a") as ours, backend.queue(tenant="b") as theirs:
        job = await ours.enqueue(1, priority=9, labels=["arm"])

        assert await theirs.claim_next("w1", labels=["arm"], limit=9) == []
        mine = await theirs.enqueue(2)
        assert [each.id for each in await theirs.claim_next("w1", labels=["arm"], limit=9)] == [mine.id]
        assert (await claim_one(ours, labels=["arm"])).id == job.id


@on_loop
async def test_the_log_shows_only_events_of_the_tenant(backend: Backend) -> None:
    """The whole log, the log of a job and the feed skip the events of others."""
    async with backend.queue(tenant="a") as ours, backend.queue(tenant="b") as theirs, backend.opened() as store:
        first = await ours.enqueue(1)
        for n in range(5):
            await theirs.enqueue(n)
        second = await ours.enqueue(2)

        assert [event.entity_id for event in await ours.log()] == [first.id, second.id]
        assert [event.entity_id for event in await ours.log(limit=2)] == [first.id, second.id]
        assert [event.entity_id for event in await ours.log(limit=1)] == [first.id]
        assert await theirs.log(first.id) == []
        assert len(legal(await theirs.log())) == 5
        assert len(await store.events(0, EVERYTHING)) == 7
        feed = follow(store, 0, tenant="a")
        assert [(await anext(feed)).entity_id for _ in range(2)] == [first.id, second.id]
        await feed.aclose()  # type: ignore[attr-defined]
