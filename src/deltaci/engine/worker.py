"""A worker for the queue: plain or async functions as handlers, kept alive, fenced, and drained.

Handlers never run where the heartbeats do: plain ones have threads of their own, async ones a loop of their
own, so that no handler can starve its own lease. A handler whose lease can no longer be proved is stopped by
this machine's monotonic clock, before anybody else can be given its job.
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
from deltaci.engine.event_loop import new_loop
from deltaci.engine.queue import AsyncQueue, ClaimedJob, JobOutcome, QueueJob
from deltaci.engine.validation import MAX_CLAIM, json_copy
from deltaci.storage.port import Conflict, Unavailable

TTL_SECONDS: Final = 30
MIN_TTL_SECONDS: Final = 2
DRAIN_SECONDS: Final = 30.0
CLAIM_WAIT_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 0.2
STOP_SECONDS: Final = 1.0
MANY: Final = 64  # With so many at once a worker claims on two ways.
CLAIMS_UNDER_WAY: Final = 4  # Claims, starts and ends of different jobs overlap instead of waiting for each other.

Handler = Callable[["Task"], Any] | Callable[["Task"], Awaitable[Any]]


class Fenced(BaseException):
    """Raised inside a plain handler that must stop: its lease is gone. Not an Exception, so that none catches it."""


class Task:
    """What a handler gets: the job, and whether it may still go on."""

    def __init__(self, job: ClaimedJob, proved_until: float) -> None:
        self.job = job
        self.payload = job.payload
        self.proved_until = proved_until
        self.is_fenced = False
        self.stop: Callable[[], object] = lambda: None

    def fence(self) -> None:
        """Stop the handler, wherever it is."""
        self.is_fenced = True
        self.stop()


class _Ended(msgspec.Struct, frozen=True):
    task: Task
    result: Any = None
    error: BaseException | None = None


class _Handlers:
    """Where handlers run: threads for plain ones, a loop in a thread of its own for async ones.

    What ended is gathered and told to the worker's loop in one go, however many there are.
    """

    def __init__(self, handler: Handler, name: str, concurrency: int, wake: Callable[[], object]) -> None:
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(handler)
        self._wake = wake
        self._ended: list[_Ended] = []
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(concurrency, f"{name}-handler") if not self._is_async else None
        self._loop = new_loop()
        is_running = threading.Event()
        self._loop.call_soon(is_running.set)
        self._thread = threading.Thread(target=self._run_loop, name=f"{name}-handlers", daemon=True)
        self._thread.start()
        is_running.wait()  # Not every loop hears a call from another thread before it runs.

    def begin(self, tasks: Sequence[Task]) -> None:
        """Run the handler for each of them."""
        if self._threads is None:
            self._loop.call_soon_threadsafe(self._begin_async, tasks)
            return
        for task in tasks:
            self._threads.submit(self._run_plain, task)

    def _run_loop(self) -> None:
        """The life of the handlers' loop: when it is stopped, whoever still runs is cancelled, and it is closed."""
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for running in left:
                running.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            self._loop.close()

    def take_ended(self) -> list[_Ended]:
        """What ended since the last time."""
        with self._lock:
            ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """Stop the loop; threads that still run end with the process."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    def _end(self, ended: _Ended) -> None:
        with self._lock:
            self._ended.append(ended)
            is_first = len(self._ended) == 1
        if is_first:
            self._wake()

    def _begin_async(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            running = self._loop.create_task(self._run_async(task))
            task.stop = lambda running=running: self._loop.call_soon_threadsafe(running.cancel)  # type: ignore[misc]
            if task.is_fenced:
                running.cancel()

    async def _run_async(self, task: Task) -> None:
        try:
            result = await self._handler(task)
        except BaseException as error:
            self._end(_Ended(task, error=error))
            if not isinstance(error, Exception | asyncio.CancelledError):
                raise
        else:
            self._end(_Ended(task, result))

    def _run_plain(self, task: Task) -> None:
        fuse = _Fuse()
        task.stop = fuse.blow
        ended = _Ended(task, error=Fenced())
        try:
            try:
                if not task.is_fenced:
                    ended = _Ended(task, self._handler(task))
            finally:
                fuse.take_out()
        except BaseException as error:
            ended = _Ended(task, error=error)
        self._end(ended)


class _Fuse:
    """Raises `Fenced` in the thread that made it, from any other, as long as it is not taken out."""

    def __init__(self) -> None:
        self._thread = ctypes.c_ulong(threading.get_ident())
        self._lock = threading.Lock()
        self._is_in = True

    def blow(self) -> None:
        """Stop the thread's work."""
        with self._lock:
            if self._is_in:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(Fenced))

    def take_out(self) -> None:
        """The work is over: nothing may be raised in this thread any more."""
        with self._lock:
            self._is_in = False
        # What was set just before is raised by now: the interpreter looks for it at every turn of a loop.
        for _ in range(100):
            pass


class Worker:
    """Claims jobs and runs them through one handler, so many at once."""

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
        self._margin = min(5.0, ttl_seconds / 5)  # So much before its lease ends a handler is stopped.
        self._tasks: dict[str, Task] = {}
        self._asked_for = 0
        self._claim_at_once = min(MAX_CLAIM, max(1, concurrency // CLAIMS_UNDER_WAY))
        self._is_stopping = asyncio.Event()
        self._has_ended = asyncio.Event()
        self._has_room = asyncio.Event()

    def stop(self) -> None:
        """Take nothing new; finish what runs, hand back what does not end in time."""
        self._is_stopping.set()
        self._has_room.set()

    async def run(self, *, until_empty: bool = False) -> None:
        """Work until stopped, or until nothing is left to claim."""
        loop = asyncio.get_running_loop()
        wake = partial(loop.call_soon_threadsafe, self._has_ended.set)
        handlers = _Handlers(self._handler, self.name, self._concurrency, wake)
        helpers = [asyncio.create_task(self._keep_leases()), asyncio.create_task(self._report(handlers))]
        try:
            # While one claim is being written, the next is decided.
            claimers = 2 if self._concurrency >= MANY else 1
            await asyncio.gather(*(self._claim_and_begin(handlers, until_empty=until_empty) for _ in range(claimers)))
            await self._drain()
        finally:
            for task in self._tasks.values():
                task.fence()
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            handlers.close()

    async def _claim_and_begin(self, handlers: _Handlers, *, until_empty: bool) -> None:
        while not self._is_stopping.is_set():
            free = min(self._concurrency - len(self._tasks) - self._asked_for, self._claim_at_once)
            if free <= 0:
                self._has_room.clear()
                await self._has_room.wait()
                continue
            asked_at = time.monotonic()
            self._asked_for += free
            try:
                claimed = await self._claim(free, 0.0 if until_empty else CLAIM_WAIT_SECONDS)
            except (Unavailable, Conflict):
                await self._pause()
                continue
            finally:
                self._asked_for -= free
                self._has_room.set()  # It may have got less than it asked for.
            if claimed:
                tasks = [Task(job, self._proved(asked_at)) for job in claimed]
                self._tasks.update((task.job.id, task) for task in tasks)
                handlers.begin(tasks)
            elif until_empty and not self._tasks:
                return
            elif until_empty:
                self._has_room.clear()
                await self._has_room.wait()

    async def _claim(self, free: int, wait: float) -> list[ClaimedJob]:
        asking = asyncio.ensure_future(
            self._queue.claim_next(
                self.name,
                labels=self._labels,
                limit=free,
                wait_seconds=wait,
                ttl_seconds=self._ttl_seconds,
                starts=True,
            )
        )
        stopping = asyncio.ensure_future(self._is_stopping.wait())
        await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        # A claim that is under way is never cut off: what it was given would be lost until its lease ends.
        return await asking

    def _proved(self, asked_at: float) -> float:
        """Until when the lease is ours for sure: it began at the earliest when we asked."""
        return asked_at + self._ttl_seconds - self._margin

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_stopping.wait(), RETRY_SECONDS)

    async def _insist(
        self, tasks: Sequence[Task], say: Callable[[], Awaitable[list[QueueJob | Refused]]]
    ) -> Sequence[QueueJob | Refused | None]:
        """Say it again and again until it is heard, or until the last of the leases is over."""
        while time.monotonic() < max(task.proved_until for task in tasks):
            said_at = time.monotonic()
            try:
                answers = await say()
            except (Unavailable, Conflict):
                await self._pause()
                continue
            for task, answer in zip(tasks, answers, strict=True):
                if not isinstance(answer, Refused):
                    task.proved_until = self._proved(said_at)
            return answers
        return [None] * len(tasks)

    async def _report(self, handlers: _Handlers) -> None:
        """Tell the queue what ended, as much at once as there is."""
        while True:
            await self._has_ended.wait()
            self._has_ended.clear()
            ended = handlers.take_ended()
            heard = [each for each in ended if not each.task.is_fenced]
            if heard:
                ends = [_told(each) for each in heard]
                tasks = [each.task for each in heard]
                answers = await self._insist(tasks, partial(self._queue.finish_all, ends, self.name))
                self.finished += sum(isinstance(answer, QueueJob) for answer in answers)
            for each in ended:
                self._forget(each.task)

    def _forget(self, task: Task) -> None:
        self._tasks.pop(task.job.id, None)
        self._has_room.set()

    async def _keep_leases(self) -> None:
        """Heartbeats for all, and the fence for whoever cannot be proved any more."""
        interval = max(0.2, min(self._ttl_seconds / 4, self._margin))
        beat_at = time.monotonic() + interval
        while True:
            now = time.monotonic()
            for task in list(self._tasks.values()):
                if now >= task.proved_until and not task.is_fenced:
                    task.fence()
            live = [task for task in self._tasks.values() if not task.is_fenced]
            if now >= beat_at:
                beat_at = now + interval
                await self._beat(live)
            next_at = min([beat_at, *(task.proved_until for task in live)])
            await asyncio.sleep(max(0.01, next_at - time.monotonic()))

    async def _beat(self, tasks: list[Task]) -> None:
        if not tasks:
            return
        said_at = time.monotonic()
        beats = self._queue.heartbeat_all([task.job.lease_id for task in tasks], self.name)
        try:
            # A store that does not answer must not keep the fence waiting.
            async with asyncio.timeout(self._margin / 2):
                answers = await beats
        except (TimeoutError, Unavailable, Conflict):
            return
        for task, answer in zip(tasks, answers, strict=True):
            if not isinstance(answer, Refused):
                task.proved_until = self._proved(said_at)
            elif task.job.id in self._tasks:
                task.fence()

    async def _drain(self) -> None:
        """Let what runs end; hand back what does not."""
        give_up = time.monotonic() + self._drain_seconds
        while self._tasks and time.monotonic() < give_up:
            self._has_room.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_room.wait(), max(0.0, give_up - time.monotonic()))
        late = list(self._tasks.values())
        for task in late:
            task.fence()
        give_up = time.monotonic() + STOP_SECONDS
        while self._tasks and time.monotonic() < give_up:
            self._has_room.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_room.wait(), max(0.0, give_up - time.monotonic()))
        for task in late:
            # A handler that did not stop may still be at work: its lease has to run out by itself.
            if task.job.id not in self._tasks:
                await self._hand_back(task)

    async def _hand_back(self, task: Task) -> None:
        """Give the job back, unless by now it is somebody else's."""
        with suppress(Refused, Unavailable, Conflict):
            now = await self._queue.get(task.job.id)
            if now.owner == self.name and now.attempt == task.job.attempt:
                await self._queue.hand_back(now.id, expected_rev=now.rev)


def _told(ended: _Ended) -> JobOutcome:
    lease_id = ended.task.job.lease_id
    if ended.error is None:
        try:
            json_copy("result", ended.result)
        except Refused as refused:
            return JobOutcome(lease_id=lease_id, error=f"the handler's result cannot be kept: {refused.message}")
        return JobOutcome(lease_id=lease_id, result=ended.result)
    if isinstance(ended.error, asyncio.CancelledError):
        return JobOutcome(lease_id=lease_id, error="the handler was cancelled")
    return JobOutcome(
        lease_id=lease_id, error="".join((_first_line(ended.error), *traceback.format_exception(ended.error)))
    )


def _first_line(error: BaseException) -> str:
    """What a person wants to know first: the type and the message."""
    name = type(error).__name__
    try:
        text = str(error).strip()
    except Exception:
        text = "its message cannot be shown"
    return f"{name}: {text}\n" if text else f"{name}\n"
