"""Folders, entered one by one and never through a link: whoever may write in a workspace may put one anywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A folder that is ours; a link to it will do."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def parent(top: int, path: str) -> Iterator[tuple[int, str]]:
    """The folder of what has this path below `top`, entered step by step without following a link, and its name."""
    *folders, name = path.split("/")
    here = os.dup(top)
    try:
        for folder in folders:
            inner = os.open(folder, FOLDER, dir_fd=here)
            os.close(here)
            here = inner
        yield here, name
    finally:
        os.close(here)
