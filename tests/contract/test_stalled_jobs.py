"""Stalled jobs through the queue library: claimed when the old lease can no longer be used, on every store."""

from __future__ import annotations

import asyncio
from datetime import datetime

import msgspec
import pytest

from deltaci.core import attempt
from deltaci.core.attempt import Attempt
from deltaci.core.errors import LeaseLost
from deltaci.core.ids import lease_ref
from deltaci.storage.migrate import migrations
from tests.contract.backends import Backend, legal, on_loop, put, refused, write
from tests.contract.test_queue import WAIT, claim_one, started, words
from tests.support.lab import TENANT


def seconds_until(text: str | None, backend: Backend) -> float:
    """Return how far this time is from now."""
    assert text is not None
    return (datetime.fromisoformat(text) - backend.moment()).total_seconds()


@pytest.mark.proves("QUE-T3", "QUE-L1", "QUE-L2", "MOD-5")
@on_loop
async def test_a_stalled_job_is_claimed_when_its_old_lease_would_have_ended(backend: Backend) -> None:
    """No person has to queue it again, and it never runs twice at the same time."""
    async with backend.queue() as queue:
        job = await started(queue)

        stalled = await queue.stall(job.id, request_id="s")
        assert (stalled.status, stalled.owner, stalled.lease, stalled.attempt) == ("stalled", None, None, 1)
        assert seconds_until(stalled.claimable_at, backend) == pytest.approx(120, abs=5)
        backend.after(60)
        assert await queue.claim_next("w2") == []
        assert await queue.get(job.id) == stalled
        backend.after(61)

        again = await claim_one(queue, "w2")
        assert (again.id, again.attempt, again.owner) == (job.id, 2, "w2")
        assert again.lease_id != job.lease_id
        await refused(queue.complete(job.lease_id), "stale_lease")
        assert words(await queue.events(job.id))[-3:] == ["started", "stalled", "claimed"]
        legal(await queue.log())


@pytest.mark.proves("QUE-L3", "QUE-T11")
@on_loop
async def test_an_early_requeue_is_answered_with_the_time_at_which_it_takes_effect(backend: Backend) -> None:
    """`queued` would promise that a claim gets the job now."""
    async with backend.queue() as queue:
        job = await started(queue)
        stalled = await queue.stall(job.id)

        early = await queue.requeue_stalled(job.id, request_id="early", expected_rev=stalled.rev)
        assert (early, early.status) == (stalled, "stalled")
        assert seconds_until(early.claimable_at, backend) > 100
        await refused(queue.requeue_stalled(job.id, expected_rev=stalled.rev - 1), "stale_rev")
        backend.after(121)
        late = await queue.requeue_stalled(job.id)

        assert (late.status, late.attempt, late.run_at) == ("queued", 1, None)
        assert seconds_until(late.claimable_at, backend) < 0
        assert (await claim_one(queue, "w2")).id == job.id
        assert words(await queue.events(job.id))[-3:] == ["stalled", "requeued", "claimed"]
        legal(await queue.log())


@pytest.mark.proves("QUE-L1")
@on_loop
async def test_stalled_jobs_are_claimed_in_the_order_of_the_queue(backend: Backend) -> None:
    """By priority, then by the time from which they can be claimed, like all others."""
    async with backend.queue() as queue:
        urgent = await started(queue, "urgent", priority=1)
        usual = await started(queue, "usual")
        for job in (usual, urgent):
            await queue.stall(job.id)
        before = await queue.enqueue("before")
        backend.after(121)
        after = await queue.enqueue("after")

        claimed = await queue.claim_next("w2", limit=9)

        assert [job.id for job in claimed] == [urgent.id, before.id, usual.id, after.id]


@pytest.mark.proves("QUE-L1")
@on_loop
async def test_a_waiting_claim_gets_a_stalled_job_soon_after_its_fence(backend: Backend) -> None:
    """No event happens at that time that could wake it."""
    async with backend.queue() as queue:
        job = await started(queue)
        await queue.stall(job.id)
        waiting = asyncio.create_task(queue.claim_next("w2", wait_seconds=WAIT))
        assert await queue.claim_next("w3") == []
        assert not waiting.done()

        backend.after(121)

        assert [claimed.id for claimed in await asyncio.wait_for(waiting, WAIT / 4)] == [job.id]


@pytest.mark.proves("QUE-L1", "QUE-S1")
@on_loop
async def test_a_job_whose_lease_expired_is_queued_at_once(backend: Backend) -> None:
    """Its lease has ended, so that no fence is needed."""
    async with backend.queue() as queue:
        job = await started(queue)
        backend.after(121)
        await queue._engine.tick()

        lost = await queue.get(job.id)

        assert (lost.status, lost.run_at) == ("queued", None)
        assert seconds_until(lost.claimable_at, backend) <= 0
        assert (await claim_one(queue, "w2")).id == job.id


@pytest.mark.proves("QUE-T10", "QUE-L1")
@on_loop
async def test_a_stall_after_the_end_of_the_lease_can_be_requeued_or_claimed_at_once(backend: Backend) -> None:
    """Its caller need not know whether the timers were faster."""
    async with backend.queue() as queue:
        jobs = [await started(queue, n) for n in range(2)]
        backend.after(121)

        assert [(await queue.stall(job.id)).status for job in jobs] == ["stalled", "stalled"]
        assert (await queue.requeue_stalled(jobs[0].id)).status == "queued"

        assert {job.id for job in await queue.claim_next("w2", limit=2)} == {job.id for job in jobs}
        legal(await queue.log())


# -- too many lost leases


@pytest.mark.proves("QUE-L4", "MOD-5")
@on_loop
async def test_a_stall_that_ends_the_job_raises_an_error(backend: Backend) -> None:
    """Its caller expects that the job runs again."""
    async with backend.queue() as queue:
        job = await started(queue, max_lost_leases=0)

        for _ in range(2):
            with pytest.raises(LeaseLost, match="lost 1 lease, more than max_lost_leases allows \\(0\\)") as lost:
                await queue.stall(job.id, request_id="s")

        failed = await queue.get(job.id)
        assert (lost.value.code, lost.value.lost_leases) == ("lease_lost", 1)
        assert (failed.status, failed.claimable_at) == ("failed", None)
        assert failed.error is not None
        assert failed.error.code == "LEASE_LOST"
        await refused(queue.requeue_stalled(job.id), "wrong_state")
        assert words(await queue.events(job.id))[-4:] == ["stalled", "claimed", "started", "failed"]
        legal(await queue.log())


def stale_record(lost_leases: int = 1) -> Attempt:
    """Return a job as an older version left it, which a person had to requeue."""
    return Attempt(
        id="q-old",
        tenant=TENANT,
        state=attempt.STALE,
        rev=4,
        claims=1,
        lost_leases=lost_leases,
        max_lost_leases=1,
        created_at=1,
        updated_at=2,
        fence_until=3,
    )


@pytest.mark.proves("QUE-L4")
@on_loop
async def test_a_requeue_that_ends_the_job_raises_an_error(backend: Backend) -> None:
    """Older versions left a job stalled that had lost too many leases."""
    async with backend.queue(tenant=TENANT) as queue:
        await write(queue._store, put(stale_record(lost_leases=2)))
        assert await queue.claim_next("w1") == []
        assert (await queue.get("q-old")).claimable_at is None

        with pytest.raises(LeaseLost):
            await queue.requeue_stalled("q-old")

        assert (await queue.get("q-old")).status == "failed"


@pytest.mark.proves("QUE-L1")
@on_loop
async def test_a_job_that_an_older_version_stalled_becomes_claimable(
    durable_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older version stored no time from which on it can be claimed."""
    with monkeypatch.context() as older:
        migrations_before = migrations(durable_backend.name)[:6]
        older.setattr(f"deltaci.storage.{durable_backend.name}.migrations", lambda _: migrations_before)
        async with durable_backend.opened() as store:
            await write(store, put(stale_record()))

    async with durable_backend.queue(tenant=TENANT) as queue:
        await queue._engine.tick()

        assert [job.id for job in await queue.claim_next("w1")] == ["q-old"]


# -- what a record shows


@pytest.mark.proves("QUE-N7")
@on_loop
async def test_a_record_shows_owner_lease_dedupe_key_and_when_it_can_be_claimed(backend: Backend) -> None:
    """A caller sees why a claim returns nothing, and nothing with which it could forge a message."""
    async with backend.queue() as queue:
        new = await queue.enqueue(1, dedupe_key="build 7", run_at=backend.moment(60))
        assert (new.dedupe_key, new.lease, new.owner, new.claimable_at) == ("build 7", None, None, new.run_at)
        assert await queue.enqueue(2, dedupe_key="build 7") == new
        backend.after(61)
        job = await claim_one(queue)

        shown = job.to_dict()
        assert job.lease is not None
        assert (job.owner, job.claimable_at, job.dedupe_key) == ("w1", None, "build 7")
        assert (job.lease.number, job.lease.worker_id, job.lease.state) == (1, "w1", "GRANTED")
        assert job.lease.expires_at == job.lease_expires_at
        assert 25 < seconds_until(job.lease.accept_by, backend) <= 30
        assert shown["lease"] == msgspec.to_builtins(job.lease)
        assert job.lease_id not in str(shown)
        assert lease_ref(job.lease_id).fingerprint not in str(shown)
        running = await queue.start(job.lease_id)
        assert running.lease is not None
        assert running.lease.state == "ACTIVE"
