"""Threads for blocking reads and writes of disks and blob stores, which would block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from deltaci.storage.blobs.store import BlobStoreUnavailable

THREADS: Final = 8

T = TypeVar("T")


class DiskThreads:
    """A thread pool for one kind of disk access. Separate pools keep slow reads from delaying writes."""

    def __init__(self, thread_name: str) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=thread_name)

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function in a thread and return its result. An `OSError` is raised as `BlobStoreUnavailable`."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function)
        except OSError as error:
            raise BlobStoreUnavailable(f"storage is unavailable: {error.strerror or error}") from error

    def close(self) -> None:
        """Shut the pool down after all submitted functions have returned."""
        self._threads.shutdown()
