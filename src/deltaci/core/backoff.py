"""When a failed attempt is retried: exponential backoff with optional jitter."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from deltaci.core.instants import SECOND

BASE_DELAY_SECONDS: Final = 10
MAX_DELAY_SECONDS: Final = 600


def backoff_seconds(attempts: int, base_seconds: int, max_seconds: int) -> int:
    """Return `2^attempts * base_seconds`, at most `max_seconds`; any number of attempts is safe."""
    return min(max_seconds, base_seconds << min(attempts, 32))


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
