"""Where jobs run. The next place is made ready while nobody waits: starting a cell is most of a small job's time.

A place that is made ready in advance is for a job like the last one; one that asks for something else gets its own.
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
    """What a cell is made for."""

    executor: str | None
    image: str
    network: bool
    limits: Limits


class JobDir:
    """A folder of its own, with a workspace and a cell around it."""

    def __init__(
        self,
        folder: Path,
        executor: Executor | None = None,
        wish: CellSpec | None = None,
        *,
        worktrees: WorktreePool | None = None,
        slot: WorktreeSlot | None = None,
    ) -> None:
        # Without any link in it: whoever finds one later on knows that the job made it.
        self.folder = folder.resolve() / f"{PREFIX}{secrets.token_hex(8)}"
        self.workspace = self.folder / "workspace"
        self.workspace.mkdir(parents=True)
        self.worktrees, self.slot = worktrees, slot
        self.cell: Cell | None = None
        if executor is not None and wish is not None:
            self.cell = executor.cell(
                workspace=self.workspace,
                limits=wish.limits,
                network=wish.network,
                image=wish.image,
                bind_mounts=slot.bind_mounts() if slot is not None else (),
            )

    async def release(self) -> bool:
        """End whatever is left in it, and remove it. Whether nobody was left."""
        is_empty = self.cell is None or await self.cell.close()
        if self.worktrees is not None and self.slot is not None:
            await self.worktrees.release(self.slot, is_empty=is_empty)
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
        return is_empty


class CellPool:
    """Makes places, one of them in advance."""

    def __init__(self, folder: Path, executors: Executors) -> None:
        self._folder = folder
        self._executors = executors
        self._spare: JobDir | None = None
        self._spare_for: CellSpec | None = None
        self._making: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[bool]] = set()
        self.worktrees = WorktreePool(folder.resolve())
        for left in folder.glob(f"{PREFIX}*"):  # Of a runner that was killed; its jobs are gone.
            shutil.rmtree(left, ignore_errors=True)

    def without_cell(self) -> JobDir:
        """Only a folder: for a job that cannot be run here, but whose log tells why."""
        return JobDir(self._folder)

    def acquire(self, spec: JobSpec) -> JobDir:
        """A place for this job. Raises `Refused` when there is none here."""
        # Services are reached over the network of the machine.
        wish = CellSpec(spec.executor, spec.image, spec.network or bool(spec.services), spec.limits)
        if spec.tree is not None:
            return self._with_tree(wish, spec.tree)
        spare, self._spare = self._spare, None
        if spare is not None and self._spare_for == wish:
            found = spare
        else:
            if spare is not None:
                self._throw_away(spare)
            found = self._new(wish)
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._make(wish))
        return found

    def _with_tree(self, wish: CellSpec, tree: Worktree) -> JobDir:
        """One that shows its tree; it cannot be made in advance."""
        executor = self._executors.choose(wish.executor, wish.image)
        slot = self.worktrees.reserve(tree)
        try:
            return JobDir(self._folder, executor, wish, worktrees=self.worktrees, slot=slot)
        except BaseException:
            self.worktrees.unreserve(slot)
            raise

    def _new(self, wish: CellSpec) -> JobDir:
        return JobDir(self._folder, self._executors.choose(wish.executor, wish.image), wish)

    async def _make(self, wish: CellSpec) -> None:
        place: JobDir | None = None
        try:
            place = self._new(wish)
            if place.cell is not None:
                await place.cell.open()
        except (Refused, CellFailed, OSError):
            if place is not None:
                self._throw_away(place)
            return
        self._spare, self._spare_for = place, wish

    def _throw_away(self, place: JobDir) -> None:
        leaving = asyncio.create_task(place.release())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Leave the one that nobody took."""
        if self._making is not None:
            await asyncio.wait({self._making})  # One that is cut off half-way would stay behind.
        if self._spare is not None:
            self._throw_away(self._spare)
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await self._executors.close()
