"""NATS is killed, comes back with nothing, and is paused, under load: only the latency may change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from chaos.deployment import Deployment, deployed
from chaos.parts import ManagedProcess
from chaos.rows import Row, measured, p99
from chaos.stage import Stage, wait_until
from deltaci.core.attempt import LEASED
from deltaci.core.instants import SECOND
from tests.support.nats_server import NatsServer
from tests.support.postgres_server import PostgresServer

FAULT: Final = "NATS killed, emptied and paused"
TTL_SECONDS: Final = 11
LINKED: Final = ": connected"
PAUSE_SECONDS: Final = 5.0
SWEEP_SECONDS: Final = 20.0  # Runners ask for what they may have missed after this at the latest.


async def run(stage: Stage) -> AsyncIterator[Row]:
    """One server, two runners, PostgreSQL; phase after phase."""
    count = stage.size(20, 3)
    with PostgresServer() as database, NatsServer() as nats:
        words = ("--nats", nats.url)
        store = database.create_database()
        async with deployed(stage, "nats", *words, store=store, ttl_seconds=TTL_SECONDS) as deployment:
            runners = [deployment.add_runner(name, *words, slots=2) for name in ("r1", "r2")]
            parts = [*deployment.servers, *runners]
            await linked(parts, 1)
            phases = {"with NATS": await give(stage, deployment, count, "with NATS")}
            nats.kill()
            phases["without it"] = await give(stage, deployment, count, "killed")
            nats.lose_everything()
            nats.start()
            phases["while it comes back with nothing"] = await give(stage, deployment, count, "emptied")
            await linked(parts, 2)
            nats.pause()
            phases["while it is paused"] = await give(stage, deployment, count, "paused")
            await asyncio.sleep(PAUSE_SECONDS)
            nats.resume()
            phases["when all is well again"] = await give(stage, deployment, count, "resumed")
            found = await deployment.verdict(all_succeed=True)
    injected = f"SIGKILL, restart with an empty folder, SIGSTOP for {PAUSE_SECONDS:.0f} s; {count} jobs in each phase"
    yield found.row(FAULT, injected)
    granted: dict[str, float] = {}
    for event in found.log:
        if event.to == LEASED:
            granted.setdefault(event.entity_id, event.at / SECOND)
    for phase, ids in phases.items():
        waits = sorted(granted[id] - deployment.work.asked_at[id] for id in ids if id in granted)
        middle = waits[len(waits) // 2] * 1000
        note = f"median {middle:.0f} ms"
        yield measured(FAULT, injected, f"enqueued to granted, p99, {phase}", p99(waits), "s", SWEEP_SECONDS, note)


async def give(stage: Stage, deployment: Deployment, count: int, phase: str) -> list[str]:
    """Jobs one by one, so that each finds a runner that waits; returns when they have begun."""
    stage.log(phase)
    ids = []
    for _ in range(count):
        before = len(deployment.work.witness.marks())
        ids += await deployment.work.enqueue_recorded(1, 0.1)
        await deployment.wait_for_starts(before + 1)
    return ids


async def linked(parts: list[ManagedProcess], times: int) -> None:
    """Until each of them says that it has NATS, for the first time or again."""
    for part in parts:
        await wait_until(lambda part=part: part.output.count(LINKED) >= times, f"{part.name} has NATS")  # type: ignore[misc]
