"""A stand-in for the workstream controllers, for tests of the API and the clients that need no repository."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from deltaci.app import Server
from deltaci.controllers.merge_queue.records import QueueView
from deltaci.controllers.workstreams.records import IntegratedTask, Workstream, WorkstreamRecords
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import StartRun
from deltaci.core.errors import Refused
from deltaci.core.machine import Command
from deltaci.core.plan import plan_hash
from deltaci.core.run import Origin, Run
from deltaci.pipeline.workstream import model
from deltaci.pipeline.workstream.compile import compile_jobs
from deltaci.protocol import messages as wire

BASE = "b" * 40
SPEC: dict[str, Any] = {
    "workstream": "login",
    "title": "Log in with a key",
    "project": "shop",
    "base": "main",
    "tasks": [
        {"name": "schema", "run": "make schema"},
        {"name": "api", "run": "make api", "needs": "schema", "post_execution": "make test"},
        {"name": "notes", "run": "make notes", "needs": ["schema"], "critical": False, "worktree": "own"},
    ],
    "merge": "squash",
}


class StandIn:
    """Creates workstreams with a plan, or without one if `is_planned` is false. It runs and validates nothing."""

    def __init__(self, service: Server, *, is_planned: bool = True) -> None:
        self._is_planned = is_planned
        self.records = WorkstreamRecords(service.store)
        self.waiting: list[QueueView] = []
        self._service = service
        service.control_plane.api._app_state = msgspec.structs.replace(
            service.control_plane.api._app_state, workstreams=self
        )

    async def create(
        self, tenant: str, stream: model.Workstream, *, id: str, by: str, request_id: str, fingerprint: str = ""
    ) -> Workstream:
        """Create the document of a workstream, then its run."""
        if stream.project != "shop":
            raise Refused("not_found", f"there is no project {stream.project!r}; deltaci project list shows them")
        made = Workstream(
            id=id,
            tenant=tenant,
            name=stream.workstream,
            project=stream.project,
            base=stream.base or "main",
            spec=msgspec.to_builtins(stream),
            created_by=by,
            base_commit=BASE,
            branch=f"ws/{stream.workstream}-{id[1:7]}",
        )
        await self.records.kept.add(tenant, id, made)
        source = wire.Source(url="https://127.0.0.1/shop.git", commit=BASE)
        specs = compile_jobs(stream, workstream_id=id, source=source, branch=made.branch)
        origin = Origin(
            project=made.project, branch=made.base, commit=BASE, title=stream.title, workstream=stream.workstream
        )
        record = Run(
            id=id,
            run_id=id,
            tenant=tenant,
            started_by=by,
            request_fingerprint=fingerprint,
            is_fail_fast=stream.fail_fast,
            origin=origin,
        )
        digest = plan_hash(specs, is_fail_fast=stream.fail_fast)
        command: Command = NewRecord(id=id, actor=f"user:{by}", record=record)
        if self._is_planned:
            command = StartRun(id=id, actor=f"user:{by}", record=record, jobs=specs, plan_hash=digest)
        await self._service.engine.do(command)
        return made

    async def queues(self, tenant: str) -> Sequence[QueueView]:
        """Return the queues that the test has set."""
        return self.waiting

    async def join(self, tenant: str, id: str, task: str, tip: str, **fields: str) -> None:
        """Record the commits of a task."""

        def change(before: Workstream | None) -> Workstream | None:
            assert before is not None
            joined = IntegratedTask(
                task=task, attempt_id=f"{id}/{task}.1", bundle="b", start=before.tip, head=tip, tip=tip
            )
            return msgspec.structs.replace(before, joined=(*before.joined, joined), **fields)

        await self.records.kept.update(tenant, id, change)
