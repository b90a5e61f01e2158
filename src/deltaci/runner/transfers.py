"""Bytes between a runner and its server: again while the server is away, never once the lease is gone."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from hashlib import sha256
from typing import Any, BinaryIO, Final, TypeVar

from deltaci.core.backoff import Backoff
from deltaci.core.errors import Refused
from deltaci.runner.client import RunnerClient, Unreachable, Uploaded

PART_BYTES: Final = 1024 * 1024
FIRST_PAUSE_SECONDS: Final = 0.2
MAX_PAUSE_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 300.0

# Threads of their own: while large files are on their way, messages and logs of other jobs must be too.
THREADS: Final = ThreadPoolExecutor(8, thread_name_prefix="transfers")

T = TypeVar("T")
OpenFile = Callable[[], AbstractContextManager[BinaryIO]]


class JobStopped(Exception):
    """The lease is lost or the job is to stop: nothing more is sent."""


class Transfers:
    """What one lease brings and fetches. `is_over` says that nobody wants it any more."""

    def __init__(
        self,
        client: RunnerClient,
        lease_id: str,
        is_over: Callable[[], bool],
        threads: ThreadPoolExecutor | None = None,
    ) -> None:
        self._client = client
        self._lease_id = lease_id
        self._is_over = is_over
        self._threads = threads

    async def run_in_thread(self, work: Callable[..., T], *words: Any) -> T:
        """Do what takes long, here or over there, in one of the threads for it."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *words)

    async def secrets(self) -> dict[str, str]:
        """The job's secrets by name."""
        return await self._insist(lambda: self._client.secrets(self._lease_id), PATIENCE_SECONDS)

    async def call(self, call: Callable[[RunnerClient, str], T], patience: float = PATIENCE_SECONDS) -> T:
        """Ask something under the lease, of the client that is given."""
        return await self._insist(lambda: call(self._client, self._lease_id), patience)

    async def upload(self, path: str, open_file: OpenFile, size: int, patience: float) -> Uploaded:
        """Send a file to an address; what the server then has is what was read here."""
        return await self._insist(lambda: self._upload(path, open_file, size), patience)

    async def download(self, path: str, file: BinaryIO, most: int, patience: float) -> int:
        """Fetch what is at an address into a file; how much it was."""
        return await self._insist(lambda: self._download(path, file, most), patience)

    async def _insist(self, ask: Callable[[], T], patience: float) -> T:
        give_up = time.monotonic() + patience
        backoff = Backoff(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            if self._is_over():
                raise JobStopped
            try:
                return await self.run_in_thread(ask)
            except Unreachable:
                if time.monotonic() > give_up:
                    raise
                await asyncio.sleep(backoff.next(random.random()))
            except Refused as refused:
                if refused.code == "stale_lease":
                    raise JobStopped from None
                raise

    def _upload(self, path: str, open_file: OpenFile, size: int) -> Uploaded:
        digest = sha256()

        def parts(file: BinaryIO) -> Iterator[bytes]:
            left = size
            while left:
                if self._is_over():
                    raise JobStopped
                try:
                    part = file.read(min(PART_BYTES, left))
                except OSError as error:
                    raise Refused("unreadable", f"it cannot be read: {error.strerror}") from error
                if not part:
                    raise Refused("unreadable", "it became shorter while it was read")
                digest.update(part)
                left -= len(part)
                yield part

        with open_file() as file:
            found = self._client.upload(self._lease_id, path, parts(file), size)
        if found.stored and found.sha256 != digest.hexdigest():
            raise Unreachable("the server has other bytes than were sent")
        return found

    def _download(self, path: str, file: BinaryIO, most: int) -> int:
        digest = sha256()
        file.seek(0)
        file.truncate()

        def write(part: bytes) -> None:
            if self._is_over():
                raise JobStopped
            if file.tell() + len(part) > most:
                raise Refused("too_large", f"it has more than {most} bytes")
            digest.update(part)
            file.write(part)

        told = self._client.download(self._lease_id, path, write)
        if told != digest.hexdigest():
            raise Unreachable("other bytes came than the server has")
        return file.tell()
