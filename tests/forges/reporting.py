"""A server with a reporter, runs to report, and a clock that jumps ahead instead of waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from deltaci.controllers.reporter import Reporter
from deltaci.controllers.statuses import Forges
from deltaci.core import attempt, run
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Plan
from deltaci.core.events import Event
from deltaci.core.failures import Facts
from deltaci.core.listing import ALL_TENANTS
from deltaci.core.machine import Command
from deltaci.core.run import Origin, Run
from deltaci.engine import feed
from deltaci.forges import delivery_dedupe
from deltaci.forges.http import ForgeHttpClient
from deltaci.forges.projects import ForgeProject, ForgeProjects
from deltaci.forges.reports import ReportBuilder
from deltaci.forges.status_state import StatusRetryPolicy, StatusState
from deltaci.server.follower import Follower
from deltaci.storage.blobs.logs import LogStore
from deltaci.storage.port import Store
from tests.contract.places import Place, Server, saying
from tests.forges.notebook import Notebook
from tests.lab import TENANT, Lease, task

COMMIT: Final = "c0ffee1234" * 4
QUICK: Final = StatusRetryPolicy(initial_seconds=0.01, max_seconds=0.05, claim_seconds=5.0)


async def turns(count: int) -> None:
    """Everybody else has so many turns first."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        future: asyncio.Future[None] = loop.create_future()
        loop.call_soon(future.set_result, None)
        await future


class Jumping:
    """A clock that stands still, and jumps when somebody waits for a time."""

    def __init__(self, now: float = 1_767_500_000.0) -> None:
        self.now = now
        self.waited: list[float] = []

    def read(self) -> float:
        """What it says."""
        return self.now

    async def wait(self, seconds: float) -> None:
        """No time passes, but the clock is that much later; everybody else has a turn first."""
        self.waited.append(seconds)
        self.now += max(0.0, seconds)
        await turns(5)


class Directory:
    """Where projects are looked up, until a case puts something else there."""

    def __init__(self, projects: ForgeProjects) -> None:
        self.projects = projects

    async def find(self, tenant: str, project: str) -> ForgeProject | None:
        """As it is there."""
        return await self.projects.find(tenant, project)


class Desk:
    """One server that reports."""

    def __init__(
        self,
        server: Server,
        place: Place,
        reporter: Reporter,
        directory: Directory,
        notebook: Notebook,
        logs: LogStore,
    ) -> None:
        self._directory = directory
        self.server = server
        self.place = place
        self.reporter = reporter
        self.notebook = notebook
        self.logs = logs

    def projects(self, instead: ForgeProjects) -> None:
        """Look projects up there."""
        self._directory.projects = instead

    async def begin(self, id: str = "r1", *, project: str = "p", commit: str = COMMIT, **fields: Any) -> None:
        """A run of one job, or of these, that is queued."""
        self.place.after(1)
        pipeline, is_fork = fields.pop("pipeline", "build"), fields.pop("is_fork", False)
        origin = Origin(project=project, commit=commit, template=pipeline, is_fork=is_fork)
        specs = fields.pop("jobs", (task("test"),))
        await self.server.do(NewRecord(id=id, record=Run(id=id, run_id=id, tenant=TENANT, origin=origin, **fields)))
        await self.server.do(run.BeginPlanning(id=id))
        await self.server.do(Plan(id=id, jobs=specs, plan_hash="hash"))

    async def work(self, by: str = "w1") -> Lease:
        """A worker takes a job, and starts."""
        lease = await self.server.take(by)
        await self.server.say(attempt.Start, lease)
        return lease

    def started(self, lease: Lease) -> Command:
        """The word of a worker that it has begun."""
        return saying(attempt.Start, lease)

    async def end(self, lease: Lease, *, ok: bool = True, **fields: Any) -> None:
        """And ends."""
        facts = {} if ok else {"facts": Facts(exit_code=1)}
        code = 0 if ok else 1
        await self.server.say(attempt.Complete, lease, is_success=ok, exit_code=code, **facts, **fields)

    async def reported(self, id: str = "r1") -> Event:
        """Wait for the last event of the run."""
        async for page in feed.pages(self.server.store, 0):
            for event in page:
                if (event.entity_id, event.to) == (id, run.REPORTED):
                    return event
        raise AssertionError("the log has no end")

    async def told(self) -> list[StatusState]:
        """What the documents say."""
        found = await self.server.store.list_documents(delivery_dedupe.STATUS_KIND, ALL_TENANTS)
        return [msgspec.json.decode(each.body, type=StatusState) for each in found]

    async def is_reported(self, id: str = "r1") -> bool:
        """Whether it is, by now."""
        return await self.server.state(id) == run.REPORTED


@asynccontextmanager
async def desk(
    place: Place,
    folder: Path,
    *,
    allowed: tuple[str, ...] = (),
    clock: Jumping | None = None,
    patience: StatusRetryPolicy = QUICK,
    seconds: float = 5.0,
    wrap: Any = lambda store: store,
    outlet: ForgeHttpClient | None = None,
    is_started: bool = True,
) -> AsyncIterator[Desk]:
    """A server over this place that reports to forges."""
    async with place.server(wrap) as server:
        store: Store = server.store
        notebook, logs = Notebook(store), LogStore(folder / "logs")
        directory = Directory(notebook)
        forges = Forges(
            directory,
            outlet or ForgeHttpClient(allowed, timeout_seconds=seconds),
            ReportBuilder(store, logs, "https://ci.example.org"),
            patience=patience,
        )
        if clock is not None:
            forges = msgspec.structs.replace(forges, clock=clock.read, sleep=clock.wait, dice=lambda: 1.0)
        reporter = Reporter(store, server.engine, forges)
        follower = Follower(store)
        follower.tell(reporter.hear)
        await follower.start()
        if is_started:
            reporter.start()
        try:
            yield Desk(server, place, reporter, directory, notebook, logs)
        finally:
            await reporter.stop()
            await follower.stop()
