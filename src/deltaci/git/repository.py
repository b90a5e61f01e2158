"""Bare repositories that only this program writes to, and the names of commits and refs."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from deltaci.git.command import Git, GitFailed, GitRemote

MAX_REF_CHARS: Final = 250
# Error texts of git for a commit or ref that the remote does not have.
MISSING_ON_REMOTE: Final = ("not our ref", "couldn't find remote ref", "no such remote ref")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_INVALID_IN_REF: Final = re.compile(r"[ ~^:?*\[\\]|\.\.|@\{|//|/[.-]|\.lock(/|$)|\.(/|$)|/$")


def is_commit(text: str) -> bool:
    """Return whether the text is a full commit hash, other than the zeros that stand for no commit."""
    return _COMMIT.fullmatch(text) is not None and set(text) != {"0"}


def is_ref(text: str) -> bool:
    """Return whether the text is a valid full ref name, such as `refs/heads/main`."""
    is_full = text.startswith("refs/") and text.count("/") >= 2
    return is_full and len(text) <= MAX_REF_CHARS and text.isprintable() and _INVALID_IN_REF.search(text) is None


class BareRepository:
    """Runs git in a bare repository, which need not exist before `create`."""

    def __init__(self, git: Git, folder: Path) -> None:
        self.git = git
        self.folder = folder

    async def create(self, *subfolders: str, mode: int = 0o700) -> None:
        """Create an empty repository with these subfolders. A crash leaves no incomplete repository."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        temporary_folder = self.folder.with_name(f".new-{self.folder.name}")
        shutil.rmtree(temporary_folder, ignore_errors=True)  # A killed process may have left it.
        temporary_folder.mkdir(mode=mode)
        try:
            await self.git.run(["init", "--quiet", "--bare", "--template=", str(temporary_folder)])
            for subfolder in subfolders:
                (temporary_folder / subfolder).mkdir()
            temporary_folder.rename(self.folder)
        finally:
            shutil.rmtree(temporary_folder, ignore_errors=True)

    async def run(self, *args: str, input: bytes = b"", timeout_seconds: float = 0) -> bytes:
        """Return the output of git in this repository. Raise `GitFailed` if it fails."""
        return await self.git.run(args, git_dir=self.folder, input=input, timeout_seconds=timeout_seconds)

    async def fetch(self, remote: GitRemote, refspecs: Iterable[str], *options: str) -> None:
        """Fetch these refspecs from a remote. Raise `GitFailed` if that fails."""
        git_arguments = [
            "fetch",
            "--quiet",
            "--force",
            "--no-write-fetch-head",
            "--update-head-ok",
            "--no-recurse-submodules",
        ]
        git_arguments += ["--no-auto-maintenance", "--no-show-forced-updates", *options, "--", remote.url, *refspecs]
        timeout_seconds = self.git.profile.fetch_seconds
        await self.git.run(git_arguments, git_dir=self.folder, remote=remote, timeout_seconds=timeout_seconds)

    async def has_commit(self, commit: str) -> bool:
        """Return whether the repository contains the commit."""
        if not self.folder.exists():
            return False
        try:
            await self.run("cat-file", "-e", f"{commit}^{{commit}}")
        except GitFailed:
            return False
        return True

    def remove_lock_files(self, min_age_seconds: float = 0) -> int:
        """Remove lock files that killed git processes left, and return how many were removed.

        Without `min_age_seconds`, no other process may use the repository.
        """
        removed_count, newest_removable_at = 0, time.time() - min_age_seconds
        folders = (self.folder, self.folder / "objects" / "info")
        for lock_file in (
            *(lock_path for folder in folders for lock_path in folder.glob("*.lock")),
            *(self.folder / "refs").rglob("*.lock"),
        ):
            with suppress(OSError):  # Its holder has removed it meanwhile.
                if not min_age_seconds or lock_file.stat().st_mtime < newest_removable_at:
                    lock_file.unlink()
                    removed_count += 1
        return removed_count
