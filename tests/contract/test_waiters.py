"""Those who wait for work: each piece of it wakes one, in the order in which they came, and nobody is forgotten."""

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


class Hall:
    """A line at a server, with those who came to wait; counts how often anybody looked."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch, poll: float = math.inf) -> None:
        monkeypatch.setattr(commit_hints, "POLL_SECONDS", poll)
        wakers = server.store.commit_hints
        hint = wakers.publish
        # One that comes because the wire to other servers was just laid is no part of a case.
        monkeypatch.setattr(wakers, "publish", lambda ready=None: hint(ready) if ready is not None else None)
        self.looks = 0
        self.line = ClaimWaiters(self._counting(server.engine), server.store.commit_hints)
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
        hall = self

        class Counting(Engine):
            def __init__(self) -> None: ...

            async def try_claim(self, claim: Claim) -> ClaimResult:
                hall.looks += 1
                return await engine.try_claim(claim)

        return Counting()

    async def joined(self, worker: str, *labels: str, tenant_limit: int = 0) -> asyncio.Task[list[ClaimedAttempt]]:
        """One more who waits, and does so by now."""
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
        task = asyncio.create_task(self.line.claim(claim, 60.0))
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
async def test_one_job_wakes_one_of_many(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand who look because of one job would keep everybody else from being served."""
    async with backend.server() as server:
        hall = Hall(server, monkeypatch)
        tasks = [await hall.joined(f"w{n}") for n in range(MANY)]
        assert hall.looks == 1  # Where one waits, there is nothing.

        await server.enqueue("q1")

        assert ids(await tasks[0]) == ["q1"]
        assert hall.looks == 2
        hall.line.close()
        assert await asyncio.gather(*tasks[1:]) == [[]] * (MANY - 1)


@in_memory
@on_loop
async def test_who_came_first_is_served_first(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long because others are quicker."""
    async with backend.server() as server:
        hall = Hall(server, monkeypatch)
        tasks = [await hall.joined(f"w{n}") for n in range(3)]

        for n in range(3):
            await server.enqueue(f"q{n}")
            assert ids(await tasks[n]) == [f"q{n}"]


@in_memory
@on_loop
async def test_many_jobs_wake_as_many(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them begin at once, not one after the other."""
    async with backend.server() as server:
        hall = Hall(server, monkeypatch)
        tasks = [await hall.joined(f"w{n}") for n in range(9)]

        await asyncio.gather(*(server.enqueue(f"q{n}") for n in range(5)))

        assert all_ids([await each for each in tasks[:5]]) == [f"q{n}" for n in range(5)]
        hall.line.close()
        assert await asyncio.gather(*tasks[5:]) == [[]] * 4


@in_memory
@on_loop
async def test_what_one_may_not_have_is_offered_to_the_next(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is full in the fleet's eyes must not stand between the work and others."""
    async with backend.server() as server:
        for worker in ("full", "free"):
            await server.register(worker)
        await planned(server, task("a"))
        await server.take("full")
        hall = Hall(server, monkeypatch)
        full, free = await hall.joined("full"), await hall.joined("free")

        await planned(server, task("b"), id="r2")

        assert ids(await free) == ["r2/b.1"]
        assert not full.done()
        hall.line.close()
        assert await full == []


@pytest.mark.parametrize("how", ["hangs up", "is cancelled"])
@in_memory
@on_loop
async def test_who_leaves_when_it_is_called_passes_its_turn_on(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """One that is gone at the very moment at which work comes must not take the turn away with it."""
    async with backend.server() as server:
        hall = Hall(server, monkeypatch)
        leaving, staying = await hall.joined("w1"), await hall.joined("w2")

        def hear(_ready: ReadyCounts | None) -> None:
            """The line heard of it before, and has called the first."""
            if how == "hangs up":
                hall.waiters[0].leave()
            else:
                leaving.cancel()

        server.store.commit_hints.add_listener(hear)
        await server.enqueue("q1")

        assert ids(await staying) == ["q1"]
        [left] = await asyncio.gather(leaving, return_exceptions=True)
        assert left == [] if how == "hangs up" else isinstance(left, asyncio.CancelledError)


@in_memory
@on_loop
async def test_whoever_works_on_wakes_nobody(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet's heartbeats are most of what is written, and no news for those who wait."""
    async with backend.server() as server:
        await server.enqueue("q1")
        lease = await server.take()
        hall = Hall(server, monkeypatch)
        waiting = await hall.joined("w2")

        for message in (attempt.Ack, attempt.Heartbeat):
            await server.send(message, lease)
        await server.send(attempt.Complete, lease, is_success=True, exit_code=0)

        assert hall.looks == 1
        hall.line.close()
        assert await waiting == []


@in_memory
@on_loop
async def test_work_wakes_those_who_can_do_it(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many kinds of workers wait, one job is one look."""
    async with backend.server() as server:
        hall = Hall(server, monkeypatch)
        tasks = {label: await hall.joined(label, label) for label in ("arm", "gpu", "linux")}
        assert hall.looks == 3

        await server.enqueue("q1", queue_key="gpu")
        assert ids(await tasks.pop("gpu")) == ["q1"]
        assert hall.looks == 4
        await server.enqueue("q2")
        await server.enqueue("q3")
        assert sorted(ids(await tasks.pop("arm")) + ids(await tasks.pop("linux"))) == ["q2", "q3"]
        assert hall.looks == 6


@in_memory
@on_loop
async def test_what_nobody_told_is_found_by_the_poll(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint may be lost. The poll is the truth: one look finds it, and whoever finds something wakes two more."""
    async with backend.server() as server:
        hall = Hall(server, monkeypatch, poll=0.01)
        monkeypatch.setattr(server.store.commit_hints, "publish", lambda ready=None: None)
        tasks = [await hall.joined(f"w{n}") for n in range(7)]

        await asyncio.gather(*(server.enqueue(f"q{n}") for n in range(7)))

        found = await asyncio.gather(*tasks)
        assert all_ids(found) == [f"q{n}" for n in range(7)]


@pytest.mark.parametrize("is_named", [True, False])
@in_memory
@on_loop
async def test_what_comes_while_one_looks_is_not_missed(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    """Between a look that found nothing and the wait, work may come: its hint finds nobody who waits.

    Also a hint that only says that there may be something, as when the wire to other servers was just laid.
    """
    async with backend.server() as server:
        wakers = server.store.commit_hints
        hint = wakers.publish
        hall = Hall(server, monkeypatch)
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

        assert ids(await hall.line.claim(claim, 60.0)) == ["q1"]


@in_memory
@on_loop
async def test_when_nobody_waits_nothing_is_left_behind(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that lives for months must not remember everybody who ever asked."""
    async with backend.server() as server:
        heard: list[ReadyCounts | None] = []
        server.store.commit_hints.add_listener(heard.append)
        hall = Hall(server, monkeypatch, poll=0.01)
        waiting = await hall.joined("w1", "gpu")
        polling = hall.line._poll_task
        assert polling is not None

        await server.enqueue("q1", queue_key="gpu")
        assert ids(await waiting) == ["q1"]
        await polling

        assert not hall.line._groups
        assert hall.line._poll_task is None
        assert heard[-1] == {(TENANT, "gpu"): 1}
        assert server.store.commit_hints._listeners == [heard.append]
        server.store.commit_hints.remove_listener(heard.append)
