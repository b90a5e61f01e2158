"""Bare local copies of repositories, one per URL, so that a job fetches only new objects.

Jobs never access them. A mirror is used by one job at a time, under a file lock. Mirrors that have not been used for
long, and the oldest if all together are too large, are removed. A mirror can always be fetched again.

The server's mirrors (`deltaci.git.mirrors`) differ: they have whole histories, and one process for each.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import itertools
import os
import random
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

from deltaci.core.backoff import Backoff
from deltaci.core.errors import Refused
from deltaci.git.command import RUNNER, Git, GitFailed, GitRemote
from deltaci.git.repository import MISSING_ON_REMOTE, BareRepository

GIT: Final = Git(RUNNER)
LOCK_SECONDS: Final = 0.1
MAX_AGE_SECONDS: Final = 30 * 86400.0
MAX_BYTES: Final = 20 * 1024**3
MAX_ATTEMPTS: Final = 4
FIRST_PAUSE_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 15.0
REF_PREFIX: Final = "refs/deltaci/"
COMPLETE_FILE: Final = "deltaci-complete"  # This file marks a mirror with the whole history of all branches and tags.
DEPTH_FILE: Final = "deltaci-depth"
LAST_USED_FILE: Final = "deltaci-used"
ALL_REFS: Final = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
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
# A retry cannot repair these.
_PERMANENT_ERRORS: Final = (
    *MISSING_ON_REMOTE,
    *CORRUPTION_MESSAGES,
    *("Authentication failed", "could not read Username", "Repository not found"),
)

T = TypeVar("T")


class Mirror(BareRepository):
    """The mirror of one repository. Its lock is held as long as this object is in use."""

    def __init__(self, folder: Path, remote: GitRemote, log: Callable[[str], None]) -> None:
        super().__init__(GIT, folder)
        self._remote = remote
        self._log = log

    async def fetch_commit(self, commit: str, ref: str, depth: int, *, has_tags: bool) -> str:
        """Fetch this commit with `depth` commits of history, 0 for all. Return the mirror's ref that points to it."""
        commit_ref = f"{REF_PREFIX}{commit}"
        is_complete = (self.folder / COMPLETE_FILE).exists()
        if not depth:
            is_shallow = (self.folder / "shallow").exists()
            await self._fetch(ALL_REFS, *(("--unshallow",) if is_shallow else ()), "--prune", "--tags")
            (self.folder / COMPLETE_FILE).touch()
            if not await self.has_commit(commit):
                await self._fetch_missing(commit, ref, commit_ref)
        elif is_complete or (depth == 1 and await self.has_commit(commit)):
            if not await self.has_commit(commit):
                await self._fetch_missing(commit, ref, commit_ref)
        else:
            # Never less than before, as another job may need the history.
            max_depth = max(depth, self._depth())
            (self.folder / DEPTH_FILE).write_text(str(max_depth))
            await self._fetch_missing(commit, ref, commit_ref, f"--depth={max_depth}")
        if has_tags and depth:
            await self._fetch(["+refs/tags/*:refs/tags/*"], "--depth=1", "--no-tags")
        await self.run("update-ref", commit_ref, commit)
        return commit_ref

    async def resolve(self, ref_names: list[str]) -> tuple[str, str]:
        """Return the first of these refs that the remote has, and its commit. Raise `Refused` if it has none."""
        commit_by_ref: dict[str, str] = {}
        ref_patterns = [*ref_names, *(f"{ref_name}^{{}}" for ref_name in ref_names)]
        git_arguments = ["ls-remote", "--", self._remote.url, *ref_patterns]
        listing = await self._retry(
            lambda: self.git.run(git_arguments, remote=self._remote, timeout_seconds=self.git.profile.fetch_seconds)
        )
        for listing_line in listing.decode("utf-8", "surrogateescape").splitlines():
            commit, _, ref_name = listing_line.partition("\t")
            if ref_name.endswith("^{}") or ref_name not in commit_by_ref:
                commit_by_ref[ref_name.removesuffix("^{}")] = commit
        for ref_name in ref_names:
            if ref_name in commit_by_ref:
                return ref_name, commit_by_ref[ref_name]
        missing_refs = " and no ".join(ref_names)
        raise Refused("bad_spec", f"the repository has no {missing_refs}; name a branch or tag that exists")

    def _depth(self) -> int:
        """Return the greatest depth with which a commit was fetched into the mirror; 0 if unknown."""
        try:
            return int((self.folder / DEPTH_FILE).read_text())
        except (OSError, ValueError):
            return 0

    async def _fetch_missing(self, commit: str, ref: str, commit_ref: str, *options: str) -> None:
        """Fetch a commit by its id, or by the ref that contains it if the server does not allow that."""
        try:
            await self._fetch([f"+{commit}:{commit_ref}"], *options, "--no-tags")
        except GitFailed as error:
            if not ref:
                raise
            ref_digest = hashlib.sha256(ref.encode()).hexdigest()
            await self._fetch([f"+{ref}:{REF_PREFIX}at/{ref_digest}"], *options, "--no-tags")
            if not await self.has_commit(commit):
                raise GitFailed(
                    f"{ref} does not contain the commit {commit}, and fetching it by its id failed: {error}"
                ) from None

    async def _fetch(self, refspecs: Iterable[str], *options: str) -> None:
        """Fetch these refspecs from the remote, and repeat that after temporary errors."""
        await self._retry(lambda: self.fetch(self._remote, refspecs, *options))

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a call of git.

        Repeat the call, at most MAX_ATTEMPTS times, after every `GitFailed` that is not known to be permanent.
        """
        backoff = Backoff(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        for call_number in itertools.count(1):
            try:
                return await call()
            except GitFailed as error:
                if call_number == MAX_ATTEMPTS or any(error_text in str(error) for error_text in _PERMANENT_ERRORS):
                    raise
                self._log(f"{error}; retrying")
                await asyncio.sleep(backoff.next(random.random()))
        raise AssertionError("unreachable")


def mirror_path(folder: Path, remote: GitRemote) -> Path:
    """Return the folder in which the mirror of this repository is stored."""
    return folder / f"{hashlib.sha256(remote.url.encode()).hexdigest()[:32]}.git"


async def use_mirror(
    folder: Path, remote: GitRemote, log: Callable[[str], None], use: Callable[[Mirror], Awaitable[T]]
) -> T:
    """Return the result of `use`, called with the locked mirror of a repository.

    If the mirror is corrupt, `use` is called once more with a new one.
    """
    try:
        async with _open_mirror(folder, remote, log) as mirror:
            return await use(mirror)
    except GitFailed as error:
        if not any(error_text in str(error) for error_text in CORRUPTION_MESSAGES):
            raise
        log(f"the mirror is corrupt: {error}; creating a new one")
    await asyncio.to_thread(shutil.rmtree, mirror_path(folder, remote), ignore_errors=True)
    async with _open_mirror(folder, remote, log) as mirror:
        return await use(mirror)


@asynccontextmanager
async def _open_mirror(folder: Path, remote: GitRemote, log: Callable[[str], None]) -> AsyncIterator[Mirror]:
    """Lock the mirror of a repository, create it if it is missing, and yield it. Prune other mirrors afterwards."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder_path = mirror_path(folder, remote)
    mirror = Mirror(folder_path, remote, log)
    async with _locked(folder_path.with_suffix(".lock")):
        if not (folder_path / "HEAD").exists():
            shutil.rmtree(folder_path, ignore_errors=True)  # Left incomplete by an older version.
            await mirror.create()
        mirror.remove_lock_files()
        (folder_path / LAST_USED_FILE).touch()
        yield mirror
    await asyncio.to_thread(prune, folder, current_path=folder_path)


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Hold an exclusive lock on this file while the block runs."""
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


def prune(
    folder: Path, current_path: Path, max_bytes: int = MAX_BYTES, max_age_seconds: float = MAX_AGE_SECONDS
) -> list[Path]:
    """Remove mirrors not used for `max_age_seconds`, and the oldest if all exceed `max_bytes`. Return the removed ones.

    `current_path` and mirrors that are in use are never removed.
    """
    mirrors = sorted(((_last_used(mirror_path), mirror_path) for mirror_path in folder.glob("*.git")), reverse=True)
    total_bytes, removed_paths = 0, []
    for used_at, mirror_path in mirrors:
        total_bytes += _size(mirror_path)
        if mirror_path == current_path or (total_bytes <= max_bytes and time.time() - used_at <= max_age_seconds):
            continue
        with open(mirror_path.with_suffix(".lock"), "a") as lock_file:
            try:
                fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # It is in use.
            shutil.rmtree(mirror_path, ignore_errors=True)
            removed_paths.append(mirror_path)
    return removed_paths


def _last_used(path: Path) -> float:
    """Return when the mirror was last used, as a Unix timestamp; 0 if unknown."""
    try:
        return (path / LAST_USED_FILE).stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    """Return the total size of all files in a folder."""
    total_bytes = 0
    for folder, _, file_names in os.walk(path):
        for file_name in file_names:
            try:
                total_bytes += os.lstat(os.path.join(folder, file_name)).st_size
            except OSError:
                continue
    return total_bytes
