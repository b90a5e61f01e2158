"""Logs, one file for each lease: bytes are appended at the end that the writer knows, so nothing is lost or doubled.

A writer that lost an answer sends the same bytes again, or asks how far the log is and goes on from there. Every lease
has a file of its own: whoever lost it can only spoil its own.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote

from deltaci.core.errors import Refused
from deltaci.storage.blobs.disk_reserve import check_free_space

MAX_LOG_BYTES: Final = 1024 * 1024 * 1024
SMALL_LOG_BYTES: Final = 64 * 1024  # So much is kept while there is little room.
MAX_NAME: Final = 200


class LogStore:
    """A folder of logs."""

    def __init__(self, folder: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._ears: dict[tuple[str, int], tuple[Callable[[], None], ...]] = {}  # Replaced as a whole: threads read it.

    @contextmanager
    def subscribe(self, attempt_id: str, number: int, hear: Callable[[], None]) -> Iterator[None]:
        """Call this, in whatever thread, when somebody appended to the log through this object."""
        key = (attempt_id, number)
        self._ears[key] = (*self._ears.get(key, ()), hear)
        try:
            yield
        finally:
            left = list(self._ears[key])
            left.remove(hear)
            self._ears[key] = tuple(left)
            if not left:
                del self._ears[key]

    def _path(self, attempt_id: str, number: int) -> Path:
        name = quote(attempt_id, safe="")
        if name.startswith((".", "_")) or len(name) > MAX_NAME:
            # No way out of the folder, and no name that a file system would refuse.
            name = f"_{sha256(attempt_id.encode()).hexdigest()}"
        return self._folder / name / f"{number}.log"

    def place(self, attempt_id: str, number: int) -> Path:
        """Where it is kept, or would be."""
        return self._path(attempt_id, number)

    def size(self, attempt_id: str, number: int) -> int:
        """How many bytes are kept."""
        try:
            return self._path(attempt_id, number).stat().st_size
        except FileNotFoundError:
            return 0

    def append(self, attempt_id: str, number: int, offset: int, data: bytes) -> int:
        """Keep the bytes that begin at this offset; returns where the log ends now. What is kept already is skipped."""
        path = self._path(attempt_id, number)
        if offset and not path.exists():
            raise Refused("log_gap", f"the log ends at byte 0, not at {offset}; send it from there")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            # A repeat may be under way beside its first try, in another thread or server: each must see a true end.
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, os.SEEK_END)
            if offset > end:
                raise Refused("log_gap", f"the log ends at byte {end}, not at {offset}; send it from there")
            if max(end, offset + len(data)) > self._max_bytes:
                raise Refused("log_full", f"a log has at most {self._max_bytes} bytes; write less, or keep a file")
            new = data[end - offset :]
            if new:
                check_free_space(path.parent, len(new), is_small=end + len(new) <= SMALL_LOG_BYTES)
                file.write(new)
                file.flush()
                os.fsync(file.fileno())
        for hear in self._ears.get((attempt_id, number), ()) if new else ():
            hear()
        return end + len(new)

    def read(self, attempt_id: str, number: int, offset: int = 0, limit: int = 1024 * 1024) -> bytes:
        """Some bytes from an offset on."""
        try:
            with self._path(attempt_id, number).open("rb") as file:
                file.seek(offset)
                return file.read(limit)
        except FileNotFoundError:
            return b""
