"""Write into a workspace that its job may change meanwhile: by open folders, never through a symbolic link."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Final

from deltaci.core.errors import Refused
from deltaci.runner.workspace.folders import FOLDER_FLAGS, open_folder

_NEW_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def move_tree(staging: Path, root: Path, path: str, *, is_clean: bool) -> None:
    """Move the entries of `staging` into a folder below the root.

    They replace entries of the same names; with `is_clean`, all others are removed first.
    """
    with open_folder(root) as root_fd:
        target_fd = open_or_create(root_fd, path)
        try:
            if is_clean:
                for name in os.listdir(target_fd):
                    remove_entry(target_fd, name)
            with open_folder(staging) as source_fd:
                for name in os.listdir(source_fd):
                    remove_entry(target_fd, name)
                    os.rename(name, name, src_dir_fd=source_fd, dst_dir_fd=target_fd)
        except OSError as error:
            raise Refused("bad_request", f"cannot write into {path!r}: {error.strerror}") from error
        finally:
            os.close(target_fd)


def merge_tree(staging: Path, root: Path, path: str) -> None:
    """Move the content of `staging` into a folder below the root. Files replace files, folders are merged."""
    with open_folder(root) as root_fd, open_folder(staging) as source_fd:
        target_fd = open_or_create(root_fd, path)
        try:
            _merge(source_fd, target_fd)
        except OSError as error:
            raise Refused("bad_request", f"cannot write into {path!r}: {error.strerror}") from error
        finally:
            os.close(target_fd)


def _merge(source_fd: int, target_fd: int) -> None:
    """Move all entries from one opened folder to another, and merge folders of the same name."""
    for name in os.listdir(source_fd):
        if stat.S_ISDIR(os.stat(name, dir_fd=source_fd, follow_symlinks=False).st_mode):
            source_child_fd, target_child_fd = (
                os.open(name, FOLDER_FLAGS, dir_fd=source_fd),
                open_or_create(target_fd, name),
            )
            try:
                _merge(source_child_fd, target_child_fd)
            finally:
                os.close(source_child_fd)
                os.close(target_child_fd)
            continue
        remove_entry(target_fd, name)
        os.rename(name, name, src_dir_fd=source_fd, dst_dir_fd=target_fd)


def write_file(root: Path, path: str, text: str, mode: int = 0o755) -> Path:
    """Write a file below the root and return its path. Links and other entries in its way are removed first."""
    parent_path, _, name = path.rpartition("/")
    with open_folder(root) as root_fd:
        parent_fd = open_or_create(root_fd, parent_path)
        try:
            remove_entry(parent_fd, name)
            descriptor = os.open(name, _NEW_FILE_FLAGS, mode, dir_fd=parent_fd)
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode("utf-8", "surrogatepass"))
        finally:
            os.close(parent_fd)
    return root / path


def create_folder(root: Path, path: str) -> Path:
    """Create a folder below the root and return its path. Links and files in its way are removed first."""
    with open_folder(root) as root_fd:
        os.close(open_or_create(root_fd, path))
    return root / path


def open_or_create(root_fd: int, path: str) -> int:
    """Return the descriptor of a folder below another one, created if needed.

    Links and files in its way are removed.
    """
    current_fd = os.dup(root_fd)
    for folder_name in path.split("/"):
        if folder_name in ("", "."):
            continue
        try:
            child_fd = os.open(folder_name, FOLDER_FLAGS, dir_fd=current_fd)
        except OSError:
            remove_entry(current_fd, folder_name)
            os.mkdir(folder_name, 0o755, dir_fd=current_fd)
            child_fd = os.open(folder_name, FOLDER_FLAGS, dir_fd=current_fd)
        os.close(current_fd)
        current_fd = child_fd
    return current_fd


def remove_entry(parent_fd: int, name: str) -> None:
    """Remove the file, link or folder with this name, if it exists."""
    try:
        status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        shutil.rmtree(name, dir_fd=parent_fd)
    else:
        os.unlink(name, dir_fd=parent_fd)
