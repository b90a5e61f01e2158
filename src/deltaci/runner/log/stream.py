"""Sends a job's log to the server: written to a file first, sent in order, resumed where the server's copy ends.

The log has the same size limit as on the server, so that endless output fills neither disk. Output beyond the limit is
dropped, except for the last lines, which are reported with a failed job.

Logs share the network with heartbeats, which must not be delayed. Therefore the chunk size starts small, doubles while
chunks are sent quickly, and halves when one takes long.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from pathlib import Path
from typing import Final

from deltaci.core.backoff import Backoff
from deltaci.core.errors import Refused, Unreachable
from deltaci.protocol.messages import MAX_LOG_BYTES
from deltaci.runner.client import RunnerClient
from deltaci.runner.log.sections import looks_like_marker

CHUNK_BYTES: Final = 1024 * 1024
FIRST_CHUNK_BYTES: Final = 4 * 1024
MIN_CHUNK_BYTES: Final = 1024
QUICK_SECONDS: Final = 1.0
SLOW_SECONDS: Final = 3.0
FIRST_PAUSE_SECONDS: Final = 0.1
MAX_PAUSE_SECONDS: Final = 2.0
TAIL_BYTES: Final = 16 * 1024
TAIL_LINES: Final = 40
FULL: Final = b"\n[the log is full; the rest of the output was dropped]\n"


class LogStream:
    """Accepts bytes at any rate, buffers them in a file, and sends each of them to the server once, in order."""

    def __init__(self, client: RunnerClient, lease_id: str, path: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._client = client
        self._lease_id = lease_id
        self.path = path
        # One thread appends and another reads: O_APPEND and pread do not use the shared file position.
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._is_open = True
        self._file_lock = threading.Lock()
        self._size = 0
        self._max_bytes = max_bytes - len(FULL)
        self._is_full = False
        self._dropped_tail = b""  # The end of the output that was dropped.
        self._has_more_event = asyncio.Event()
        self._sent_event = asyncio.Event()
        self._is_finished = False
        self._chunk_bytes = FIRST_CHUNK_BYTES
        self.bytes_sent = 0
        self.failure = ""

    def write(self, chunk: bytes) -> None:
        """Append output to the file, from which `send` reads.

        Beyond the size limit, keep only the last bytes, for `tail`.
        """
        if self._is_full:
            self._dropped_tail = (self._dropped_tail + chunk)[-TAIL_BYTES:]
            return
        if self._size + len(chunk) > self._max_bytes:
            self._is_full = True
            fitting_bytes = self._max_bytes - self._size
            chunk, self._dropped_tail = chunk[:fitting_bytes] + FULL, chunk[fitting_bytes:][-TAIL_BYTES:]
        try:
            while chunk:
                written_bytes = os.write(self._descriptor, chunk)
                self._size += written_bytes
                chunk = chunk[written_bytes:]
        except OSError as error:
            self._is_full, self._dropped_tail = True, chunk[-TAIL_BYTES:]
            self.failure = f"the log cannot be written on this runner: {error.strerror}"
        self._has_more_event.set()

    def tail(self) -> list[str]:
        """Return the last lines of the output, without section markers, also of output beyond the size limit."""
        tail_bytes = min(TAIL_BYTES, self._size)
        content = (self._read(self._size - tail_bytes, tail_bytes) + self._dropped_tail)[-TAIL_BYTES:]
        return [line for line in content.decode(errors="replace").splitlines() if not looks_like_marker(line)][
            -TAIL_LINES:
        ]

    def _read(self, offset: int, limit: int) -> bytes:
        """Return at most `limit` bytes of the file from `offset` on; no bytes after `close`."""
        with self._file_lock:  # The number of a closed descriptor may belong to another file.
            return os.pread(self._descriptor, limit, offset) if self._is_open else b""

    async def send(self) -> None:
        """Send the log while it grows. Return when all of it is sent after `finish`, or when the server refuses it."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            if self.bytes_sent >= self._size:
                if self._is_finished:
                    break
                self._has_more_event.clear()
                await self._has_more_event.wait()
                continue
            chunk_started_at = loop.time()
            try:
                self.bytes_sent = await asyncio.to_thread(self._send_part)
                self._adapt_chunk_size(loop.time() - chunk_started_at)
                backoff.reset()
            except Unreachable:
                self._adapt_chunk_size(SLOW_SECONDS)
                await asyncio.sleep(backoff.next(random.random()))
            except Refused as refused:
                self.failure = refused.message
                break
        self._sent_event.set()

    def _adapt_chunk_size(self, seconds: float) -> None:
        """Double or halve the chunk size, depending on how long the last chunk took."""
        if seconds < QUICK_SECONDS:
            self._chunk_bytes = min(CHUNK_BYTES, self._chunk_bytes * 2)
        elif seconds >= SLOW_SECONDS:
            self._chunk_bytes = max(MIN_CHUNK_BYTES, self._chunk_bytes // 2)

    def _send_part(self) -> int:
        """Send the next chunk. Return the size of the server's copy, from which to continue."""
        chunk = self._read(self.bytes_sent, self._chunk_bytes)
        try:
            return self._client.append_log(self._lease_id, self.bytes_sent, chunk)
        except Refused as refused:
            if refused.code != "log_gap":
                raise
            return self._client.log_size(self._lease_id)

    async def finish(self, seconds: float) -> bool:
        """End the log and wait for at most `seconds` until it is sent. Return whether the whole log was sent."""
        self._is_finished = True
        self._has_more_event.set()
        try:
            async with asyncio.timeout(seconds):
                await self._sent_event.wait()
        except TimeoutError:
            return False
        return not self.failure and self.bytes_sent >= self._size

    def limit_wait(self, seconds: float) -> None:
        """Make a pending `finish` return after at most `seconds` from now."""
        asyncio.get_running_loop().call_later(seconds, self._sent_event.set)

    def close(self) -> None:
        """Close the file. The file itself is not removed."""
        with self._file_lock:
            self._is_open = False
            os.close(self._descriptor)
