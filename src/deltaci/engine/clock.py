"""The store's clock, made to go forward only."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

NANOSECONDS: Final = 1000


class ForwardClock:
    """Takes the store's readings and never gives a smaller one than before.

    When the store's clock jumps back, time goes on here at its real pace from where it was, so that no lease
    is shortened or revived and no timer stands still until the clock has caught up.
    """

    def __init__(self, elapsed: Callable[[], int] = time.monotonic_ns) -> None:
        self._elapsed = elapsed
        self._last = 0
        self._seen_at = elapsed()

    def read(self, stored: int) -> int:
        """The time to decide by, given what the store's clock says now."""
        now = self._elapsed()
        if stored < self._last:
            stored = self._last + max(0, now - self._seen_at) // NANOSECONDS
        self._last, self._seen_at = stored, now
        return stored
