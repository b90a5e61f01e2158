"""Create merge, squash and rebase commits in the mirror of a project, without a work tree.

A commit depends only on the arguments, including its time: creating it again after a crash gives the same hash.
Nothing from the repository is executed: no hook, no filter, no merge driver.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from deltaci.core.instants import SECOND
from deltaci.git.bundles import import_bundle, not_a_descendant
from deltaci.git.command import FETCH_SECONDS, GitFailed
from deltaci.git.mirrors import Mirror
from deltaci.git.repository import is_commit

INTERNAL_REFS: Final = "refs/deltaci/"
MAX_CONFLICT_PATHS: Final = 50
BRANCH_REFS: Final = "refs/heads/"
UNRELATED_HISTORIES: Final = "refusing to merge unrelated histories"  # Git's error text.
# One conflicting file in the output of `git merge-tree`: mode, object, stage, and its path.
_CONFLICT_ENTRY: Final = re.compile(rb"[0-7]{6} [0-9a-f]{40,64} [123]\t(.*)", re.DOTALL)


class Signature(msgspec.Struct, frozen=True):
    """The author or committer of a commit, and the time in microseconds of the store's clock."""

    name: str
    email: str
    at: int


class MergeConflict(Exception):
    """Two commits cannot be merged; `paths` are the conflicting files."""

    def __init__(self, conflicting_paths: Sequence[str]) -> None:
        super().__init__(f"conflicts in {', '.join(conflicting_paths)}")
        self.paths = tuple(conflicting_paths)


class BranchMoved(Exception):
    """A branch is not at the expected commit; `tip` is where it is, or empty if it does not exist."""

    def __init__(self, tip: str) -> None:
        super().__init__(f"the branch is at {tip or 'no commit'}")
        self.tip = tip


class CommitBuilder:
    """Creates commits in the mirror of one project without a work tree, and pushes them."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        self._git = mirror.git

    # -- reading

    async def fetch_branch(self, branch: str) -> str:
        """Fetch a branch and return its commit. Raise `GitFailed` if the repository has no such branch."""
        commits = await self.mirror.fetch_refs([f"{BRANCH_REFS}{branch}"])
        if not commits:
            raise GitFailed(f"the repository has no branch {branch!r}")
        return commits[f"{BRANCH_REFS}{branch}"]

    async def tree_of(self, commit: str) -> str:
        """Return the hash of a commit's tree."""
        return (await self._run_git("rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}")).decode().strip()

    async def commits_between(self, base: str, head: str) -> list[str]:
        """Return the commits that `head` has and `base` has not, oldest first."""
        rev_list_output = await self._run_git("rev-list", "--reverse", "--topo-order", head, f"^{base}", "--")
        return rev_list_output.decode().split()

    # -- commits

    async def merge_trees(self, our_commit: str, their_commit: str) -> str:
        """Merge two commits and return the hash of the resulting tree. Raise `MergeConflict` if they conflict."""
        merge_arguments = ("merge-tree", "--write-tree", "--no-messages", "-z", our_commit, their_commit)
        try:
            exit_code, output = await self._git.run_with_exit_code(
                merge_arguments, git_dir=self.mirror.folder, exit_codes=(0, 1)
            )
        except GitFailed as error:
            if UNRELATED_HISTORIES in str(error):
                raise MergeConflict(["the history: there is no common ancestor"]) from None
            raise
        tree_bytes, *conflict_entries = output.split(b"\0")
        if exit_code:
            matches = (_CONFLICT_ENTRY.fullmatch(conflict_entry) for conflict_entry in conflict_entries)
            conflicting_paths = dict.fromkeys(
                match[1].decode("utf-8", "replace") for match in matches if match is not None
            )
            raise MergeConflict(list(conflicting_paths)[:MAX_CONFLICT_PATHS] or ["an unnamed file"])
        return tree_bytes.decode()

    async def commit(
        self,
        tree_hash: str,
        parents: Sequence[str],
        message: str,
        committer: Signature,
        author: Signature | None = None,
    ) -> str:
        """Create a commit and return its hash. The author is the committer unless given."""
        signatures = [f"author {_format_signature(author or committer)}", f"committer {_format_signature(committer)}"]
        header_lines = [f"tree {tree_hash}", *(f"parent {parent}" for parent in parents), *signatures]
        commit_object = "\n".join((*header_lines, "", message.strip().replace("\0", ""), ""))
        hash_arguments = ("hash-object", "-t", "commit", "-w", "--stdin")
        return (await self._run_git(*hash_arguments, input=commit_object.encode())).decode().strip()

    async def merge(self, base: str, heads: Sequence[str], message: str, committer: Signature) -> str:
        """Create one merge commit of the base and all heads and return it. Raise `MergeConflict` if they conflict."""
        merge_commit = base
        for index, head in enumerate(heads):
            tree = await self.merge_trees(merge_commit, head)
            is_last = index == len(heads) - 1
            parents = (base, *heads) if is_last else (merge_commit, head)
            merge_commit = await self.commit(tree, parents, message, committer)
        return merge_commit

    async def squash(self, base: str, head: str, message: str, committer: Signature) -> str:
        """Create one commit on the base with all changes of the head and return it.

        Raise `MergeConflict` if they conflict.
        """
        return await self.commit(await self.merge_trees(base, head), (base,), message, committer)

    async def rebase(self, base: str, head: str, committer: Signature) -> str:
        """Create copies of the head's commits one by one on the base, and return the last one.

        Return the head itself if it already descends from the base. Raises `MergeConflict`, also for a merge commit
        with changes that none of its parents has: they would be lost.
        """
        if await self.mirror.is_ancestor(base, head):
            return head
        rebased_commit, has_merges = base, False
        for commit in await self.commits_between(base, head):
            parents = (await self._run_git("rev-parse", f"{commit}^@")).decode().split()
            if len(parents) != 1:
                has_merges = True
                continue  # The commits that a merge brought in are in the list themselves.
            # Merge two artificial commits whose only common ancestor is the parent: git applies exactly the change.
            artificial_parent = await self.commit(await self.tree_of(parents[0]), (), "start", committer)
            artificial_ours = await self.commit(
                await self.tree_of(rebased_commit), (artificial_parent,), "ours", committer
            )
            artificial_theirs = await self.commit(await self.tree_of(commit), (artificial_parent,), "theirs", committer)
            tree_hash = await self.merge_trees(artificial_ours, artificial_theirs)
            if tree_hash != await self.tree_of(rebased_commit):
                rebased_commit = await self._copy_commit(commit, tree_hash, rebased_commit, committer)
        if has_merges and await self.tree_of(rebased_commit) != await self.merge_trees(base, head):
            raise MergeConflict([f"{head[:12]}: its merges cannot be rebased one by one; use merge or squash"])
        return rebased_commit

    async def _copy_commit(self, commit: str, tree_hash: str, parent_commit: str, committer: Signature) -> str:
        """Create a copy of a commit with another tree, parent and committer, and return its hash."""
        original_text = (await self._run_git("cat-file", "commit", commit)).decode("utf-8", "surrogateescape")
        header, _, message = original_text.partition("\n\n")
        author_line = next(header_line for header_line in header.split("\n") if header_line.startswith("author "))
        encoding_lines = [header_line for header_line in header.split("\n") if header_line.startswith("encoding ")]
        committer_line = f"committer {_format_signature(committer)}"
        commit_object = "\n".join(
            (f"tree {tree_hash}", f"parent {parent_commit}", author_line, committer_line, *encoding_lines, "", message)
        )
        hash_arguments = ("hash-object", "-t", "commit", "-w", "--stdin")
        return (
            (await self._run_git(*hash_arguments, input=commit_object.encode("utf-8", "surrogateescape")))
            .decode()
            .strip()
        )

    # -- refs and bundles

    async def set_ref(self, ref_name: str, commit: str) -> None:
        """Point an internal ref of the mirror to a commit, so that git does not remove the commit."""
        await self._run_git("update-ref", f"{INTERNAL_REFS}{ref_name}", commit)

    async def delete_ref(self, ref_name: str) -> None:
        """Delete an internal ref of the mirror."""
        await self._run_git("update-ref", "-d", f"{INTERNAL_REFS}{ref_name}")

    async def write_bundle(self, commit: str, excluded_commits: Sequence[str], bundle_path: Path) -> None:
        """Write a bundle with the commits that are in the history of `commit`, but not of the excluded ones."""
        temporary_ref = f"{INTERNAL_REFS}bundles/{secrets.token_hex(8)}"
        await self._run_git("update-ref", temporary_ref, commit)  # `git bundle` accepts only refs.
        try:
            exclusions = (f"^{excluded_commit}" for excluded_commit in excluded_commits)
            await self._run_git(
                "bundle",
                "create",
                "--quiet",
                str(bundle_path),
                temporary_ref,
                *exclusions,
                timeout_seconds=FETCH_SECONDS,
            )
        finally:
            await self._run_git("update-ref", "-d", temporary_ref)

    async def import_bundle(self, bundle_path: Path, commit: str, start_commit: str) -> None:
        """Import a commit that descends from `start_commit` from the bundle of a job, unless the mirror has it.

        Raises `GitFailed` if the bundle is invalid, does not contain the commit, or the commit does not descend from
        `start_commit`; the mirror is then unchanged.
        """
        if not is_commit(commit):
            raise GitFailed(f"{commit[:80]!r} is not the full name of a commit")
        if not await self.mirror.has_commit(commit):
            await import_bundle(self.mirror, bundle_path, commit, start_commit)
        elif not await self.mirror.is_ancestor(start_commit, commit):
            raise not_a_descendant(commit, start_commit)

    # -- the remote repository

    async def push(self, branch: str, commit: str, expected_tip: str) -> None:
        """Move a remote branch from exactly `expected_tip` to the commit. "" stands for a branch that does not exist.

        Does nothing if the branch is already at the commit. Raises `BranchMoved` if it is at any other one.
        """
        branch_ref = f"{BRANCH_REFS}{branch}"
        try:
            async with self.mirror.open_remote() as remote:
                lease_option = f"--force-with-lease={branch_ref}:{expected_tip}"
                push_arguments = [
                    "push",
                    "--quiet",
                    "--no-verify",
                    lease_option,
                    "--",
                    remote.url,
                    f"{commit}:{branch_ref}",
                ]
                await self._git.run(
                    push_arguments, git_dir=self.mirror.folder, remote=remote, timeout_seconds=FETCH_SECONDS
                )
        except GitFailed:
            tip = (await self.mirror.ls_remote()).refs.get(branch_ref, "")
            if tip == commit:
                return
            if tip != expected_tip:
                raise BranchMoved(tip) from None
            raise

    async def branch_contains(self, branch: str, commit: str) -> bool:
        """Fetch a branch and return whether its history includes the commit."""
        tip = await self.fetch_branch(branch)
        return await self.mirror.has_commit(commit) and await self.mirror.is_ancestor(commit, tip)

    async def _run_git(self, *args: str, input: bytes = b"", timeout_seconds: float = 0) -> bytes:
        """Run git in the mirror. Try again once after removing the lock files of a killed process."""
        try:
            return await self.mirror.run(*args, input=input, timeout_seconds=timeout_seconds)
        except GitFailed as error:
            if not await self.mirror.removed_stale_locks(error):
                raise
            return await self.mirror.run(*args, input=input, timeout_seconds=timeout_seconds)


def _format_signature(signature: Signature) -> str:
    return (
        f"{_without_delimiters(signature.name)} <{_without_delimiters(signature.email)}> {signature.at // SECOND} +0000"
    )


def _without_delimiters(text: str) -> str:
    """Return a name or e-mail address without the characters that would end it in a commit object."""
    return (
        "".join(character for character in text if character.isprintable() and character not in "<>").strip()
        or "somebody"
    )
