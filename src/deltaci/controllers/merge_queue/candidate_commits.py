"""Build the candidate commits of a batch, in order and deterministically.

`merge` creates one merge commit for all members, so that every merge commit on the base has a tested tree; `squash` and
`fast-forward` put one member on top of another; `none` uses the head unchanged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from deltaci.controllers.merge_queue.decisions import BuildResult, MergeBatch
from deltaci.controllers.merge_queue.records import NONE, MergeEntry, MergeOutcome
from deltaci.git.command import GitFailed
from deltaci.git.commit_builder import CommitBuilder, MergeConflict, Signature

NAME: Final = "Delta CI"
EMAIL: Final = "deltaci@localhost"

Ensure = Callable[[MergeEntry], Awaitable[None]]


class _CandidateTip(msgspec.Struct):
    """The progress of a build. `heads` are the further parents of a merge commit; `tree` is the tree of the tip, if
    known.
    """

    start: str
    commit: str
    tree: str = ""
    heads: list[str] = []
    entries: list[MergeEntry] = []
    commits: list[str] = []


class CandidateBuilder:
    """Builds candidate commits in one repository. `ensure` fetches a missing head."""

    def __init__(self, builder: CommitBuilder, ensure: Ensure) -> None:
        self._builder = builder
        self._ensure = ensure

    async def build(
        self, batch: MergeBatch, entries: Sequence[MergeEntry], base: str, start: str, before: int
    ) -> BuildResult:
        """As many of these as go together, on the start. `before` is the number of the batch that it stands on.

        `base` is where the branch is right now: whoever conflicts with that is out, whoever conflicts only with what
        comes before it waits.
        """
        top = _CandidateTip(start, start)
        failed, behind, troubled = list[MergeOutcome](), list[tuple[str, int]](), list[tuple[str, str]]()
        for entry in entries:
            try:
                await self._ensure(entry)
                await self._join(batch, top, entry)
            except MergeConflict:
                conflict = await self._conflict(batch, entry, base)
                if conflict is None:
                    behind.append((entry.id, batch.number if top.entries else before))
                else:
                    failed.append(conflict)
            except GitFailed as error:
                troubled.append((entry.id, str(error)))
        await self._finish(batch, top)
        return BuildResult(
            base=base,
            start=start,
            members=tuple(each.id for each in top.entries),
            commits=tuple(top.commits),
            failed=tuple(failed),
            behind=tuple(behind),
            troubled=tuple(troubled),
        )

    async def remade(self, batch: MergeBatch, entries: Sequence[MergeEntry]) -> bool:
        """Make the commits of a batch again, if they are not there; its start must be. Whether they are there now."""
        if await self.has(batch):
            return True
        top = _CandidateTip(batch.start, batch.start)
        try:
            for entry in entries:
                await self._ensure(entry)
                await self._join(batch, top, entry)
        except MergeConflict:
            return False  # Another git would merge it in another way.
        await self._finish(batch, top)
        return tuple(top.commits) == batch.commits

    async def has(self, batch: MergeBatch) -> bool:
        """Whether the commits of a batch are there."""
        for each in dict.fromkeys(batch.commits):
            if not await self._builder.mirror.has_commit(each):
                return False
        return True

    async def _join(self, batch: MergeBatch, top: _CandidateTip, entry: MergeEntry) -> None:
        """Put one more on top; raises `Conflicting`, and then all is as it was."""
        shop, by = self._builder, _signature(batch)
        commit = top.commit
        if batch.method == NONE:
            top.commits.append(entry.head)
            top.entries.append(entry)
            return
        if batch.method == "squash":
            top.tree = top.tree or await shop.tree_of(commit)
            tree = await shop.merge_trees(commit, entry.head)
            if tree != top.tree:
                commit = await shop.commit(tree, (commit,), _message([entry]), by, _author(entry, by))
                top.tree = tree
        elif batch.method == "fast-forward":
            commit = await shop.rebase(commit, entry.head, by)
        elif not await shop.mirror.is_ancestor(entry.head, commit):  # Else the base has it already.
            tree = await shop.merge_trees(commit, entry.head)
            commit = await shop.commit(tree, (commit, entry.head), "Intermediate merge", by)
            top.heads.append(entry.head)
            top.tree = tree
        top.commit = commit
        top.entries.append(entry)
        top.commits.append(commit)

    async def _finish(self, batch: MergeBatch, top: _CandidateTip) -> None:
        """Of a merge, what was made on the way is one commit in the end."""
        if batch.method != "merge" or not top.heads:
            return
        by = _signature(batch)
        author = _author(top.entries[0], by) if len(top.entries) == 1 else by
        whole = await self._builder.commit(top.tree, (top.start, *top.heads), _message(top.entries), by, author)
        top.commits[:] = [whole] * len(top.commits)

    async def _conflict(self, batch: MergeBatch, entry: MergeEntry, base: str) -> MergeOutcome | None:
        """Where it conflicts with the base itself; None: it does not."""
        try:
            await self._join(batch, _CandidateTip(base, base), entry)
        except MergeConflict as conflict:
            where = ", ".join(conflict.paths)
            details = (
                f"its head {entry.head[:12]} conflicts with {entry.base} at {base[:12]}: {where}; "
                "update it to its base and start it again"
            )
            return MergeOutcome(id=entry.id, tenant=entry.tenant, is_merged=False, details=details)
        return None


def _signature(batch: MergeBatch) -> Signature:
    return Signature(NAME, EMAIL, batch.at)


def _author(entry: MergeEntry, by: Signature) -> Signature:
    """Whoever the workstream names, as `Name <address>`."""
    name, opened, rest = entry.author.partition("<")
    return Signature(name.strip(), rest.rstrip(" >"), by.at) if opened and name.strip() else by


def _message(entries: Sequence[MergeEntry]) -> str:
    """Names everybody who is in it."""
    trailers = "\n".join(f"Workstream: {each.id}" for each in entries)
    if len(entries) == 1:
        entry = entries[0]
        return f"{entry.message.strip() or entry.title.strip() or f'Merge workstream {entry.id}'}\n\n{trailers}"
    said = "\n".join(f"- {_line(each)}" for each in entries)
    return f"Merge {len(entries)} workstreams\n\n{said}\n\n{trailers}"


def _line(entry: MergeEntry) -> str:
    text = entry.message.strip() or entry.title.strip() or entry.id
    return text.partition("\n")[0]
