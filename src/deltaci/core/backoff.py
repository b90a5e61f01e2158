"""Exponential backoff: how long to wait before an operation is tried again. Pure: random numbers are passed in."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, TypeVar

from deltaci.core.instants import SECOND

BASE_DELAY_SECONDS: Final = 10
MAX_DELAY_SECONDS: Final = 600

Number = TypeVar("Number", int, float)


def backoff_seconds(attempt_count: int, base_seconds: Number, max_seconds: Number) -> Number:
    """Return the delay `2^attempts * base_seconds`, at most `max_seconds`.

    The exponent is limited to 32, so that a large number of attempts does not overflow a float.
    """
    factor: int = 2 ** min(attempt_count, 32)
    return min(max_seconds, base_seconds * factor)


class Backoff:
    """The delays between the attempts of one operation: each twice the previous one, up to `max_seconds`.

    A random factor between 0.5 and 1 shortens each delay, so that the clients of a server that was away do not all
    return at the same moment.
    """

    def __init__(self, first_seconds: float, max_seconds: float) -> None:
        self._first_seconds = self._next_seconds = first_seconds
        self._max_seconds = max_seconds

    def next(self, random_fraction: float = 1.0) -> float:
        """Return the seconds to the next attempt, and double the delay after it. `random_fraction` is from 0 to 1."""
        delay_seconds, self._next_seconds = self._next_seconds, min(self._max_seconds, self._next_seconds * 2)
        return delay_seconds * (0.5 + 0.5 * random_fraction)

    def reset(self) -> None:
        """Make the next delay the first one again. Call it after a successful attempt."""
        self._next_seconds = self._first_seconds


def next_run_at(
    at: int, attempt_count: int, base_seconds: int, max_seconds: int, *, jitter: float = 0.0, salt: str = ""
) -> int:
    """Return when to retry after `attempt_count` attempts, the last of which failed at `at`.

    Jitter lengthens the delay by up to that fraction of it. The exact part is derived from `salt` instead of a random
    number, so that the same decision always yields the same time.
    """
    delay_microseconds = backoff_seconds(attempt_count, base_seconds, max_seconds) * SECOND
    jitter_fraction = int.from_bytes(blake2b(salt.encode(), digest_size=4).digest(), "big") / 2**32 if jitter else 0.0
    return at + delay_microseconds + int(delay_microseconds * jitter * jitter_fraction)
