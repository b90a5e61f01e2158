"""Folders, entered one by one and never through a link: whoever may write in a workspace may put one anywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """A folder by its whole path, no part of which may be a link: a job may have put one in place of its workspace."""
    here = os.open("/", FOLDER_FLAGS)
    try:
        for name in os.path.abspath(path).split("/"):
            if name:
                inner = os.open(name, FOLDER_FLAGS, dir_fd=here)
                os.close(here)
                here = inner
        yield here
    finally:
        os.close(here)


@contextmanager
def open_parent(top: int, path: str) -> Iterator[tuple[int, str]]:
    """The folder of what has this path below `top`, entered step by step without following a link, and its name."""
    *folders, name = path.split("/")
    here = os.dup(top)
    try:
        for folder in folders:
            inner = os.open(folder, FOLDER_FLAGS, dir_fd=here)
            os.close(here)
            here = inner
        yield here, name
    finally:
        os.close(here)
