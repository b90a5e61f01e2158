"""The queue for programs without asyncio: the methods of `AsyncQueue` as blocking calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from deltaci.engine.event_loop import new_loop
from deltaci.engine.queue import AsyncQueue, ClaimedJob, NewJob, QueueJob
from deltaci.engine.worker import Handler, Worker

T = TypeVar("T")


class BlockingQueue:
    """Runs an `AsyncQueue` in an event loop in its own thread.

    Use it as a context manager. Its methods may be called from any thread and block until the result is durable.
    """

    def __init__(self, queue: AsyncQueue) -> None:
        self._queue = queue
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="deltaci-queue", daemon=True)

    def __enter__(self) -> BlockingQueue:
        self._thread.start()
        try:
            self._run_in_loop(self._queue.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._run_in_loop(self._queue.__aexit__())
        finally:
            self._stop()

    def _stop(self) -> None:
        self._run_in_loop(_cancel_other_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run_in_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def enqueue(self, payload: Any = None, **fields: Any) -> QueueJob:
        """Add a job and return it. See `AsyncQueue.enqueue`."""
        return self._run_in_loop(self._queue.enqueue(payload, **fields))

    def enqueue_all(self, jobs: Iterable[NewJob]) -> list[QueueJob]:
        """Add many jobs and return them. See `AsyncQueue.enqueue_all`."""
        return self._run_in_loop(self._queue.enqueue_all(jobs))

    def claim_next(self, worker: str, **options: Any) -> list[ClaimedJob]:
        """Claim jobs for a worker and return them. See `AsyncQueue.claim_next`."""
        return self._run_in_loop(self._queue.claim_next(worker, **options))

    def start(self, lease_id: str, **options: Any) -> QueueJob:
        """Record that the worker has started the job."""
        return self._run_in_loop(self._queue.start(lease_id, **options))

    def heartbeat(self, lease_id: str, **options: Any) -> QueueJob:
        """Renew the lease of a claimed job."""
        return self._run_in_loop(self._queue.heartbeat(lease_id, **options))

    def complete(self, lease_id: str, result: Any = None, **options: Any) -> QueueJob:
        """Finish the job as succeeded."""
        return self._run_in_loop(self._queue.complete(lease_id, result, **options))

    def fail(self, lease_id: str, error: str = "", **options: Any) -> QueueJob:
        """Finish the job as failed."""
        return self._run_in_loop(self._queue.fail(lease_id, error, **options))

    def stall(self, id: str, **options: Any) -> QueueJob:
        """Revoke the lease of a job, because its worker is no longer trusted. See `AsyncQueue.stall`."""
        return self._run_in_loop(self._queue.stall(id, **options))

    def requeue_stalled(self, id: str, **options: Any) -> QueueJob:
        """Queue a stalled job again. See `AsyncQueue.requeue_stalled`."""
        return self._run_in_loop(self._queue.requeue_stalled(id, **options))

    def cancel(self, id: str, reason: str = "CANCELED", **options: Any) -> QueueJob:
        """Cancel the job, at once or through its worker."""
        return self._run_in_loop(self._queue.cancel(id, reason, **options))

    def get(self, id: str) -> QueueJob:
        """Return the current state of the job."""
        return self._run_in_loop(self._queue.get(id))

    def events(self, id: str) -> list[dict[str, Any]]:
        """Return the history of the job as events of document 004."""
        return self._run_in_loop(self._queue.events(id))

    def work(self, handler: Handler, *, until_empty: bool = False, **options: Any) -> int:
        """Run a worker with this handler until it is stopped (Ctrl-C drains it). Return how many jobs it finished."""

        async def make_worker() -> Worker:
            return Worker(self._queue, handler, **options)

        worker = self._run_in_loop(make_worker())
        work_future = asyncio.run_coroutine_threadsafe(worker.run(until_empty=until_empty), self._loop)
        try:
            work_future.result()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(worker.stop)
            work_future.result()
            raise
        return worker.finished


async def _cancel_other_tasks() -> None:
    """Cancel the calls that other threads still wait for: the loop is about to stop, so that none would return."""
    other_tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in other_tasks:
        task.cancel()
    await asyncio.gather(*other_tasks, return_exceptions=True)
