"""Records what jobs really did: the jobs write to a file outside when they start, go on, and end.

Times are seconds since boot, with a resolution of a hundredth. Whether two executions ran at once is also decided by
the kernel, with a lock that each holds as long as one of its processes lives.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Final

import msgspec

TICK_SECONDS: Final = 0.1


class Execution(msgspec.Struct):
    """One execution of one job. `mark` is unique and in the environment of all its processes."""

    job: str
    mark: str
    began: float
    last: float
    ends: int = 0
    clashes: int = 0


class Witness:
    """The file that jobs write to, and a folder of locks."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._file = folder / "told"
        self._file.touch()
        self._locks = folder / "locks"
        self._locks.mkdir()

    def step(self, job: str, seconds: float) -> str:
        """Return a shell step that runs for so many seconds and records that."""
        return f"""
exec 9>>{self._locks}/{job}
tell() {{ read -r up rest </proc/uptime; printf '%s\\n' "{job} $DELTACI_JOB_MARK $1 $up" >>{self._file}; }}
tell begin
flock -n 9 || tell clash
n={round(seconds / TICK_SECONDS)}
while [ $n -gt 0 ]; do sleep {TICK_SECONDS}; n=$((n - 1)); tell on; done
echo {job} >result
tell end
"""

    def executions(self) -> dict[str, list[Execution]]:
        """Return all recorded executions by job, in the order of their start."""
        executions: dict[str, Execution] = {}
        for line in self._file.read_text().splitlines():
            fields = line.split()
            if len(fields) != 4:
                continue  # A line of a job that was killed while it wrote.
            job, mark, event, at = fields
            execution = executions.setdefault(mark, Execution(job=job, mark=mark, began=float(at), last=float(at)))
            execution.last = max(execution.last, float(at))
            execution.ends += event == "end"
            execution.clashes += event == "clash"
        jobs: dict[str, list[Execution]] = defaultdict(list)
        for execution in sorted(executions.values(), key=lambda execution: execution.began):
            jobs[execution.job].append(execution)
        return jobs

    def marks(self) -> set[str]:
        """Return the marks of all executions."""
        return {execution.mark for executions in self.executions().values() for execution in executions}


def overlap_seconds(executions: list[Execution]) -> float:
    """Return for how long two executions of one job ran at once."""
    total, last = 0.0, 0.0
    for execution in executions:
        total += max(0.0, min(last, execution.last) - execution.began) if last else 0.0
        last = max(last, execution.last)
    return total
