"""Before the steps of a job that has a tree: what it begins with is asked for, brought here, and put into the tree.

A tree, or a repository, that cannot be used is put aside and made anew: it is only a copy.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Final

from deltaci.core.errors import Refused
from deltaci.git.command import GitFailed
from deltaci.protocol.job_spec import Source, Worktree
from deltaci.protocol.messages import MAX_TREE_BYTES
from deltaci.protocol.responses import WorktreeStart
from deltaci.runner.actions.checkout import CODE, reaching
from deltaci.runner.actions.context import JobContext, StepFailed
from deltaci.runner.client import RunnerClient, Unreachable
from deltaci.runner.transfers import PATIENCE_SECONDS
from deltaci.runner.workspace.git import check_commit
from deltaci.runner.workspace.worktrees.exact_checkout import check_out_exactly, create_git_dir
from deltaci.runner.workspace.worktrees.repository import StreamRepository
from deltaci.runner.workspace.worktrees.worktree_pool import WorktreePool, WorktreeSlot

LACKING: Final = "prerequisite"  # As git says it of a bundle.
AS_IT_IS: Final = "the tree cannot be used as it is: {}; making a new one"
ALL_ANEW: Final = "the stream's repository cannot be used: {}; making a new one"


async def prepare_tree(job: JobContext, trees: WorktreePool, spot: WorktreeSlot, tree: Worktree) -> WorktreeStart:
    """Have the tree, exactly at the tip that the server names; nobody else has it until the job is over."""
    await trees.acquire(spot)
    try:
        start = await job.transfers.call(RunnerClient.worktree_start)
        check_commit(start.base)
        check_commit(start.tip)
        await _have(job, trees, spot, tree, start)
    except Refused as refused:
        code = "BAD_SPEC" if refused.code == "bad_spec" else CODE
        raise StepFailed(f"tree: {refused.message}", code) from refused
    except Unreachable as error:
        raise StepFailed(f"tree: {error}", "RUNNER_STARTUP") from error
    job.log.write_line(f"tree: {spot.path} at {start.tip} ({tree.branch})")
    return start


async def _have(job: JobContext, trees: WorktreePool, spot: WorktreeSlot, tree: Worktree, start: WorktreeStart) -> None:
    """As it is; or else a new tree; or else, if nobody else needs what is here, everything anew."""
    failed = await _tried(job, trees, spot, tree, start)
    if failed is not None:
        job.log.write_line(AS_IT_IS.format(failed))
        await asyncio.to_thread(_drop_tree, trees, spot)
        failed = await _tried(job, trees, spot, tree, start)
    if failed is not None and trees.is_sole_user(spot):
        job.log.write_line(ALL_ANEW.format(failed))
        await asyncio.to_thread(trees.move_to_trash, spot.repository)
        await asyncio.to_thread(_drop_tree, trees, spot)
        failed = await _tried(job, trees, spot, tree, start)
    if failed is not None:
        raise StepFailed(f"tree: {failed}", CODE)


async def _tried(
    job: JobContext, trees: WorktreePool, spot: WorktreeSlot, tree: Worktree, start: WorktreeStart
) -> Exception | None:
    """Once; what went wrong, if that may be because of what is here."""
    repository = StreamRepository(spot.repository)
    try:
        async with trees.repository_lock(spot):
            await repository.create()
            if not repository.has_commit(start.base):
                await _bring_base(job, repository, tree.source, start.base, tree.source.depth)
            if not repository.has_commit(start.tip):
                await _bring_tip(job, repository, tree.source, start)
            await check_out_exactly(repository, spot, start.tip, is_next=tree.is_committed)
            await asyncio.to_thread(trees.move_to_trash, spot.git_dir)
            await asyncio.to_thread(create_git_dir, repository, spot, tree, start.base, start.tip)
    except (GitFailed, OSError) as failed:
        return failed
    return None


async def _bring_base(job: JobContext, repository: StreamRepository, source: Source, base: str, depth: int) -> None:
    wanted = Source(url=source.url, commit=base, ref=source.ref, depth=depth)
    try:
        async with reaching(job, source) as remote:
            await repository.fetch_base(job.mirrors, remote, wanted, job.log.write_line)
    except GitFailed as failed:
        raise StepFailed(f"tree: {failed}", CODE) from failed


async def _bring_tip(job: JobContext, repository: StreamRepository, source: Source, start: WorktreeStart) -> None:
    """From the server: these commits are nowhere else."""
    if start.bundle_bytes > MAX_TREE_BYTES:
        raise StepFailed(f"tree: the server's bundle has {start.bundle_bytes} bytes, at most {MAX_TREE_BYTES}", CODE)
    handle, path = tempfile.mkstemp(dir=repository.path.parent, prefix=".bundle-")
    try:
        with os.fdopen(handle, "w+b") as file:
            await job.transfers.download("tree-bundle", file, MAX_TREE_BYTES, PATIENCE_SECONDS)
        try:
            await repository.import_bundle(Path(path), start.tip)
        except GitFailed as failed:
            if LACKING not in str(failed):
                raise
            # It joins what began at other commits of the base than this one, e.g.: these are in its history.
            await _bring_base(job, repository, source, start.base, 0)
            await repository.import_bundle(Path(path), start.tip)
    finally:
        Path(path).unlink(missing_ok=True)


def _drop_tree(trees: WorktreePool, spot: WorktreeSlot) -> None:
    """The tree, and what we know of it."""
    trees.move_to_trash(spot.path)
    StreamRepository(spot.repository).index_path(spot.name).unlink(missing_ok=True)
