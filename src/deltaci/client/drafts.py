"""A file that is there whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import IO


class Draft:
    """Use it as a context manager: what was written takes its name when the block ends well, and is gone otherwise."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}.part")
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Draft:
        self._file = self._draft.open("xb")
        return self

    def write(self, data: bytes) -> None:
        """Add to it."""
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
