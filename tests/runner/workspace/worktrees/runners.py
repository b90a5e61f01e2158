"""Run real jobs on runners in this process, one lease at a time, against a server in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from deltaci.app import registration_token
from deltaci.core.attempt import Attempt
from deltaci.protocol import messages as wire
from deltaci.runner.client import RunnerClient
from deltaci.runner.job import JobRunner
from deltaci.runner.runtime import Runtime
from deltaci.runner.sandbox import Executors
from deltaci.runner.sandbox.cell_pool import CellPool
from deltaci.runner.workspace.source_policy import KNOWN_PROTOCOLS
from tests.controllers.site import RepositorySite
from tests.runner.cells import needs
from tests.server.rest.site import TENANT


class LocalRuntime(Runtime):
    """This machine, with local repositories allowed."""

    def git_protocols(self) -> tuple[str, ...]:
        return KNOWN_PROTOCOLS


class Worker:
    """One runner with its own folder."""

    def __init__(self, site: RepositorySite, name: str, client: RunnerClient, folder: Path, executor: str) -> None:
        self.site = site
        self.name = name
        self.client = client
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.machine = LocalRuntime(site.url)
        self.cell_pool = CellPool(folder, Executors((executor,)))

    @property
    def streams(self) -> Path:
        """Return the folder of its worktrees."""
        return self.folder.resolve() / "workstreams"

    async def lease(self) -> wire.LeaseGranted:
        """Claim one job, which must be available."""
        request = wire.LeaseRequest(runner_id=self.name, wait_seconds=20)
        [granted] = await asyncio.to_thread(self.client.lease, request)
        return granted

    def job(self, granted: wire.LeaseGranted) -> JobRunner:
        """Return the job runner of a granted job."""
        return JobRunner(self.client, self.name, granted, self.cell_pool, self.machine)

    async def work(self) -> str:
        """Run the next job to its end, and return its outcome in one word."""
        return await self.job(await self.lease()).run(lambda _: None)

    async def finished_streams(self, ids: list[str]) -> list[str]:
        """Ask the server which of these streams are finished."""
        return await asyncio.to_thread(self.client.ended_streams, ids)


@asynccontextmanager
async def worker(
    site: RepositorySite, folder: Path, name: str = "r1", executor: str = "sandbox"
) -> AsyncIterator[Worker]:
    """Register a runner, and close it in the end."""
    needs(executor)
    client = RunnerClient(site.url)
    token = registration_token(site.folder, name, TENANT)
    client.token = (await asyncio.to_thread(client.register, token, [], 9)).credential
    runner = Worker(site, name, client, folder / name, executor)
    try:
        yield runner
    finally:
        await runner.cell_pool.close()
        client.close_all()


async def find_attempt(site: RepositorySite, id: str) -> Attempt:
    """Return the record of an attempt."""
    record = await site.store.find(id)
    assert isinstance(record, Attempt), id
    return record


async def report_of(site: RepositorySite, id: str) -> dict[str, Any]:
    """Return what the runner reported about an attempt."""
    report: dict[str, Any] = (await find_attempt(site, id)).report
    return report


def log_of(site: RepositorySite, id: str, number: int = 1) -> str:
    """Return the log of an attempt."""
    return site.service.logs.read(id, number).decode()
