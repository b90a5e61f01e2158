"""When a failed attempt is retried: exponential backoff with optional jitter."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from deltaci.core.instants import SECOND

BASE_DELAY_SECONDS: Final = 10
MAX_DELAY_SECONDS: Final = 600


def backoff_seconds(attempts: int, base_seconds: int, max_seconds: int) -> int:
    """`2^attempts * base_delay`, capped. Grows without overflow for any number of attempts."""
    return min(max_seconds, base_seconds << min(attempts, 32))


def next_run_at(
    at: int, attempts: int, base_seconds: int, max_seconds: int, *, jitter: float = 0.0, salt: str = ""
) -> int:
    """When the retry is due. Jitter lengthens the wait by up to that fraction, the same for the same salt."""
    wait = backoff_seconds(attempts, base_seconds, max_seconds) * SECOND
    spread = int.from_bytes(blake2b(salt.encode(), digest_size=4).digest(), "big") / 2**32 if jitter else 0.0
    return at + wait + int(wait * jitter * spread)
