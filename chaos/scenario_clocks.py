"""The time of day jumps, by an hour and by a day, forward and backward: of the runner, of the server, of the database.

Monotonic clocks go on, as they do when somebody sets a clock. Jobs run across each jump; none of them may lose its
lease, none may come back to life, and nothing may be done twice.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from typing import Any, Final

from chaos import clocks
from chaos.clocks import Clock
from chaos.deployment import Deployment, deployed
from chaos.rows import NotRun, Row, measured
from chaos.stage import Stage
from tests.support.postgres_server import PostgresServer

FAULT: Final = "clock jumps"
TTL_SECONDS: Final = 11  # Everything that is lost here is lost by the jump.
HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
JUMPS: Final = {"an hour forward": HOUR, "an hour back": -HOUR, "a day forward": DAY, "a day back": -DAY}
JOBS: Final = 3
JOB_SECONDS: Final = 5.0
DEAD_SECONDS: Final = 2 * TTL_SECONDS + 5.0

SPURIOUS: Final = "no mass expiry: who is heard keeps its lease"
DEAD: Final = "who is silent loses its lease in time, whatever the clock says"


async def run(stage: Stage) -> AsyncIterator[Row]:
    """Whose clock jumps, each in a deployment of its own, side by side."""
    if reason := clocks.unavailable_reason(stage.folder):
        raise NotRun(reason)
    targets = ["the runner", "the server", "the database"]
    for rows in asyncio.as_completed([_jumps(stage, target) for target in targets]):
        for row in await rows:
            yield row


async def _jumps(stage: Stage, target: str) -> list[Row]:
    case = target.rpartition(" ")[2]
    clock = Clock.made(stage.folder, f"clock-{case}")
    env: dict[str, dict[str, Any]] = {"server": {}, "runner": {}, "database": {}}
    env[case] = clock.environment
    rows: list[Row] = []
    with ExitStack() as stack:
        store = ""
        if case == "database":
            with clock.inherited():
                database = stack.enter_context(PostgresServer())
            store = database.create_database()
        async with deployed(stage, case, ttl_seconds=TTL_SECONDS, store=store, **env["server"]) as deployment:
            deployment.add_runner("r1", slots=JOBS, **env["runner"])
            deployment.add_runner("r2", slots=JOBS, **env["runner"])
            jumps = dict(list(JUMPS.items())[: stage.size(4, 1)])
            for name, seconds in jumps.items():
                rows.append(await _across(stage, deployment, target, name, lambda by=seconds: clock.jump(by)))  # type: ignore[misc]
            rows.append(await _dead(stage, deployment, target, lambda: clock.jump(-HOUR)))
            found = await deployment.verdict(all_succeed=True)
            rows.append(found.row(FAULT, f"{target}: {', '.join(jumps)}"))
    return rows


async def _across(stage: Stage, deployment: Deployment, target: str, name: str, jump: Callable[[], None]) -> Row:
    """Jobs that run while the clock jumps."""
    before = len(deployment.work.witness.marks())
    ids = await deployment.work.enqueue_recorded(JOBS, JOB_SECONDS)
    await deployment.wait_for_starts(before + JOBS)
    await asyncio.sleep(1.5)  # Every lease was proved once.
    jump()
    lost = 0
    for id in ids:
        await deployment.event(lambda event, id=id: event.entity_id == id and event.to == "SUCCEEDED", f"{id} is done")  # type: ignore[misc]
        record = await deployment.work.attempt(id)
        assert record is not None
        lost += record.lost_leases
    stage.log(f"{target}, {name}: {lost} of {JOBS} leases lost")
    return measured(FAULT, f"{target}: {name}", SPURIOUS, lost, "spurious expiries", 0)


async def _dead(stage: Stage, deployment: Deployment, target: str, jump: Callable[[], None]) -> Row:
    """A runner is killed and the clock is set back: nobody waits an hour for what it had."""
    before = len(deployment.work.witness.marks())
    [id] = await deployment.work.enqueue_recorded(1, JOB_SECONDS)
    await deployment.wait_for_starts(before + 1)
    runner = deployment.runners[await _holder(deployment, id)]
    jump()
    runner.send(signal.SIGKILL)
    began = asyncio.get_running_loop().time()
    await deployment.wait_for_starts(before + 2, DEAD_SECONDS)
    seconds = asyncio.get_running_loop().time() - began
    stage.log(f"{target}: found again {seconds:.1f} s after its runner was killed")
    return measured(FAULT, f"{target}: an hour back, and a runner is killed", DEAD, seconds, "s", DEAD_SECONDS)


async def _holder(deployment: Deployment, id: str) -> str:
    record = await deployment.work.attempt(id)
    assert record is not None
    assert record.lease is not None
    return record.lease.worker_id
