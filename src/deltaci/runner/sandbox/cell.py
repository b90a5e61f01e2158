"""What every executor promises: a cell holds one job, runs its steps in order, and can prove that it is empty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from deltaci.protocol.messages import Limits
from deltaci.runner.sandbox.process_tree import JobHandle

SHELL: Final = ("bash", "-eo", "pipefail", "-c")


class Exit(msgspec.Struct, frozen=True):
    """How a step ended: by itself with a code, or by a signal.

    What was used is that of all processes of the job that have ended by then; None where nobody counts.
    """

    exit_code: int | None
    signal: int | None
    seconds: float
    is_timed_out: bool = False
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None


class CellFailed(Exception):
    """The cell itself could not do its work. Not the job's fault: another runner may succeed."""


class BindMount(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that a cell shows beside the workspace, at the same path."""

    path: Path
    is_writable: bool


class Cell(Protocol):
    """One job's containment. What a step leaves running lives on until the job ends, and no longer."""

    @property
    def handle(self) -> JobHandle:
        """How to find the job's processes now; it changes when the first step starts."""

    @property
    def description(self) -> str:
        """One sentence for the log: which executor, which limits are in force and which are not."""

    async def open(self) -> None:
        """Make it ready in advance; otherwise the first step does that. Raises `CellFailed`."""

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
        """Run one step. All that it wrote before its exit is delivered, stdout and stderr in the order of writing.

        A timeout of 0 is none. A stopped or closed cell starts nothing, and says that the step was killed.
        """

    async def stop(self, grace_seconds: float) -> bool:
        """Ask everybody to end, then kill them. True only when nobody is left; `run` then returns."""

    async def close(self) -> bool:
        """End of the job: kill whoever is left and clear up. True only when nobody is left. Safe to repeat."""


class Executor(Protocol):
    """One way to run jobs."""

    name: str

    def unavailable_reason(self) -> str:
        """Empty when it can be used here, else one sentence why not."""

    def cell(
        self, *, workspace: Path, limits: Limits, network: bool, image: str, bind_mounts: Sequence[BindMount] = ()
    ) -> Cell:
        """A new cell for one job. Nothing is started before its first step; what is `shown` need not be there yet."""
