"""The environment of one run of a scenario: its folder, its size, and waits with a time limit."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

POLL_SECONDS: Final = 0.02
TIMEOUT_SECONDS: Final = 60.0

T = TypeVar("T")


class TimedOut(Exception):
    """The awaited condition did not become true in time."""


class Stage:
    """One run of one scenario. A quick run only tests the scenario itself; its figures are meaningless."""

    def __init__(self, folder: Path, *, is_quick: bool = False) -> None:
        self.folder = folder
        self.is_quick = is_quick
        self._started_at = time.monotonic()

    def log(self, text: str) -> None:
        """Print the progress."""
        print(f"  {time.monotonic() - self._started_at:6.1f} s  {text}", file=sys.stderr, flush=True)

    def make_folder(self, name: str) -> Path:
        """Create a folder for one case."""
        folder = self.folder / name
        folder.mkdir()
        folder.chmod(0o755)
        return folder

    def size(self, full: int, quick: int) -> int:
        """Return the number for a full or for a quick run."""
        return quick if self.is_quick else full


async def wait_until(condition: Callable[[], T], description: str, seconds: float = TIMEOUT_SECONDS) -> T:
    """Poll until `condition` returns a true value, and return that. Raises `TimedOut` with `description`."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() >= deadline:
            raise TimedOut(f"after {seconds:.0f} s still not: {description}")
        await asyncio.sleep(POLL_SECONDS)
    return result


async def with_time_limit(work: Awaitable[T], description: str, seconds: float = TIMEOUT_SECONDS) -> T:
    """Await `work` with a time limit. Raises `TimedOut`."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise TimedOut(f"after {seconds:.0f} s still not: {description}") from None
