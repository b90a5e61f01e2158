"""A job's log on its way to the server: kept on disk first, sent in order, resumed where the server says it ends."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Final

from deltaci.core.errors import Refused
from deltaci.runner.client import Client, Unreachable
from deltaci.runner.pauses import Pauses

CHUNK_BYTES: Final = 1024 * 1024
FIRST_PAUSE_SECONDS: Final = 0.1
MAX_PAUSE_SECONDS: Final = 2.0
TAIL_BYTES: Final = 16 * 1024
TAIL_LINES: Final = 40


class LogStream:
    """Takes bytes at any pace; memory stays small, the server gets all of them, in order, once."""

    def __init__(self, client: Client, lease_id: str, path: Path) -> None:
        self._client = client
        self._lease_id = lease_id
        self.path = path
        # Appended to by one thread and read by another: neither may depend on where the other one stands in it.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._is_open = True
        self._closing = threading.Lock()
        self._size = 0
        self._has_more = asyncio.Event()
        self._is_sent = asyncio.Event()
        self._is_ended = False
        self.bytes_sent = 0
        self.trouble = ""

    def write(self, data: bytes) -> None:
        """Keep it, and send it soon."""
        while data:
            written = os.write(self._file, data)
            self._size += written
            data = data[written:]
        self._has_more.set()

    def tail(self) -> list[str]:
        """The last lines, for the one who asks why it failed."""
        end = self._read(max(0, self._size - TAIL_BYTES), TAIL_BYTES)
        return end.decode(errors="replace").splitlines()[-TAIL_LINES:]

    def _read(self, offset: int, limit: int) -> bytes:
        with self._closing:  # A descriptor that was closed may be another file's by now.
            return os.pread(self._file, limit, offset) if self._is_open else b""

    async def send(self) -> None:
        """Send until it is ended and all of it is with the server, or until the server wants no more of it."""
        pauses = Pauses(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            if self.bytes_sent >= self._size:
                if self._is_ended:
                    break
                self._has_more.clear()
                await self._has_more.wait()
                continue
            try:
                self.bytes_sent = await asyncio.to_thread(self._send_part)
                pauses.reset()
            except Unreachable:
                await asyncio.sleep(pauses.next())
            except Refused as refused:
                self.trouble = refused.message
                break
        self._is_sent.set()

    def _send_part(self) -> int:
        data = self._read(self.bytes_sent, CHUNK_BYTES)
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
