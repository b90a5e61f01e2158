"""The power goes, under load: what was not flushed to the disk is gone. Nothing that was acknowledged may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Final

from chaos.deployment import Deployment, deployed
from chaos.enqueuer import running_enqueuer
from chaos.filesystem import Filesystem
from chaos.parts import ManagedProcess
from chaos.rows import Row, measured
from chaos.speaker import Speakers
from chaos.stage import Stage, wait_until
from deltaci.core.attempt import Attempt
from tests.support.postgres_server import PostgresServer

FAULT: Final = "power loss"
TTL_SECONDS: Final = 3
DISK_MEGABYTES: Final = 400
CARELESS: Final = {"synchronous_commit": "off", "wal_writer_delay": "10s"}  # Says yes before anything is on the disk.


class Machine:
    """One deployment whose records are on a disk that can lose its power; what else lives there can die and rise."""

    def __init__(self, deployment: Deployment, disk: Filesystem, database: PostgresServer | None) -> None:
        self.deployment = deployment
        self.disk = disk
        self.speakers = Speakers(deployment, 2, slots=4)
        self.acknowledged = 0
        self._database = database
        self._server: ManagedProcess = deployment.add_server()
        self._draw = Random()
        deployment.load_balancer.is_open = False

    async def start(self) -> None:
        """And let runners in."""
        await self.deployment.start(self._server)
        self.deployment.load_balancer.is_open = True

    async def cut(self, number: int) -> list[str]:
        """Load, power loss, remount; what is gone of all that was promised until then."""
        await self.start()
        before = len(self.speakers.acknowledged)
        with running_enqueuer(self.deployment.store_url, f"cut{number}", self.deployment.environment) as enqueuer:
            await wait_until(lambda: len(self.speakers.acknowledged) > before + 4, "work is done")
            await asyncio.sleep(self._draw.uniform(0.2, 1.2))
            self.disk.lose_power()
        self.deployment.load_balancer.is_open = False
        await self._server.kill()
        if self._database is not None:
            await asyncio.to_thread(self._database.kill)
        self.disk.unmount()
        self.disk.mount()
        if self._database is not None:
            await asyncio.to_thread(self._database.start)
        self.deployment.work.acknowledged |= {id: id for id in enqueuer.acknowledged_ids}
        return await self._missing()

    async def _missing(self) -> list[str]:
        heard, work = list(self.speakers.acknowledged), self.deployment.work
        self.acknowledged = len(work.acknowledged) + len(heard)
        await work.open()
        try:
            ids = {*work.acknowledged, *(yes.ref.attempt_id for yes in heard)}
            records = {id: await work.store.find(id) for id in ids}
        finally:
            await work.close()
        there = {id: record for id, record in records.items() if isinstance(record, Attempt)}
        gone = [f"{id} was enqueued, and is not there" for id in work.acknowledged if id not in there]
        return gone + self.speakers.broken(there)


async def run(stage: Stage) -> AsyncIterator[Row]:
    """Of the disk with the SQLite file, and of the one with PostgreSQL's data; and of one that is known to lose."""
    cuts = stage.size(5, 1)
    with Filesystem(stage.make_folder("sqlite-disk"), DISK_MEGABYTES) as disk:
        data = disk.mount_point / "data"
        data.mkdir()
        async with deployed(
            stage, "sqlite", data=data, servers=0, ttl_seconds=TTL_SECONDS, is_open=False
        ) as deployment:
            async for row in lose(stage, Machine(deployment, disk, None), "SQLite", cuts):
                yield row
    with (
        Filesystem(stage.make_folder("pg-disk"), DISK_MEGABYTES) as disk,
        PostgresServer(parent=disk.mount_point) as database,
    ):
        async with on_disk(stage, "pg", disk, database) as machine:
            async for row in lose(stage, machine, "PostgreSQL", cuts):
                yield row
    careless = PostgresServer(CARELESS, parent=stage.folder / "careless-disk" / "disk")
    with Filesystem(stage.make_folder("careless-disk"), DISK_MEGABYTES) as disk, careless as database:
        async with on_disk(stage, "careless", disk, database) as machine:
            yield await control(machine)


@asynccontextmanager
async def on_disk(stage: Stage, name: str, disk: Filesystem, database: PostgresServer) -> AsyncIterator[Machine]:
    """A machine whose PostgreSQL lies on this disk."""
    store = database.create_database()
    disk.flush()  # The files of a new PostgreSQL are not; what it is told from now on must be.
    async with deployed(stage, name, store=store, servers=0, ttl_seconds=TTL_SECONDS, is_open=False) as deployment:
        yield Machine(deployment, disk, database)


async def lose(stage: Stage, machine: Machine, name: str, cuts: int) -> AsyncIterator[Row]:
    """So many times; then let everything come to its end."""
    deployment, lost = machine.deployment, 0
    async with machine.speakers.speaking():
        for number in range(cuts):
            missing = await machine.cut(number)
            lost += len(missing)
            told = f"{machine.acknowledged} acknowledged, {lost} lost {missing[:1] or ''}"
            stage.log(f"{name}: cut {number + 1} of {cuts}, {told}")
        await machine.start()
        await deployment.work.open()
        found = await deployment.verdict(90, all_succeed=True)
        await deployment.work.close()
    injected = f"{machine.disk.kind} on a loop device shut down without a flush, {cuts} times, under load; {name}"
    note = f"{machine.acknowledged} acknowledged: jobs that were enqueued, and answers to runners"
    yield measured(FAULT, injected, "nothing that was acknowledged is lost", lost, "lost", 0, note)
    yield found.row(FAULT, injected)


async def control(machine: Machine) -> Row:
    """The same cut takes something from a database that says yes too early: the power really goes."""
    async with machine.speakers.speaking():
        lost = len(await machine.cut(0))
    injected = f"the same with PostgreSQL's synchronous_commit=off, {machine.disk.kind}: a control"
    invariant = "what is not flushed is lost: the cut is a real one"
    note = f"{lost} of {machine.acknowledged} that were acknowledged are lost"
    return measured(FAULT, injected, invariant, float(not lost), "cuts that took nothing", 0, note)
