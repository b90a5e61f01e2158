"""Where a scenario plays: a folder of its own, how large it is to be, and bounded waits."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

LOOK_SECONDS: Final = 0.02
PATIENCE_SECONDS: Final = 60.0

T = TypeVar("T")


class TooLate(Exception):
    """What was waited for did not happen in time."""


class Stage:
    """One run of one scenario. A quick one shows that it works; its figures are of no use."""

    def __init__(self, folder: Path, *, is_quick: bool = False) -> None:
        self.folder = folder
        self.is_quick = is_quick
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Tell people how far it is."""
        print(f"  {time.monotonic() - self._began:6.1f} s  {text}", file=sys.stderr, flush=True)

    def place(self, name: str) -> Path:
        """A new folder for one case."""
        made = self.folder / name
        made.mkdir()
        made.chmod(0o755)
        return made

    def size(self, full: int, quick: int) -> int:
        """How many: of the real thing, or of a rehearsal."""
        return quick if self.is_quick else full


async def until(is_so: Callable[[], T], what: str, seconds: float = PATIENCE_SECONDS) -> T:
    """Look again and again until it is so; what was found. Raises `TooLate` with `what`."""
    deadline = time.monotonic() + seconds
    while not (found := is_so()):
        if time.monotonic() >= deadline:
            raise TooLate(f"after {seconds:.0f} s still not: {what}")
        await asyncio.sleep(LOOK_SECONDS)
    return found


async def in_time(work: Awaitable[T], what: str, seconds: float = PATIENCE_SECONDS) -> T:
    """Wait for it, but not for ever."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise TooLate(f"after {seconds:.0f} s still not: {what}") from None
