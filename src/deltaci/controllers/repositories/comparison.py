"""Determine the paths that a change modified, by comparing its commit with a suitable base."""

from __future__ import annotations

from typing import Final

from deltaci.git.command import GitFailed
from deltaci.git.mirrors import Mirror
from deltaci.git.repository import is_commit
from deltaci.pipeline.change import Change
from deltaci.pipeline.repository import ChangedPaths

HEADS: Final = "refs/heads/"


async def compared(mirror: Mirror, change: Change, default_branch: str) -> ChangedPaths:
    """Return the paths that a change modified, by which a plan leaves out jobs."""
    try:
        if change.event == "pull_request":
            return await _pull_request(mirror, change)
        if change.event == "push":
            return await _push(mirror, change, default_branch)
    except GitFailed as error:
        return ChangedPaths(None, why=f"the changes cannot be determined: {error}")
    return ChangedPaths(None, why=f"a run of the event {change.event!r} is compared with nothing")


async def _pull_request(mirror: Mirror, change: Change) -> ChangedPaths:
    target = change.base
    if not is_commit(target):
        found = await mirror.fetch_refs([f"{HEADS}{change.branch}"])
        target = next(iter(found.values()), "")
    if not target:
        return ChangedPaths(None, why=f"the target branch {change.branch!r} does not exist")
    await mirror.ensure_commit(target, f"{HEADS}{change.branch}")
    return await _against_merge_base(mirror, target, change, "the target branch")


async def _push(mirror: Mirror, change: Change, default_branch: str) -> ChangedPaths:
    if change.tag:
        return ChangedPaths(None, why="a tag is compared with nothing")
    if is_commit(change.before) and await _stands_on(mirror, change.before, change):
        return ChangedPaths(await mirror.changed_paths(change.before, change.commit), change.before)
    if change.ref == f"{HEADS}{default_branch}" or not default_branch:
        return ChangedPaths(None, why="the previous commit of the branch is not known")
    found = await mirror.fetch_refs([f"{HEADS}{default_branch}"])
    target = next(iter(found.values()), "")
    if not target:
        return ChangedPaths(None, why=f"the default branch {default_branch!r} does not exist")
    return await _against_merge_base(mirror, target, change, f"the branch {default_branch!r}")


async def _stands_on(mirror: Mirror, before: str, change: Change) -> bool:
    """Return whether the new commit descends from the one before; after a force push it may not."""
    try:
        await mirror.ensure_commit(before, change.ref)
        return await mirror.is_ancestor(before, change.commit)
    except GitFailed:
        return False


async def _against_merge_base(mirror: Mirror, target: str, change: Change, what: str) -> ChangedPaths:
    base = await mirror.merge_base(target, change.commit)
    if not base:
        return ChangedPaths(None, why=f"it has no history in common with {what}")
    if base == change.commit:
        return ChangedPaths(None, why=f"it has no commits that are not in {what}")
    return ChangedPaths(await mirror.changed_paths(base, change.commit), base)
