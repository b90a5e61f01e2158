"""What waits for a disk or a bucket, in threads: that is no work for the loop on which everybody else is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from deltaci.blobs.store import BlobsUnavailable

THREADS: Final = 8

T = TypeVar("T")

# Threads of their own, for the whole process: who reads must not hold up those who write logs.
_THREADS: Final = ThreadPoolExecutor(THREADS, thread_name_prefix="api-disk")


async def do(work: Callable[[], T]) -> T:
    """One piece of work, and what came of it."""
    try:
        return await asyncio.get_running_loop().run_in_executor(_THREADS, work)
    except OSError as error:
        raise BlobsUnavailable(f"nothing can be read now: {error.strerror or error}") from error
