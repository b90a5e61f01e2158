"""Plain processes of the runner's own user: nothing is hidden from the job, but everything of it is found and ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from deltaci.protocol.messages import Limits
from deltaci.runner.sandbox import cgroups
from deltaci.runner.sandbox.cell import BindMount
from deltaci.runner.sandbox.supervised_cell import SupervisedCell
from deltaci.runner.sandbox.zygote import Zygote

OVERHEAD_PROCESSES = 2  # The supervisor and its guard.


class ProcessExecutor:
    """For jobs that are trusted as much as the runner's user is."""

    name = "process"

    def __init__(self, zygote: Zygote, *, use_cgroups: bool = True) -> None:
        self._zygote = zygote
        self._use_cgroups = use_cgroups

    def unavailable_reason(self) -> str:
        """Always usable where there is a shell."""
        return "" if os.access("/bin/sh", os.X_OK) else "there is no /bin/sh"

    def cell(
        self, *, workspace: Path, limits: Limits, network: bool, image: str, bind_mounts: Sequence[BindMount] = ()
    ) -> SupervisedCell:
        """A cell without walls. The network cannot be kept from it, and the description says so."""
        shared = "" if network else ", network NOT kept from it although none was asked for"
        return SupervisedCell(
            title=f"process executor: no isolation{shared}",
            workspace=workspace,
            groups=groups_for(limits, OVERHEAD_PROCESSES) if self._use_cgroups else lambda _: cgroups.Groups(),
            launch=lambda marker, groups, theirs: self._zygote.fork_supervisor(marker, groups.joins(), theirs),
            rlimits=partial(memory_rlimit, limits),
            limits=limits,
            has_walls=False,
        )


def groups_for(limits: Limits, overhead: int) -> partial[cgroups.Groups]:
    """The job's groups, made when its name is known."""
    return partial(cgroups.make, limits=limits, overhead=overhead)


def memory_rlimit(limits: Limits, groups: cgroups.Groups) -> dict[str, int]:
    """Without a cgroup memory is bounded for each process: less than what was asked for, but not nothing."""
    if limits.memory_bytes and "memory" not in groups.in_force:
        return {"RLIMIT_DATA": limits.memory_bytes}
    return {}
