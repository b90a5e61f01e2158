"""Runners in this process that do real jobs, one lease at a time, for a server beside them."""

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
from deltaci.runner.workspace.git import KNOWN_PROTOCOLS
from tests.api.site import TENANT
from tests.repositories.site import RepositorySite
from tests.runner.cells import needs


class LocalMachine(Runtime):
    """This machine, where repositories in folders may be read."""

    def git_protocols(self) -> tuple[str, ...]:
        """All of them."""
        return KNOWN_PROTOCOLS


class Worker:
    """One runner with a folder of its own."""

    def __init__(self, site: RepositorySite, name: str, client: RunnerClient, folder: Path, executor: str) -> None:
        self.site = site
        self.name = name
        self.client = client
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.machine = LocalMachine(site.url)
        self.places = CellPool(folder, Executors((executor,)))

    @property
    def streams(self) -> Path:
        """Where its trees are."""
        return self.folder.resolve() / "workstreams"

    async def lease(self) -> wire.LeaseGranted:
        """One job, which must be there."""
        asked = wire.LeaseRequest(runner_id=self.name, wait_seconds=20)
        [granted] = await asyncio.to_thread(self.client.lease, asked)
        return granted

    def job(self, granted: wire.LeaseGranted) -> JobRunner:
        """What does it."""
        return JobRunner(self.client, self.name, granted, self.places, self.machine)

    async def work(self) -> str:
        """Do one job to its end; how that went, in one word."""
        return await self.job(await self.lease()).run(lambda _: None)

    async def over(self, ids: list[str]) -> list[str]:
        """What the server says of these streams."""
        return await asyncio.to_thread(self.client.ended_streams, ids)


@asynccontextmanager
async def worker(
    site: RepositorySite, folder: Path, name: str = "r1", executor: str = "sandbox"
) -> AsyncIterator[Worker]:
    """A runner that has come in, until it leaves."""
    needs(executor)
    client = RunnerClient(site.url)
    token = registration_token(site.folder, name, TENANT)
    client.token = (await asyncio.to_thread(client.register, token, [], 9)).credential
    one = Worker(site, name, client, folder / name, executor)
    try:
        yield one
    finally:
        await one.places.close()
        client.close_all()


async def attempt(site: RepositorySite, id: str) -> Attempt:
    """Its record."""
    found = await site.store.find(id)
    assert isinstance(found, Attempt), id
    return found


async def told(site: RepositorySite, id: str) -> dict[str, Any]:
    """What its runner reported."""
    report: dict[str, Any] = (await attempt(site, id)).report
    return report


def log_of(site: RepositorySite, id: str, number: int = 1) -> str:
    """What its log says."""
    return site.service.logs.read(id, number).decode()
