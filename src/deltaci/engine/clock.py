"""A monotonic clock based on the store's clock: it never goes back, and it runs at the pace of real time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from deltaci.core.instants import SECOND

NANOSECONDS_PER_MICROSECOND: Final = 1000
JUMP_SECONDS: Final = 5.0  # More than any delay of a store's answer, and less than any lease can lose.

_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

LOGGER: Final = logging.getLogger(__name__)


def boot_time_ns() -> int:
    """Return the time since boot, by a clock that cannot be set and, where possible, also counts during sleep."""
    return time.clock_gettime_ns(_BOOT_CLOCK)


def steady_clock() -> Callable[[], float]:
    """Return a function that returns the current time in Unix seconds.

    It goes on at the pace of real time, even if the system clock is set.
    """
    start_time, start_ns = time.time(), boot_time_ns()
    return lambda: start_time + (boot_time_ns() - start_ns) / 1e9


class MonotonicClock:
    """Turns readings of the store's clock into times that never go back and never jump ahead by more than
    `jump_seconds`.

    Times are in microseconds. If the store's clock is set back, this clock goes on at the pace of real time, so that no
    lease is shortened or revived and no timer stands still until the store's clock has caught up. If the store's clock
    is set forward by more than `jump_seconds`, this clock goes on at the pace of real time as well: otherwise every
    lease would end at once while its job runs. The new time takes effect in the next process, or as soon as a record
    shows that another server uses it.
    """

    def __init__(self, elapsed_ns: Callable[[], int] = boot_time_ns, jump_seconds: float = JUMP_SECONDS) -> None:
        self._elapsed_ns = elapsed_ns
        self._max_jump_microseconds = jump_seconds * SECOND
        self._last_time = 0
        self._last_elapsed_microseconds = elapsed_ns() // NANOSECONDS_PER_MICROSECOND
        # The largest accepted difference between the store's clock and elapsed time.
        self._max_offset: int | None = None
        self._has_warned = False
        self.lead = 0  # The time of this clock minus the store's time, at the last reading.

    def read(self, store_time: int) -> int:
        """Return the time at which to make decisions, given a reading of the store's clock."""
        elapsed_microseconds = self._elapsed_ns() // NANOSECONDS_PER_MICROSECOND
        clock_offset = store_time - elapsed_microseconds  # A delayed answer makes it smaller, never larger.
        if self._max_offset is None:
            self._max_offset = clock_offset
        now = store_time
        if clock_offset - self._max_offset > self._max_jump_microseconds:
            now = elapsed_microseconds + self._max_offset
            self._warn_once((store_time - now) / SECOND)
        else:
            self._max_offset = max(self._max_offset, clock_offset)
        if now < self._last_time:
            now = self._last_time + max(0, elapsed_microseconds - self._last_elapsed_microseconds)
        self._last_time, self._last_elapsed_microseconds = now, elapsed_microseconds
        self.lead = now - store_time
        return now

    def advance_to(self, record_time: int) -> None:
        """Move the clock forward to the time at which a record was written, if that is later."""
        if record_time > self._last_time:
            if self._max_offset is not None:
                self._max_offset += record_time - self._last_time
            self._last_time = record_time

    def _warn_once(self, jump_seconds: float) -> None:
        if not self._has_warned:
            LOGGER.warning(
                "the store's clock is %.0f s ahead of real time since this process began; going on at the real pace. "
                "If the clock is right now, restart: leases that are held then end at once",
                jump_seconds,
            )
        self._has_warned = True
