"""Blocked claims: each new attempt wakes one waiter, in the order of arrival, and no waiter is forgotten."""

from __future__ import annotations

import asyncio
import math

import pytest

from deltaci.core import attempt
from deltaci.engine import waiters
from deltaci.engine.engine import Claim, ClaimedAttempt, ClaimResult, Engine
from deltaci.engine.waiters import ClaimWaiters
from deltaci.storage import commit_hints
from deltaci.storage.commit_hints import ReadyCounts
from tests.contract.backends import Backend, Server, in_memory, on_loop
from tests.contract.test_runs import planned
from tests.support.lab import TENANT, task

MANY = 100


class WaitingRoom:
    """The waiters of a server; it counts how often one of them queried the store."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch, poll: float = math.inf) -> None:
        monkeypatch.setattr(commit_hints, "POLL_SECONDS", poll)
        wakers = server.store.commit_hints
        hint = wakers.publish
        # One that comes because the wire to other servers was just laid is no part of a case.
        monkeypatch.setattr(wakers, "publish", lambda ready=None: hint(ready) if ready is not None else None)
        self.queries = 0
        self.claim_waiters = ClaimWaiters(self._counting(server.engine), server.store.commit_hints)
        self._changed = asyncio.Condition()
        self._waiting = 0
        self.waiters: list[waiters.Waiter] = []
        original = waiters.Waiter.wait

        async def turn(waiter: waiters.Waiter, *, is_first: bool = False) -> waiters.ClaimPermit | None:
            self.waiters.append(waiter)
            async with self._changed:
                self._waiting += 1
                self._changed.notify_all()
            found = await original(waiter, is_first=is_first)
            self._waiting -= 1
            return found

        monkeypatch.setattr(waiters.Waiter, "wait", turn)

    def _counting(self, engine: Engine) -> Engine:
        room = self

        class Counting(Engine):
            def __init__(self) -> None: ...

            async def try_claim(self, claim: Claim) -> ClaimResult:
                room.queries += 1
                return await engine.try_claim(claim)

        return Counting()

    async def add_waiter(self, worker: str, *labels: str, tenant_limit: int = 0) -> asyncio.Task[list[ClaimedAttempt]]:
        """Add a waiter, and return when it waits."""
        waiting = self._waiting
        claim = Claim(
            tenant=TENANT,
            worker_id=worker,
            labels=labels,
            limit=1,
            ttl_seconds=120,
            accept_seconds=30,
            tenant_limit=tenant_limit,
        )
        task = asyncio.create_task(self.claim_waiters.claim(claim, 60.0))
        await self.until(waiting + 1)
        return task

    async def until(self, count: int) -> None:
        """Until so many wait."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting == count)


def ids(claimed: list[ClaimedAttempt]) -> list[str]:
    return [each.attempt.id for each in claimed]


def all_ids(found: list[list[ClaimedAttempt]]) -> list[str]:
    return sorted(id for claimed in found for id in ids(claimed))


@in_memory
@on_loop
async def test_one_job_wakes_one_of_many_waiters(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand queries for one job would delay all other requests."""
    async with backend.server() as server:
        room = WaitingRoom(server, monkeypatch)
        tasks = [await room.add_waiter(f"w{n}") for n in range(MANY)]
        assert room.queries == 1  # Where one waits, there is nothing.

        await server.enqueue("q1")

        assert ids(await tasks[0]) == ["q1"]
        assert room.queries == 2
        room.claim_waiters.close()
        assert await asyncio.gather(*tasks[1:]) == [[]] * (MANY - 1)


@in_memory
@on_loop
async def test_waiters_are_served_in_order_of_arrival(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiter starves because others are faster."""
    async with backend.server() as server:
        room = WaitingRoom(server, monkeypatch)
        tasks = [await room.add_waiter(f"w{n}") for n in range(3)]

        for n in range(3):
            await server.enqueue(f"q{n}")
            assert ids(await tasks[n]) == [f"q{n}"]


@in_memory
@on_loop
async def test_many_jobs_wake_as_many(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them begin at once, not one after the other."""
    async with backend.server() as server:
        room = WaitingRoom(server, monkeypatch)
        tasks = [await room.add_waiter(f"w{n}") for n in range(9)]

        await asyncio.gather(*(server.enqueue(f"q{n}") for n in range(5)))

        assert all_ids([await each for each in tasks[:5]]) == [f"q{n}" for n in range(5)]
        room.claim_waiters.close()
        assert await asyncio.gather(*tasks[5:]) == [[]] * 4


@in_memory
@on_loop
async def test_work_that_one_waiter_may_not_have_is_offered_to_the_next(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker without a free slot must not keep the work from others."""
    async with backend.server() as server:
        for worker in ("full", "free"):
            await server.register(worker)
        await planned(server, task("a"))
        await server.take("full")
        room = WaitingRoom(server, monkeypatch)
        full, free = await room.add_waiter("full"), await room.add_waiter("free")

        await planned(server, task("b"), id="r2")

        assert ids(await free) == ["r2/b.1"]
        assert not full.done()
        room.claim_waiters.close()
        assert await full == []


@pytest.mark.parametrize("how", ["hangs up", "is cancelled"])
@in_memory
@on_loop
async def test_a_waiter_that_leaves_when_it_is_woken_passes_the_permit_on(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A worker that disconnects at that very moment must not lose the permit."""
    async with backend.server() as server:
        room = WaitingRoom(server, monkeypatch)
        leaving, staying = await room.add_waiter("w1"), await room.add_waiter("w2")

        def record_hint(_ready: ReadyCounts | None) -> None:
            """Record a hint; the first waiter was woken before."""
            if how == "hangs up":
                room.waiters[0].leave()
            else:
                leaving.cancel()

        server.store.commit_hints.add_listener(record_hint)
        await server.enqueue("q1")

        assert ids(await staying) == ["q1"]
        [left] = await asyncio.gather(leaving, return_exceptions=True)
        assert left == [] if how == "hangs up" else isinstance(left, asyncio.CancelledError)


@in_memory
@on_loop
async def test_heartbeats_wake_no_waiter(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most writes are heartbeats, which bring no work."""
    async with backend.server() as server:
        await server.enqueue("q1")
        lease = await server.take()
        room = WaitingRoom(server, monkeypatch)
        waiting = await room.add_waiter("w2")

        for message in (attempt.Ack, attempt.Heartbeat):
            await server.send(message, lease)
        await server.send(attempt.Complete, lease, is_success=True, exit_code=0)

        assert room.queries == 1
        room.claim_waiters.close()
        assert await waiting == []


@in_memory
@on_loop
async def test_work_wakes_only_waiters_with_its_labels(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """One job causes one query, however many kinds of workers wait."""
    async with backend.server() as server:
        room = WaitingRoom(server, monkeypatch)
        tasks = {label: await room.add_waiter(label, label) for label in ("arm", "gpu", "linux")}
        assert room.queries == 3

        await server.enqueue("q1", queue_key="gpu")
        assert ids(await tasks.pop("gpu")) == ["q1"]
        assert room.queries == 4
        await server.enqueue("q2")
        await server.enqueue("q3")
        assert sorted(ids(await tasks.pop("arm")) + ids(await tasks.pop("linux"))) == ["q2", "q3"]
        assert room.queries == 6


@in_memory
@on_loop
async def test_work_without_a_hint_is_found_by_the_poll(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint may be lost. One poll finds the work, and a waiter that finds work wakes two more."""
    async with backend.server() as server:
        room = WaitingRoom(server, monkeypatch, poll=0.01)
        monkeypatch.setattr(server.store.commit_hints, "publish", lambda ready=None: None)
        tasks = [await room.add_waiter(f"w{n}") for n in range(7)]

        await asyncio.gather(*(server.enqueue(f"q{n}") for n in range(7)))

        results = await asyncio.gather(*tasks)
        assert all_ids(results) == [f"q{n}" for n in range(7)]


@pytest.mark.parametrize("is_named", [True, False])
@in_memory
@on_loop
async def test_work_that_arrives_during_a_query_is_not_missed(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    """The hint of work that arrives between a query without result and the wait finds no waiter.

    This holds also for a hint that there may be work, as after a connection to other servers was made.
    """
    async with backend.server() as server:
        wakers = server.store.commit_hints
        hint = wakers.publish
        room = WaitingRoom(server, monkeypatch)
        if not is_named:
            monkeypatch.setattr(wakers, "publish", lambda ready=None: hint() if ready else None)
        look = server.engine.try_claim
        enqueued = False

        async def late(claim: Claim) -> ClaimResult:
            nonlocal enqueued
            found = await look(claim)
            if not enqueued:
                enqueued = True
                await server.enqueue("q1")
            return found

        monkeypatch.setattr(server.engine, "try_claim", late)
        claim = Claim(tenant=TENANT, worker_id="w1", labels=(), limit=1, ttl_seconds=120, accept_seconds=30)

        assert ids(await room.claim_waiters.claim(claim, 60.0)) == ["q1"]


@in_memory
@on_loop
async def test_without_waiters_no_state_is_left(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that runs for months must not remember every worker that ever waited."""
    async with backend.server() as server:
        heard: list[ReadyCounts | None] = []
        server.store.commit_hints.add_listener(heard.append)
        room = WaitingRoom(server, monkeypatch, poll=0.01)
        waiting = await room.add_waiter("w1", "gpu")
        polling = room.claim_waiters._poll_task
        assert polling is not None

        await server.enqueue("q1", queue_key="gpu")
        assert ids(await waiting) == ["q1"]
        await polling

        assert not room.claim_waiters._group_by_key
        assert room.claim_waiters._poll_task is None
        assert heard[-1] == {(TENANT, "gpu"): 1}
        assert server.store.commit_hints._listeners == [heard.append]
        server.store.commit_hints.remove_listener(heard.append)
