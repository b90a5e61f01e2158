"""Servers that are killed again and again, at any moment, while work flows: on SQLite, and two on one PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Final

from chaos.deployment import Deployment, deployed
from chaos.rows import Row, measured
from chaos.stage import Stage
from tests.support.postgres_server import PostgresServer

FAULT: Final = "server killed at random"
LONG_TTL_SECONDS: Final = 11  # A server that comes back in a second or two must not cost a lease.


async def run(stage: Stage) -> AsyncIterator[Row]:
    """First one server, then two."""
    async with deployed(stage, "sqlite", ttl_seconds=LONG_TTL_SECONDS) as deployment:
        async for row in kills(stage, deployment, "one server, SQLite", stage.size(12, 2)):
            yield row
    if stage.is_quick:
        return
    with PostgresServer() as database:
        store = database.create_database()
        async with deployed(stage, "postgres", store=store, servers=2, ttl_seconds=LONG_TTL_SECONDS) as deployment:
            async for row in kills(stage, deployment, "two servers, PostgreSQL", stage.size(16, 2)):
                yield row


async def kills(stage: Stage, deployment: Deployment, where: str, count: int) -> AsyncIterator[Row]:
    """Kill one of the servers, start it again, and so on, under load."""
    draw = Random()
    for name in ("r1", "r2"):
        deployment.add_runner(name, slots=2)
    injected = f"SIGKILL at random moments, {count} times; {where}"
    async with deployment.work.steady_load(0.3, batch=1):
        await deployment.work.start_run()
        await deployment.wait_for_starts(1)
        for number in range(count):
            await asyncio.sleep(draw.uniform(0.05, 0.8))
            server = draw.choice(deployment.servers)
            await server.kill()
            await deployment.start(server)
            stage.log(f"kill {number + 1} of {count} ({server.name})")
    found = await deployment.verdict(all_succeed=True)
    yield found.row(FAULT, injected)
    invariant = "a lease outlives its server: nothing is executed twice because of it"
    yield measured(FAULT, injected, invariant, found.lost_leases, "lost leases", None, f"{found.executions} executions")
