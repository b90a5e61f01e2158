"""A server with a reporter, runs to report, and a clock that jumps ahead instead of waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from deltaci.controllers.reporter import RunReporter
from deltaci.controllers.statuses import ForgeAccess
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
from deltaci.forges.status_decisions import StatusRetryPolicy, StatusState
from deltaci.server.follower import Follower
from deltaci.storage.blobs.logs import LogStore
from deltaci.storage.port import Store
from tests.contract.backends import Backend, Server, runner_message
from tests.forges.project_documents import ProjectDocuments
from tests.support.lab import TENANT, Lease, task

COMMIT: Final = "c0ffee1234" * 4
QUICK: Final = StatusRetryPolicy(initial_seconds=0.01, max_seconds=0.05, claim_seconds=5.0)


async def let_others_run(count: int) -> None:
    """Yield to the event loop so many times."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        future: asyncio.Future[None] = loop.create_future()
        loop.call_soon(future.set_result, None)
        await future


class JumpingClock:
    """A clock that moves only when somebody waits: then it jumps ahead by the waiting time."""

    def __init__(self, now: float = 1_767_500_000.0) -> None:
        self.now = now
        self.waited: list[float] = []

    def read(self) -> float:
        """Return the current time."""
        return self.now

    async def wait(self, seconds: float) -> None:
        """Move the clock ahead and let other tasks run, instead of sleeping."""
        self.waited.append(seconds)
        self.now += max(0.0, seconds)
        await let_others_run(5)


class ReplaceableProjects:
    """Looks up projects in another object, which a test may replace."""

    def __init__(self, projects: ForgeProjects) -> None:
        self.projects = projects

    async def find(self, tenant: str, project: str) -> ForgeProject | None:
        return await self.projects.find(tenant, project)


class ReportingServer:
    """A server that sends statuses, and its runs."""

    def __init__(
        self,
        server: Server,
        backend: Backend,
        reporter: RunReporter,
        directory: ReplaceableProjects,
        project_documents: ProjectDocuments,
        logs: LogStore,
    ) -> None:
        self._directory = directory
        self.server = server
        self.backend = backend
        self.reporter = reporter
        self.project_documents = project_documents
        self.logs = logs

    def replace_projects(self, instead: ForgeProjects) -> None:
        """Look up projects in another object from now on."""
        self._directory.projects = instead

    async def start_run(self, id: str = "r1", *, project: str = "p", commit: str = COMMIT, **fields: Any) -> None:
        """Create a queued run with one job, or with the given jobs."""
        self.backend.after(1)
        pipeline, is_fork = fields.pop("pipeline", "build"), fields.pop("is_fork", False)
        origin = Origin(project=project, commit=commit, template=pipeline, is_fork=is_fork)
        specs = fields.pop("jobs", (task("test"),))
        await self.server.do(NewRecord(id=id, record=Run(id=id, run_id=id, tenant=TENANT, origin=origin, **fields)))
        await self.server.do(run.BeginPlanning(id=id))
        await self.server.do(Plan(id=id, jobs=specs, plan_hash="hash"))

    async def start_job(self, by: str = "w1") -> Lease:
        """Let a worker claim and start a job."""
        lease = await self.server.take(by)
        await self.server.send(attempt.Start, lease)
        return lease

    def start_command(self, lease: Lease) -> Command:
        """Return the command by which a worker starts the job."""
        return runner_message(attempt.Start, lease)

    async def finish_job(self, lease: Lease, *, ok: bool = True, **fields: Any) -> None:
        """Let the worker complete the job."""
        facts = {} if ok else {"facts": Facts(exit_code=1)}
        code = 0 if ok else 1
        await self.server.send(attempt.Complete, lease, is_success=ok, exit_code=code, **facts, **fields)

    async def reported_event(self, id: str = "r1") -> Event:
        """Wait for the event by which the run is reported, and return it."""
        async for page in feed.pages(self.server.store, 0):
            for event in page:
                if (event.entity_id, event.to) == (id, run.REPORTED):
                    return event
        raise AssertionError("the log has no end")

    async def status_states(self) -> list[StatusState]:
        """Return the stored states of all contexts."""
        documents = await self.server.store.list_documents(delivery_dedupe.STATUS_KIND, ALL_TENANTS)
        return [msgspec.json.decode(document.body, type=StatusState) for document in documents]

    async def is_reported(self, id: str = "r1") -> bool:
        """Return whether the run is reported by now."""
        return await self.server.state(id) == run.REPORTED


@asynccontextmanager
async def reporting(
    backend: Backend,
    folder: Path,
    *,
    hosts: tuple[str, ...] = (),
    clock: JumpingClock | None = None,
    retry_policy: StatusRetryPolicy = QUICK,
    timeout_seconds: float = 5.0,
    wrap: Any = lambda store: store,
    client: ForgeHttpClient | None = None,
    is_started: bool = True,
) -> AsyncIterator[ReportingServer]:
    """Run a server over this store that sends statuses to forges."""
    async with backend.server(wrap) as server:
        store: Store = server.store
        project_documents, logs = ProjectDocuments(store), LogStore(folder / "logs")
        directory = ReplaceableProjects(project_documents)
        forges = ForgeAccess(
            directory,
            client or ForgeHttpClient(hosts, timeout_seconds=timeout_seconds),
            ReportBuilder(store, logs, "https://ci.example.org"),
            patience=retry_policy,
        )
        if clock is not None:
            forges = msgspec.structs.replace(forges, clock=clock.read, sleep=clock.wait, dice=lambda: 1.0)
        reporter = RunReporter(store, server.engine, forges)
        follower = Follower(store)
        follower.subscribe(reporter.on_events)
        await follower.start()
        if is_started:
            reporter.start()
        try:
            yield ReportingServer(server, backend, reporter, directory, project_documents, logs)
        finally:
            await reporter.stop()
            await follower.stop()
