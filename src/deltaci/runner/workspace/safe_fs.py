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


def move_tree(staging_folder: Path, root: Path, target_path: str, *, is_clean: bool) -> None:
    """Move the entries of `staging_folder` into a folder below the root.

    They replace entries of the same names; with `is_clean`, all others are removed first.
    """
    with open_folder(root) as root_fd:
        target_fd = open_or_create(root_fd, target_path)
        try:
            if is_clean:
                for entry_name in os.listdir(target_fd):
                    remove_entry(target_fd, entry_name)
            with open_folder(staging_folder) as source_fd:
                for entry_name in os.listdir(source_fd):
                    remove_entry(target_fd, entry_name)
                    os.rename(entry_name, entry_name, src_dir_fd=source_fd, dst_dir_fd=target_fd)
        except OSError as error:
            raise Refused("bad_request", f"cannot write into {target_path!r}: {error.strerror}") from error
        finally:
            os.close(target_fd)


def merge_tree(staging_folder: Path, root: Path, target_path: str) -> None:
    """Move the content of `staging_folder` into a folder below the root. Files replace files, folders are merged."""
    with open_folder(root) as root_fd, open_folder(staging_folder) as source_fd:
        target_fd = open_or_create(root_fd, target_path)
        try:
            _merge(source_fd, target_fd)
        except OSError as error:
            raise Refused("bad_request", f"cannot write into {target_path!r}: {error.strerror}") from error
        finally:
            os.close(target_fd)


def _merge(source_fd: int, target_fd: int) -> None:
    """Move all entries from one opened folder to another, and merge folders of the same name."""
    for entry_name in os.listdir(source_fd):
        if stat.S_ISDIR(os.stat(entry_name, dir_fd=source_fd, follow_symlinks=False).st_mode):
            source_child_fd, target_child_fd = (
                os.open(entry_name, FOLDER_FLAGS, dir_fd=source_fd),
                open_or_create(target_fd, entry_name),
            )
            try:
                _merge(source_child_fd, target_child_fd)
            finally:
                os.close(source_child_fd)
                os.close(target_child_fd)
            continue
        remove_entry(target_fd, entry_name)
        os.rename(entry_name, entry_name, src_dir_fd=source_fd, dst_dir_fd=target_fd)


def write_file(root: Path, path: str, text: str, mode: int = 0o755) -> Path:
    """Write a file below the root and return its path. Links and other entries in its way are removed first."""
    parent_path, _, file_name = path.rpartition("/")
    with open_folder(root) as root_fd:
        parent_fd = open_or_create(root_fd, parent_path)
        try:
            remove_entry(parent_fd, file_name)
            file_fd = os.open(file_name, _NEW_FILE_FLAGS, mode, dir_fd=parent_fd)
            with os.fdopen(file_fd, "wb") as file:
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


def remove_entry(parent_fd: int, entry_name: str) -> None:
    """Remove the file, link or folder with this name, if it exists."""
    try:
        entry_status = os.stat(entry_name, dir_fd=parent_fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(entry_status.st_mode):
        shutil.rmtree(entry_name, dir_fd=parent_fd)
    else:
        os.unlink(entry_name, dir_fd=parent_fd)
