"""What waits for a disk or a bucket, in threads: that is no work for the loop on which everybody else is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from deltaci.storage.blobs.store import BlobStoreUnavailable

THREADS: Final = 8

T = TypeVar("T")


class Disk:
    """Threads of their own for one kind of work: who reads must not hold up those who write."""

    def __init__(self, name: str) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=name)

    async def do(self, work: Callable[[], T]) -> T:
        """One piece of work, and what came of it."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except OSError as error:
            raise BlobStoreUnavailable(f"nothing can be kept or read now: {error.strerror or error}") from error

    def close(self) -> None:
        """Wait for what is under way."""
        self._threads.shutdown()
