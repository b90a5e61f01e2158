"""A runner's own copies of repositories: bare, one for each address, so that the next job fetches only what is new.

No job ever sees one. Each is used under a lock, by one job at a time; the oldest are removed when they were not used
for long or when all of them are too much. What a mirror lacks can always be fetched again.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import random
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from deltaci.core.backoff import Backoff
from deltaci.git.command import GitFailed
from deltaci.runner.workspace.git import Remote, git

LOCK_SECONDS: Final = 0.1
MAX_AGE_SECONDS: Final = 30 * 86400.0
MAX_BYTES: Final = 20 * 1024**3
FETCH_SECONDS: Final = 1800.0
LOCAL_SECONDS: Final = 600.0
TRIES: Final = 4
FIRST_PAUSE_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 15.0
REFS: Final = "refs/deltaci/"
COMPLETE: Final = "deltaci-complete"  # A file that says: it has all history of all branches and tags.
DEPTH: Final = "deltaci-depth"
LAST_USED_FILE: Final = "deltaci-used"
EVERYTHING: Final = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
# To ask again would only be answered with the same.
_FINAL: Final = ("not our ref", "couldn't find remote ref", "Authentication failed", "Repository not found")
# What git says of a repository that a disk or a kill left half made.
CORRUPTION_MESSAGES: Final = (
    "corrupt",
    "bad object",
    "unable to read",
    "is empty",
    "loose object",
    "missing blob",
    "bad tree",
)


class Mirror:
    """One repository's copy, while its lock is held."""

    def __init__(self, path: Path, remote: Remote, say: Callable[[str], None]) -> None:
        self.path = path
        self._remote = remote
        self._say = say

    async def bring(self, commit: str, ref: str, depth: int, *, has_tags: bool) -> str:
        """Have this commit with so much of its history, 0 for all; the name under which others can fetch it."""
        name = f"{REFS}{commit}"
        is_complete = (self.path / COMPLETE).exists()
        if not depth:
            is_shallow = (self.path / "shallow").exists()
            await self._fetch(*(("--unshallow",) if is_shallow else ()), "--prune", "--tags", "origin", *EVERYTHING)
            (self.path / COMPLETE).touch()
            if not await self._has(commit):
                await self._fetch_commit(commit, ref, name, ())
        elif is_complete or (depth == 1 and await self._has(commit)):
            if not await self._has(commit):
                await self._fetch_commit(commit, ref, name, ())
        else:
            # Never less than before: what one job cuts off, another may still want.
            deepest = max(depth, self._depth())
            (self.path / DEPTH).write_text(str(deepest))
            await self._fetch_commit(commit, ref, name, (f"--depth={deepest}",))
        if has_tags and depth:
            await self._fetch("--depth=1", "--no-tags", "origin", "+refs/tags/*:refs/tags/*")
        await self._git("update-ref", name, commit)
        return name

    async def resolve(self, names: list[str]) -> tuple[str, str]:
        """The first of these refs that the repository has, and its commit."""
        found: dict[str, str] = {}
        told = await self._try("ls-remote", "--", "origin", *names, *(f"{name}^{{}}" for name in names))
        for line in told.splitlines():
            commit, _, name = line.partition("\t")
            if name.endswith("^{}") or name not in found:
                found[name.removesuffix("^{}")] = commit
        for name in names:
            if name in found:
                return name, found[name]
        raise GitFailed(f"the repository has no {' and no '.join(names)}")

    def _depth(self) -> int:
        try:
            return int((self.path / DEPTH).read_text())
        except (OSError, ValueError):
            return 0

    async def _has(self, commit: str) -> bool:
        try:
            await self._git("cat-file", "-e", f"{commit}^{{commit}}")
        except GitFailed:
            return False
        return True

    async def _fetch_commit(self, commit: str, ref: str, name: str, how: tuple[str, ...]) -> None:
        """By its name; from a server that does not give it by that, by the ref that has it."""
        try:
            await self._fetch(*how, "--no-tags", "origin", f"+{commit}:{name}")
        except GitFailed as failed:
            if not ref:
                raise
            at = hashlib.sha256(ref.encode()).hexdigest()
            await self._fetch(*how, "--no-tags", "origin", f"+{ref}:{REFS}at/{at}")
            if not await self._has(commit):
                raise GitFailed(f"{ref} does not have the commit {commit}, and by its name: {failed}") from None

    async def _fetch(self, *words: str) -> None:
        await self._try("fetch", "--quiet", "--force", "--no-write-fetch-head", "--update-head-ok", *words)

    async def _try(self, *words: str) -> str:
        """Call git again while the way to the repository is bad."""
        backoff = Backoff(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        for attempt in range(1, TRIES + 1):
            try:
                return await git(*words, folder=self.path, timeout_seconds=FETCH_SECONDS, remote=self._remote)
            except GitFailed as failed:
                if attempt == TRIES or any(word in str(failed) for word in (*_FINAL, *CORRUPTION_MESSAGES)):
                    raise
                self._say(f"git {words[0]}: {failed}; trying again")
                await asyncio.sleep(backoff.next(random.random()))
        raise AssertionError("unreachable")

    async def _git(self, *words: str) -> str:
        return await git(*words, folder=self.path, timeout_seconds=LOCAL_SECONDS)


def mirror_path(folder: Path, remote: Remote) -> Path:
    """Where the copy of a repository is."""
    return folder / f"{hashlib.sha256(remote.url.encode()).hexdigest()[:32]}.git"


@asynccontextmanager
async def open_mirror(folder: Path, remote: Remote, say: Callable[[str], None]) -> AsyncIterator[Mirror]:
    """The copy of a repository, made if there is none, and nobody else's meanwhile."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = mirror_path(folder, remote)
    async with _locked(path.with_suffix(".lock")):
        if not (path / "HEAD").exists():
            shutil.rmtree(path, ignore_errors=True)  # Half made by a runner that was killed.
            path.mkdir()
            await git("init", "--quiet", "--bare", "--template=", folder=path, timeout_seconds=LOCAL_SECONDS)
            await git("remote", "add", "--", "origin", remote.url, folder=path, timeout_seconds=LOCAL_SECONDS)
        for left in (
            *path.glob("*.lock"),
            *(path / "refs").rglob("*.lock"),
        ):  # Of a git that was killed: nobody else is here.
            left.unlink(missing_ok=True)
        (path / LAST_USED_FILE).touch()
        yield Mirror(path, remote, say)
    await asyncio.to_thread(prune, folder, keep=path)


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(LOCK_SECONDS)
        yield
    finally:
        os.close(descriptor)


def prune(folder: Path, keep: Path, max_bytes: int = MAX_BYTES, max_age: float = MAX_AGE_SECONDS) -> list[Path]:
    """Remove what nobody used for long, and the oldest while all are too much; never the one that is to be kept."""
    used = sorted(((_used(path), path) for path in folder.glob("*.git")), reverse=True)
    total, removed = 0, []
    for at, path in used:
        total += _size(path)
        if path == keep or (total <= max_bytes and time.time() - at <= max_age):
            continue
        with open(path.with_suffix(".lock"), "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # It is in use.
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed


def _used(path: Path) -> float:
    try:
        return (path / LAST_USED_FILE).stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    total = 0
    for folder, _, files in os.walk(path):
        for file in files:
            try:
                total += os.lstat(os.path.join(folder, file)).st_size
            except OSError:
                continue
    return total
