"""Run jobs as plain processes of the runner's own user: without isolation, but all are found and ended."""

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

OVERHEAD_PROCESSES = 2  # The supervisor and its guard process.


class ProcessExecutor:
    """For jobs that are trusted as much as the runner's user."""

    name = "process"

    def __init__(self, zygote: Zygote, *, use_cgroups: bool = True) -> None:
        self._zygote = zygote
        self._use_cgroups = use_cgroups

    def unavailable_reason(self) -> str:
        return "" if os.access("/bin/sh", os.X_OK) else "there is no /bin/sh"

    def cell(
        self, *, workspace: Path, limits: Limits, network: bool, image: str, bind_mounts: Sequence[BindMount] = ()
    ) -> SupervisedCell:
        """Return a cell without isolation. It cannot be denied the network, and its description says so."""
        network_note = "" if network else ", network NOT denied although none was requested"
        return SupervisedCell(
            title=f"process executor: no isolation{network_note}",
            workspace=workspace,
            groups=groups_for(limits, OVERHEAD_PROCESSES) if self._use_cgroups else lambda _: cgroups.Groups(),
            launch=lambda marker, groups, supervisor_socket: self._zygote.fork_supervisor(
                marker, groups.procs_files(), supervisor_socket
            ),
            rlimits=partial(memory_rlimit, limits),
            limits=limits,
            is_isolated=False,
        )


def groups_for(limits: Limits, executor_process_count: int) -> partial[cgroups.Groups]:
    """Return a function that makes the job's cgroups when their name is known."""
    return partial(cgroups.create, limits=limits, executor_process_count=executor_process_count)


def memory_rlimit(limits: Limits, groups: cgroups.Groups) -> dict[str, int]:
    """Return an RLIMIT_DATA for each process if no cgroup limits memory. Weaker than requested, but a limit."""
    if limits.memory_bytes and "memory" not in groups.in_force:
        return {"RLIMIT_DATA": limits.memory_bytes}
    return {}
