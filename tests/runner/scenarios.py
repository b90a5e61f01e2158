"""Runs test scenarios with the context of a job: real folders, a real cell and a real server, but no runner."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from deltaci.protocol.messages import Limits
from deltaci.runner.actions.context import JobContext
from deltaci.runner.sandbox.zygote import Zygote
from deltaci.runner.steps.expressions import JobExpressions
from deltaci.runner.workspace.caches import Caches
from deltaci.runner.workspace.collect_outputs import OutputCollector
from deltaci.runner.workspace.layout import layout_for
from deltaci.runner.workspace.source_policy import KNOWN_PROTOCOLS
from tests.runner.cells import executor_of
from tests.runner.leased_job import JobServer, LeasedJob, running_server

Scenario = Callable[[JobContext, LeasedJob], Coroutine[Any, Any, None]]


async def run_scenario_on(job_server: JobServer, scenario: Scenario, kind: str = "process", **spec: Any) -> None:
    """Lease a pipeline job with this spec and call the scenario with its context."""
    leased_job = await job_server.lease_job(**{"contexts": {"github": {"repository": "acme/shop"}}, **spec})
    zygote = Zygote()
    layout = layout_for(leased_job.spec, leased_job.workspace)
    layout.create()
    cell = executor_of(kind, zygote).cell(workspace=leased_job.workspace, limits=Limits(), network=False, image="")
    job = JobContext(
        spec=leased_job.spec,
        layout=layout,
        cell=cell,
        log=leased_job.log,
        transfers=leased_job.transfers,
        caches=Caches(leased_job.transfers, layout, leased_job.folder, leased_job.log),
        collector=OutputCollector(leased_job.transfers, layout.workspace, leased_job.log),
        expressions=JobExpressions(leased_job.spec, layout, runner_name="r1"),
        mirrors=job_server.folder / "mirrors",
        protocols=KNOWN_PROTOCOLS,
        timeout_seconds=60.0,
    )
    try:
        await scenario(job, leased_job)
    finally:
        assert await cell.close()
        await zygote.close()


async def run_scenario(folder: Path, scenario: Scenario, kind: str = "process", **spec: Any) -> None:
    """Call a scenario with a job of a new server."""
    async with running_server(folder) as job_server:
        await run_scenario_on(job_server, scenario, kind, **spec)
