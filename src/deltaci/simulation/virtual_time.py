"""An event loop whose time is made up: it jumps from one thing that happens to the next, and nothing else moves.

Real asynchronous code runs in it unchanged. Everything belongs to a node, which is a process in the simulated world: a
node can be frozen, and goes on later where it was, or be killed, and then nothing of it is ever run again, no `finally`
either. The order in which things happen follows from the seed alone.

Code that would wait in a thread runs in a greenlet: it waits for a future by `wait`, and meanwhile others go on.
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
    """One process of the simulated world."""

    __slots__ = ("backlog", "is_dead", "is_frozen", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_frozen = False
        self.backlog: list[Handle] = []

    def __repr__(self) -> str:
        return f"Node({self.name})"


MIN_KEPT: Final = 200
MAX_STEPS: Final = 100_000  # At one moment; whoever makes more will never end.
WORLD: Final = Node("world")  # What is outside of all nodes: it is never frozen and never dies.
HERE: Final[ContextVar[Node]] = ContextVar("node", default=WORLD)


def _nothing() -> None:
    """What becomes of that which shall not happen."""


def failed(future: asyncio.Future[Any], error: Exception) -> None:
    """It failed. That nobody hears of it is no fault: whoever waited may be dead."""
    future.set_exception(error)
    future.exception()


def _work(future: asyncio.Future[Any] | None, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """In a thread: do it, and tell what came of it."""
    assert future is not None
    try:
        result = func(*args)
    except Exception as error:
        if not future.done():
            failed(future, error)
    else:
        if not future.done():
            future.set_result(result)
    finally:
        future = None  # An error holds on to this frame, and must not find itself there.


class Stuck(Exception):
    """Nothing more can happen, but somebody still waits."""


class Handle:
    """Something that will happen in a node; outside of all nodes if there is no context."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "moment")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None, moment: float = 0.0
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.moment = moment
        self.is_cancelled = False

    def cancel(self) -> None:
        """It shall not happen."""
        self.is_cancelled = True
        self.callback, self.args = _nothing, ()

    def cancelled(self) -> bool:
        """Whether it shall not."""
        return self.is_cancelled

    def when(self) -> float:
        """When it happens."""
        return self.moment


class VirtualLoop(asyncio.AbstractEventLoop):
    """One thread, no sockets, no clock. `now` is in seconds and only grows."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self.failures: list[dict[str, Any]] = []
        self._ready: deque[Handle] = deque()
        self._later: list[tuple[float, int, Handle]] = []
        self._count = 0
        self._is_running = False
        self._kept: list[asyncio.Task[Any]] = []
        self._most_kept = MIN_KEPT
        self._threads: dict[greenlet, None] = {}

    # -- what asyncio asks of a loop

    def time(self) -> float:
        """The virtual moment."""
        return self.now

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_running(self) -> bool:
        """Whether it runs."""
        return self._is_running

    def is_closed(self) -> bool:
        """It holds nothing that would have to be closed."""
        return False

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        """A task, in the node of whoever makes it."""
        return self._keep(asyncio.Task(coro, loop=self, name=name, context=context))

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        """At this moment, after what is already waiting for it."""
        handle = Handle(callback, args, copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        """So much later."""
        return self.call_at(self.now + delay if delay > 0.0 else self.now, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        """At that moment."""
        handle = Handle(callback, args, copy_context() if context is None else context, when)
        self._count += 1
        heapq.heappush(self._later, (when, self._count, handle))
        return handle

    def outside(self, delay: float, callback: Callable[..., object], *args: Any) -> Handle:
        """So much later, whatever becomes of those who are now in a node."""
        when = self.now + delay
        handle = Handle(callback, args, None, when)
        self._count += 1
        heapq.heappush(self._later, (when, self._count, handle))
        return handle

    def set_default_executor(self, executor: Any) -> None:
        """There are no threads."""

    async def shutdown_asyncgens(self) -> None:
        """Generators end with the world."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Nobody is there to hear it now; the world looks at it in the end."""
        self.failures.append(context)

    # -- code that waits in threads

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """What would be a thread: it is done at once, as far as it waits for nothing."""
        future = self.create_future()

        thread = greenlet(partial(_work, future, func, args))
        context = thread.gr_context = copy_context()
        self._threads[thread] = None
        self._go_on(thread, context.copy())
        return future

    def _go_on(self, thread: greenlet, context: Context, *_: object) -> None:
        awaited = thread.switch()
        if thread.dead:
            del self._threads[thread]
        else:
            awaited.add_done_callback(lambda _: self._go_on(thread, context), context=context)

    def wait(self, future: asyncio.Future[T]) -> T:
        """In such a thread: the future's result, when it is there."""
        parent = getcurrent().parent
        assert parent is not None, "only what runs in an executor can wait"
        try:
            while not future.done():
                parent.switch(future)
            return future.result()
        finally:
            del future  # What it raises would keep it, and it what it raises.

    # -- how it runs

    def run(self, is_over: Callable[[], bool], until: float = float("inf")) -> None:
        """Let things happen, one by one, until it is over or so late."""
        ready, later, steps, since = self._ready, self._later, 0, 0
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            while not is_over():
                while ready:
                    handle = ready.popleft()
                    if handle.is_cancelled:
                        continue
                    context = handle.context
                    try:
                        if context is None:
                            steps += 1
                            handle.callback(*handle.args)
                            continue
                        node = context.get(HERE, WORLD)
                        if node.is_dead:
                            continue
                        if node.is_frozen:
                            node.backlog.append(handle)
                            continue
                        steps += 1
                        context.run(handle.callback, *handle.args)
                        if steps - since > MAX_STEPS:
                            raise Stuck(f"time stands still: more than {MAX_STEPS} steps at the same moment")
                    except Stuck:
                        raise
                    except Exception as error:
                        told = {"message": f"an error in {handle.callback!r}", "exception": error}
                        self.call_exception_handler(told)
                while later and later[0][2].is_cancelled:
                    heapq.heappop(later)
                if not later:
                    raise Stuck("nothing more can happen")
                when = later[0][0]
                if when > until:
                    self.now = until
                    return
                if when > self.now:
                    self.now, since = when, steps
                elif steps - since > MAX_STEPS:
                    raise Stuck(f"time stands still: more than {MAX_STEPS} steps at the same moment")
                while later and later[0][0] <= self.now:
                    ready.append(heapq.heappop(later)[2])
        finally:
            self.steps += steps
            self._is_running = False
            asyncio._set_running_loop(None)

    # -- nodes

    def spawn(self, node: Node, coro: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Begin something in a node."""
        context = copy_context()
        context.run(HERE.set, node)
        return self._keep(asyncio.Task(coro, loop=self, name=name, context=context))

    def _keep(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        """Whatever belongs to a dead node must not be collected: its `finally` would be run after all."""
        self._kept.append(task)
        if len(self._kept) > self._most_kept:
            self._kept = [each for each in self._kept if not each.done()]
            self._most_kept = max(MIN_KEPT, 2 * len(self._kept))
        return task

    def end(self) -> None:
        """The world is over. What was never finished is taken apart in silence."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            for task in self._kept:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    with suppress(BaseException):
                        task.get_coro().close()
            for thread in list(self._threads):
                with suppress(BaseException):
                    thread.throw()
            self._threads.clear()
            self._kept.clear()
            self._ready.clear()
            self._later.clear()
            gc.collect()
        finally:
            sys.unraisablehook = hook

    def freeze(self, node: Node) -> None:
        """It stands still until it is thawed; what would have happened in it waits."""
        node.is_frozen = True

    def thaw(self, node: Node) -> None:
        """It goes on, late."""
        node.is_frozen = False
        self._ready.extend(node.backlog)
        node.backlog.clear()

    def kill(self, node: Node) -> None:
        """Nothing of it ever happens again."""
        node.is_dead = True
        node.backlog.clear()
