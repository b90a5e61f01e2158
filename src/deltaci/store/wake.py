"""Hints that something was committed. They may be lost or come for nothing: the poll behind them is the truth."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

POLL_SECONDS: Final = 0.5


class Waker:
    """One who waits. A hint that comes while nobody waits is kept for the next wait."""

    def __init__(self) -> None:
        self._is_hinted = asyncio.Event()

    def hint(self) -> None:
        """Something was committed."""
        self._is_hinted.set()

    async def wait(self, most: float = math.inf) -> None:
        """Until a hint, until it is time to look anyway, or for so many seconds at most."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_hinted.wait(), min(most, POLL_SECONDS))
        self._is_hinted.clear()


class Wakers:
    """All who wait."""

    def __init__(self) -> None:
        self._all: set[Waker] = set()

    @contextmanager
    def subscribed(self) -> Iterator[Waker]:
        """Hints from now on."""
        waker = Waker()
        self._all.add(waker)
        try:
            yield waker
        finally:
            self._all.discard(waker)

    def hint(self) -> None:
        """Tell everybody."""
        for waker in self._all:
            waker.hint()
