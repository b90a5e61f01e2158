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
    """Yield the descriptor of a folder, opened by its absolute path.

    Raise `OSError` if any part is a link, as a job may have replaced its workspace.
    """
    current_fd = os.open("/", FOLDER_FLAGS)
    try:
        for path_part in os.path.abspath(path).split("/"):
            if path_part:
                child_fd = os.open(path_part, FOLDER_FLAGS, dir_fd=current_fd)
                os.close(current_fd)
                current_fd = child_fd
        yield current_fd
    finally:
        os.close(current_fd)


@contextmanager
def open_parent(root_fd: int, path: str) -> Iterator[tuple[int, str]]:
    """Yield the descriptor of the parent folder of a path below an opened root, and the last name of the path.

    Links are not followed.
    """
    *folder_names, last_name = path.split("/")
    current_fd = os.dup(root_fd)
    try:
        for folder_name in folder_names:
            child_fd = os.open(folder_name, FOLDER_FLAGS, dir_fd=current_fd)
            os.close(current_fd)
            current_fd = child_fd
        yield current_fd, last_name
    finally:
        os.close(current_fd)
