"""Bare local copies of repositories, one per URL, so that a job fetches only new objects.

Jobs never access them. A mirror is used by one job at a time, under a file lock. Mirrors that have not been used for
long, and the oldest if all together are too large, are removed. A mirror can always be fetched again.
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
MAX_ATTEMPTS: Final = 4
FIRST_PAUSE_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 15.0
REF_PREFIX: Final = "refs/deltaci/"
COMPLETE_FILE: Final = "deltaci-complete"  # This file marks a mirror with the whole history of all branches and tags.
DEPTH_FILE: Final = "deltaci-depth"
LAST_USED_FILE: Final = "deltaci-used"
ALL_REFS: Final = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
# Errors that a retry cannot repair.
_PERMANENT_ERRORS: Final = ("not our ref", "couldn't find remote ref", "Authentication failed", "Repository not found")
# Parts of git's messages about a damaged repository.
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
    """The mirror of one repository, while its lock is held."""

    def __init__(self, path: Path, remote: Remote, log: Callable[[str], None]) -> None:
        self.path = path
        self._remote = remote
        self._log = log

    async def fetch(self, commit: str, ref: str, depth: int, *, has_tags: bool) -> str:
        """Fetch this commit with `depth` commits of history, 0 for all; return the ref that points to it."""
        name = f"{REF_PREFIX}{commit}"
        is_complete = (self.path / COMPLETE_FILE).exists()
        if not depth:
            is_shallow = (self.path / "shallow").exists()
            await self._fetch(*(("--unshallow",) if is_shallow else ()), "--prune", "--tags", "origin", *ALL_REFS)
            (self.path / COMPLETE_FILE).touch()
            if not await self._has(commit):
                await self._fetch_commit(commit, ref, name, ())
        elif is_complete or (depth == 1 and await self._has(commit)):
            if not await self._has(commit):
                await self._fetch_commit(commit, ref, name, ())
        else:
            # Never less than before, as another job may need the history.
            deepest = max(depth, self._depth())
            (self.path / DEPTH_FILE).write_text(str(deepest))
            await self._fetch_commit(commit, ref, name, (f"--depth={deepest}",))
        if has_tags and depth:
            await self._fetch("--depth=1", "--no-tags", "origin", "+refs/tags/*:refs/tags/*")
        await self._git("update-ref", name, commit)
        return name

    async def resolve(self, names: list[str]) -> tuple[str, str]:
        """Return the first of these refs that the remote has, and its commit."""
        commits: dict[str, str] = {}
        listing = await self._retry("ls-remote", "--", "origin", *names, *(f"{name}^{{}}" for name in names))
        for line in listing.splitlines():
            commit, _, name = line.partition("\t")
            if name.endswith("^{}") or name not in commits:
                commits[name.removesuffix("^{}")] = commit
        for name in names:
            if name in commits:
                return name, commits[name]
        raise GitFailed(f"the repository has no {' and no '.join(names)}")

    def _depth(self) -> int:
        try:
            return int((self.path / DEPTH_FILE).read_text())
        except (OSError, ValueError):
            return 0

    async def _has(self, commit: str) -> bool:
        try:
            await self._git("cat-file", "-e", f"{commit}^{{commit}}")
        except GitFailed:
            return False
        return True

    async def _fetch_commit(self, commit: str, ref: str, name: str, options: tuple[str, ...]) -> None:
        """Fetch a commit by its id, or by the ref that contains it if the server does not allow that."""
        try:
            await self._fetch(*options, "--no-tags", "origin", f"+{commit}:{name}")
        except GitFailed as error:
            if not ref:
                raise
            ref_digest = hashlib.sha256(ref.encode()).hexdigest()
            await self._fetch(*options, "--no-tags", "origin", f"+{ref}:{REF_PREFIX}at/{ref_digest}")
            if not await self._has(commit):
                raise GitFailed(
                    f"{ref} does not contain the commit {commit}, and fetching it by its id failed: {error}"
                ) from None

    async def _fetch(self, *words: str) -> None:
        await self._retry("fetch", "--quiet", "--force", "--no-write-fetch-head", "--update-head-ok", *words)

    async def _retry(self, *words: str) -> str:
        """Run git, and retry it after temporary errors of the connection."""
        backoff = Backoff(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return await git(*words, folder=self.path, timeout_seconds=FETCH_SECONDS, remote=self._remote)
            except GitFailed as error:
                if attempt == MAX_ATTEMPTS or any(
                    word in str(error) for word in (*_PERMANENT_ERRORS, *CORRUPTION_MESSAGES)
                ):
                    raise
                self._log(f"git {words[0]}: {error}; retrying")
                await asyncio.sleep(backoff.next(random.random()))
        raise AssertionError("unreachable")

    async def _git(self, *words: str) -> str:
        return await git(*words, folder=self.path, timeout_seconds=LOCAL_SECONDS)


def mirror_path(folder: Path, remote: Remote) -> Path:
    """Return the folder of a repository's mirror."""
    return folder / f"{hashlib.sha256(remote.url.encode()).hexdigest()[:32]}.git"


@asynccontextmanager
async def open_mirror(folder: Path, remote: Remote, log: Callable[[str], None]) -> AsyncIterator[Mirror]:
    """Lock the mirror of a repository, and create it if it is missing."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = mirror_path(folder, remote)
    async with _locked(path.with_suffix(".lock")):
        if not (path / "HEAD").exists():
            shutil.rmtree(path, ignore_errors=True)  # Left incomplete by a runner that was killed.
            path.mkdir()
            await git("init", "--quiet", "--bare", "--template=", folder=path, timeout_seconds=LOCAL_SECONDS)
            await git("remote", "add", "--", "origin", remote.url, folder=path, timeout_seconds=LOCAL_SECONDS)
        for lock_file in (
            *path.glob("*.lock"),
            *(path / "refs").rglob("*.lock"),
        ):  # Of a git process that was killed, as the lock is held here.
            lock_file.unlink(missing_ok=True)
        (path / LAST_USED_FILE).touch()
        yield Mirror(path, remote, log)
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
    """Remove mirrors not used for `max_age`, and the oldest while all exceed `max_bytes`; never `keep`."""
    mirrors = sorted(((_last_used(path), path) for path in folder.glob("*.git")), reverse=True)
    total_bytes, removed = 0, []
    for used_at, path in mirrors:
        total_bytes += _size(path)
        if path == keep or (total_bytes <= max_bytes and time.time() - used_at <= max_age):
            continue
        with open(path.with_suffix(".lock"), "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # It is in use.
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed


def _last_used(path: Path) -> float:
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
