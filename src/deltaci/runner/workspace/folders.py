"""Open folders one by one, never through a symbolic link, as a job may place one anywhere in its workspace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """Open a folder by its absolute path. Fails if any part is a link: a job may have replaced its workspace."""
    current = os.open("/", FOLDER_FLAGS)
    try:
        for name in os.path.abspath(path).split("/"):
            if name:
                inner = os.open(name, FOLDER_FLAGS, dir_fd=current)
                os.close(current)
                current = inner
        yield current
    finally:
        os.close(current)


@contextmanager
def open_parent(top: int, path: str) -> Iterator[tuple[int, str]]:
    """Open the parent folder of a path below `top`, without following links; yield it and the last name."""
    *folders, name = path.split("/")
    current = os.dup(top)
    try:
        for folder in folders:
            inner = os.open(folder, FOLDER_FLAGS, dir_fd=current)
            os.close(current)
            current = inner
        yield current, name
    finally:
        os.close(current)
