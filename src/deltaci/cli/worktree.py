"""List a limited number of the files of a folder.

In a git repository this includes tracked files and files that git would add, elsewhere every file outside of folders
with installed dependencies.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from deltaci.core.errors import Refused
from deltaci.git.command import run_in_user_repository
from deltaci.pipeline.detect.tree import MAX_PATHS, MAX_READ_CHARS, THIRD_PARTY_NAMES, join_path

GIT_SECONDS: Final = 30
MAX_READ_BYTES: Final = 2 * MAX_READ_CHARS
MAX_WALKED_FOLDERS: Final = 50_000


def files_of(folder: Path) -> list[str]:
    """Return the paths of the files in a folder."""
    listed = _known_to_git(folder)
    return _walked(folder) if listed is None else listed


def _known_to_git(folder: Path) -> list[str] | None:
    """Return the tracked files and those that git would add, or None outside of a repository or without git."""
    command = ["-c", "core.fsmonitor=false", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        result = run_in_user_repository(command, folder, GIT_SECONDS)
    except (OSError, Refused):
        return None
    if result.returncode != 0:
        return None
    names = result.stdout.decode("utf-8", "surrogateescape").split("\0")
    return [name for name in names[: MAX_PATHS * 2] if name and not _is_broken(name)]


def _walked(folder: Path) -> list[str]:
    found: list[str] = []
    for number, (where, folders, names) in enumerate(os.walk(folder)):
        inner = Path(where).relative_to(folder).as_posix()
        inner = "" if inner == "." else inner
        folders[:] = sorted(name for name in folders if name not in THIRD_PARTY_NAMES)
        found += [path for name in sorted(names) if not _is_broken(path := join_path(inner, name))]
        if len(found) > MAX_PATHS or number > MAX_WALKED_FOLDERS:
            break
    return found[:MAX_PATHS]


def _is_broken(name: str) -> bool:
    """Return whether a file name is not valid UTF-8."""
    return any("\udc80" <= char <= "\udcff" for char in name)


def text_of(folder: Path, path: str) -> str | None:
    """Return the text of a file, or None if it is not a regular UTF-8 file inside the folder or is too large."""
    whole = folder / path
    try:
        if not whole.resolve().is_relative_to(folder.resolve()) or not stat.S_ISREG(whole.stat().st_mode):
            return None
        with whole.open("rb") as file:
            content = file.read(MAX_READ_BYTES + 1)
        return content.decode("utf-8") if len(content) <= MAX_READ_BYTES else None
    except (OSError, ValueError, RuntimeError):  # It is gone, not ours to read, not text, or links in a circle.
        return None
