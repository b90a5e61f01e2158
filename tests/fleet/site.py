"""A server that looks after its fleet, one check at a time: the clock and the checks are moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from deltaci.core import run
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Plan
from deltaci.core.events import Event
from deltaci.core.run import Run
from deltaci.core.worker import Worker
from deltaci.fleet.health import HEALTH_SECONDS
from deltaci.fleet.liveness import Fleet
from tests.contract.places import EVERYTHING, Place, Server
from tests.lab import TENANT, task
from tests.server.site import LEASE_IDS, Runner, Site

STEP_SECONDS = HEALTH_SECONDS / 2


class FleetSite(Site):
    """One of the servers of a deployment, with the fleet as it sees it."""

    def __init__(self, place: Place, server: Server, folder: Path) -> None:
        self.fleet = Fleet(server.store, server.engine)
        super().__init__(place, server, folder, self.fleet)
        self._heard = 0

    async def hear(self) -> None:
        """Let the fleet hear what was committed since the last time."""
        events = await self.server.store.events(self._heard, EVERYTHING)
        if events:
            self._heard = events[-1].seq
            self.fleet.on_events(events)
        await self.fleet.refresh()

    async def check(self, *beside: FleetSite) -> None:
        """One health check, here and on the servers beside this one."""
        for each in (self, *beside):
            await each.hear()
            await each.fleet.check_health()
            await each.hear()

    async def quiet(self, seconds: float, *beside: FleetSite) -> None:
        """So much time passes, in which all servers look after the fleet and nobody says anything."""
        for _ in range(round(seconds / STEP_SECONDS)):
            self.place.after(STEP_SECONDS)
            await self.check(*beside)

    async def plan(self, run_id: str = "r1", **fields: Any) -> str:
        """A run with one job, which waits; the id of its attempt."""
        await self.server.do(NewRecord(id=run_id, record=Run(id=run_id, run_id=run_id, tenant=TENANT)))
        await self.server.do(run.BeginPlanning(id=run_id))
        job = task("a", **{"work": {"steps": ["true"]}, "max_attempts": 5, **fields})
        await self.server.do(Plan(id=run_id, jobs=(job,), plan_hash="p"))
        return f"{run_id}/a.1"

    async def worker(self, id: str = "w1") -> Worker:
        """A worker as everybody can read it."""
        return await self.server.find(id, Worker)

    async def state(self, id: str = "w1") -> str:
        """The state of its record."""
        return (await self.worker(id)).state

    async def steps(self, id: str = "w1") -> list[tuple[str, str]]:
        """What happened to a worker: each event's word, and how severe it was."""
        return [(each.trigger, each.severity) for each in await self.events(id)]

    async def events(self, id: str) -> list[Event]:
        """All that happened to it."""
        return await self.server.log(entity_id=id)

    def known(self, runner: Runner) -> Runner:
        """The same runner at this server."""
        return Runner(self, runner.id, runner.credential)


OpenFleet = Callable[[], AbstractAsyncContextManager[FleetSite]]


@asynccontextmanager
async def opened(place: Place, folder: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[FleetSite]:
    """A site that is open, and checked when it closes."""
    async with place.server(mint=LEASE_IDS.mint) as server:
        site = FleetSite(place, server, folder)
        await site.fleet.load()
        await site.hear()
        try:
            yield site
        finally:
            await site.close()
            site.uploads.close()
        await server.verified()
        await site.check_secrets(caplog)
