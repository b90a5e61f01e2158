"""Calls and transfers of files under a job's lease: retried while the server is unavailable, ended with the lease."""

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
from deltaci.core.errors import Refused, Unreachable
from deltaci.runner.client import RunnerClient, Uploaded

PART_BYTES: Final = 1024 * 1024
FIRST_PAUSE_SECONDS: Final = 0.2
MAX_PAUSE_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 300.0

# Separate threads, so that transfers of large files do not delay the messages and logs of other jobs.
TRANSFER_THREADS: Final = ThreadPoolExecutor(8, thread_name_prefix="transfers")

T = TypeVar("T")
OpenFile = Callable[[], AbstractContextManager[BinaryIO]]


class JobStopped(Exception):
    """Raised when the job must stop or its lease is lost, so that nothing more is sent or fetched for it."""


class Transfers:
    """Calls the server and transfers files under one lease.

    Its methods raise `JobStopped` once `is_stopped` returns True or the lease is stale.
    """

    def __init__(
        self,
        client: RunnerClient,
        lease_id: str,
        is_stopped: Callable[[], bool],
        threads: ThreadPoolExecutor | None = None,
    ) -> None:
        self._client = client
        self._lease_id = lease_id
        self._is_stopped = is_stopped
        self._threads = threads

    async def run_in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function that blocks for long, such as a transfer or packing files, in one of the transfer threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def secrets(self) -> dict[str, str]:
        """Return the secrets that the job requires, by name."""
        return await self._retry(lambda: self._client.secrets(self._lease_id), PATIENCE_SECONDS)

    async def call(self, call: Callable[[RunnerClient, str], T], patience_seconds: float = PATIENCE_SECONDS) -> T:
        """Return the result of a method of the client, given as `RunnerClient.needs`, called with the lease id."""
        return await self._retry(lambda: call(self._client, self._lease_id), patience_seconds)

    async def upload(self, url_path: str, open_file: OpenFile, size: int, patience_seconds: float) -> Uploaded:
        """Upload the first `size` bytes of a file. Check that the server stored the bytes that were read."""
        return await self._retry(lambda: self._upload(url_path, open_file, size), patience_seconds)

    async def download(self, url_path: str, file: BinaryIO, max_bytes: int, patience_seconds: float) -> int:
        """Download into a file, which is overwritten, and verify the SHA-256. Return the size."""
        return await self._retry(lambda: self._download(url_path, file, max_bytes), patience_seconds)

    async def _retry(self, call: Callable[[], T], patience_seconds: float) -> T:
        """Call a function in a thread, again while the server is unreachable, for at most `patience_seconds`.

        Raise `JobStopped` once the job must stop or its lease is stale.
        """
        deadline = time.monotonic() + patience_seconds
        backoff = Backoff(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            if self._is_stopped():
                raise JobStopped
            try:
                return await self.run_in_thread(call)
            except Unreachable:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(backoff.next(random.random()))
            except Refused as refused:
                if refused.code == "stale_lease":
                    raise JobStopped from None
                raise

    def _upload(self, url_path: str, open_file: OpenFile, size: int) -> Uploaded:
        """Upload a file once. Raise `Unreachable` if the server stored other bytes than were read."""
        file_hash = sha256()

        def read_parts(file: BinaryIO) -> Iterator[bytes]:
            remaining = size
            while remaining:
                if self._is_stopped():
                    raise JobStopped
                try:
                    chunk = file.read(min(PART_BYTES, remaining))
                except OSError as error:
                    raise Refused("unreadable", f"it cannot be read: {error.strerror}") from error
                if not chunk:
                    raise Refused("unreadable", "it became shorter while it was read")
                file_hash.update(chunk)
                remaining -= len(chunk)
                yield chunk

        with open_file() as file:
            uploaded = self._client.upload(self._lease_id, url_path, read_parts(file), size)
        if uploaded.stored and uploaded.sha256 != file_hash.hexdigest():
            raise Unreachable("the server stored other bytes than were sent")
        return uploaded

    def _download(self, url_path: str, file: BinaryIO, max_bytes: int) -> int:
        """Download into the file once and return its size. Raise `Unreachable` if the hash differs."""
        file_hash = sha256()
        file.seek(0)
        file.truncate()

        def write(chunk: bytes) -> None:
            if self._is_stopped():
                raise JobStopped
            if file.tell() + len(chunk) > max_bytes:
                raise Refused("too_large", f"it has more than {max_bytes} bytes")
            file_hash.update(chunk)
            file.write(chunk)

        expected_sha256 = self._client.download(self._lease_id, url_path, write)
        if expected_sha256 != file_hash.hexdigest():
            raise Unreachable("other bytes arrived than the server has")
        return file.tell()
