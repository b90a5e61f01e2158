"""One job's stage without a runner: real folders, a real cell, a real server behind it."""

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
from deltaci.runner.workspace.git import KNOWN_PROTOCOLS
from deltaci.runner.workspace.layout import layout_for
from tests.runner.cells import executor_of
from tests.runner.desk import Desk, Office, opened

Story = Callable[[JobContext, Desk], Coroutine[Any, Any, None]]


async def staged(office: Office, story: Story, kind: str = "process", **spec: Any) -> None:
    """Tell a story about one job of a pipeline."""
    desk = await office.desk(**{"contexts": {"github": {"repository": "acme/shop"}}, **spec})
    zygote = Zygote()
    layout = layout_for(desk.spec, desk.workspace)
    layout.create()
    cell = executor_of(kind, zygote).cell(workspace=desk.workspace, limits=Limits(), network=False, image="")
    stage = JobContext(
        spec=desk.spec,
        layout=layout,
        cell=cell,
        log=desk.log,
        transfers=desk.transfers,
        caches=Caches(desk.transfers, layout, desk.folder, desk.log),
        collector=OutputCollector(desk.transfers, layout.workspace, desk.log),
        expressions=JobExpressions(desk.spec, layout, runner="r1"),
        mirrors=office.folder / "mirrors",
        protocols=KNOWN_PROTOCOLS,
        timeout_seconds=60.0,
    )
    try:
        await story(stage, desk)
    finally:
        assert await cell.close()
        await zygote.close()


async def on_stage(folder: Path, story: Story, kind: str = "process", **spec: Any) -> None:
    """The same, with a server of its own."""
    async with opened(folder) as office:
        await staged(office, story, kind, **spec)
