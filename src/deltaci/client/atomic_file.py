"""A file that is written completely or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import IO


class AtomicFile:
    """A context manager that writes a temporary file and renames it on success; on an exception it deletes the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}.part")
        self._file: IO[bytes] | None = None

    def __enter__(self) -> AtomicFile:
        self._file = self._draft.open("xb")
        return self

    def write(self, data: bytes) -> None:
        """Append bytes to the temporary file."""
        assert self._file is not None
        self._file.write(data)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._file is not None
        try:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()
            if kind is None:
                self._draft.replace(self._path)
        finally:
            self._file.close()
            self._draft.unlink(missing_ok=True)
