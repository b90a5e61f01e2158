"""Hints that something was committed. They may be lost or come for nothing: the poll behind them is the truth."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

POLL_SECONDS: Final = 0.5
# In the place of a queue: the tenant may have room for more leases. No queue has this name, since no label has a comma.
FREED_CAPACITY: Final = ","

# Where something waits to be claimed since the last commit: (tenant, queue key) → how much.
ReadyCounts = Mapping[tuple[str, str], int]


class HintSubscription:
    """One who waits. A hint that comes while nobody waits is kept for the next wait."""

    def __init__(self, poll_seconds: float | None = None) -> None:
        self._is_hinted = asyncio.Event()
        self._poll_seconds = poll_seconds

    def notify(self) -> None:
        """Something was committed."""
        self._is_hinted.set()

    async def wait(self, most: float = math.inf) -> None:
        """Until a hint, until it is time to look anyway, or for so many seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(most, self._poll_seconds or POLL_SECONDS)):
                await self._is_hinted.wait()
        self._is_hinted.clear()


class CommitHints:
    """All who wait. Those who came first are told first, so that what follows can be repeated."""

    def __init__(self, poll_seconds: float | None = None) -> None:
        self._poll_seconds = poll_seconds
        self._all: dict[HintSubscription, None] = {}
        self._ears: list[Callable[[ReadyCounts | None], None]] = []

    @contextmanager
    def subscribe(self) -> Iterator[HintSubscription]:
        """Hints from now on."""
        waker = HintSubscription(self._poll_seconds)
        self._all[waker] = None
        try:
            yield waker
        finally:
            del self._all[waker]

    def poll_delay(self) -> float:
        """How many seconds until it is time to look anyway. Some disorder keeps servers from asking all at once."""
        return (self._poll_seconds or POLL_SECONDS) * random.uniform(0.8, 1.2)

    def add_listener(self, hear: Callable[[ReadyCounts | None], None]) -> None:
        """Call this whenever work is there to be claimed; with None when there may be some anywhere."""
        self._ears.append(hear)

    def remove_listener(self, hear: Callable[[ReadyCounts | None], None]) -> None:
        """No longer."""
        self._ears.remove(hear)

    def publish(self, ready: ReadyCounts | None = None) -> None:
        """Tell everybody. `ready` is what can be claimed by what was committed; None: nobody knows."""
        for waker in self._all:
            waker.notify()
        if ready is None or ready:
            for hear in tuple(self._ears):
                hear(ready)
