"""A job's log on its way to the server: kept on disk first, sent in order, resumed where the server says it ends."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

from deltaci.core.errors import Refused
from deltaci.runner.client import Client, Unreachable

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
        self._file = path.open("w+b", buffering=0)
        self._size = 0
        self._has_more = asyncio.Event()
        self._is_sent = asyncio.Event()
        self._is_ended = False
        self.bytes_sent = 0
        self.trouble = ""

    def write(self, data: bytes) -> None:
        """Keep it, and send it soon."""
        # By place, not by a position that is shared: what is sent is read in another thread.
        left = memoryview(data)
        while left:
            left = left[os.pwrite(self._file.fileno(), left, self._size + len(data) - len(left)) :]
        self._size += len(data)
        self._has_more.set()

    def tail(self) -> list[str]:
        """The last lines, for the one who asks why it failed."""
        found = os.pread(self._file.fileno(), TAIL_BYTES, max(0, self._size - TAIL_BYTES))
        return found.decode(errors="replace").splitlines()[-TAIL_LINES:]

    async def send(self) -> None:
        """Send until it is ended and all of it is with the server, or until the server wants no more of it."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            if self.bytes_sent == self._size:
                if self._is_ended:
                    break
                self._has_more.clear()
                await self._has_more.wait()
                continue
            try:
                self.bytes_sent = await asyncio.to_thread(self._send_part)
                pause = FIRST_PAUSE_SECONDS
            except Unreachable:
                await asyncio.sleep(pause)
                pause = min(MAX_PAUSE_SECONDS, pause * 2)
            except Refused as refused:
                self.trouble = refused.message
                break
        self._is_sent.set()

    def _send_part(self) -> int:
        data = os.pread(self._file.fileno(), min(CHUNK_BYTES, self._size - self.bytes_sent), self.bytes_sent)
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
        return not self.trouble

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
