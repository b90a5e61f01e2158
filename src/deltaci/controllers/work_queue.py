"""Work by name, a few at a time: a name that is given again while it is worked on is worked on once more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from deltaci.engine.event_loop import cancel_and_wait
from deltaci.engine.requests import Overloaded
from deltaci.storage.port import Conflict, Unavailable

COUNT: Final = 4
MAX_WAITING: Final = 10_000  # What is beyond is found by the next sweep.
RETRY_SECONDS: Final = 1.0

LOGGER: Final = logging.getLogger(__name__)


class Hands:
    """Does what it is given. Trouble with the store passes: it is tried again until it is done.

    With `sweep`, it looks again and again for what nobody gave it, first of all for what was left over.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[str], Awaitable[None]],
        count: int = COUNT,
        *,
        sweep: Callable[[], Awaitable[None]] | None = None,
        sweep_seconds: float = 0.0,
    ) -> None:
        self._name = name
        self._work = work
        self._count = count
        self._sweep = sweep
        self._sweep_seconds = sweep_seconds
        self._waiting: dict[str, None] = {}
        self._at_work: set[str] = set()
        self._is_given = asyncio.Event()
        self._is_free = asyncio.Event()
        self._is_free.set()
        self._tasks: list[asyncio.Task[None]] = []

    def give(self, name: str) -> None:
        """To be done soon; once, however often it is said before."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting[name] = None
            self._is_given.set()
            self._is_free.clear()

    def start(self) -> None:
        """Begin."""
        self._tasks = [asyncio.create_task(self._run(), name=f"{self._name} {i}") for i in range(self._count)]
        if self._sweep is not None:
            self._tasks.insert(0, asyncio.create_task(self._look(self._sweep), name=f"{self._name} sweep"))

    async def stop(self) -> None:
        """Do no more."""
        for task in self._tasks:
            await cancel_and_wait(task)

    async def idle(self) -> None:
        """Wait until nothing is left to do."""
        await self._is_free.wait()

    async def _look(self, sweep: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await sweep()
            except (Unavailable, Conflict, Overloaded) as error:
                LOGGER.warning("%s: cannot list pending work: %s; retrying", self._name, error)
            await asyncio.sleep(self._sweep_seconds)

    async def _run(self) -> None:
        while True:
            name = self._next()
            if name is None:
                self._is_given.clear()
                if not self._at_work and not self._waiting:
                    self._is_free.set()
                await self._is_given.wait()
                continue
            self._at_work.add(name)
            try:
                await self._work(name)
            except (Unavailable, Conflict, Overloaded) as error:
                LOGGER.warning("%s: cannot process %s: %s; retrying", self._name, name, error)
                await asyncio.sleep(RETRY_SECONDS)
                self.give(name)
            except Exception:
                LOGGER.exception("%s: internal error while processing %s; the next resync retries it", self._name, name)
            finally:
                self._at_work.discard(name)
                self._is_given.set()  # Somebody may have stepped over it meanwhile.

    def _next(self) -> str | None:
        for name in self._waiting:
            if name not in self._at_work:
                del self._waiting[name]
                return name
        return None
