"""A worker for the queue: it claims jobs, runs them through a plain or async handler and reports the results.

Handlers never run in the event loop that sends the heartbeats: plain ones run in threads, async ones in a loop in
another thread, so that no handler can delay the renewal of its own lease. A handler whose lease may have ended, by this
machine's monotonic clock, is stopped before another worker can get its job.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
import secrets
import socket
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.core.json_values import json_copy
from deltaci.engine.event_loop import new_loop
from deltaci.engine.queue import AsyncQueue, ClaimedJob, JobOutcome, QueueJob
from deltaci.engine.validation import MAX_CLAIM
from deltaci.storage.port import Conflict, Unavailable

TTL_SECONDS: Final = 30
MIN_TTL_SECONDS: Final = 2
DRAIN_SECONDS: Final = 30.0
CLAIM_WAIT_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 0.2
STOP_SECONDS: Final = 1.0
TWO_CLAIMERS_CONCURRENCY: Final = 64  # From this concurrency on, a worker makes two claims at a time.
CLAIMS_PER_CONCURRENCY: Final = (
    4  # A claim asks only for this part of the concurrency, so that claims and results of different jobs overlap.
)

Handler = Callable[["Task"], Any] | Callable[["Task"], Awaitable[Any]]


class Fenced(BaseException):
    """Raised in a handler that runs in a thread, to stop it.

    It is not an `Exception`, so that the handler does not catch it by accident.
    """


class Task:
    """The argument of a handler: the claimed job, and whether the handler must stop (`is_fenced`).

    Until `proved_until`, by the monotonic clock, the lease is certainly live.
    """

    def __init__(self, job: ClaimedJob, proved_until: float) -> None:
        self.job = job
        self.payload = job.payload
        self.proved_until = proved_until
        self.is_fenced = False
        self.interrupt_handler: Callable[[], object] = lambda: None

    def fence(self) -> None:
        """Stop the handler: cancel it if it is async, or raise `Fenced` in its thread."""
        self.is_fenced = True
        self.interrupt_handler()


class _FinishedTask(msgspec.Struct, frozen=True):
    task: Task
    result: Any = None
    error: BaseException | None = None


class _HandlerThreads:
    """Runs plain handlers in a thread pool and async handlers in an event loop in another thread.

    Finished tasks are collected. `wake` is called, in a handler's thread, when the first one can be taken.
    """

    def __init__(self, handler: Handler, thread_name: str, concurrency: int, wake: Callable[[], object]) -> None:
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(handler)
        self._wake = wake
        self._finished_tasks: list[_FinishedTask] = []
        self._lock = threading.Lock()
        self._thread_pool = ThreadPoolExecutor(concurrency, f"{thread_name}-handler") if not self._is_async else None
        self._handler_loop = new_loop()
        is_running = threading.Event()
        self._handler_loop.call_soon(is_running.set)
        self._loop_thread = threading.Thread(target=self._run_loop, name=f"{thread_name}-handlers", daemon=True)
        self._loop_thread.start()
        is_running.wait()  # Some loops lose a call from another thread that arrives before they run.

    def begin(self, tasks: Sequence[Task]) -> None:
        """Start the handler for each task, without waiting for it."""
        if self._thread_pool is None:
            self._handler_loop.call_soon_threadsafe(self._start_async, tasks)
            return
        for task in tasks:
            self._thread_pool.submit(self._run_in_thread, task)

    def _run_loop(self) -> None:
        """Run the event loop of async handlers until it is stopped.

        Then cancel the handlers that still run and close the loop.
        """
        asyncio.set_event_loop(self._handler_loop)
        try:
            self._handler_loop.run_forever()
            unfinished_tasks = asyncio.all_tasks(self._handler_loop)
            for handler_task in unfinished_tasks:
                handler_task.cancel()
            self._handler_loop.run_until_complete(asyncio.gather(*unfinished_tasks, return_exceptions=True))
        finally:
            self._handler_loop.close()

    def take_finished(self) -> list[_FinishedTask]:
        """Remove and return the tasks that have finished since the last call."""
        with self._lock:
            finished_tasks, self._finished_tasks = self._finished_tasks, []
        return finished_tasks

    def close(self) -> None:
        """Stop the event loop. A plain handler that still runs ends with the process."""
        self._handler_loop.call_soon_threadsafe(self._handler_loop.stop)
        if self._thread_pool is not None:
            self._thread_pool.shutdown(wait=False)

    def _add_finished(self, finished_task: _FinishedTask) -> None:
        with self._lock:
            self._finished_tasks.append(finished_task)
            is_first = len(self._finished_tasks) == 1
        if is_first:
            self._wake()

    def _start_async(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            handler_task = self._handler_loop.create_task(self._run_async(task))
            task.interrupt_handler = lambda run=handler_task: self._handler_loop.call_soon_threadsafe(run.cancel)  # type: ignore[misc]
            if task.is_fenced:
                handler_task.cancel()

    async def _run_async(self, task: Task) -> None:
        try:
            handler_result = await self._handler(task)
        except BaseException as error:
            self._add_finished(_FinishedTask(task, error=error))
            if not isinstance(error, Exception | asyncio.CancelledError):
                raise
        else:
            self._add_finished(_FinishedTask(task, handler_result))

    def _run_in_thread(self, task: Task) -> None:
        """Run the handler for a task in this thread, and record its result or error."""
        fence = _ThreadFence()
        task.interrupt_handler = fence.trigger
        finished_task = _FinishedTask(task, error=Fenced())
        try:
            try:
                if not task.is_fenced:
                    finished_task = _FinishedTask(task, self._handler(task))
            finally:
                fence.disarm()
        except BaseException as error:
            finished_task = _FinishedTask(task, error=error)
        self._add_finished(finished_task)


class _ThreadFence:
    """Lets another thread raise `Fenced` in the thread that created this fence, until that calls `disarm`."""

    def __init__(self) -> None:
        self._thread = ctypes.c_ulong(threading.get_ident())
        self._lock = threading.Lock()
        self._is_armed = True

    def trigger(self) -> None:
        """Raise `Fenced` in the creating thread, unless the fence is disarmed."""
        with self._lock:
            if self._is_armed:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(Fenced))

    def disarm(self) -> None:
        """Make sure that `trigger` raises nothing any more, because the handler has returned."""
        with self._lock:
            self._is_armed = False
        # An exception set just before is raised now: the interpreter checks for it in every iteration of a loop.
        for _ in range(100):
            pass


class Worker:
    """Claims jobs of a queue and runs up to `concurrency` of them at once through one handler."""

    def __init__(
        self,
        queue: AsyncQueue,
        handler: Handler,
        *,
        name: str = "",
        concurrency: int = 1,
        labels: Sequence[str] = (),
        ttl_seconds: int = TTL_SECONDS,
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        if concurrency < 1 or ttl_seconds < MIN_TTL_SECONDS:
            raise Refused("bad_request", f"concurrency must be at least 1 and ttl_seconds at least {MIN_TTL_SECONDS}")
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.finished = 0
        self._queue = queue
        self._handler = handler
        self._concurrency = concurrency
        self._labels = labels
        self._ttl_seconds = ttl_seconds
        self._drain_seconds = drain_seconds
        self._margin_seconds = min(5.0, ttl_seconds / 5)  # A handler is stopped this long before its lease ends.
        self._tasks: dict[str, Task] = {}
        self._claiming_count = 0
        self._max_claim = min(MAX_CLAIM, max(1, concurrency // CLAIMS_PER_CONCURRENCY))
        self._is_stopping = asyncio.Event()
        self._has_finished_tasks = asyncio.Event()
        self._has_capacity = asyncio.Event()

    def stop(self) -> None:
        """Claim no more jobs.

        Running jobs may finish within `drain_seconds`; the others are stopped and handed back.
        """
        self._is_stopping.set()
        self._has_capacity.set()

    async def run(self, *, until_empty: bool = False) -> None:
        """Claim and run jobs until the worker is stopped.

        With `until_empty`, return as soon as nothing is left to claim and all running jobs have finished.
        """
        loop = asyncio.get_running_loop()
        wake = partial(loop.call_soon_threadsafe, self._has_finished_tasks.set)
        handlers = _HandlerThreads(self._handler, self.name, self._concurrency, wake)
        background_tasks = [
            asyncio.create_task(self._renew_leases()),
            asyncio.create_task(self._report_finished(handlers)),
        ]
        try:
            # The second claim is decided while the first is being written.
            claimer_count = 2 if self._concurrency >= TWO_CLAIMERS_CONCURRENCY else 1
            await asyncio.gather(*(self._claim_loop(handlers, until_empty=until_empty) for _ in range(claimer_count)))
            await self._drain()
        finally:
            for leased_task in self._tasks.values():
                leased_task.fence()
            for background_task in background_tasks:
                background_task.cancel()
            await asyncio.gather(*background_tasks, return_exceptions=True)
            handlers.close()

    async def _claim_loop(self, handlers: _HandlerThreads, *, until_empty: bool) -> None:
        """Claim jobs whenever there are free slots, until stopped. With `until_empty`, end when no job is left."""
        while not self._is_stopping.is_set():
            free_slots = min(self._concurrency - len(self._tasks) - self._claiming_count, self._max_claim)
            if free_slots <= 0:
                self._has_capacity.clear()
                await self._has_capacity.wait()
                continue
            claim_sent_at = time.monotonic()
            self._claiming_count += free_slots
            try:
                claimed_jobs = await self._claim(free_slots, 0.0 if until_empty else CLAIM_WAIT_SECONDS)
            except (Unavailable, Conflict):
                await self._wait_before_retry()
                continue
            finally:
                self._claiming_count -= free_slots
                self._has_capacity.set()  # The claim may have returned fewer jobs than it asked for.
            if claimed_jobs:
                tasks = [Task(job, self._lease_end(claim_sent_at)) for job in claimed_jobs]
                self._tasks.update((task.job.id, task) for task in tasks)
                handlers.begin(tasks)
            elif until_empty and not self._tasks:
                return
            elif until_empty:
                self._has_capacity.clear()
                await self._has_capacity.wait()

    async def _claim(self, limit: int, wait_seconds: float) -> list[ClaimedJob]:
        """Return the jobs of one claim. It is not cancelled by a stop."""
        claim_task = asyncio.ensure_future(
            self._queue.claim_next(
                self.name,
                labels=self._labels,
                limit=limit,
                wait_seconds=wait_seconds,
                ttl_seconds=self._ttl_seconds,
                starts=True,
            )
        )
        stop_task = asyncio.ensure_future(self._is_stopping.wait())
        await asyncio.wait({claim_task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
        stop_task.cancel()
        # Never cancel a claim in flight: its jobs would be blocked until their leases end.
        return await claim_task

    def _lease_end(self, claimed_at: float) -> float:
        """Return a monotonic time that is safely before the end of a lease that was requested at `claimed_at`.

        The lease began no earlier than the request was sent.
        """
        return claimed_at + self._ttl_seconds - self._margin_seconds

    async def _wait_before_retry(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_stopping.wait(), RETRY_SECONDS)

    async def _send_until_acknowledged(
        self, tasks: Sequence[Task], send: Callable[[], Awaitable[list[QueueJob | Refused]]]
    ) -> Sequence[QueueJob | Refused | None]:
        """Repeat a request while the store fails, and return the answers.

        Return None for each task if all of their leases have ended before there was an answer.
        """
        while time.monotonic() < max(task.proved_until for task in tasks):
            sent_at = time.monotonic()
            try:
                answers = await send()
            except (Unavailable, Conflict):
                await self._wait_before_retry()
                continue
            for task, answer in zip(tasks, answers, strict=True):
                if not isinstance(answer, Refused):
                    task.proved_until = self._lease_end(sent_at)
            return answers
        return [None] * len(tasks)

    async def _report_finished(self, handlers: _HandlerThreads) -> None:
        """Report finished tasks to the queue, forever. All that are available are reported in one request."""
        while True:
            await self._has_finished_tasks.wait()
            self._has_finished_tasks.clear()
            all_finished = handlers.take_finished()
            reported = [finished for finished in all_finished if not finished.task.is_fenced]
            if reported:
                outcomes = [_outcome(finished) for finished in reported]
                tasks = [finished.task for finished in reported]
                finish_all = partial(self._queue.finish_all, outcomes, self.name)
                answers = await self._send_until_acknowledged(tasks, finish_all)
                self.finished += sum(isinstance(answer, QueueJob) for answer in answers)
            for finished in all_finished:
                self._forget(finished.task)

    def _forget(self, task: Task) -> None:
        self._tasks.pop(task.job.id, None)
        self._has_capacity.set()

    async def _renew_leases(self) -> None:
        """Renew all leases periodically, and fence each task whose lease may have ended."""
        interval = max(0.2, min(self._ttl_seconds / 4, self._margin_seconds))
        heartbeat_at = time.monotonic() + interval
        while True:
            now = time.monotonic()
            for task in list(self._tasks.values()):
                if now >= task.proved_until and not task.is_fenced:
                    task.fence()
            live_tasks = [task for task in self._tasks.values() if not task.is_fenced]
            if now >= heartbeat_at:
                heartbeat_at = now + interval
                await self._send_heartbeats(live_tasks)
            next_at = min([heartbeat_at, *(task.proved_until for task in live_tasks)])
            await asyncio.sleep(max(0.01, next_at - time.monotonic()))

    async def _send_heartbeats(self, tasks: list[Task]) -> None:
        """Renew the leases of these tasks, and fence each task whose lease was refused."""
        if not tasks:
            return
        sent_at = time.monotonic()
        heartbeats = self._queue.heartbeat_all([task.job.lease_id for task in tasks], self.name)
        try:
            # A store that does not answer must not delay the fencing.
            async with asyncio.timeout(self._margin_seconds / 2):
                answers = await heartbeats
        except (TimeoutError, Unavailable, Conflict):
            return
        for task, answer in zip(tasks, answers, strict=True):
            if not isinstance(answer, Refused):
                task.proved_until = self._lease_end(sent_at)
            elif task.job.id in self._tasks:
                task.fence()

    async def _drain(self) -> None:
        """Wait up to `drain_seconds` for running tasks, then stop the others and hand their jobs back.

        The job of a task that does not stop within `STOP_SECONDS` is not handed back: its lease expires.
        """
        deadline = time.monotonic() + self._drain_seconds
        while self._tasks and time.monotonic() < deadline:
            self._has_capacity.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_capacity.wait(), max(0.0, deadline - time.monotonic()))
        unfinished = list(self._tasks.values())
        for task in unfinished:
            task.fence()
        deadline = time.monotonic() + STOP_SECONDS
        while self._tasks and time.monotonic() < deadline:
            self._has_capacity.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_capacity.wait(), max(0.0, deadline - time.monotonic()))
        for task in unfinished:
            # A handler that did not stop may still be working: its lease must expire by itself.
            if task.job.id not in self._tasks:
                await self._hand_back(task)

    async def _hand_back(self, task: Task) -> None:
        """Return the job to the queue, unless it has ended or another worker has claimed it."""
        with suppress(Refused, Unavailable, Conflict):
            current_job = await self._queue.get(task.job.id)
            if current_job.owner == self.name and current_job.attempt == task.job.attempt:
                await self._queue.hand_back(current_job.id, expected_rev=current_job.rev)


def _outcome(finished: _FinishedTask) -> JobOutcome:
    lease_id = finished.task.job.lease_id
    if finished.error is None:
        try:
            json_copy("result", finished.result)
        except Refused as refused:
            return JobOutcome(lease_id=lease_id, error=f"the handler's result cannot be stored: {refused.message}")
        return JobOutcome(lease_id=lease_id, result=finished.result)
    if isinstance(finished.error, asyncio.CancelledError):
        return JobOutcome(lease_id=lease_id, error="the handler was cancelled")
    return JobOutcome(
        lease_id=lease_id, error="".join((_summary(finished.error), *traceback.format_exception(finished.error)))
    )


def _summary(error: BaseException) -> str:
    """Return the exception's type and message, with a newline."""
    error_name = type(error).__name__
    try:
        message = str(error).strip()
    except Exception:
        message = "its message cannot be shown"
    return f"{error_name}: {message}\n" if message else f"{error_name}\n"
