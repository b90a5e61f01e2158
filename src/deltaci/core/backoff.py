"""Exponential backoff: how long to wait before something is tried again. Pure: random numbers are passed in."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, TypeVar

from deltaci.core.instants import SECOND

BASE_DELAY_SECONDS: Final = 10
MAX_DELAY_SECONDS: Final = 600

Number = TypeVar("Number", int, float)


def backoff_seconds(attempts: int, base_seconds: Number, max_seconds: Number) -> Number:
    """Return `2^attempts * base_seconds`, at most `max_seconds`; any number of attempts is safe."""
    factor: int = 2 ** min(attempts, 32)
    return min(max_seconds, base_seconds * factor)


class Backoff:
    """The delays between the attempts of one operation: each twice the previous one, up to `max_seconds`.

    A random number from 0 to 1 shortens a delay to between half and all of it, so that the clients of a server that
    was away do not return all at the same moment.
    """

    def __init__(self, first_seconds: float, max_seconds: float) -> None:
        self._first = self._next = first_seconds
        self._max = max_seconds

    def next(self, random: float = 1.0) -> float:
        """Return the delay before the next attempt."""
        delay, self._next = self._next, min(self._max, self._next * 2)
        return delay * (0.5 + 0.5 * random)

    def reset(self) -> None:
        """Begin with the first delay again, after an attempt succeeded."""
        self._next = self._first


def next_run_at(
    at: int, attempts: int, base_seconds: int, max_seconds: int, *, jitter: float = 0.0, salt: str = ""
) -> int:
    """Return when the retry is due.

    Jitter lengthens the delay by at most that fraction. The part is derived from `salt`, so that the same decision
    always yields the same time.
    """
    delay = backoff_seconds(attempts, base_seconds, max_seconds) * SECOND
    fraction = int.from_bytes(blake2b(salt.encode(), digest_size=4).digest(), "big") / 2**32 if jitter else 0.0
    return at + delay + int(delay * jitter * fraction)
