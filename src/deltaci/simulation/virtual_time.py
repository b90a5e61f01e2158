"""An asyncio event loop with virtual time: it jumps from one scheduled callback to the next.

Real asynchronous code runs in it unchanged. Every callback belongs to a node, which stands for a process: a node can be
frozen, so that its callbacks wait until it is thawed, or killed, after which none of its code runs again, not even a
`finally`. The order of callbacks depends only on the seed.

Code that would block in a thread runs in a greenlet: it calls `wait` with a future, and other callbacks run meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any, Final, TypeVar

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

T = TypeVar("T")


class Node:
    """One simulated process, to which callbacks belong."""

    __slots__ = ("backlog", "is_dead", "is_frozen", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_frozen = False
        self.backlog: list[Handle] = []

    def __repr__(self) -> str:
        return f"Node({self.name})"


MIN_TASKS: Final = 200  # Finished tasks are dropped only when there are more than this.
MAX_STEPS: Final = 100_000  # At one moment; more of them are an endless loop.
OUTSIDE: Final = Node("world")  # For code outside of all nodes: never frozen, never dead.
CURRENT_NODE: Final[ContextVar[Node]] = ContextVar("node", default=OUTSIDE)


def _do_nothing() -> None:
    """Do nothing. Replaces the callback of a cancelled handle."""


def fail_quietly(future: asyncio.Future[Any], error: Exception) -> None:
    """Set the exception of a future without a warning if no task awaits it, because the waiting node may be dead."""
    future.set_exception(error)
    future.exception()


def _run_in_thread(future: asyncio.Future[Any] | None, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Call the function of a simulated thread and set its result or exception on the future."""
    assert future is not None
    try:
        func_result = func(*args)
    except Exception as error:
        if not future.done():
            fail_quietly(future, error)
    else:
        if not future.done():
            future.set_result(func_result)
    finally:
        future = None  # Break the reference cycle: the error's traceback refers to this frame.


class SimulationStuck(Exception):
    """Raised when no callback is scheduled any more, or virtual time does not advance."""


class Handle:
    """A scheduled callback. Without a context it belongs to no node and always runs."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "time")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None, time: float = 0.0
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.time = time
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.callback, self.args = _do_nothing, ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.time


class VirtualLoop(asyncio.AbstractEventLoop):
    """A single-threaded event loop without sockets. `now` is the virtual time in seconds and only grows."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self.failures: list[dict[str, Any]] = []
        self._ready: deque[Handle] = deque()
        self._scheduled: list[tuple[float, int, Handle]] = []
        self._sequence = 0
        self._is_running = False
        self._tasks: list[asyncio.Task[Any]] = []
        self._max_tasks = MIN_TASKS
        self._threads: dict[greenlet, None] = {}

    # -- the asyncio interface

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        """Return False, because the loop holds nothing that must be closed."""
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        """Create a task in the current node."""
        return self._keep_reference(asyncio.Task(coro, loop=self, name=name, context=context))

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        """Schedule a callback at the current time, after all that are already scheduled for it."""
        handle = Handle(callback, args, copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_at(self.now + delay if delay > 0.0 else self.now, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        handle = Handle(callback, args, copy_context() if context is None else context, when)
        self._sequence += 1
        heapq.heappush(self._scheduled, (when, self._sequence, handle))
        return handle

    def call_outside(self, delay: float, callback: Callable[..., object], *args: Any) -> Handle:
        """Schedule a callback outside of all nodes: it runs even if the current node is frozen or dead."""
        when = self.now + delay
        handle = Handle(callback, args, None, when)
        self._sequence += 1
        heapq.heappush(self._scheduled, (when, self._sequence, handle))
        return handle

    def set_default_executor(self, executor: Any) -> None:
        """Do nothing, because there are no threads."""

    async def shutdown_asyncgens(self) -> None:
        """Do nothing, because generators end with the simulation."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Record the error; the simulation reports it."""
        self.failures.append(context)

    # -- simulated threads

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Start the function in a greenlet instead of a thread, and return the future of its result."""
        future = self.create_future()

        thread = greenlet(partial(_run_in_thread, future, func, args))
        context = thread.gr_context = copy_context()
        self._threads[thread] = None
        self._resume(thread, context.copy())
        return future

    def _resume(self, thread: greenlet, context: Context, *_: object) -> None:
        """Continue a simulated thread until it ends or waits for a future, which then continues it again."""
        awaited_future = thread.switch()
        if thread.dead:
            del self._threads[thread]
        else:
            awaited_future.add_done_callback(lambda _: self._resume(thread, context), context=context)

    def wait(self, future: asyncio.Future[T]) -> T:
        """Return the result of a future. While it is pending, this simulated thread waits and other callbacks run."""
        parent_greenlet = getcurrent().parent
        assert parent_greenlet is not None, "wait() works only in a simulated thread"
        try:
            while not future.done():
                parent_greenlet.switch(future)
            return future.result()
        finally:
            del future  # Break the reference cycle between the future and its exception.

    # -- running

    def run(self, is_over: Callable[[], bool], until: float = float("inf")) -> None:
        """Run callbacks until `is_over` returns True or the time `until` is reached.

        Raise `SimulationStuck` if nothing is scheduled or time does not advance.
        """
        ready_handles, scheduled_handles, step_count, step_count_before = self._ready, self._scheduled, 0, 0
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            while not is_over():
                while ready_handles:
                    handle = ready_handles.popleft()
                    if handle.is_cancelled:
                        continue
                    context = handle.context
                    try:
                        if context is None:
                            step_count += 1
                            handle.callback(*handle.args)
                            continue
                        node = context.get(CURRENT_NODE, OUTSIDE)
                        if node.is_dead:
                            continue
                        if node.is_frozen:
                            node.backlog.append(handle)
                            continue
                        step_count += 1
                        context.run(handle.callback, *handle.args)
                        if step_count - step_count_before > MAX_STEPS:
                            raise SimulationStuck(f"time stands still: more than {MAX_STEPS} steps at the same moment")
                    except SimulationStuck:
                        raise
                    except Exception as error:
                        failure = {"message": f"an error in {handle.callback!r}", "exception": error}
                        self.call_exception_handler(failure)
                while scheduled_handles and scheduled_handles[0][2].is_cancelled:
                    heapq.heappop(scheduled_handles)
                if not scheduled_handles:
                    raise SimulationStuck("nothing is scheduled any more")
                next_time = scheduled_handles[0][0]
                if next_time > until:
                    self.now = until
                    return
                if next_time > self.now:
                    self.now, step_count_before = next_time, step_count
                elif step_count - step_count_before > MAX_STEPS:
                    raise SimulationStuck(f"time stands still: more than {MAX_STEPS} steps at the same moment")
                while scheduled_handles and scheduled_handles[0][0] <= self.now:
                    ready_handles.append(heapq.heappop(scheduled_handles)[2])
        finally:
            self.steps += step_count
            self._is_running = False
            asyncio._set_running_loop(None)

    # -- nodes

    def spawn(self, node: Node, coro: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Start a coroutine in a node and return its task."""
        context = copy_context()
        context.run(CURRENT_NODE.set, node)
        return self._keep_reference(asyncio.Task(coro, loop=self, name=name, context=context))

    def _keep_reference(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        """Keep a reference to the task and return it.

        Otherwise garbage collection of a dead node's task would run its `finally` blocks.
        """
        self._tasks.append(task)
        if len(self._tasks) > self._max_tasks:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._max_tasks = max(MIN_TASKS, 2 * len(self._tasks))
        return task

    def end(self) -> None:
        """Close all unfinished tasks and threads and drop all callbacks, without warnings."""
        previous_hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    with suppress(BaseException):
                        task.get_coro().close()
            for thread in list(self._threads):
                with suppress(BaseException):
                    thread.throw()
            self._threads.clear()
            self._tasks.clear()
            self._ready.clear()
            self._scheduled.clear()
            gc.collect()
        finally:
            sys.unraisablehook = previous_hook

    def freeze(self, node: Node) -> None:
        """Stop running the node's callbacks. They are collected until `thaw`."""
        node.is_frozen = True

    def thaw(self, node: Node) -> None:
        """Run the callbacks that were collected while the node was frozen, and run its later ones normally."""
        node.is_frozen = False
        self._ready.extend(node.backlog)
        node.backlog.clear()

    def kill(self, node: Node) -> None:
        """Mark a node as dead, so that none of its callbacks runs again."""
        node.is_dead = True
        node.backlog.clear()
