"""A job that is handed back: also one that has only just begun, and never one that is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.protocol import messages as wire
from deltaci.runner.job import JobRunner
from deltaci.runner.runtime import Runtime
from deltaci.runner.sandbox import Executors
from deltaci.runner.sandbox.cell_pool import CellPool
from tests.contract.backends import on_loop
from tests.runner.leased_job import TENANT, JobServer, running_server


@asynccontextmanager
async def taken(folder: Path, step: str) -> AsyncIterator[tuple[JobServer, JobRunner]]:
    """A server, and what does its one job with this step."""
    async with running_server(folder) as job_server:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(8))
        spec = {"steps": [step], "executor": "process"}
        await job_server.service.engine.do(NewRecord(id="q", record=Attempt(id="q", tenant=TENANT, spec=spec)))
        [granted] = await asyncio.to_thread(job_server.client.lease, wire.LeaseRequest(runner_id="w1", wait_seconds=10))
        (folder / "work").mkdir()
        places = CellPool(folder / "work", Executors(("process",)))
        try:
            yield job_server, JobRunner(job_server.client, "w1", granted, places, Runtime("http://127.0.0.1"))
        finally:
            await places.close()
            job_server.client.close_all()


@on_loop
async def test_what_has_not_begun_does_not_begin(tmp_path: Path) -> None:
    """The runner is asked to leave before it has said that it takes the job."""
    mark = tmp_path / "begun"
    async with taken(tmp_path, f"touch {mark}") as (job_server, job):
        job.hand_back()

        assert await job.run(lambda _: None) == "handed back"
        record = await job_server.service.store.find("q")
        assert isinstance(record, Attempt)
        assert record.state == "QUEUED"
        assert record.lost_leases == 0
        assert not mark.exists()


@on_loop
async def test_what_is_over_is_told(tmp_path: Path) -> None:
    """Its work is done: nobody should have to do it again."""
    async with taken(tmp_path, "true") as (job_server, job):
        tell = job._report_result

        async def told(*words: object) -> str:
            job.hand_back()
            return await tell(*words)  # type: ignore[arg-type]

        job._report_result = told  # type: ignore[method-assign, assignment]

        assert await job.run(lambda _: None) == "succeeded"
        record = await job_server.service.store.find("q")
        assert isinstance(record, Attempt)
        assert record.state == "SUCCEEDED"
