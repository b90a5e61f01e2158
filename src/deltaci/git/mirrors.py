"""Repositories as this server sees them: one bare mirror for each project, fetched exactly as far as somebody asks."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from deltaci.controllers.projects import Project
from deltaci.git import url_policy
from deltaci.git.command import FETCH_SECONDS, Git, GitFailed, Way
from deltaci.git.diff import changed_paths
from deltaci.git.url_policy import SSH, Rules, Unresolved

FOLDER: Final = "repositories"
OWN_BRANCHES: Final = "deltaci/merge/"  # What we push there for a moment, to have it merged. Nobody's change.
MAX_FILE_BYTES: Final = 1024 * 1024
MAX_READ_BYTES: Final = 32 * 1024 * 1024  # Of many files at once.
MAX_MIRROR_BYTES: Final = 32 * 1024**3
MAX_PACKS: Final = 40
LOOK_SECONDS: Final = 30.0
LOCK_SECONDS: Final = 2 * FETCH_SECONDS  # No git of ours lives for so long.
MAX_REF: Final = 250
PLAIN_FILES: Final = ("100644", "100755")

_ABSENT: Final = ("not our ref", "couldn't find remote ref", "no such remote ref")  # As git says it.
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NOT_IN_REFS: Final = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(/|$)|\.$|/$")

SecretOf = Callable[[str, str, str], str]  # The tenant, the project and the secret's name: its value.


class Commit(msgspec.Struct, frozen=True):
    """What a commit says about itself."""

    message: str
    author: str

    @property
    def title(self) -> str:
        """Its first line."""
        return self.message.strip().partition("\n")[0][:200]


class Remote(msgspec.Struct, frozen=True):
    """What a repository has now: where its HEAD points, and the commit of every branch and tag."""

    head: str
    refs: dict[str, str]


def is_commit(text: str) -> bool:
    """Whether it is the full name of a commit; not the zeros that stand for none."""
    return _COMMIT.fullmatch(text) is not None and set(text) != {"0"}


def is_ref(text: str) -> bool:
    """Whether git would call something so."""
    return text.startswith("refs/") and len(text) <= MAX_REF and _NOT_IN_REFS.search(text) is None


class Mirrors:
    """All mirrors of this server, in one folder."""

    def __init__(self, folder: Path, rules: Rules, secret_of: SecretOf, git: Git | None = None) -> None:
        self.folder = folder.absolute() / FOLDER  # Git is called in other folders.
        self.rules = rules
        self.git = git or Git()
        self._secret_of = secret_of
        self._locks: dict[str, asyncio.Lock] = {}

    def of(self, project: Project) -> Mirror:
        """The mirror of one project. Tenants share none, and neither do two addresses."""
        digest = blake2b(f"{project.tenant}\n{project.name}\n{project.url}".encode(), digest_size=16).hexdigest()
        lock = self._locks.setdefault(digest, asyncio.Lock())
        return Mirror(self, project, self.folder / f"{digest}.git", lock)

    @asynccontextmanager
    async def way(self, project: Project) -> AsyncIterator[Way]:
        """How to reach it now; a key lies in a file only for as long as it is used."""
        address = url_policy.read(project.url, self.rules)
        try:
            found = await url_policy.resolved(address, self.rules)
        except Unresolved as error:
            raise GitFailed(str(error), is_passing=True) from None
        credential = ""
        if project.credential:
            credential = await asyncio.to_thread(self._secret_of, project.tenant, project.name, project.credential)
        self.folder.mkdir(parents=True, exist_ok=True)
        way = Way(address=address, resolved=found, credential=credential, known_hosts=str(self.folder / "known_hosts"))
        if address.protocol != SSH or not credential:
            yield way
            return
        handle, name = tempfile.mkstemp(prefix=".key-", dir=self.folder)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(credential.strip() + "\n")
            yield msgspec.structs.replace(way, key_file=name)
        finally:
            Path(name).unlink(missing_ok=True)


class Mirror:
    """One repository. Commits are fetched when they are asked for, and stay."""

    def __init__(self, mirrors: Mirrors, project: Project, folder: Path, lock: asyncio.Lock) -> None:
        self._mirrors = mirrors
        self._git = mirrors.git
        self._project = project
        self._lock = lock
        self.folder = folder

    @property
    def git(self) -> Git:
        """The git that works on it."""
        return self._git

    # -- over the network

    def way(self) -> AbstractAsyncContextManager[Way]:
        """How to reach its repository now."""
        return self._mirrors.way(self._project)

    async def remote(self) -> Remote:
        """What the repository has now."""
        async with self.way() as way:
            words = ["ls-remote", "--symref", "--", way.address.url, "HEAD", "refs/heads/*", "refs/tags/*"]
            out = await self._git.run(words, way=way, seconds=LOOK_SECONDS)
        head, refs = "", dict[str, str]()
        for line in out.decode("utf-8", "replace").splitlines():
            value, _, ref = line.partition("\t")
            if value.startswith("ref: ") and ref == "HEAD":
                head = value.removeprefix("ref: ")
            elif ref.endswith("^{}"):
                refs[ref.removesuffix("^{}")] = value  # The commit that a tag is about.
            elif is_ref(ref) and is_commit(value):
                refs[ref] = value
        return Remote(head, refs)

    async def need(self, commit: str, *refs: str) -> None:
        """Have this commit with its history; it is looked for behind these refs, then by its name alone."""
        if not is_commit(commit):
            raise GitFailed(f"{commit[:80]!r} is not the full name of a commit")
        async with self._lock:
            if await self.has(commit):
                return
            wanted = [ref for ref in dict.fromkeys(refs) if is_ref(ref)]
            failed: GitFailed | None = None
            for each in (*wanted, commit):
                try:
                    await self._fetch([each])
                except GitFailed as error:
                    failed = error
                if await self.has(commit):
                    return
        if failed is None or any(words in str(failed) for words in _ABSENT):
            raise GitFailed(f"the repository has no commit {commit}, or does not give it out")
        raise failed

    async def bring(self, refs: Iterable[str]) -> dict[str, str]:
        """Fetch these refs as they are now; the commit of each that exists."""
        wanted = [ref for ref in dict.fromkeys(refs) if is_ref(ref)]
        found: dict[str, str] = {}
        async with self._lock:
            for each in wanted:
                try:
                    await self._fetch([each])
                except GitFailed as error:
                    if not any(words in str(error) for words in _ABSENT):
                        raise
                    continue
                found[each] = await self.commit_of(_kept_as(each))
        return found

    async def _fetch(self, refs: Iterable[str]) -> None:
        await self._prepare()
        words = ["fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--force"]
        words += ["--no-auto-maintenance", "--no-show-forced-updates"]
        async with self.way() as way:
            specs = [f"+{ref}:{_kept_as(ref)}" for ref in refs]
            words = [*words, "--", way.address.url, *specs]
            try:
                await self._git.run(words, folder=self.folder, way=way, seconds=FETCH_SECONDS)
            except GitFailed as error:
                if not await self.is_unlocked(error):
                    raise
                await self._git.run(words, folder=self.folder, way=way, seconds=FETCH_SECONDS)

    async def _prepare(self) -> None:
        """A mirror that is there, not too large, and not in too many pieces."""
        if self.folder.exists():
            size, packs = await asyncio.to_thread(_measured, self.folder)
            if size > MAX_MIRROR_BYTES:
                await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
            elif packs > MAX_PACKS:
                await self._git.run(["repack", "-q", "-d", "--geometric=2"], folder=self.folder, seconds=FETCH_SECONDS)
        if not self.folder.exists():
            self._mirrors.folder.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(prefix=".new-", dir=self._mirrors.folder))
            await self._git.run(["init", "--quiet", "--bare", "--template=", str(draft)])
            draft.rename(self.folder)  # Whole or not at all, should we end meanwhile.

    async def is_unlocked(self, error: GitFailed) -> bool:
        """Whether git failed only for the locks of one that was killed long ago, and they are gone now."""
        is_locked = ".lock" in str(error) and "File exists" in str(error)
        return is_locked and await asyncio.to_thread(_unlocked, self.folder) > 0

    async def drop(self) -> None:
        """Remove it from the disk."""
        async with self._lock:
            await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    # -- what is here

    async def has(self, commit: str) -> bool:
        """Whether the commit is here."""
        if not self.folder.exists():
            return False
        try:
            await self._git.run(["cat-file", "-e", f"{commit}^{{commit}}"], folder=self.folder)
        except GitFailed:
            return False
        return True

    async def commit_of(self, name: str) -> str:
        """The commit that a name stands for."""
        out = await self._git.run(["rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"], folder=self.folder)
        return out.decode().strip()

    async def about(self, commit: str) -> Commit:
        """Its message and who wrote it."""
        words = ["log", "-1", "--no-show-signature", "--format=%an%x00%B", commit, "--"]
        out = await self._git.run(words, folder=self.folder, limit=MAX_FILE_BYTES)
        author, _, message = out.decode("utf-8", "replace").partition("\0")
        return Commit(message=message.strip(), author=author.strip()[:200])

    async def is_ancestor(self, old: str, new: str) -> bool:
        """Whether the new commit stands on the old one."""
        return await self._git.succeeds(["merge-base", "--is-ancestor", old, new], folder=self.folder)

    async def merge_base(self, one: str, other: str) -> str:
        """The best commit that both stand on; empty: none."""
        if not await self._git.succeeds(["merge-base", one, other], folder=self.folder):
            return ""
        out = await self._git.run(["merge-base", one, other], folder=self.folder)
        return out.decode().strip()

    async def changed(self, base: str, head: str) -> frozenset[str] | None:
        """Every path that differs; None when that cannot be read. A renamed file is one that went and one that came."""
        words = ["diff-tree", "-r", "--raw", "-z", "--no-renames", "--no-commit-id", base, head, "--"]
        out = await self._git.run(words, folder=self.folder)
        try:
            return changed_paths(out.decode())
        except UnicodeDecodeError:
            return None  # A path that is no text: unsure means that everything runs.

    async def files(self, commit: str) -> list[str]:
        """The paths of all plain files, in order; links and submodules are left out."""
        out = await self._git.run(["ls-tree", "-r", "-z", "--full-tree", commit, "--"], folder=self.folder)
        found: list[str] = []
        for entry in out.split(b"\0"):
            head, _, path = entry.partition(b"\t")
            if head[:6].decode("ascii", "replace") in PLAIN_FILES:
                found.append(path.decode("utf-8", "replace"))
        return sorted(found)

    async def read_all(self, commit: str, paths: Iterable[str], limit: int = MAX_FILE_BYTES) -> dict[str, bytes]:
        """These files as they are at the commit, without those that are not there, or larger than the limit."""
        wanted = [path for path in dict.fromkeys(paths) if "\n" not in path]
        if not wanted:
            return {}
        asked = "".join(f"{commit}:{path}\n" for path in wanted).encode()
        out = await self._git.run(["cat-file", "--batch-check"], folder=self.folder, input=asked)
        sizes = map(_size, out.decode("utf-8", "replace").split("\n"))
        good: dict[str, int] = {}
        left = MAX_READ_BYTES
        for path, size in zip(wanted, sizes, strict=False):
            if size is not None and size <= min(limit, left):
                good[path] = size
                left -= size
        if not good:
            return {}
        asked = "".join(f"{commit}:{path}\n" for path in good).encode()
        out = await self._git.run(["cat-file", "--batch"], folder=self.folder, input=asked)
        found: dict[str, bytes] = {}
        at = 0
        for path, size in good.items():
            at = out.index(b"\n", at) + 1  # Behind the line that says what it is.
            found[path] = out[at : at + size]
            at += size + 1
        return found

    async def read(self, commit: str, path: str, limit: int = MAX_FILE_BYTES) -> bytes:
        """A file as it is at the commit; `GitFailed` when it is not there, or too large."""
        return await self._git.run(["cat-file", "blob", f"{commit}:{path}"], folder=self.folder, limit=limit)


def _size(line: str) -> int | None:
    """How large git says that a file is; None: it is none."""
    kind, _, size = line.partition(" ")[2].rpartition(" ")
    return int(size) if kind == "blob" and size.isdecimal() else None


def _kept_as(ref: str) -> str:
    """A name that is in nobody's way: what was a branch may be a folder of branches tomorrow."""
    return f"refs/mirror/{blake2b(ref.encode(), digest_size=16).hexdigest()}"


def _unlocked(folder: Path) -> int:
    """Remove locks that nobody can still hold; how many there were."""
    count, before = 0, time.time() - LOCK_SECONDS
    for each in folder.rglob("*.lock"):
        with suppress(OSError):  # Whoever held it was faster.
            if each.stat().st_mtime < before:
                each.unlink()
                count += 1
    return count


def _measured(folder: Path) -> tuple[int, int]:
    """How large the packs are, and how many."""
    try:
        packs = [each for each in (folder / "objects" / "pack").iterdir() if each.suffix == ".pack"]
        return sum(each.stat().st_size for each in packs), len(packs)
    except OSError:
        return 0, 0
