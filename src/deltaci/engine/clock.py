"""The store's clock, made to go forward only, and at the pace of real time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from deltaci.core.instants import SECOND

NANOSECONDS_PER_MICROSECOND: Final = 1000
JUMP_SECONDS: Final = 5.0  # More than answers of a store are ever late by, and less than any lease can spare.

_REAL_TIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

LOGGER: Final = logging.getLogger(__name__)


def boot_time_ns() -> int:
    """A clock that nobody sets, and that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime_ns(_REAL_TIME)


def steady_clock() -> Callable[[], float]:
    """The time of day as it was when this process began, from then on at the pace of real time."""
    began, then = time.time(), boot_time_ns()
    return lambda: began + (boot_time_ns() - then) / 1e9


class MonotonicClock:
    """Takes the store's readings and never gives a smaller one than before, nor one that jumps ahead.

    When the store's clock is set back, time goes on here at its real pace from where it was, so that no lease is
    shortened or revived and no timer stands still until the clock has caught up. When it is set forward, time goes on
    at its real pace, too: otherwise every lease would end at once, while its job runs. The new time is believed by the
    next process, or as soon as a record shows that another server believes it.
    """

    def __init__(self, elapsed: Callable[[], int] = boot_time_ns, jump_seconds: float = JUMP_SECONDS) -> None:
        self._elapsed = elapsed
        self._jump = jump_seconds * SECOND
        self._last = 0
        self._seen_at = elapsed() // NANOSECONDS_PER_MICROSECOND
        self._offset: int | None = None  # The most that the store's clock was ever ahead of ours, and believed.
        self._is_told = False
        self.lead = 0  # How far the time here is ahead of the store's clock; less than 0: behind it.

    def read(self, stored: int) -> int:
        """The time to decide by, given what the store's clock says now."""
        at = self._elapsed() // NANOSECONDS_PER_MICROSECOND
        found = stored - at  # Smaller for an answer that was late, never larger.
        if self._offset is None:
            self._offset = found
        now = stored
        if found - self._offset > self._jump:
            now = at + self._offset
            self._tell((stored - now) / SECOND)
        else:
            self._offset = max(self._offset, found)
        if now < self._last:
            now = self._last + max(0, at - self._seen_at)
        self._last, self._seen_at = now, at
        self.lead = now - stored
        return now

    def advance_to(self, at: int) -> None:
        """A record was written at this time: from now on it is at least that late."""
        if at > self._last:
            if self._offset is not None:
                self._offset += at - self._last
            self._last = at

    def _tell(self, seconds: float) -> None:
        if not self._is_told:
            LOGGER.warning(
                "the store's clock is %.0f s ahead of real time since this process began; going on at the real pace. "
                "If the clock is right now, restart: leases that are held then end at once",
                seconds,
            )
        self._is_told = True
