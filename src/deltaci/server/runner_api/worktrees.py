"""The commits from which runners create their worktrees, each under a live lease, and which worktrees may be deleted.

The workstream, the base and the commit follow from the records of the attempt and the workstream; a request only names
the lease. Commits that this server does not have are restored or fetched first.
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

from deltaci.controllers.repositories.controller import RepositoryController
from deltaci.controllers.workstreams import commits
from deltaci.controllers.workstreams.records import Workstream, WorkstreamRecords
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused
from deltaci.core.run import Run, may_discard_workspace
from deltaci.git.command import GitFailed
from deltaci.git.commit_builder import CommitBuilder
from deltaci.protocol.job_spec import Worktree
from deltaci.protocol.responses import EndedStreams, WorktreeStart
from deltaci.server.disk import DiskThreads
from deltaci.server.runner_api.job_data import StreamedResponse
from deltaci.server.runner_api.message_handlers import MessageHandlers, Runner, job_spec
from deltaci.storage.blobs.disk_reserve import check_free_space
from deltaci.storage.blobs.keys import PART_BYTES
from deltaci.storage.blobs.store import BlobStat, BlobStore, BlobStoreUnavailable
from deltaci.storage.port import Store

ROUTE_NAMES: Final = frozenset({"tree", "tree-bundle"})
FOLDER: Final = "bundles"
MAX_BUNDLES: Final = 100  # A deleted bundle is created again when it is requested.
MAX_BUNDLE_BYTES: Final = 4 * 1024**3
SUFFIX: Final = ".bundle"
UNFINISHED_SECONDS: Final = 3600.0


# (tenant, merge queue, commit) -> whether the commit is in the mirror now
EnsureQueuedCommit = Callable[[str, str, str], Awaitable[bool]]


class _Start(msgspec.Struct, frozen=True, kw_only=True):
    """The base and the tip of a worktree, and the repository with their commits."""

    builder: CommitBuilder
    base: str
    tip: str

    @property
    def name(self) -> str:
        """Return the name of the bundle file with the commits from base to tip."""
        hashed_text = f"{self.builder.mirror.folder.name}\n{self.base}\n{self.tip}"
        return hashlib.sha256(hashed_text.encode()).hexdigest() + SUFFIX


class WorktreeHandlers:
    """Answers runners that ask where a worktree starts, for a bundle of commits, or which workstreams have ended."""

    def __init__(
        self,
        message_handlers: MessageHandlers,
        store: Store,
        repositories: RepositoryController,
        blobs: BlobStore,
        folder: Path,
        disk: DiskThreads,
        ensure_queued_commit: EnsureQueuedCommit,
    ) -> None:
        self._message_handlers = message_handlers
        self._workstream_records = WorkstreamRecords(store)
        self._projects = repositories.projects
        self._mirrors = repositories.mirrors
        self._blobs = blobs
        self._folder = folder.absolute() / FOLDER
        self._disk = disk
        self._ensure_queued_commit = ensure_queued_commit

    async def handle(self, attempt: Attempt, route_name: str) -> WorktreeStart | StreamedResponse:
        """Answer one request to one of `ROUTE_NAMES`, under the lease of this attempt."""
        try:
            worktree_start = await self._start(attempt)
            if route_name == "tree":
                return WorktreeStart(
                    base=worktree_start.base,
                    tip=worktree_start.tip,
                    bundle_bytes=await self._bundle_bytes(worktree_start),
                )
            return await self._stream_bundle(worktree_start)
        except GitFailed as failed:
            if failed.is_transient:
                raise BlobStoreUnavailable(f"cannot read the commits of the worktree: {failed}") from None
            raise Refused("wrong_state", f"the worktree has no start commit: {failed}") from None

    async def ended_streams(self, runner: Runner, workstream_ids: list[str]) -> EndedStreams:
        """Return the ids of those workstreams that have ended, so that their worktrees may be deleted.

        Ids of other tenants are ignored.
        """
        records = await self._message_handlers.find_records(list(dict.fromkeys(workstream_ids)))
        ended_ids = {
            record.id
            for record in records
            if isinstance(record, Run) and record.tenant == runner.tenant and may_discard_workspace(record)
        }
        return EndedStreams(
            [workstream_id for workstream_id in dict.fromkeys(workstream_ids) if workstream_id in ended_ids]
        )

    # -- base and tip

    async def _start(self, attempt: Attempt) -> _Start:
        worktree = job_spec(attempt).tree
        if worktree is None or not attempt.run_id:
            raise Refused("not_found", "the job has no worktree")
        if worktree.commit:
            return await self._start_at_commit(attempt, worktree)
        # A task gets the worktree of its own workstream only, whatever its job spec names.
        workstream = (
            await self._workstream_records.find(attempt.tenant, worktree.stream)
            if worktree.stream == attempt.run_id
            else None
        )
        if workstream is None or not workstream.base_commit:
            raise Refused("not_found", "the job has no planned workstream")
        return await self._start_of_workstream(workstream)

    async def _start_of_workstream(self, workstream: Workstream) -> _Start:
        builder = await self._builder(workstream.tenant, workstream.project)
        await commits.restored(builder, workstream, self._blobs)
        return _Start(builder=builder, base=workstream.base_commit, tip=workstream.tip)

    async def _start_at_commit(self, attempt: Attempt, worktree: Worktree) -> _Start:
        """Return the start of a worktree at one exact commit of the run's project."""
        project_name, base_commit = (await self._message_handlers.run_origin(attempt)).project, worktree.source.commit
        builder = await self._builder(attempt.tenant, project_name)
        await builder.mirror.ensure_commit(base_commit, worktree.source.ref)
        if not await builder.mirror.has_commit(worktree.commit) and not await self._ensure_queued_commit(
            attempt.tenant, worktree.stream, worktree.commit
        ):
            raise GitFailed(f"the merge queue no longer tests the commit {worktree.commit}")
        return _Start(builder=builder, base=base_commit, tip=worktree.commit)

    async def _builder(self, tenant: str, project_name: str) -> CommitBuilder:
        project_record = await self._projects.find(tenant, project_name) if project_name else None
        if project_record is None:
            raise Refused("not_found", f"the project {project_name[:80]!r} no longer exists")
        return CommitBuilder(self._mirrors.for_project(project_record))

    # -- bundles

    async def _bundle(self, worktree_start: _Start) -> Path:
        """Return the bundle file with the commits from base to tip. Reuses a recent one or creates it."""
        bundle_path = self._folder / worktree_start.name
        if await self._disk.run(lambda: _touch(bundle_path)):
            return bundle_path
        await self._disk.run(self._prepare_folder)
        temporary_path = bundle_path.with_name(f".{secrets.token_hex(8)}{SUFFIX}")
        try:
            await worktree_start.builder.write_bundle(worktree_start.tip, [worktree_start.base], temporary_path)
            await self._disk.run(lambda: os.replace(temporary_path, bundle_path))
        finally:
            temporary_path.unlink(missing_ok=True)
        await self._disk.run(lambda: _prune(self._folder, current_path=bundle_path))
        return bundle_path

    def _prepare_folder(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        check_free_space(self._folder, 0)

    async def _bundle_bytes(self, worktree_start: _Start) -> int:
        if worktree_start.base == worktree_start.tip:
            return 0
        bundle_path = await self._bundle(worktree_start)
        return await self._disk.run(lambda: bundle_path.stat().st_size)

    async def _stream_bundle(self, worktree_start: _Start) -> StreamedResponse:
        bundle_path = (
            await self._bundle(worktree_start) if worktree_start.base != worktree_start.tip else Path(os.devnull)
        )
        bundle_file, blob_stat = await self._disk.run(lambda: _open_hashed(bundle_path))
        return StreamedResponse(blob_stat, self._chunks(bundle_file))

    async def _chunks(self, bundle_file: BinaryIO) -> AsyncIterator[bytes]:
        with bundle_file:
            while chunk := await self._disk.run(lambda: bundle_file.read(PART_BYTES)):
                yield chunk


def _touch(path: Path) -> bool:
    """Mark the file as used now. Return whether it exists."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _open_hashed(path: Path) -> tuple[BinaryIO, BlobStat]:
    """Open a file and return it with its size and hash. It stays readable if it is deleted meanwhile."""
    bundle_file = path.open("rb")
    try:
        bundle_digest = hashlib.file_digest(bundle_file, "sha256").hexdigest()
        file_bytes = bundle_file.tell()
        bundle_file.seek(0)
    except BaseException:
        bundle_file.close()
        raise
    return bundle_file, BlobStat(file_bytes, bundle_digest)


def _prune(folder: Path, current_path: Path) -> None:
    """Delete the least recently used bundles beyond the limits, except `current_path`.

    Also deletes unfinished bundles that a killed server left.
    """
    bundles: list[tuple[float, int, Path]] = []
    for bundle_path in folder.iterdir():
        try:
            file_status = bundle_path.stat()
        except OSError:
            continue
        if bundle_path.name.startswith("."):
            if file_status.st_mtime < time.time() - UNFINISHED_SECONDS:
                bundle_path.unlink(missing_ok=True)
            continue
        bundles.append((file_status.st_mtime, file_status.st_size, bundle_path))
    total_bytes = 0
    for bundle_index, (_, bundle_bytes, bundle_path) in enumerate(sorted(bundles, reverse=True)):
        total_bytes += bundle_bytes
        if bundle_path != current_path and (bundle_index >= MAX_BUNDLES or total_bytes > MAX_BUNDLE_BYTES):
            bundle_path.unlink(missing_ok=True)
