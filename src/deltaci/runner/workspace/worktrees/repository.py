"""A stream's own repository on this runner: what the project's repository and the server have of it.

Its objects are those of the runner's mirror, under a second name: a mirror that is thrown away takes none along. A
commit counts as had only when a ref says so, which is written last: whatever was cut off half-way is done again.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deltaci.git.command import GitFailed
from deltaci.protocol.job_spec import Source
from deltaci.runner.workspace.git import Remote, check_commit, git
from deltaci.runner.workspace.mirrors import CORRUPTION_MESSAGES, LOCAL_SECONDS, mirror_path, open_mirror

COMMIT_REFS: Final = "refs/deltaci/had"
INDEX_FOLDER: Final = "trees"  # In it: an index of ours for each tree.
_PACK: Final = "pack"


class StreamRepository:
    """One stream's, while nobody else changes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def has_commit(self, commit: str) -> bool:
        """Whether the commit is here with all that belongs to it."""
        return (self.path / COMMIT_REFS / check_commit(commit)).is_file()

    def index_path(self, name: str) -> Path:
        """What we know of the tree of this name."""
        return self.path / INDEX_FOLDER / f"{name}.index"

    async def create(self) -> None:
        """Have a repository: whole or not at all."""
        if not self._is_one():
            await asyncio.to_thread(_remove, self.path)
            draft = self.path.with_name(f".{self.path.name}-{secrets.token_hex(4)}")
            draft.mkdir()
            try:
                await git("init", "--quiet", "--bare", "--template=", folder=draft, timeout_seconds=LOCAL_SECONDS)
                (draft / INDEX_FOLDER).mkdir()
                draft.rename(self.path)
            finally:
                await asyncio.to_thread(_remove, draft)
        for left in (*self.path.glob("*.lock"), *(self.path / "refs").rglob("*.lock")):
            left.unlink(missing_ok=True)  # Of a git that was killed: nobody else is here.

    def _is_one(self) -> bool:
        try:
            folders = (self.path, self.path / "objects", self.path / INDEX_FOLDER)
            return all(stat.S_ISDIR(each.lstat().st_mode) for each in folders) and (self.path / "HEAD").is_file()
        except OSError:
            return False

    async def fetch_base(self, mirrors: Path, remote: Remote, source: Source, say: Callable[[str], None]) -> None:
        """Have the commit that the project's repository has, with so much of its history as is asked for."""
        try:
            await self._bring(mirrors, remote, source, say)
        except GitFailed as failed:
            if not any(word in str(failed) for word in CORRUPTION_MESSAGES):
                raise
            say(f"the mirror is broken: {failed}; making a new one")
            await asyncio.to_thread(shutil.rmtree, mirror_path(mirrors, remote), ignore_errors=True)
            await self._bring(mirrors, remote, source, say)

    async def _bring(self, mirrors: Path, remote: Remote, source: Source, say: Callable[[str], None]) -> None:
        async with open_mirror(mirrors, remote, say) as kept:
            await kept.bring(check_commit(source.commit), source.ref, source.depth, has_tags=False)
            await asyncio.to_thread(self._link, kept.path)
        await self._have(source.commit)

    def _link(self, kept: Path) -> None:
        """Every object of a mirror, under a second name. The index of a pack comes last: with it the pack is there."""
        objects = self.path / "objects"
        for folder in (kept / "objects").iterdir():
            if len(folder.name) != 2 and folder.name != _PACK:
                continue
            target = objects / folder.name
            target.mkdir(exist_ok=True)
            there = set(os.listdir(target))
            for each in sorted(folder.iterdir(), key=lambda path: (path.suffix == ".idx", path.name)):
                if each.name not in there and not each.name.startswith("tmp_"):
                    _second_name(each, target / each.name)
        shallow = kept / "shallow"
        if shallow.exists():
            shutil.copyfile(shallow, self.path / "shallow")
        else:
            (self.path / "shallow").unlink(missing_ok=True)

    async def import_bundle(self, bundle: Path, tip: str) -> None:
        """Have a commit of which the server sent what the repository does not have."""
        await self._git("bundle", "unbundle", str(bundle))
        await self._have(tip)

    async def _have(self, commit: str) -> None:
        await self._git("cat-file", "-e", f"{commit}^{{commit}}")
        await self._git("update-ref", f"{COMMIT_REFS}/{commit}", commit)

    async def _git(self, *words: str) -> str:
        return await git(*words, folder=self.path, timeout_seconds=LOCAL_SECONDS)


def _second_name(path: Path, name: Path) -> None:
    try:
        os.link(path, name)
    except FileExistsError:
        return
    except OSError:  # Another file system, or one that has no second names.
        draft = name.with_name(f"tmp_{secrets.token_hex(8)}")
        try:
            shutil.copyfile(path, draft)
            os.replace(draft, name)
        finally:
            draft.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
