"""A job's log on its way to the server: kept on disk first, sent in order, resumed where the server says it ends.

It has a limit, the server's own: a job that never stops talking fills neither disk. What comes after that is lost, but
for the last lines, which tell why a job failed.

It shares its line with heartbeats, which must never wait long behind it. So what is sent at once is as much as the line
takes in a moment: little at first, more while that goes quickly, less when it does not.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from pathlib import Path
from typing import Final

from deltaci.core.backoff import Backoff
from deltaci.core.errors import Refused
from deltaci.runner.client import RunnerClient, Unreachable
from deltaci.runner.log.sections import looks_like_marker
from deltaci.storage.blobs.logs import MAX_LOG_BYTES

CHUNK_BYTES: Final = 1024 * 1024
FIRST_CHUNK_BYTES: Final = 4 * 1024
LEAST_CHUNK_BYTES: Final = 1024
QUICK_SECONDS: Final = 1.0
SLOW_SECONDS: Final = 3.0
FIRST_PAUSE_SECONDS: Final = 0.1
MAX_PAUSE_SECONDS: Final = 2.0
TAIL_BYTES: Final = 16 * 1024
TAIL_LINES: Final = 40
FULL: Final = b"\n[the log is full; what follows was not kept]\n"


class LogStream:
    """Takes bytes at any pace; memory stays small, the server gets all of them, in order, once."""

    def __init__(self, client: RunnerClient, lease_id: str, path: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._client = client
        self._lease_id = lease_id
        self.path = path
        # Appended to by one thread and read by another: neither may depend on where the other one stands in it.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._is_open = True
        self._closing = threading.Lock()
        self._size = 0
        self._max_bytes = max_bytes - len(FULL)
        self._is_full = False
        self._last = b""  # Of what was not kept.
        self._has_more = asyncio.Event()
        self._is_sent = asyncio.Event()
        self._is_ended = False
        self._chunk_bytes = FIRST_CHUNK_BYTES
        self.bytes_sent = 0
        self.trouble = ""

    def write(self, data: bytes) -> None:
        """Keep it, and send it soon; not more than fits."""
        if self._is_full:
            self._last = (self._last + data)[-TAIL_BYTES:]
            return
        if self._size + len(data) > self._max_bytes:
            self._is_full = True
            kept = self._max_bytes - self._size
            data, self._last = data[:kept] + FULL, data[kept:][-TAIL_BYTES:]
        try:
            while data:
                written = os.write(self._file, data)
                self._size += written
                data = data[written:]
        except OSError as error:
            self._is_full, self._last = True, data[-TAIL_BYTES:]
            self.trouble = f"the log cannot be kept on this runner: {error.strerror}"
        self._has_more.set()

    def tail(self) -> list[str]:
        """The last lines, for the one who asks why it failed; not the markers, which have the steps' own words."""
        kept = min(TAIL_BYTES, self._size)
        end = (self._read(self._size - kept, kept) + self._last)[-TAIL_BYTES:]
        return [line for line in end.decode(errors="replace").splitlines() if not looks_like_marker(line)][-TAIL_LINES:]

    def _read(self, offset: int, limit: int) -> bytes:
        with self._closing:  # A descriptor that was closed may be another file's by now.
            return os.pread(self._file, limit, offset) if self._is_open else b""

    async def send(self) -> None:
        """Send until it is ended and all of it is with the server, or until the server wants no more of it."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            if self.bytes_sent >= self._size:
                if self._is_ended:
                    break
                self._has_more.clear()
                await self._has_more.wait()
                continue
            began = loop.time()
            try:
                self.bytes_sent = await asyncio.to_thread(self._send_part)
                self._pace(loop.time() - began)
                backoff.reset()
            except Unreachable:
                self._pace(SLOW_SECONDS)
                await asyncio.sleep(backoff.next(random.random()))
            except Refused as refused:
                self.trouble = refused.message
                break
        self._is_sent.set()

    def _pace(self, seconds: float) -> None:
        """How long a part took says how large the next one may be."""
        if seconds < QUICK_SECONDS:
            self._chunk_bytes = min(CHUNK_BYTES, self._chunk_bytes * 2)
        elif seconds >= SLOW_SECONDS:
            self._chunk_bytes = max(LEAST_CHUNK_BYTES, self._chunk_bytes // 2)

    def _send_part(self) -> int:
        data = self._read(self.bytes_sent, self._chunk_bytes)
        try:
            return self._client.append_log(self._lease_id, self.bytes_sent, data)
        except Refused as refused:
            if refused.code != "log_gap":
                raise
            return self._client.log_size(self._lease_id)

    async def finish(self, seconds: float) -> bool:
        """No more comes; wait until all is sent, for so many seconds. Whether it was."""
        self._is_ended = True
        self._has_more.set()
        try:
            async with asyncio.timeout(seconds):
                await self._is_sent.wait()
        except TimeoutError:
            return False
        return not self.trouble and self.bytes_sent >= self._size

    def hurry(self, seconds: float) -> None:
        """Whatever `finish` was told, it waits no longer than this from now on."""
        asyncio.get_running_loop().call_later(seconds, self._is_sent.set)

    def close(self) -> None:
        """Let go of the file."""
        with self._closing:
            self._is_open = False
            os.close(self._file)
