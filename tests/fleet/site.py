"""A server with a fleet whose clock and health checks are driven by the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from deltaci.core import run
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Plan
from deltaci.core.events import Event
from deltaci.core.lease import TTL_SECONDS
from deltaci.core.run import Run
from deltaci.core.worker import Worker
from deltaci.fleet.health import HEALTH_SECONDS
from deltaci.fleet.liveness import Fleet
from tests.contract.backends import EVERYTHING, Backend, Server
from tests.server.site import LEASE_ID_MINTER, RegisteredRunner, Site
from tests.support.lab import TENANT, task

STEP_SECONDS = HEALTH_SECONDS / 2


class FleetSite(Site):
    """One server of a deployment, with its fleet."""

    def __init__(self, backend: Backend, server: Server, folder: Path, ttl_seconds: int) -> None:
        self.fleet = Fleet(server.store, server.engine)
        super().__init__(backend, server, folder, self.fleet, ttl_seconds)
        self._last_seq = 0

    async def receive_events(self) -> None:
        """Pass the events that were committed since the last call to the fleet."""
        events = await self.server.store.events(self._last_seq, EVERYTHING)
        if events:
            self._last_seq = events[-1].seq
            self.fleet.on_events(events)
        await self.fleet.refresh()

    async def check(self, *others: FleetSite) -> None:
        """Run one health check on this server and on the others."""
        for site in (self, *others):
            await site.receive_events()
            await site.fleet.check_health()
            await site.receive_events()

    async def pass_silently(self, seconds: float, *others: FleetSite) -> None:
        """Advance the clock while no worker sends anything and all servers run their health checks."""
        for _ in range(round(seconds / STEP_SECONDS)):
            self.backend.after(STEP_SECONDS)
            await self.check(*others)

    async def attempt(self, id: str = "r1/a.1") -> Attempt:
        """Return an attempt's record from the store."""
        return await self.server.find(id, Attempt)

    async def plan(self, run_id: str = "r1", **fields: Any) -> str:
        """Create a run with one queued job; return the id of its attempt."""
        await self.server.do(NewRecord(id=run_id, record=Run(id=run_id, run_id=run_id, tenant=TENANT)))
        await self.server.do(run.BeginPlanning(id=run_id))
        job = task("a", **{"work": {"steps": ["true"]}, "max_attempts": 5, **fields})
        await self.server.do(Plan(id=run_id, jobs=(job,), plan_hash="p"))
        return f"{run_id}/a.1"

    async def worker(self, id: str = "w1") -> Worker:
        """Return a worker's record from the store."""
        return await self.server.find(id, Worker)

    async def state(self, id: str = "w1") -> str:
        """Return the state of a worker's record."""
        return (await self.worker(id)).state

    async def steps(self, id: str = "w1") -> list[tuple[str, str]]:
        """Return trigger and severity of each event of a worker."""
        return [(event.trigger, event.severity) for event in await self.events(id)]

    async def events(self, id: str) -> list[Event]:
        """Return all events of a worker."""
        return await self.server.log(entity_id=id)

    def connected(self, runner: RegisteredRunner) -> RegisteredRunner:
        """Return the same runner, connected to this server."""
        return RegisteredRunner(self, runner.id, runner.credential)


OpenFleet = Callable[..., AbstractAsyncContextManager[FleetSite]]


@asynccontextmanager
async def opened(
    backend: Backend, folder: Path, caplog: pytest.LogCaptureFixture, ttl_seconds: int = TTL_SECONDS
) -> AsyncIterator[FleetSite]:
    """Open a site; when it closes, verify its log and that no secret was logged."""
    async with backend.server(mint=LEASE_ID_MINTER.mint) as server:
        site = FleetSite(backend, server, folder, ttl_seconds)
        await site.fleet.load()
        await site.receive_events()
        try:
            yield site
        finally:
            await site.close()
            site.job_data.close()
        await server.verified()
        await site.check_secrets(caplog)
