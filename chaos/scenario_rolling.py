"""Everything is restarted, one part after the other, in order, while work flows: nobody notices but by waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Final

from chaos.deployment import Deployment, deployed
from chaos.rows import Row, measured
from chaos.stage import Stage
from deltaci.core.attempt import LEASED
from deltaci.core.instants import SECOND
from tests.support.nats_server import NatsServer
from tests.support.postgres_server import PostgresServer

FAULT: Final = "rolling restart of everything"
TTL_SECONDS: Final = 11
LONGEST_PAUSE_SECONDS: Final = 10.0


async def run(stage: Stage) -> AsyncIterator[Row]:
    """Two servers, three runners, NATS, PostgreSQL; twice around."""
    rounds = stage.size(2, 1)
    with PostgresServer() as database, NatsServer() as nats:
        words = ("--nats", nats.url)
        store = database.create_database()
        async with deployed(stage, "rolling", *words, store=store, servers=2, ttl_seconds=TTL_SECONDS) as deployment:
            runners = [deployment.add_runner(name, *words, slots=2) for name in ("r1", "r2", "r3")]
            async with deployment.work.steady_load(0.2, seconds=0.4):
                await deployment.wait_for_starts(2)
                for number in range(rounds):
                    stage.log(f"round {number + 1} of {rounds}")
                    await deployment.work.start_run()
                    for part in [*deployment.servers, *runners]:
                        await deployment.restart(part)
                        await going_on(deployment)
                    nats.kill()
                    nats.start()
                    await going_on(deployment)
                    await asyncio.to_thread(database.restart)
                    await going_on(deployment)
            found = await deployment.verdict(all_succeed=True)
    injected = f"SIGTERM and start of 2 servers, 3 runners, NATS and PostgreSQL in turn, {rounds} times around"
    grants = sorted(event.at / SECOND for event in found.log if event.to == LEASED)
    pauses = [after - before for before, after in pairwise(grants)]
    yield found.row(FAULT, injected)
    # A lease that is granted in the moment in which a runner hangs up on its long poll is nobody's until it is over.
    limit = rounds * len(runners)
    invariant = "a restart in order costs at most what was just being given to a runner that leaves"
    yield measured(FAULT, injected, invariant, found.lost_leases, "lost leases", limit)
    invariant = "work goes on meanwhile: the longest time without a grant"
    yield measured(FAULT, injected, invariant, max(pauses), "s", LONGEST_PAUSE_SECONDS)


async def going_on(deployment: Deployment) -> None:
    """Until a few more jobs have begun."""
    await deployment.wait_for_starts(len(deployment.work.witness.marks()) + 2)
