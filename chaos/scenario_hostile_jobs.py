"""Jobs that do their worst on a real runner: it survives, says why they ended, leaves nobody, and others go on.

Nothing here is stronger than its limits: where a limit is not in force the job is not run, and that is said.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import msgspec

from chaos.deployment import Deployment, deployed
from chaos.jobs import MEGABYTE, over, read_log, small_disk, small_disk_unavailable_reason
from chaos.parts import processes_with
from chaos.rows import Row, measured, not_run, p99
from chaos.stage import Stage, TimedOut, wait_until
from deltaci.core.attempt import FAILED, SUCCEEDED, Attempt
from deltaci.core.instants import SECOND
from deltaci.runner.sandbox.process_tree import MARKER_VARIABLE
from tests.runner.sandbox.leftovers import DAEMONS

FAULT: Final = "fork bomb, memory hog, and other hostile jobs"
TTL_SECONDS: Final = 11
LIMITS: Final = {"processes": 64, "memory_bytes": 128 * MEGABYTE}
GONE_SECONDS: Final = 10.0
NEIGHBOUR_SECONDS: Final = 5.0
AT_ONCE: Final = 3
DISK: Final = "small-disk"
DISK_BYTES: Final = 32 * MEGABYTE
MARKED: Final = f'echo "mark=${MARKER_VARIABLE}"\n'


class Case(msgspec.Struct, frozen=True):
    """A job, how it must end, and a word that its failure or its log must have: the cause."""

    script: str
    state: str
    cause: str
    seconds: int = 0
    needs: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


CASES: Final[Mapping[str, Case]] = {
    "fork bomb": Case("bomb() { bomb | bomb & }; bomb; while :; do sleep 1; done", FAILED, "TIMED_OUT", 5, ("pids",)),
    "memory hog": Case(
        f"exec {sys.executable} -c 'kept = [bytearray(1 << 24) for _ in range(100)]'", FAILED, "SIGNAL", 0, ("memory",)
    ),
    "daemons that outlive it": Case(DAEMONS, SUCCEEDED, ""),
    "deaf to SIGTERM": Case("trap '' TERM; while :; do sleep 1; done", FAILED, "TIMED_OUT", 2),
    "stops itself": Case("kill -STOP $$", FAILED, "TIMED_OUT", 2),
    "closes its output": Case("exec >&- 2>&-; sleep 1; exit 3", FAILED, "EXIT"),
    "kills its parent": Case("kill -9 $PPID; sleep 30", FAILED, ""),
    "removes its workspace": Case('rm -rf "$HOME"; exit 4', FAILED, "EXIT"),
    "fills the disk": Case("head -c 1G /dev/zero > large", FAILED, "No space left", 0, ("disk",), (DISK,)),
    "talks on a full disk": Case(
        "head -c 1G /dev/zero > large || true; seq 1 100000", SUCCEEDED, "", 0, ("disk",), (DISK,)
    ),
}


async def run(stage: Stage) -> AsyncIterator[Row]:
    """Each beside small honest jobs on the same runner."""
    async with deployed(stage, "hostile", ttl_seconds=TTL_SECONDS) as deployment:
        lacking = await _lacking(stage, deployment)
        quiet = await _neighbours(deployment, lambda count: count >= 15)
        stage.log(f"an honest job takes {p99(quiet):.2f} s (p99) while nothing happens")
        parts = [*deployment.servers, *deployment.runners.values()]
        pids = [part.pid for part in parts]
        keepers = [deployment.keeper(runner) for runner in deployment.runners.values()]
        worst: dict[str, float] = {}
        for name, case in list(CASES.items())[: stage.size(len(CASES), 3)]:
            if missing := [lacking[need] for need in case.needs if need in lacking]:
                yield not_run(FAULT, name, "; ".join(missing))
                continue
            stage.log(name)
            row, worst[name] = await _play(deployment, name, case)
            yield row
        crashed = [part.name for part, pid in zip(parts, pids, strict=True) if not part.is_running or part.pid != pid]
        if keepers != [deployment.keeper(runner) for runner in deployment.runners.values()]:
            crashed.append("a keeper")
        yield measured(FAULT, "all of these", "runner and server survive", len(crashed), "crashes", 0, str(crashed))
        slowest = max(worst, key=lambda name: worst[name])
        note = f"beside: {slowest}; {p99(quiet):.2f} s while nothing happens"
        yield measured(FAULT, "all of these", "neighbours go on", worst[slowest], "s (p99)", NEIGHBOUR_SECONDS, note)
        yield (await deployment.verdict()).row(FAULT, "all of these")


async def _lacking(stage: Stage, deployment: Deployment) -> dict[str, str]:
    """Start the runners; what cannot be had here, and why: told by a job's own log."""
    runner = deployment.add_runner("r1", slots=4)
    lacking = {}
    if reason := small_disk_unavailable_reason():
        lacking["disk"] = reason
    else:
        small = deployment.add_runner("r2", "--labels", DISK, wrapper=small_disk(deployment.folder / "r2", DISK_BYTES))
        await small.wait_for_output("waiting for work")
    await runner.wait_for_output("waiting for work")
    record = await over(deployment, await deployment.work.ask(_spec("true")))
    told = read_log(deployment, record).decode()
    for controller, words in (
        ("pids", "64 processes (cgroup)"),
        ("memory", f"{LIMITS['memory_bytes']} bytes (cgroup)"),
    ):
        if words not in told:
            lacking[controller] = f"the limit of {controller} is not in force here"
    stage.log(next((line for line in told.splitlines() if "limits:" in line), told[:200]))
    return lacking


def _spec(script: str, seconds: int = 0) -> dict[str, Any]:
    step = {"run": MARKED + script, "timeout_seconds": seconds}
    return {"steps": [step], "executor": "process", "limits": LIMITS}


async def _play(deployment: Deployment, name: str, case: Case) -> tuple[Row, float]:
    id = await deployment.work.ask(_spec(case.script, case.seconds), labels=case.labels)
    hostile = asyncio.create_task(over(deployment, id, 60.0))
    beside = await _neighbours(deployment, lambda count: hostile.done() and count >= 3)
    record = await hostile
    wrong = _ended(deployment, record, case)
    marks = {line.partition(b"=")[2].decode() for line in read_log(deployment, record).splitlines() if b"mark=" in line}
    try:
        await wait_until(lambda: not processes_with(MARKER_VARIABLE, marks), "everybody is gone", GONE_SECONDS)
    except TimedOut:
        wrong.append(f"{len(processes_with(MARKER_VARIABLE, marks))} processes are left")
    told = f"{record.state}: {record.error.code}: {record.error.message[:80]}" if record.error else record.state
    note = "; ".join([*wrong, told])
    return measured(FAULT, name, "it ends, its cause is told, nobody is left", len(wrong), "violations", 0, note), p99(
        beside
    )


def _ended(deployment: Deployment, record: Attempt, case: Case) -> list[str]:
    wrong = []
    if (record.state, record.lost_leases) != (case.state, 0):
        wrong.append(f"it is {record.state} after {record.lost_leases} lost leases, expected {case.state}")
    told = f"{record.error}" + read_log(deployment, record).decode(errors="replace")
    if case.cause not in told:
        wrong.append(f"nothing says {case.cause!r}")
    return wrong


async def _neighbours(deployment: Deployment, is_enough: Callable[[int], bool]) -> list[float]:
    """How long honest jobs take, a few at a time, from the question to the result."""
    seconds: list[float] = []
    while not is_enough(len(seconds)):
        ids = [await deployment.work.ask({"steps": ["true"], "executor": "process"}) for _ in range(AT_ONCE)]
        for record in await asyncio.gather(*(over(deployment, id) for id in ids)):
            assert record.state == SUCCEEDED, record
            seconds.append((record.updated_at - record.created_at) / SECOND)
    return seconds
