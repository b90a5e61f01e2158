"""The interfaces of executors: a cell contains one job, runs its steps in order, and can prove that it is empty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from deltaci.protocol.messages import Limits
from deltaci.runner.sandbox.process_tree import JobHandle

SHELL: Final = ("bash", "-eo", "pipefail", "-c")


class Exit(msgspec.Struct, frozen=True):
    """How a step ended: with an exit code or by a signal.

    CPU time and memory are those of all processes of the job that have ended so far; None where they are not measured.
    """

    exit_code: int | None
    signal: int | None
    seconds: float
    is_timed_out: bool = False
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None


class CellFailed(Exception):
    """The cell could not do its work. This is not the job's fault: another attempt may succeed.

    `code` becomes the error code of the job.
    """

    def __init__(self, reason: str, code: str = "RUNNER_STARTUP") -> None:
        super().__init__(reason)
        self.code = code


class BindMount(msgspec.Struct, frozen=True, kw_only=True):
    """A folder outside the workspace that a cell can access at the same path."""

    path: Path
    is_writable: bool


class Cell(Protocol):
    """The containment of one job. Processes that a step leaves running live until the job ends."""

    @property
    def handle(self) -> JobHandle:
        """Return the data that finds the job's processes now; it changes when the first step starts."""

    @property
    def description(self) -> str:
        """One sentence for the log: the executor, and which limits are in force."""

    @property
    def is_lease_over(self) -> bool:
        """Return whether the cell has ended its processes because the lease was over; see `bind_lease`."""

    async def open(self) -> None:
        """Prepare the cell, which the first step would otherwise do. Raises `CellFailed`."""

    async def bind_lease(self, deadline: float, renewals_path: Path) -> None:
        """End all processes and start no more at this time of the boot clock, or when the lease keeper ends.

        `renewals_path` is a FIFO: the keeper writes later deadlines into it, and its end closes it.
        """

    async def run(
        self,
        script: str,
        *,
        env: dict[str, str],
        workdir: Path,
        timeout_seconds: float,
        on_output: Callable[[bytes], None],
        shell: tuple[str, ...] = SHELL,
    ) -> Exit:
        """Run one step. Deliver its whole output, stdout and stderr in the order of writing, before returning.

        A timeout of 0 means none. A stopped or closed cell starts nothing and returns an exit by SIGKILL.
        """

    async def stop(self, grace_seconds: float) -> bool:
        """Send SIGTERM to all processes, then SIGKILL; `run` then returns. Return True only if no process is left."""

    async def close(self) -> bool:
        """Kill the remaining processes and clean up. Return True only if no process is left. Idempotent."""


class Executor(Protocol):
    """Creates cells of one kind."""

    name: str

    def unavailable_reason(self) -> str:
        """Return why this executor cannot be used here, as one sentence; an empty string if it can."""

    def cell(
        self, *, workspace: Path, limits: Limits, network: bool, image: str, bind_mounts: Sequence[BindMount] = ()
    ) -> Cell:
        """Return a new cell for one job. Nothing is started, and no bind mount need exist, before the first step."""
