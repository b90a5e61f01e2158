"""A keyed work queue: at most one task processes a key at a time.

A key that is added while it is being processed is processed once more afterwards, so that no change is missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from deltaci.engine.event_loop import cancel_and_wait
from deltaci.engine.requests import Overloaded
from deltaci.storage.port import Conflict, Unavailable

TASK_COUNT: Final = 4
MAX_PENDING: Final = 10_000  # The next resync adds the keys that were dropped.
RETRY_SECONDS: Final = 1.0

LOGGER: Final = logging.getLogger(__name__)


class KeyedWorkQueue:
    """Process keys with a fixed number of tasks; retry a key while the store is unavailable.

    `resync`, if given, runs at start and then every `resync_seconds`; it adds keys that no event announced.
    """

    def __init__(
        self,
        name: str,
        process: Callable[[str], Awaitable[None]],
        task_count: int = TASK_COUNT,
        *,
        resync: Callable[[], Awaitable[None]] | None = None,
        resync_seconds: float = 0.0,
    ) -> None:
        self._name = name
        self._process = process
        self._task_count = task_count
        self._resync = resync
        self._resync_seconds = resync_seconds
        self._pending: dict[str, None] = {}
        self._in_progress: set[str] = set()
        self._is_changed = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, key: str) -> None:
        """Schedule a key. Has no effect if the key is already pending, or if too many keys are."""
        if len(self._pending) < MAX_PENDING:
            self._pending[key] = None
            self._is_changed.set()
            self._is_idle.clear()

    def start(self) -> None:
        """Start the tasks that process keys, and the periodic resync."""
        self._tasks = [asyncio.create_task(self._run(), name=f"{self._name} {i}") for i in range(self._task_count)]
        if self._resync is not None:
            self._tasks.insert(0, asyncio.create_task(self._resync_forever(self._resync), name=f"{self._name} resync"))

    async def stop(self) -> None:
        """Cancel all tasks, including those that are processing a key."""
        for task in self._tasks:
            await cancel_and_wait(task)

    async def join(self) -> None:
        """Wait until no key is pending or in progress."""
        await self._is_idle.wait()

    async def _resync_forever(self, resync: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await resync()
            except (Unavailable, Conflict, Overloaded) as error:
                LOGGER.warning("%s: cannot list pending work: %s; retrying", self._name, error)
            await asyncio.sleep(self._resync_seconds)

    async def _run(self) -> None:
        while True:
            key = self._next_key()
            if key is None:
                self._is_changed.clear()
                if not self._in_progress and not self._pending:
                    self._is_idle.set()
                await self._is_changed.wait()
                continue
            self._in_progress.add(key)
            try:
                await self._process(key)
            except (Unavailable, Conflict, Overloaded) as error:
                LOGGER.warning("%s: cannot process %s: %s; retrying", self._name, key, error)
                await asyncio.sleep(RETRY_SECONDS)
                self.add(key)
            except Exception:
                LOGGER.exception("%s: internal error while processing %s; the next resync retries it", self._name, key)
            finally:
                self._in_progress.discard(key)
                # Another task may have skipped this key while it was in progress.
                self._is_changed.set()

    def _next_key(self) -> str | None:
        """Remove and return the oldest pending key that is not in progress."""
        for key in self._pending:
            if key not in self._in_progress:
                del self._pending[key]
                return key
        return None
