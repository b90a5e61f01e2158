"""Putting things into a workspace that its job may change at any moment: by folders that are held open, never through
a link, and never by following what the job put there."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Final

from deltaci.core.errors import Refused
from deltaci.runner.workspace.folders import FOLDER_FLAGS, open_folder

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def move_tree(staged: Path, root: Path, path: str, *, is_clean: bool) -> None:
    """Move a tree to its place below the root; what has the same names is replaced, or all that is there."""
    with open_folder(root) as top:
        target = open_or_create(top, path)
        try:
            if is_clean:
                for name in os.listdir(target):
                    remove_entry(target, name)
            with open_folder(staged) as source:
                for name in os.listdir(source):
                    remove_entry(target, name)
                    os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
        except OSError as error:
            raise Refused("bad_request", f"nothing can be put into {path!r}: {error.strerror}") from error
        finally:
            os.close(target)


def merge_tree(staged: Path, root: Path, path: str) -> None:
    """Move what is in a tree among what is there: files replace files, folders are shared."""
    with open_folder(root) as top, open_folder(staged) as source:
        target = open_or_create(top, path)
        try:
            _merge(source, target)
        except OSError as error:
            raise Refused("bad_request", f"nothing can be put into {path!r}: {error.strerror}") from error
        finally:
            os.close(target)


def _merge(source: int, target: int) -> None:
    for name in os.listdir(source):
        if stat.S_ISDIR(os.stat(name, dir_fd=source, follow_symlinks=False).st_mode):
            inner, into = os.open(name, FOLDER_FLAGS, dir_fd=source), open_or_create(target, name)
            try:
                _merge(inner, into)
            finally:
                os.close(inner)
                os.close(into)
            continue
        remove_entry(target, name)
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)


def write_file(root: Path, path: str, text: str, mode: int = 0o755) -> Path:
    """Write a file of ours below the root: whatever has its name, or is on the way, is replaced and never followed."""
    above, _, name = path.rpartition("/")
    with open_folder(root) as top:
        folder = open_or_create(top, above)
        try:
            remove_entry(folder, name)
            made = os.open(name, _NEW, mode, dir_fd=folder)
            with os.fdopen(made, "wb") as file:
                file.write(text.encode("utf-8", "surrogatepass"))
        finally:
            os.close(folder)
    return root / path


def create_folder(root: Path, path: str) -> Path:
    """A folder below the root, made if need be; whatever else is on the way is replaced and never followed."""
    with open_folder(root) as top:
        os.close(open_or_create(top, path))
    return root / path


def open_or_create(top: int, path: str) -> int:
    """A folder below another, opened, and made if need be; whatever else is on the way is removed."""
    here = os.dup(top)
    for name in path.split("/"):
        if name in ("", "."):
            continue
        try:
            inner = os.open(name, FOLDER_FLAGS, dir_fd=here)
        except OSError:
            remove_entry(here, name)
            os.mkdir(name, 0o755, dir_fd=here)
            inner = os.open(name, FOLDER_FLAGS, dir_fd=here)
        os.close(here)
        here = inner
    return here


def remove_entry(folder: int, name: str) -> None:
    """Whatever has this name in a folder, if there is anything."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        shutil.rmtree(name, dir_fd=folder)
    else:
        os.unlink(name, dir_fd=folder)
