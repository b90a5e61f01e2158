"""PostgreSQL goes away under load: restarted, killed, paused. Unknown commits are resolved by asking again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

from chaos.deployment import Deployment, deployed
from chaos.rows import Row, measured
from chaos.stage import Stage
from deltaci.core.attempt import LEASED
from deltaci.core.events import ATTEMPT
from deltaci.core.instants import SECOND
from tests.support.postgres_server import PostgresServer

FAULT: Final = "database restart, crash and pause"
TTL_SECONDS: Final = 11
DOWN_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 6.0
BACK_SECONDS: Final = 5.0  # Until work is taken and given again, once the database is back.


class Outage(NamedTuple):
    """How it goes away and comes back."""

    name: str
    go: Callable[[PostgresServer], None]
    back: Callable[[PostgresServer], None]
    seconds: float


OUTAGES: Final = (
    Outage("restarted in order", PostgresServer.stop, PostgresServer.start, 0.0),
    Outage(f"killed, away for {DOWN_SECONDS:.0f} s", PostgresServer.kill, PostgresServer.start, DOWN_SECONDS),
    Outage(
        f"all its processes paused for {PAUSE_SECONDS:.0f} s",
        PostgresServer.pause,
        PostgresServer.resume,
        PAUSE_SECONDS,
    ),
)


async def run(stage: Stage) -> AsyncIterator[Row]:
    """Each kind of outage, some times, with two servers and two runners."""
    with PostgresServer() as database:
        for number, outage in enumerate(OUTAGES[: stage.size(len(OUTAGES), 1)]):
            store = database.create_database()
            case = f"outage{number}"
            async with deployed(stage, case, store=store, servers=2, ttl_seconds=TTL_SECONDS) as deployment:
                async for row in outages(stage, deployment, database, outage, stage.size(2, 1)):
                    yield row


async def outages(
    stage: Stage, deployment: Deployment, database: PostgresServer, outage: Outage, times: int
) -> AsyncIterator[Row]:
    """The same outage a few times under load."""
    for name in ("r1", "r2"):
        deployment.add_runner(name, slots=2)
    backs: list[float] = []
    async with deployment.work.steady_load(0.1, seconds=0.3):
        await deployment.wait_for_starts(2)
        for number in range(times):
            await asyncio.to_thread(outage.go, database)
            await asyncio.sleep(outage.seconds)
            await asyncio.to_thread(outage.back, database)
            back = time.time()
            count = len(deployment.work.witness.marks())
            await deployment.wait_for_starts(count + 3)
            backs.append(back)
            stage.log(f"{outage.name}: {number + 1} of {times}, {len(deployment.work.failures)} calls failed so far")
    found = await deployment.verdict(all_succeed=True)
    grants = [event.at / SECOND for event in found.log if event.entity == ATTEMPT and event.to == LEASED]
    waits = [min((at for at in grants if at > back), default=back + 999) - back for back in backs]
    injected = f"PostgreSQL {outage.name}, {times} times, under load; two servers"
    unknown = f"{len(deployment.work.failures)} calls of the client failed and were made again"
    yield found.row(FAULT, injected, unknown)
    invariant = "work goes on when the database is back"
    yield measured(FAULT, injected, invariant, max(waits), "s until the next grant", BACK_SECONDS)
    yield measured(
        FAULT, injected, "how long a client waited", deployment.work.longest_seconds, "s unavailable at most"
    )
    yield measured(FAULT, injected, "leases that the outage cost", found.lost_leases, "lost leases")
