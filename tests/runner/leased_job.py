"""A real server on a real socket, and leased jobs with a workspace, a log and transfers, for tests of runner parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deltaci.app import HttpListener, Server, registration_token
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.protocol import messages as wire
from deltaci.protocol.messages import JobSpec
from deltaci.runner.client import RunnerClient
from deltaci.runner.log.job_log import JobLog
from deltaci.runner.log.sections import new_nonce
from deltaci.runner.log.stream import LogStream
from deltaci.runner.transfers import Transfers
from deltaci.storage.blobs.memory import MemoryBlobStore
from deltaci.storage.memory import MemoryStore

TENANT = "default"


class LeasedJob:
    """A job that a runner has leased, with its folders, log and transfers."""

    def __init__(self, folder: Path, service: Server, client: RunnerClient, granted: wire.LeaseGranted) -> None:
        self.service = service
        self.client = client
        self.lease_id = granted.lease_id
        assert granted.job_spec is not None
        self.spec: JobSpec = granted.job_spec
        self.folder = folder / granted.job_id
        self.workspace = self.folder / "workspace"
        self.workspace.mkdir(parents=True)
        self.is_stopped = False
        self._path = self.folder / "log"
        self._stream = LogStream(client, self.lease_id, self._path)
        self.log = JobLog(self._stream, new_nonce())
        self.transfers = Transfers(client, self.lease_id, lambda: self.is_stopped)

    @property
    def log_lines(self) -> list[str]:
        """The lines of the log without its header."""
        return self._path.read_text().splitlines()[1:]

    def close(self) -> None:
        """Close the log."""
        self._stream.close()


class JobServer:
    """A server and a registered runner that leases jobs from it."""

    def __init__(self, folder: Path, service: Server, client: RunnerClient) -> None:
        self.folder = folder
        self.service = service
        self.client = client
        self._leased_jobs: list[LeasedJob] = []

    async def lease_job(self, **spec: Any) -> LeasedJob:
        """Submit a job with this spec, lease it and acknowledge the lease."""
        id = f"q{len(self._leased_jobs)}"
        await self.service.engine.do(NewRecord(id=id, record=Attempt(id=id, tenant=TENANT, spec=spec)))
        [granted] = await asyncio.to_thread(self.client.lease, wire.LeaseRequest(runner_id="w1", wait_seconds=10))
        acknowledgement = wire.AckLease(
            lease_id=granted.lease_id, runner_id="w1", job_id=id, accepted_at=datetime.now(UTC)
        )
        await asyncio.to_thread(self.client.send, acknowledgement)
        self._leased_jobs.append(LeasedJob(self.folder, self.service, self.client, granted))
        return self._leased_jobs[-1]

    def close(self) -> None:
        """Close the logs of all jobs."""
        for leased_job in self._leased_jobs:
            leased_job.close()


@asynccontextmanager
async def running_server(folder: Path) -> AsyncIterator[JobServer]:
    """Run a server with blobs in memory and register a runner."""
    # One thread makes all calls, so that its connection can be closed at the end.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with Server(MemoryStore(), folder / "data", blobs=MemoryBlobStore()) as service:
        listener = HttpListener(service, "127.0.0.1", 0)
        serving = asyncio.create_task(listener.serve())
        client = RunnerClient(listener.url)
        try:
            token = registration_token(folder / "data", "w1", TENANT)
            client.token = (await asyncio.to_thread(client.register, token, [], 9)).credential
            job_server = JobServer(folder, service, client)
            try:
                yield job_server
            finally:
                job_server.close()
        finally:
            await asyncio.to_thread(client.close)
            listener.stop()
            await serving
