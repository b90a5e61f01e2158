"""Assign worktrees to jobs, and remove worktrees that are no longer needed. Changes nothing outside of one folder.

A job reserves a slot when it is accepted and acquires it before its steps, after the slot's previous job has left it.
Streams are removed when the server reports them as finished, or when they have not been used for long.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import secrets
import shutil
import stat
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from deltaci.core.errors import Refused, Unreachable
from deltaci.protocol.job_spec import Name, Worktree
from deltaci.protocol.messages import MAX_STREAMS
from deltaci.runner.sandbox.cell import BindMount, CellFailed
from deltaci.runner.workspace.folders import open_folder
from deltaci.runner.workspace.safe_fs import remove_entry

STREAMS_FOLDER: Final = "workstreams"
REPOSITORY_FOLDER: Final = "repository.git"
RECORD_FILE: Final = "about.json"
TRASH_PREFIX: Final = ".trash-"
ACQUIRE_SECONDS: Final = 600.0  # For the previous job to leave the tree.
MERGE_QUEUE_IDLE_SECONDS: Final = 86400.0  # Unused trees of merge queues are removed after this time,
WORKSTREAM_IDLE_SECONDS: Final = 30 * 86400.0  # all others after this one, including those of failed runs.
CLEANUP_INTERVAL_SECONDS: Final = 180.0
MIN_CLEANUP_SECONDS: Final = 10.0
REMOVE_TIMEOUT_SECONDS: Final = 600.0
_SAFE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

LOGGER: Final = logging.getLogger(__name__)

FinishedQuery = Callable[[list[str]], Awaitable[list[str]]]
"""Returns which of these streams, given by id, have ended, by asking the server."""


class StreamRecord(msgspec.Struct, frozen=True):
    """The stream to which a folder belongs.

    The server reports the end of workstreams, but not of merge queues, which are not runs.
    """

    id: Name
    is_merge_queue: bool = msgspec.field(name="is_line")


def folder_name(text: str) -> str:
    """Return the text itself if it is a safe folder name, otherwise a name derived from its hash."""
    if _SAFE.fullmatch(text) and not text.endswith((".git", ".lock", ".")):
        return text
    return f"_{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


class WorktreeSlot:
    """The paths of one worktree, which is reserved for one job."""

    def __init__(self, stream_folder: Path, tree_name: str, record: StreamRecord) -> None:
        self.stream = stream_folder
        self.name = tree_name
        self.record = record
        self.is_acquired = False

    @property
    def path(self) -> Path:
        """The folder of the worktree."""
        return self.stream / self.name

    @property
    def git_dir(self) -> Path:
        """The git directory that belongs to the job in this worktree."""
        return self.stream / f"{self.name}.git"

    @property
    def repository(self) -> Path:
        """The runner's repository of the stream, which no job can write to."""
        return self.stream / REPOSITORY_FOLDER

    def bind_mounts(self) -> tuple[BindMount, ...]:
        """Return the mounts for the job's cell: its tree and git directory, and the repository read-only."""
        return (
            BindMount(path=self.path, is_writable=True),
            BindMount(path=self.git_dir, is_writable=True),
            BindMount(path=self.repository, is_writable=False),
        )


class WorktreePool:
    """Assigns the worktrees of this runner to jobs, and removes those that are not needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute() / STREAMS_FOLDER
        self._locks: dict[Path, asyncio.Lock] = {}
        self._repository_locks: dict[Path, asyncio.Lock] = {}
        self._reservations: dict[Path, int] = {}  # By path: the number of jobs that use a tree or wait for it.
        self._wake = asyncio.Event()
        self.has_been_used = self.folder.is_dir()

    # -- assignment

    def reserve(self, tree: Worktree) -> WorktreeSlot:
        """Reserve a worktree for this job and return its slot.

        A job that commits gets its stream's tree, or its private one, which may be reserved for other jobs too: then
        `acquire` waits for them. Any other job gets the first free test tree, which may still have the files of an
        earlier job.
        """
        stream_folder = self.folder / folder_name(tree.stream)
        stream_record = StreamRecord(tree.stream, bool(tree.commit))
        self.has_been_used = True
        self._wake.set()
        if tree.is_committed:
            slot = WorktreeSlot(
                stream_folder, f"own-{folder_name(tree.private_name)}" if tree.private_name else "tree", stream_record
            )
        else:
            test_number = 1
            while (stream_folder / f"test-{test_number}") in self._reservations:
                test_number += 1
            slot = WorktreeSlot(stream_folder, f"test-{test_number}", stream_record)
        self._reservations[slot.path] = self._reservations.get(slot.path, 0) + 1
        return slot

    async def acquire(self, slot: WorktreeSlot) -> None:
        """Lock the slot for this job and create its folders.

        Raise `CellFailed` if the runner's previous job in it does not release it within ACQUIRE_SECONDS.
        """
        lock = self._locks.setdefault(slot.path, asyncio.Lock())
        try:
            async with asyncio.timeout(ACQUIRE_SECONDS):
                await lock.acquire()
        except TimeoutError:
            raise CellFailed(
                f"another job of this runner has used {slot.path} for more than {ACQUIRE_SECONDS:.0f} s"
            ) from None
        slot.is_acquired = True
        await asyncio.to_thread(self._create_folders, slot, self.is_sole_user(slot))

    def is_sole_user(self, slot: WorktreeSlot) -> bool:
        """Return whether no other worktree of this stream is reserved."""
        return all(path == slot.path or path.parent != slot.stream for path in self._reservations)

    def repository_lock(self, slot: WorktreeSlot) -> asyncio.Lock:
        """Return the lock that must be held to change the stream's repository."""
        return self._repository_locks.setdefault(slot.stream, asyncio.Lock())

    async def release(self, slot: WorktreeSlot, *, is_empty: bool) -> None:
        """Release the slot after its job. `is_empty` states that no process of the job is left.

        Otherwise processes may still use the worktree, so it is moved to the trash.
        """
        if slot.is_acquired:
            slot.is_acquired = False
            with suppress(OSError):
                await asyncio.to_thread(self._mark_used, slot, is_empty)
            self._locks[slot.path].release()
        self.unreserve(slot)
        self._wake.set()

    def unreserve(self, slot: WorktreeSlot) -> None:
        """Remove one reservation of the slot. The slot must not be locked any more."""
        reservation_count = self._reservations.pop(slot.path, 1) - 1
        if reservation_count:
            self._reservations[slot.path] = reservation_count
        else:
            self._locks.pop(slot.path, None)

    def _create_folders(self, slot: WorktreeSlot, is_sole_user: bool) -> None:
        """Create the folder of the stream and write its record. Remove leftovers if no other job uses the stream."""
        self._create_streams_folder()
        if is_sole_user and os.path.lexists(slot.stream) and not stat.S_ISDIR(slot.stream.lstat().st_mode):
            self.move_to_trash(slot.stream)  # A job without isolation may have created a link there.
        _create_folder(slot.stream)
        if is_sole_user:
            for entry_name in os.listdir(slot.stream):
                if entry_name.startswith("."):  # Left incomplete by a runner that was killed.
                    remove_tree(slot.stream, entry_name)
        temporary_path = slot.stream / f".{RECORD_FILE}-{secrets.token_hex(4)}"
        temporary_path.write_bytes(msgspec.json.encode(slot.record))
        os.replace(temporary_path, slot.stream / RECORD_FILE)
        os.utime(slot.stream)

    def _mark_used(self, slot: WorktreeSlot, is_empty: bool) -> None:
        """Set the time of the stream's last use. Move its tree to the trash unless `is_empty`."""
        os.utime(slot.stream)
        if not is_empty:
            self.move_to_trash(slot.path)
            self.move_to_trash(slot.git_dir)

    def _create_streams_folder(self) -> None:
        """Create the folder that contains the folders of all streams. Raise `CellFailed` if that is impossible."""
        try:
            _create_folder(self.folder)
        except OSError as error:
            raise CellFailed(f"cannot create the folder {self.folder} for worktrees: {error.strerror}") from error

    # -- removal

    def move_to_trash(self, path: Path) -> None:
        """Move a path, without following links, into the trash, which is emptied later."""
        if os.path.lexists(path):
            os.rename(path, self.folder / f"{TRASH_PREFIX}{secrets.token_hex(8)}")

    async def remove_unneeded(self, query_finished: FinishedQuery) -> list[str]:
        """Remove streams that have ended or were not used for long, and empty the trash.

        Return the names of the removed folders.
        """
        streams = await asyncio.to_thread(self._list_streams)
        workstream_ids = [
            record.id for stream_folder, record in streams if record is not None and not record.is_merge_queue
        ]
        finished_ids: set[str] = set()
        for batch_start in range(0, len(workstream_ids), MAX_STREAMS):
            finished_ids.update(await query_finished(workstream_ids[batch_start : batch_start + MAX_STREAMS]))
        removed_folder_names: list[str] = []
        for stream_folder, record in streams:
            is_finished = record is not None and record.id in finished_ids and not record.is_merge_queue
            if (is_finished or self._is_unused(stream_folder, record)) and not any(
                stream_folder in reserved.parents for reserved in self._reservations
            ):
                # No job uses it, and none can reserve it meanwhile, as there is no await in between.
                with suppress(OSError):
                    self.move_to_trash(stream_folder)
                    self._repository_locks.pop(stream_folder, None)
                    removed_folder_names.append(stream_folder.name)
        await asyncio.to_thread(self._empty_trash)
        return removed_folder_names

    async def run_cleanup(self, query_finished: FinishedQuery) -> None:
        """Remove unneeded worktrees periodically, and soon after a job begins or ends, until cancelled."""
        while True:
            if self.has_been_used:
                self._wake.clear()
                try:
                    for folder_name in await self.remove_unneeded(query_finished):
                        LOGGER.info("removed the worktrees of stream %s", folder_name)
                except (Unreachable, Refused, OSError) as error:
                    LOGGER.warning("cannot remove unneeded worktrees: %s; retrying", error)
                await asyncio.sleep(MIN_CLEANUP_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(CLEANUP_INTERVAL_SECONDS if self.has_been_used else None):
                    await self._wake.wait()

    def _list_streams(self) -> list[tuple[Path, StreamRecord | None]]:
        """Return the folder of every stream and its record, which is None if it is missing or invalid."""
        try:
            entries = sorted(os.scandir(self.folder), key=lambda entry: entry.name)
        except OSError:
            return []
        streams: list[tuple[Path, StreamRecord | None]] = []
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                stream_folder = self.folder / entry.name
                streams.append((stream_folder, _read_record(stream_folder)))
        return streams

    @staticmethod
    def _is_unused(stream_folder: Path, record: StreamRecord | None) -> bool:
        """Return whether the stream's folder was not used for so long that it can be removed."""
        try:
            unused_seconds = time.time() - stream_folder.lstat().st_mtime
        except OSError:
            return False
        return unused_seconds > (
            MERGE_QUEUE_IDLE_SECONDS if record is not None and record.is_merge_queue else WORKSTREAM_IDLE_SECONDS
        )

    def _empty_trash(self) -> None:
        for entry_name in self._trash_names():
            remove_tree(self.folder, entry_name)

    def _trash_names(self) -> Iterator[str]:
        """Yield the names of all entries in the trash."""
        try:
            entry_names = os.listdir(self.folder)
        except OSError:
            return
        yield from (entry_name for entry_name in entry_names if entry_name.startswith(TRASH_PREFIX))


def _create_folder(path: Path) -> None:
    """Create a folder unless it exists. Raise `NotADirectoryError` if another kind of entry has its name."""
    with suppress(FileExistsError):
        path.mkdir(parents=True, mode=0o755)
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise NotADirectoryError(20, "this path is not a folder; remove it", str(path))


def _read_record(path: Path) -> StreamRecord | None:
    """Return the record of a stream's folder; None if it has no valid one."""
    try:
        return msgspec.json.decode((path / RECORD_FILE).read_bytes(), type=StreamRecord)
    except (OSError, msgspec.DecodeError):
        return None


def remove_tree(folder: Path, entry_name: str) -> bool:
    """Remove an entry of a folder without following links. Return whether it no longer exists."""
    with suppress(OSError, RecursionError), open_folder(folder) as folder_fd:
        remove_entry(folder_fd, entry_name)
    entry_path = folder / entry_name
    if os.path.lexists(entry_path):  # Too deep for Python's recursion, or folders without permissions: use tools.
        rm_path = shutil.which("rm")
        if rm_path is not None:
            for command in (["chmod", "-R", "u+rwx", "--", str(entry_path)], [rm_path, "-rf", "--", str(entry_path)]):
                with suppress(OSError, subprocess.SubprocessError):
                    subprocess.run(command, check=False, capture_output=True, timeout=REMOVE_TIMEOUT_SECONDS)
    return not os.path.lexists(entry_path)
