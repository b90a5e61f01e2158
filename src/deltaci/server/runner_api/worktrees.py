"""What the worktrees of runners begin with, each under a live lease, and which of them may go.

Which stream, which base and which commit follow from the attempt's own record and from the workstream's; a request
names nothing. Commits that this server does not have it makes again first, or fetches.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from deltaci.controllers.repositories import Repositories
from deltaci.controllers.workstreams import commits
from deltaci.controllers.workstreams.records import Workstream, Workstreams
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused
from deltaci.core.run import Run, may_discard_workspace
from deltaci.git.command import GitFailed
from deltaci.git.commit_builder import CommitBuilder
from deltaci.protocol.job_spec import Worktree
from deltaci.protocol.responses import EndedStreams, WorktreeStart
from deltaci.server.disk import Disk
from deltaci.server.runner_api.message_handlers import Protocol, Runner, job_spec
from deltaci.server.runner_api.uploads import Streamed
from deltaci.storage.blobs.disk_reserve import check_free_space
from deltaci.storage.blobs.keys import PART_BYTES
from deltaci.storage.blobs.store import BlobStat, BlobStore, BlobStoreUnavailable
from deltaci.storage.port import Store

NAMES: Final = frozenset({"tree", "tree-bundle"})
FOLDER: Final = "bundles"
MAX_KEPT: Final = 100  # Bundles that may be asked for once more; each can be made again.
MAX_KEPT_BYTES: Final = 4 * 1024**3
SUFFIX: Final = ".bundle"
UNFINISHED_SECONDS: Final = 3600.0


Bring = Callable[[str, str, str], Awaitable[bool]]  # Of a tenant's line of merges a commit: have it here, if it can be.


class _Start(msgspec.Struct, frozen=True, kw_only=True):
    """Where a tree begins, and where its commits are."""

    builder: CommitBuilder
    base: str
    tip: str

    @property
    def name(self) -> str:
        """Of the file with what lies between."""
        text = f"{self.builder.mirror.folder.name}\n{self.base}\n{self.tip}"
        return hashlib.sha256(text.encode()).hexdigest() + SUFFIX


class Trees:
    """Answers runners about trees."""

    def __init__(
        self,
        protocol: Protocol,
        store: Store,
        repositories: Repositories,
        blobs: BlobStore,
        folder: Path,
        disk: Disk,
        bring: Bring,
    ) -> None:
        self._protocol = protocol
        self._streams = Workstreams(store)
        self._projects = repositories.projects
        self._mirrors = repositories.mirrors
        self._blobs = blobs
        self._folder = folder.absolute() / FOLDER
        self._disk = disk
        self._bring = bring

    async def answer(self, held: Attempt, name: str) -> WorktreeStart | Streamed:
        """One request to one of `NAMES`, under the lease of this attempt."""
        try:
            start = await self._start(held)
            if name == "tree":
                return WorktreeStart(base=start.base, tip=start.tip, bundle_bytes=await self._size(start))
            return await self._streamed(start)
        except GitFailed as failed:
            if failed.is_transient:
                raise BlobStoreUnavailable(f"the commits of the tree cannot be had now: {failed}") from None
            raise Refused("wrong_state", f"the tree has no beginning: {failed}") from None

    async def over(self, who: Runner, ids: list[str]) -> EndedStreams:
        """Those of these streams that are over and need no tree. What this tenant does not have is left as it is."""
        records = await self._protocol.looked(list(dict.fromkeys(ids)))
        gone = {
            each.id
            for each in records
            if isinstance(each, Run) and each.tenant == who.tenant and may_discard_workspace(each)
        }
        return EndedStreams([id for id in dict.fromkeys(ids) if id in gone])

    # -- where it begins

    async def _start(self, held: Attempt) -> _Start:
        tree = job_spec(held).tree
        if tree is None or not held.run_id:
            raise Refused("not_found", "the job has no tree")
        if tree.commit:
            return await self._exactly(held, tree)
        # A task has the tree of its own workstream, whatever its specification says of others.
        stream = await self._streams.find(held.tenant, tree.stream) if tree.stream == held.run_id else None
        if stream is None or not stream.base_commit:
            raise Refused("not_found", "there is no workstream of this job that is planned")
        return await self._of_stream(stream)

    async def _of_stream(self, stream: Workstream) -> _Start:
        builder = await self._builder(stream.tenant, stream.project)
        await commits.restored(builder, stream, self._blobs)
        return _Start(builder=builder, base=stream.base_commit, tip=stream.tip)

    async def _exactly(self, held: Attempt, tree: Worktree) -> _Start:
        """One commit, of the project that the run is about."""
        project, base = (await self._protocol.origin(held)).project, tree.source.commit
        builder = await self._builder(held.tenant, project)
        await builder.mirror.ensure_commit(base, tree.source.ref)
        if not await builder.mirror.has_commit(tree.commit) and not await self._bring(
            held.tenant, tree.stream, tree.commit
        ):
            raise GitFailed(f"nobody tests the commit {tree.commit} any more")
        return _Start(builder=builder, base=base, tip=tree.commit)

    async def _builder(self, tenant: str, project: str) -> CommitBuilder:
        found = await self._projects.find(tenant, project) if project else None
        if found is None:
            raise Refused("not_found", f"there is no project {project[:80]!r} any more")
        return CommitBuilder(self._mirrors.for_project(found))

    # -- bundles

    async def _bundle(self, start: _Start) -> Path:
        """The file with what lies between; made if nobody asked for it lately."""
        path = self._folder / start.name
        if await self._disk.do(lambda: _touched(path)):
            return path
        await self._disk.do(self._check)
        draft = path.with_name(f".{secrets.token_hex(8)}{SUFFIX}")
        try:
            await start.builder.write_bundle(start.tip, [start.base], draft)
            await self._disk.do(lambda: os.replace(draft, path))
        finally:
            draft.unlink(missing_ok=True)
        await self._disk.do(lambda: _prune(self._folder, keep=path))
        return path

    def _check(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        check_free_space(self._folder, 0)

    async def _size(self, start: _Start) -> int:
        if start.base == start.tip:
            return 0
        path = await self._bundle(start)
        return await self._disk.do(lambda: path.stat().st_size)

    async def _streamed(self, start: _Start) -> Streamed:
        path = await self._bundle(start) if start.base != start.tip else Path(os.devnull)
        file, stored = await self._disk.do(lambda: _opened(path))
        return Streamed(stored, self._parts(file))

    async def _parts(self, file: BinaryIO) -> AsyncIterator[bytes]:
        with file:
            while part := await self._disk.do(lambda: file.read(PART_BYTES)):
                yield part


def _touched(path: Path) -> bool:
    """Whether it is there; it was used now."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _opened(path: Path) -> tuple[BinaryIO, BlobStat]:
    """The file, which stays readable if somebody removes it now, and what it is."""
    file = path.open("rb")
    try:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file, BlobStat(size, digest)


def _prune(folder: Path, keep: Path) -> None:
    """Remove those that were not used for longest while there are too many, and what a killed server left."""
    found: list[tuple[float, int, Path]] = []
    for each in folder.iterdir():
        try:
            status = each.stat()
        except OSError:
            continue
        if each.name.startswith("."):
            if status.st_mtime < time.time() - UNFINISHED_SECONDS:
                each.unlink(missing_ok=True)
            continue
        found.append((status.st_mtime, status.st_size, each))
    total = 0
    for number, (_, size, path) in enumerate(sorted(found, reverse=True)):
        total += size
        if path != keep and (number >= MAX_KEPT or total > MAX_KEPT_BYTES):
            path.unlink(missing_ok=True)
