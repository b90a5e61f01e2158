"""A worker and its lease: extended while that can be proved, and abandoned before another worker can get the job.

These tests need a few seconds of real time: a worker measures its lease by its own machine's clock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from deltaci.core import attempt
from deltaci.engine.feed import follow
from deltaci.engine.queue import AsyncQueue
from deltaci.engine.worker import Task, Worker
from deltaci.storage.port import Store, Transaction, Unavailable
from tests.contract.backends import Backend, T, Wrapped, in_memory, legal, on_loop

TTL: Final = 6
SOON: Final = 60.0


class Watched(Wrapped):
    """A store that remembers when it last began something that went well, and can be switched off."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.is_off = False
        self.heard_at = 0.0

    async def transact(self, work: Callable[[], Transaction[T]]) -> T:
        if self.is_off:
            raise Unavailable("switched off")
        asked_at = time.monotonic()
        answer = await self.inner.transact(work)
        self.heard_at = asked_at
        return answer


class Watch:
    """Records what a handler does, for another thread."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.has_ended = threading.Event()
        self.ended_at = 0.0

    def end(self) -> None:
        self.ended_at = time.monotonic()
        self.has_ended.set()

    def plain(self, task: Task) -> None:
        """Work that never ends, in a thread."""
        self.has_begun.set()
        pause = threading.Event()
        try:
            while not pause.wait(0.01):
                pass
        finally:
            self.end()

    async def on_loop(self, task: Task) -> None:
        """Work that never ends, in a loop."""
        self.has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.end()


def wait_for(event: threading.Event) -> Any:
    """Wait for an event of another thread without blocking this one."""
    return asyncio.to_thread(event.wait, SOON)


async def wait_for_heartbeats(queue: AsyncQueue, id: str, count: int) -> None:
    """Wait until the job's worker has sent this many heartbeats since it started."""
    seen = -1
    reader = follow(queue._store, 0, entity_id=id)
    async for event in reader:
        if event.to == attempt.RUNNING:
            seen += 1
        if seen >= count:
            break
    await reader.aclose()  # type: ignore[attr-defined]


@in_memory
@on_loop
async def test_a_handler_whose_lease_cannot_be_proved_is_stopped_before_the_lease_ends(backend: Backend) -> None:
    """Without a response, another worker may get the job at the end of the lease: the handler must have ended."""
    stores: list[Watched] = []

    def watched(store: Store) -> Store:
        stores.append(Watched(store))
        return stores[-1]

    async with backend.queue(watched) as queue:
        jobs = [await queue.enqueue(n) for n in range(2)]
        watches = [Watch(), Watch()]
        workers = [
            Worker(queue, handler, ttl_seconds=TTL, drain_seconds=0.05)
            for handler in (watches[0].plain, watches[1].on_loop)
        ]
        running = [asyncio.ensure_future(worker.run()) for worker in workers]
        for watch in watches:
            assert await wait_for(watch.has_begun)
        await asyncio.gather(*(wait_for_heartbeats(queue, job.id, 1) for job in jobs))

        stores[0].is_off = True
        for watch in watches:
            assert await wait_for(watch.has_ended)

        for watch in watches:
            assert watch.ended_at - stores[0].heard_at < TTL
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)
        stores[0].is_off = False
        assert {(await queue.get(job.id)).status for job in jobs} == {"running"}
        assert [worker.finished for worker in workers] == [0, 0]


@in_memory
@on_loop
async def test_a_handler_that_blocks_its_loop_does_not_stop_the_heartbeats(backend: Backend) -> None:
    """People will call something slow in an async function; that must not cost them their lease."""
    has_begun, may_end = threading.Event(), threading.Event()

    async def blocking(task: Task) -> str:
        has_begun.set()
        assert may_end.wait(SOON)
        return "done"

    async with backend.queue() as queue:
        job = await queue.enqueue(1)
        worker = Worker(queue, blocking, ttl_seconds=TTL)
        running = asyncio.ensure_future(worker.run(until_empty=True))
        assert await wait_for(has_begun)

        await wait_for_heartbeats(queue, job.id, 3)
        may_end.set()
        await running

        found = await queue.get(job.id)
        assert (found.status, found.result, found.attempt) == ("succeeded", "done", 1)
        legal(await queue.log())


@in_memory
@on_loop
async def test_a_handler_whose_lease_was_revoked_is_stopped_and_its_worker_continues(backend: Backend) -> None:
    """An operator who revokes a job's lease must not have to look for its process."""
    watch = Watch()

    async def first_is_endless(task: Task) -> str:
        if task.payload == "endless":
            await watch.on_loop(task)
        return "done"

    async with backend.queue() as queue:
        job, other = await queue.enqueue("endless", priority=1), await queue.enqueue("next")
        running = asyncio.ensure_future(Worker(queue, first_is_endless, ttl_seconds=TTL).run(until_empty=True))
        assert await wait_for(watch.has_begun)

        await queue.stall(job.id)
        assert await wait_for(watch.has_ended)
        with suppress(TimeoutError):
            await asyncio.wait_for(running, SOON)

        assert (await queue.get(other.id)).status == "succeeded"
        assert (await queue.get(job.id)).status == "stalled"
        legal(await queue.log())
