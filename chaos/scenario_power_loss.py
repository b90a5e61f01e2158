"""The power goes, under load: what was not flushed to the disk is gone. Nothing that was acknowledged may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Final

from chaos.deployment import Deployment, deployed
from chaos.enqueuer import enqueuing
from chaos.filesystem import Filesystem
from chaos.rows import Row, measured
from chaos.speaker import Speakers
from chaos.stage import Stage, until
from deltaci.core.attempt import Attempt
from tests.servers import PostgresServer

FAULT: Final = "power loss"
TTL_SECONDS: Final = 3


async def run(stage: Stage) -> AsyncIterator[Row]:
    """Of the disk with the SQLite file, and of the one with PostgreSQL's data."""
    cuts = stage.size(6, 1)
    folder = stage.place("sqlite-disk")
    with Filesystem(folder, 400) as disk:
        data = disk.place / "data"
        data.mkdir()
        async with deployed(stage, "sqlite", data=data, servers=0, ttl_seconds=TTL_SECONDS, is_open=False) as place:
            async for row in cut(stage, place, disk, "SQLite", cuts, lambda: None, lambda: None):
                yield row
    folder = stage.place("postgres-disk")
    with Filesystem(folder, 400) as disk, PostgresServer(parent=disk.place) as database:
        store = database.create_database()
        disk.flush()  # The files of a new PostgreSQL are not; what it is told from now on must be.
        async with deployed(stage, "pg", store=store, servers=0, ttl_seconds=TTL_SECONDS, is_open=False) as place:
            async for row in cut(stage, place, disk, "PostgreSQL", cuts, database.kill, database.start):
                yield row
        database.stop()


async def cut(
    stage: Stage,
    place: Deployment,
    disk: Filesystem,
    name: str,
    cuts: int,
    die: Callable[[], None],
    rise: Callable[[], None],
) -> AsyncIterator[Row]:
    """So many times: load, power loss, remount, and a look at all that was promised until then."""
    draw, server, lost, acknowledged = Random(), place.add_server(), 0, 0
    speakers = Speakers(place, 2, slots=4)
    place.front.is_open = False
    with speakers.speaking():
        for number in range(cuts):
            await place.start(server)
            place.front.is_open = True
            with enqueuing(place.store_url, f"cut{number}", place.environment) as enqueuer:
                before = len(speakers.heard)
                await until(lambda before=before: len(speakers.heard) > before + 4, "work is done")  # type: ignore[misc]
                await asyncio.sleep(draw.uniform(0.2, 1.2))
                disk.lose_power()
            place.front.is_open = False
            await server.kill()
            die()
            disk.unmount()
            disk.mount()
            rise()
            place.work.acknowledged |= {id: id for id in enqueuer.promised}
            missing, answers = await look(place, speakers)
            lost += len(missing)
            acknowledged = len(place.work.acknowledged) + answers
            stage.say(f"{name}: cut {number + 1} of {cuts}, {acknowledged} acknowledged, {lost} lost {missing[:1]}")
        await place.start(server)
        place.front.is_open = True
        await place.work.open()
        found = await place.verdict(90)
        await place.work.close()
        await server.stop()
    injected = f"{disk.kind} on a loop device shut down without a flush, {cuts} times, under load; {name}"
    note = f"{acknowledged} acknowledged: jobs that were enqueued, and answers to runners"
    yield measured(FAULT, injected, "nothing that was acknowledged is lost", lost, "lost", 0, note)
    yield found.row(FAULT, injected)


async def look(place: Deployment, speakers: Speakers) -> tuple[list[str], int]:
    """What is gone of what was promised, and how much was promised to runners."""
    heard = list(speakers.heard)
    await place.work.open()
    try:
        ids = {*place.work.acknowledged, *(yes.ref.attempt_id for yes in heard)}
        records = {id: await place.work.store.find(id) for id in ids}
    finally:
        await place.work.close()
    there = {id: record for id, record in records.items() if isinstance(record, Attempt)}
    gone = [f"{id} was enqueued, and is not there" for id in place.work.acknowledged if id not in there]
    seen = Speakers(place, 0)
    seen.heard = heard
    return gone + seen.broken(there), len(heard)
