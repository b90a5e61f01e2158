"""Commits that only this server has, made and kept in the mirror of a project: no work tree is needed for any of it.

What is made follows from what is asked for alone, its time included: asked again after a crash, it is the same commit.
Nothing that a repository says is executed: no hook, no filter, no merge driver.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from deltaci.core.instants import SECOND
from deltaci.git.bundles import elsewhere, take_in
from deltaci.git.command import FETCH_SECONDS, GitFailed
from deltaci.git.mirrors import Mirror, is_commit

REFS: Final = "refs/deltaci/"
MAX_PATHS: Final = 50  # So many files with conflicts are named.
HEADS: Final = "refs/heads/"
UNRELATED: Final = "refusing to merge unrelated histories"  # As git says it.
# One file of a merge that did not work out: mode, object, stage, and its path.
_CONFLICTED: Final = re.compile(rb"[0-7]{6} [0-9a-f]{40,64} [123]\t(.*)", re.DOTALL)


class Signature(msgspec.Struct, frozen=True):
    """Who made a commit, and when: microseconds of the store's clock."""

    name: str
    email: str
    at: int


class Conflicting(Exception):
    """Two commits cannot be joined; `paths` says where."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(f"conflicts in {', '.join(paths)}")
        self.paths = tuple(paths)


class Moved(Exception):
    """A branch is not where it was expected; `found` is where it is, empty when it is not there."""

    def __init__(self, found: str) -> None:
        super().__init__(f"the branch is at {found or 'nothing'}")
        self.found = found


class Workshop:
    """One project's repository, as this server works on it."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        self._git = mirror.git

    # -- what is there

    async def base(self, branch: str) -> str:
        """Where a branch of the repository is now, fetched; `GitFailed` when there is none."""
        found = await self.mirror.bring([f"{HEADS}{branch}"])
        if not found:
            raise GitFailed(f"the repository has no branch {branch!r}")
        return found[f"{HEADS}{branch}"]

    async def tree(self, commit: str) -> str:
        """The tree of a commit."""
        return (await self._run("rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}")).decode().strip()

    async def between(self, base: str, head: str) -> list[str]:
        """The commits that the head has and the base has not, the oldest first."""
        out = await self._run("rev-list", "--reverse", "--topo-order", head, f"^{base}", "--")
        return out.decode().split()

    # -- commits

    async def merged_tree(self, ours: str, theirs: str) -> str:
        """The tree of both together; raises `Conflicting`."""
        words = ("merge-tree", "--write-tree", "--no-messages", "-z", ours, theirs)
        try:
            code, out = await self._git.answer(words, folder=self.mirror.folder, codes=(0, 1))
        except GitFailed as error:
            if UNRELATED in str(error):
                raise Conflicting(["the history: there is no common ancestor"]) from None
            raise
        tree, *rest = out.split(b"\0")
        if code:
            found = (_CONFLICTED.fullmatch(each) for each in rest)
            paths = dict.fromkeys(each[1].decode("utf-8", "replace") for each in found if each is not None)
            raise Conflicting(list(paths)[:MAX_PATHS] or ["a file that has no name"])
        return tree.decode()

    async def commit(
        self, tree: str, parents: Sequence[str], message: str, by: Signature, author: Signature | None = None
    ) -> str:
        """A commit of exactly this; by one who may not be its author."""
        who = [f"author {_who(author or by)}", f"committer {_who(by)}"]
        lines = [f"tree {tree}", *(f"parent {each}" for each in parents), *who]
        text = "\n".join((*lines, "", message.strip().replace("\0", ""), ""))
        words = ("hash-object", "-t", "commit", "-w", "--stdin")
        return (await self._run(*words, input=text.encode())).decode().strip()

    async def merge(self, base: str, heads: Sequence[str], message: str, by: Signature) -> str:
        """One merge commit that joins all of the heads to the base; raises `Conflicting`."""
        top = base
        for number, head in enumerate(heads):
            tree = await self.merged_tree(top, head)
            is_last = number == len(heads) - 1
            parents = (base, *heads) if is_last else (top, head)
            top = await self.commit(tree, parents, message, by)
        return top

    async def squash(self, base: str, head: str, message: str, by: Signature) -> str:
        """One commit on the base with all that the head changes; raises `Conflicting`."""
        return await self.commit(await self.merged_tree(base, head), (base,), message, by)

    async def replay(self, base: str, head: str, by: Signature) -> str:
        """The commits of the head on top of the base, one by one; the head itself if it stands there already.

        Raises `Conflicting`, also when a merge among them changed more than it brought in: that would be lost.
        """
        if await self.mirror.is_ancestor(base, head):
            return head
        top, has_merges = base, False
        for each in await self.between(base, head):
            parents = (await self._run("rev-parse", f"{each}^@")).decode().split()
            if len(parents) != 1:
                has_merges = True
                continue  # What a merge brought in is replayed by itself.
            # Two made-up commits whose only common ancestor is the parent: git merges what lies between.
            start = await self.commit(await self.tree(parents[0]), (), "start", by)
            ours = await self.commit(await self.tree(top), (start,), "ours", by)
            theirs = await self.commit(await self.tree(each), (start,), "theirs", by)
            tree = await self.merged_tree(ours, theirs)
            if tree != await self.tree(top):
                top = await self._again(each, tree, top, by)
        if has_merges and await self.tree(top) != await self.merged_tree(base, head):
            raise Conflicting([f"{head[:12]}: its merges cannot be put on top one by one; use merge or squash"])
        return top

    async def _again(self, commit: str, tree: str, parent: str, by: Signature) -> str:
        """The same commit with another tree and parent: its author and its message stay."""
        raw = (await self._run("cat-file", "commit", commit)).decode("utf-8", "surrogateescape")
        head, _, message = raw.partition("\n\n")
        author = next(line for line in head.split("\n") if line.startswith("author "))
        said_in = [line for line in head.split("\n") if line.startswith("encoding ")]
        text = "\n".join((f"tree {tree}", f"parent {parent}", author, f"committer {_who(by)}", *said_in, "", message))
        words = ("hash-object", "-t", "commit", "-w", "--stdin")
        return (await self._run(*words, input=text.encode("utf-8", "surrogateescape"))).decode().strip()

    # -- keeping

    async def keep(self, name: str, commit: str) -> None:
        """Keep a commit, and all that it stands on, under a name of ours."""
        await self._run("update-ref", f"{REFS}{name}", commit)

    async def drop(self, name: str) -> None:
        """Keep it no longer."""
        await self._run("update-ref", "-d", f"{REFS}{name}")

    async def bundle(self, commit: str, without: Sequence[str], file: Path) -> None:
        """Write what the commit has and those others have not to a file, for somebody who has the others."""
        name = f"{REFS}bundles/{secrets.token_hex(8)}"
        await self._run("update-ref", name, commit)  # A bundle is of refs.
        try:
            excluded = (f"^{each}" for each in without)
            await self._run("bundle", "create", "--quiet", str(file), name, *excluded, seconds=FETCH_SECONDS)
        finally:
            await self._run("update-ref", "-d", name)

    async def take(self, file: Path, commit: str, start: str) -> None:
        """Take from a bundle a commit that stands on `start`; `GitFailed` when it is not in it, or stands elsewhere.

        A bundle comes from a job: all of it is checked first, and nothing stays of one that is refused.
        """
        if not is_commit(commit):
            raise GitFailed(f"{commit[:80]!r} is not the full name of a commit")
        if not await self.mirror.has(commit):
            await take_in(self.mirror, file, commit, start)
        elif not await self.mirror.is_ancestor(start, commit):
            raise elsewhere(commit, start)

    # -- the repository itself

    async def push(self, branch: str, commit: str, expected: str) -> None:
        """Move a branch from exactly where it is expected to this commit; raises `Moved`. A repeat is no error."""
        ref = f"{HEADS}{branch}"
        try:
            async with self.mirror.way() as way:
                lease = f"--force-with-lease={ref}:{expected}"
                words = ["push", "--quiet", "--no-verify", lease, "--", way.address.url, f"{commit}:{ref}"]
                await self._git.run(words, folder=self.mirror.folder, way=way, seconds=FETCH_SECONDS)
        except GitFailed:
            found = (await self.mirror.remote()).refs.get(ref, "")
            if found == commit:
                return
            if found != expected:
                raise Moved(found) from None
            raise

    async def is_landed(self, branch: str, commit: str) -> bool:
        """Whether the branch has this commit."""
        tip = await self.base(branch)
        return await self.mirror.has(commit) and await self.mirror.is_ancestor(commit, tip)

    async def _run(self, *words: str, input: bytes = b"", seconds: float = 60.0) -> bytes:
        try:
            return await self._git.run(words, folder=self.mirror.folder, input=input, seconds=seconds)
        except GitFailed as error:
            if not await self.mirror.is_unlocked(error):
                raise
            return await self._git.run(words, folder=self.mirror.folder, input=input, seconds=seconds)


def _who(by: Signature) -> str:
    return f"{_plain(by.name)} <{_plain(by.email)}> {by.at // SECOND} +0000"


def _plain(text: str) -> str:
    """Nothing that would end a name."""
    return "".join(char for char in text if char.isprintable() and char not in "<>").strip() or "somebody"
