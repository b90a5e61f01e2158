"""An event loop whose time is made up: it jumps from one thing that happens to the next, and nothing else moves.

Real asynchronous code runs in it unchanged. Everything belongs to a node, which is a process in the simulated world: a
node can be frozen, and goes on later where it was, or be killed, and then nothing of it is ever run again, no `finally`
either. The order in which things happen follows from the seed alone.
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
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Args = TypeVarTuple("Args")


class Node:
    """One process of the simulated world."""

    __slots__ = ("backlog", "is_dead", "is_frozen", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_frozen = False
        self.backlog: list[asyncio.Handle] = []

    def __repr__(self) -> str:
        return f"Node({self.name})"


MAX_KEPT: Final = 10_000
WORLD: Final = Node("world")  # What is outside of all nodes: it is never frozen and never dies.
HERE: Final[ContextVar[Node]] = ContextVar("node", default=WORLD)


class Stuck(Exception):
    """Nothing more can happen, but somebody still waits."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """One thread, no sockets, no clock. `now` is in seconds and only grows."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self.failures: list[dict[str, Any]] = []
        self._ready: deque[asyncio.Handle] = deque()
        self._later: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._is_running = False
        self._kept: list[asyncio.Task[Any]] = []

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

    def call_soon(
        self, callback: Callable[[Unpack[Args]], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        """At this moment, after what is already waiting for it."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """So much later."""
        return self.call_at(self.now + max(0.0, delay), callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """At that moment."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._later, (when, self._count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is skipped when its time comes."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """There are no threads: it is done at once."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    async def shutdown_asyncgens(self) -> None:
        """Generators end with the world."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Nobody is there to hear it now; the world looks at it in the end."""
        self.failures.append(context)

    # -- how it runs

    def run_until_complete(self, future: Any) -> Any:
        """Let things happen until this is done."""
        task = asyncio.ensure_future(future, loop=self)
        self.run(task.done)
        return task.result()

    def run(self, is_over: Callable[[], bool], until: float = float("inf")) -> None:
        """Let things happen, one by one, until it is over or so late."""
        ready, later = self._ready, self._later
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            while not is_over():
                if ready:
                    handle = ready.popleft()
                    if handle._cancelled:
                        continue
                    node = handle._context.get(HERE, WORLD)  # type: ignore[attr-defined]
                    if node.is_dead:
                        continue
                    if node.is_frozen:
                        node.backlog.append(handle)
                        continue
                    self.steps += 1
                    handle._run()
                    continue
                while later and later[0][2]._cancelled:
                    heapq.heappop(later)
                if not later:
                    raise Stuck("nothing more can happen")
                when = later[0][0]
                if when > until:
                    self.now = until
                    return
                self.now = max(self.now, when)
                while later and later[0][0] <= self.now:
                    ready.append(heapq.heappop(later)[2])
        finally:
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
        if len(self._kept) > MAX_KEPT:
            self._kept = [each for each in self._kept if not each.done()]
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
