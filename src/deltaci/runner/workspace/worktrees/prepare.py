"""Before the steps of a job with a worktree: ask the server for its commits, fetch and check them out.

A tree or repository that cannot be used is moved to the trash and created again, since both are only copies.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Final

from deltaci.core.errors import Refused, Unreachable
from deltaci.git.command import GitFailed
from deltaci.protocol.job_spec import Source, Worktree
from deltaci.protocol.messages import MAX_TREE_BYTES
from deltaci.protocol.responses import WorktreeStart
from deltaci.runner.actions.checkout import CODE, open_remote
from deltaci.runner.actions.context import JobContext, StepFailed
from deltaci.runner.client import RunnerClient
from deltaci.runner.transfers import PATIENCE_SECONDS
from deltaci.runner.workspace.source_policy import check_commit
from deltaci.runner.workspace.worktrees.exact_checkout import check_out_exactly, create_git_dir
from deltaci.runner.workspace.worktrees.repository import StreamRepository
from deltaci.runner.workspace.worktrees.worktree_pool import WorktreePool, WorktreeSlot

MISSING_COMMITS: Final = "prerequisite"  # Part of git's message about a bundle.
TREE_UNUSABLE: Final = "the worktree cannot be used: {}; creating a new one"
REPOSITORY_UNUSABLE: Final = "the stream's repository cannot be used: {}; creating a new one"


async def prepare_tree(job: JobContext, pool: WorktreePool, slot: WorktreeSlot, tree: Worktree) -> WorktreeStart:
    """Acquire the slot and check out the commit that the server names. Return the server's response.

    The slot belongs to the job until it ends.
    """
    await pool.acquire(slot)
    try:
        worktree_start = await job.transfers.call(RunnerClient.worktree_start)
        check_commit(worktree_start.base)
        check_commit(worktree_start.tip)
        await _prepare(job, pool, slot, tree, worktree_start)
    except Refused as refused:
        error_code = "BAD_SPEC" if refused.code == "bad_spec" else CODE
        raise StepFailed(f"tree: {refused.message}", error_code) from refused
    except Unreachable as error:
        raise StepFailed(f"tree: {error}", "RUNNER_STARTUP") from error
    job.log.write_line(f"tree: {slot.path} at {worktree_start.tip} ({tree.branch})")
    return worktree_start


async def _prepare(
    job: JobContext, pool: WorktreePool, slot: WorktreeSlot, tree: Worktree, worktree_start: WorktreeStart
) -> None:
    """Prepare the existing tree; if that fails, a new tree; then a new repository, if no other job uses it."""
    error = await _try_prepare(job, pool, slot, tree, worktree_start)
    if error is not None:
        job.log.write_line(TREE_UNUSABLE.format(error))
        await asyncio.to_thread(_drop_tree, pool, slot)
        error = await _try_prepare(job, pool, slot, tree, worktree_start)
    if error is not None and pool.is_sole_user(slot):
        job.log.write_line(REPOSITORY_UNUSABLE.format(error))
        await asyncio.to_thread(pool.move_to_trash, slot.repository)
        await asyncio.to_thread(_drop_tree, pool, slot)
        error = await _try_prepare(job, pool, slot, tree, worktree_start)
    if error is not None:
        raise StepFailed(f"tree: {error}", CODE)


async def _try_prepare(
    job: JobContext, pool: WorktreePool, slot: WorktreeSlot, tree: Worktree, worktree_start: WorktreeStart
) -> Exception | None:
    """Prepare the tree once. Return the error that a new tree or repository might avoid; None after a success."""
    repository = StreamRepository(slot.repository)
    try:
        async with pool.repository_lock(slot):
            await repository.create()
            if not repository.has_commit(worktree_start.base):
                await _fetch_base(job, repository, tree.source, worktree_start.base, tree.source.depth)
            if not repository.has_commit(worktree_start.tip):
                await _fetch_tip(job, repository, tree.source, worktree_start)
            await check_out_exactly(repository, slot, worktree_start.tip, is_warm=tree.is_committed)
            await asyncio.to_thread(pool.move_to_trash, slot.git_dir)
            await asyncio.to_thread(create_git_dir, repository, slot, tree, worktree_start.base, worktree_start.tip)
    except (GitFailed, OSError) as error:
        return error
    return None


async def _fetch_base(
    job: JobContext, repository: StreamRepository, source: Source, base_commit: str, depth: int
) -> None:
    """Fetch the base commit from the project's repository, with this depth of history."""
    base_source = Source(url=source.url, commit=base_commit, ref=source.ref, depth=depth)
    try:
        async with open_remote(job, source) as remote:
            await repository.fetch_base(job.mirrors, remote, base_source, job.log.write_line)
    except GitFailed as error:
        raise StepFailed(f"tree: {error}", CODE) from error


async def _fetch_tip(
    job: JobContext, repository: StreamRepository, source: Source, worktree_start: WorktreeStart
) -> None:
    """Fetch the bundle with the commits that only the server has, and import it."""
    if worktree_start.bundle_bytes > MAX_TREE_BYTES:
        raise StepFailed(
            f"tree: the server's bundle has {worktree_start.bundle_bytes} bytes, at most {MAX_TREE_BYTES}", CODE
        )
    descriptor, bundle_path = tempfile.mkstemp(dir=repository.path.parent, prefix=".bundle-")
    try:
        with os.fdopen(descriptor, "w+b") as bundle_file:
            await job.transfers.download("tree-bundle", bundle_file, MAX_TREE_BYTES, PATIENCE_SECONDS)
        try:
            await repository.import_bundle(Path(bundle_path), worktree_start.tip)
        except GitFailed as error:
            if MISSING_COMMITS not in str(error):
                raise
            # E.g. it merges branches that start at older commits of the base: fetch its whole history.
            await _fetch_base(job, repository, source, worktree_start.base, 0)
            await repository.import_bundle(Path(bundle_path), worktree_start.tip)
    finally:
        Path(bundle_path).unlink(missing_ok=True)


def _drop_tree(pool: WorktreePool, slot: WorktreeSlot) -> None:
    """Move the tree to the trash and remove its index."""
    pool.move_to_trash(slot.path)
    StreamRepository(slot.repository).index_path(slot.name).unlink(missing_ok=True)
