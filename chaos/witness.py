"""What jobs really did, told by themselves into a file outside: who began when, went on until when, and ended.

Times are the seconds since the machine was started, to a hundredth; whether two were there at once is also decided by
the kernel, with a lock that each holds as long as a process of it lives.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Final

import msgspec

TICK_SECONDS: Final = 0.1


class Execution(msgspec.Struct):
    """One cell of one job: `mark` is its own, and in the environment of all its processes."""

    job: str
    mark: str
    began: float
    last: float
    ends: int = 0
    clashes: int = 0


class Witness:
    """A file and a folder of locks."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._file = folder / "told"
        self._file.touch()
        self._locks = folder / "locks"
        self._locks.mkdir()

    def step(self, job: str, seconds: float) -> str:
        """A step that tells what it does, for so long."""
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
        """Everything that was told, by job, in the order in which they began."""
        found: dict[str, Execution] = {}
        for line in self._file.read_text().splitlines():
            words = line.split()
            if len(words) != 4:
                continue  # The last line of one that was killed while it wrote.
            job, mark, what, at = words
            each = found.setdefault(mark, Execution(job=job, mark=mark, began=float(at), last=float(at)))
            each.last = max(each.last, float(at))
            each.ends += what == "end"
            each.clashes += what == "clash"
        jobs: dict[str, list[Execution]] = defaultdict(list)
        for each in sorted(found.values(), key=lambda each: each.began):
            jobs[each.job].append(each)
        return jobs

    def marks(self) -> set[str]:
        """Of everybody who was ever there."""
        return {each.mark for found in self.executions().values() for each in found}


def overlap_seconds(executions: list[Execution]) -> float:
    """For how long two of one job were there at once."""
    total, last = 0.0, 0.0
    for each in executions:
        total += max(0.0, min(last, each.last) - each.began) if last else 0.0
        last = max(last, each.last)
    return total
