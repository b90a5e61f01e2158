"""Provide the commits of workstreams: imported from bundles of jobs, and rebuilt where a mirror does not have them.

A mirror is only a cache. The base is in the repository, the commits of tasks are in bundles in the blob store, and
merge commits between them are built deterministically, so that rebuilding gives the same commits.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from deltaci.controllers.workstreams.records import Workstream
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.git.bundles import MAX_BUNDLE_BYTES, QUARANTINE_PREFIX, not_a_descendant
from deltaci.git.command import GitFailed
from deltaci.git.commit_builder import BRANCH_REFS, CommitBuilder, Signature
from deltaci.git.repository import is_commit
from deltaci.storage.blobs import keys
from deltaci.storage.blobs.disk_reserve import check_free_space
from deltaci.storage.blobs.store import BlobStore

TREE: Final = "tree"  # The type of the artifact in which a runner sends what a tree has.
NAME: Final = "Delta CI"
EMAIL: Final = "deltaci@localhost"
MAX_TIME: Final = 2**40  # Seconds: whoever wrote a commit may have written any time into it.


def sent(attempt: Attempt) -> tuple[str, str]:
    """The head that an attempt's runner told, and the key of the bundle that it sent; empty where there is none."""
    report: dict[str, Any] = attempt.report or {}
    head, own = str(report.get("head", "")), keys.artifact_uri(attempt.id, 0, "").partition("/")[0] + "/"
    for each in report.get("artifacts", ()):
        uri = str(each.get("uri", ""))
        if each.get("type") == TREE and uri.startswith(own):
            return head, keys.key_of_uri(attempt.tenant, uri)
    return head, ""


async def taken(builder: CommitBuilder, stream: Workstream, blobs: BlobStore, bundle: str, head: str) -> str:
    """Take what a task sent; the tip of its workstream at which it had begun. `GitFailed` when it stands nowhere.

    The workstream may have moved on since: a tree of its own begins where the others were by then.
    """
    if not is_commit(head):
        raise GitFailed(f"{head[:80]!r} is not a full commit hash")
    await restored(builder, stream, blobs)
    if bundle and not await builder.mirror.has_commit(head):
        await _brought(builder, blobs, bundle, head, stream.base_commit)
    if await builder.mirror.has_commit(head):
        for tip in (*(each.tip for each in reversed(stream.joined)), stream.base_commit):
            if await builder.mirror.is_ancestor(tip, head):
                return tip
    raise not_a_descendant(head, stream.tip)


async def join(builder: CommitBuilder, tip: str, task: str, head: str) -> str:
    """Where the branch is once a task's commit is joined to it: there, or at a merge; raises `Conflicting`.

    The merge follows from these three alone, so that any server makes the same one, at any time.
    """
    if await builder.mirror.is_ancestor(tip, head):
        return head
    if await builder.mirror.is_ancestor(head, tip):
        return tip  # It changed nothing, and others did.
    words = ["log", "-1", "--no-show-signature", "--format=%ct", head, "--"]
    told = (await builder.mirror.git.run(words, git_dir=builder.mirror.folder)).decode().strip()
    at = min(int(told), MAX_TIME) if told.isdecimal() else 0
    return await builder.merge(tip, [head], f"Join {task}", Signature(NAME, EMAIL, at * SECOND))


async def restored(builder: CommitBuilder, stream: Workstream, blobs: BlobStore) -> None:
    """Have every commit of the workstream in the mirror: the base, and on it all that its tasks added."""
    mirror = builder.mirror
    if await mirror.has_commit(stream.tip):
        return
    await mirror.ensure_commit(stream.base_commit, f"{BRANCH_REFS}{stream.base}")
    tip = stream.base_commit
    for each in stream.joined:
        if not await mirror.has_commit(each.tip):
            if each.bundle and not await mirror.has_commit(each.head):
                await _brought(builder, blobs, each.bundle, each.head, each.start)
            made = await join(builder, tip, each.task, each.head)
            if made != each.tip:
                raise GitFailed(f"what task {each.task} added becomes {made}, not {each.tip} as it was")
        tip = each.tip


# -- files


async def _brought(builder: CommitBuilder, blobs: BlobStore, key: str, head: str, start: str) -> None:
    async with _file(builder) as file:
        await asyncio.to_thread(_copy, blobs, key, file)
        await builder.import_bundle(file, head, start)


@asynccontextmanager
async def _file(builder: CommitBuilder) -> AsyncIterator[Path]:
    """A file that is gone afterwards; what a killed server leaves is removed with what else it left there."""
    folder = builder.mirror.folder.parent
    folder.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix=QUARANTINE_PREFIX, dir=folder))
    file = path / "bundle"
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)
        file.with_name("bundle.lock").unlink(missing_ok=True)
        path.rmdir()


def _copy(blobs: BlobStore, key: str, file: Path) -> None:
    try:
        stored = blobs.stat(key)
        if stored is None:
            raise GitFailed("the bundle with these commits no longer exists")
        if stored.bytes > MAX_BUNDLE_BYTES:
            raise GitFailed(f"the bundle has {stored.bytes:,} bytes; at most {MAX_BUNDLE_BYTES:,} are accepted")
        check_free_space(file.parent, 2 * stored.bytes)  # Once as it is, once in the mirror.
        with file.open("wb") as target:
            for part in keys.read_all(blobs, key):
                target.write(part)
    except OSError as error:
        raise GitFailed(f"the bundle cannot be unpacked now: {error.strerror or error}", is_transient=True) from error
    except Refused as refused:  # It is gone, or was never a name of one.
        raise GitFailed(f"the bundle with these commits cannot be read: {refused.message}") from None
