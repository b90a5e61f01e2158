"""The job directories of a runner, each with a workspace and a cell. One is prepared in advance.

Starting a cell takes most of a small job's time, so `acquire` also starts to prepare a spare one with the same
`CellSpec`. If the next job has another spec, it gets a new one, and the spare is discarded.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from pathlib import Path
from typing import Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.protocol.messages import JobSpec, Limits, Worktree
from deltaci.runner.sandbox import Cell, CellFailed, Executor, Executors
from deltaci.runner.workspace.worktrees.worktree_pool import WorktreePool, WorktreeSlot

PREFIX: Final = "job-"


class CellSpec(msgspec.Struct, frozen=True):
    """What determines a cell: only jobs with an equal spec can use a prepared one."""

    executor: str | None
    image: str
    network: bool
    limits: Limits


class JobDir:
    """The private folder of one job, with its workspace and, if an executor is given, its cell."""

    def __init__(
        self,
        folder: Path,
        executor: Executor | None = None,
        cell_spec: CellSpec | None = None,
        *,
        worktrees: WorktreePool | None = None,
        slot: WorktreeSlot | None = None,
    ) -> None:
        # Resolved, so that a link found in the path later was made by the job.
        self.folder = folder.resolve() / f"{PREFIX}{secrets.token_hex(8)}"
        self.workspace = self.folder / "workspace"
        self.workspace.mkdir(parents=True)
        self.worktrees, self.slot = worktrees, slot
        self.cell: Cell | None = None
        if executor is not None and cell_spec is not None:
            self.cell = executor.cell(
                workspace=self.workspace,
                limits=cell_spec.limits,
                network=cell_spec.network,
                image=cell_spec.image,
                bind_mounts=slot.bind_mounts() if slot is not None else (),
            )

    async def release(self) -> bool:
        """Close the cell, release the worktree and remove the folder. Return whether no process of the job was left."""
        is_empty = self.cell is None or await self.cell.close()
        if self.worktrees is not None and self.slot is not None:
            await self.worktrees.release(self.slot, is_empty=is_empty)
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
        return is_empty


class CellPool:
    """Creates job directories, one of them in advance."""

    def __init__(self, folder: Path, executors: Executors) -> None:
        self._folder = folder
        self._executors = executors
        self._spare: JobDir | None = None
        self._spare_spec: CellSpec | None = None
        self._prepare_task: asyncio.Task[None] | None = None
        self._release_tasks: set[asyncio.Task[bool]] = set()
        self.worktrees = WorktreePool(folder.resolve())
        for stale_folder in folder.glob(f"{PREFIX}*"):  # Of a runner that was killed.
            shutil.rmtree(stale_folder, ignore_errors=True)

    def without_cell(self) -> JobDir:
        """Return a folder without a cell, for the log of a job that cannot run here."""
        return JobDir(self._folder)

    def acquire(self, spec: JobSpec) -> JobDir:
        """Return a job directory for this job, and prepare a spare one. Raises `Refused` if no executor can run it."""
        # Service containers are reached over the machine's network.
        cell_spec = CellSpec(spec.executor, spec.image, spec.network or bool(spec.services), spec.limits)
        if spec.tree is not None:
            return self._acquire_with_worktree(cell_spec, spec.tree)
        spare, self._spare = self._spare, None
        if spare is not None and self._spare_spec == cell_spec:
            job_dir = spare
        else:
            if spare is not None:
                self._release_later(spare)
            job_dir = self._create(cell_spec)
        if self._prepare_task is None or self._prepare_task.done():
            self._prepare_task = asyncio.create_task(self._prepare_spare(cell_spec))
        return job_dir

    def _acquire_with_worktree(self, cell_spec: CellSpec, tree: Worktree) -> JobDir:
        """Return a job directory whose cell mounts a worktree; it cannot be prepared in advance."""
        executor = self._executors.choose(cell_spec.executor, cell_spec.image)
        slot = self.worktrees.reserve(tree)
        try:
            return JobDir(self._folder, executor, cell_spec, worktrees=self.worktrees, slot=slot)
        except BaseException:
            self.worktrees.unreserve(slot)
            raise

    def _create(self, cell_spec: CellSpec) -> JobDir:
        return JobDir(self._folder, self._executors.choose(cell_spec.executor, cell_spec.image), cell_spec)

    async def _prepare_spare(self, cell_spec: CellSpec) -> None:
        """Create folders and a started cell for the next job. A failure is ignored: that job then creates its own."""
        job_dir: JobDir | None = None
        try:
            job_dir = self._create(cell_spec)
            if job_dir.cell is not None:
                await job_dir.cell.open()
        except (Refused, CellFailed, OSError):
            if job_dir is not None:
                self._release_later(job_dir)
            return
        self._spare, self._spare_spec = job_dir, cell_spec

    def _release_later(self, job_dir: JobDir) -> None:
        release_task = asyncio.create_task(job_dir.release())
        self._release_tasks.add(release_task)
        release_task.add_done_callback(self._release_tasks.discard)

    async def close(self) -> None:
        """Release the spare job directory and close the executors."""
        if self._prepare_task is not None:
            await asyncio.wait({self._prepare_task})  # Cancelling it would leave a started cell behind.
        if self._spare is not None:
            self._release_later(self._spare)
        await asyncio.gather(*self._release_tasks, return_exceptions=True)
        await self._executors.close()
