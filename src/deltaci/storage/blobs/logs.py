"""Job logs, one file per lease. A writer appends at an explicit offset, so that no bytes are lost or duplicated.

A writer that did not get an answer sends the same bytes again, or asks for the size and continues from there. As every
lease has its own file, a worker that lost its lease cannot change the log of its successor.
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
SMALL_LOG_BYTES: Final = 64 * 1024  # A log of up to this size may use a part of the disk reserve.
MAX_NAME: Final = 200


class LogStore:
    """The logs of attempts, as files in a folder, one per lease."""

    def __init__(self, folder: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        # The tuples are replaced, never changed: other threads read them.
        self._listeners: dict[tuple[str, int], tuple[Callable[[], None], ...]] = {}

    @contextmanager
    def subscribe(self, attempt_id: str, lease_number: int, on_append: Callable[[], None]) -> Iterator[None]:
        """While the context is open, call `on_append` after each append to this log by this object.

        It is called in the thread that appended.
        """
        log_key = (attempt_id, lease_number)
        self._listeners[log_key] = (*self._listeners.get(log_key, ()), on_append)
        try:
            yield
        finally:
            remaining_listeners = list(self._listeners[log_key])
            remaining_listeners.remove(on_append)
            self._listeners[log_key] = tuple(remaining_listeners)
            if not remaining_listeners:
                del self._listeners[log_key]

    def path(self, attempt_id: str, lease_number: int) -> Path:
        """Return the path of the log file, whether or not the file exists."""
        folder_name = quote(attempt_id, safe="")
        if folder_name.startswith((".", "_")) or len(folder_name) > MAX_NAME:
            # The name must not leave the folder and must be valid for any file system.
            folder_name = f"_{sha256(attempt_id.encode()).hexdigest()}"
        return self._folder / folder_name / f"{lease_number}.log"

    def size(self, attempt_id: str, lease_number: int) -> int:
        """Return the size of the log in bytes, 0 if there is none."""
        try:
            return self.path(attempt_id, lease_number).stat().st_size
        except FileNotFoundError:
            return 0

    def append(self, attempt_id: str, lease_number: int, offset: int, chunk: bytes) -> int:
        """Append the bytes, which begin at `offset`. Skip the part that the log has already. Return its new size.

        Refuse them with `log_gap` if the log ends before `offset`, and with `log_full` if it would be too large.
        """
        path = self.path(attempt_id, lease_number)
        if offset and not path.exists():
            raise Refused("log_gap", f"the log ends at byte 0, not at {offset}; send it from there")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as log_file:
            # A repeated request may run beside the first one, in another thread or server: both need the true end.
            fcntl.flock(log_file, fcntl.LOCK_EX)
            log_end = log_file.seek(0, os.SEEK_END)
            if offset > log_end:
                raise Refused("log_gap", f"the log ends at byte {log_end}, not at {offset}; send it from there")
            if max(log_end, offset + len(chunk)) > self._max_bytes:
                raise Refused("log_full", f"a log has at most {self._max_bytes} bytes; write less, or keep a file")
            new_bytes = chunk[log_end - offset :]
            if new_bytes:
                check_free_space(path.parent, len(new_bytes), is_small=log_end + len(new_bytes) <= SMALL_LOG_BYTES)
                log_file.write(new_bytes)
                log_file.flush()
                os.fsync(log_file.fileno())
        for on_append in self._listeners.get((attempt_id, lease_number), ()) if new_bytes else ():
            on_append()
        return log_end + len(new_bytes)

    def read(self, attempt_id: str, lease_number: int, offset: int = 0, limit: int = 1024 * 1024) -> bytes:
        """Return up to `limit` bytes of the log from an offset on; none if the log does not exist."""
        try:
            with self.path(attempt_id, lease_number).open("rb") as log_file:
                log_file.seek(offset)
                return log_file.read(limit)
        except FileNotFoundError:
            return b""
