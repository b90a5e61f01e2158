"""Plan a workstream: determine its base, create its branch and its tasks."""

from __future__ import annotations

from msgspec.structs import replace

from deltaci.controllers.repositories.changes import default_branch
from deltaci.controllers.repositories.planner import begin_planning, say_plan
from deltaci.controllers.workstreams import files
from deltaci.controllers.workstreams.context import WorkstreamContext, spec_of
from deltaci.controllers.workstreams.records import Workstream
from deltaci.core import decide, run
from deltaci.core.plan import plan_hash
from deltaci.core.run import Run
from deltaci.pipeline.workstream.compile import compile_jobs
from deltaci.protocol.job_spec import Source


class WorkstreamPlanner:
    """Plans workstreams that have no plan."""

    def __init__(self, context: WorkstreamContext) -> None:
        self._context = context

    async def plan(self, stream: Workstream, record: Run) -> None:
        """Create the tasks. Asked again, it makes the same plan: where it begins is written down first."""
        spec = spec_of(stream)
        record = await begin_planning(self._context.engine, self._context.store, record)
        if record.cancel_reason:  # Whatever it would do: it ends as soon as it has a plan.
            await self._say(record, decide.Plan(id=record.id, jobs=(), plan_hash=plan_hash(())))
            return
        project = await self._context.project(stream)
        builder = await self._context.builder(stream)
        base = stream.base or await default_branch(project, builder.mirror)
        if not stream.base_commit:
            commit = await builder.fetch_branch(base)
            branch = f"ws/{stream.name}-{stream.id[-6:]}"

            def begun(known: Workstream | None) -> Workstream | None:
                if known is None or known.base_commit:
                    return known
                return replace(known, base=base, base_commit=commit, branch=branch)

            stream = await self._context.records.kept.update(stream.tenant, stream.id, begun) or stream
        source = Source(
            url=project.url,
            commit=stream.base_commit,
            ref=f"refs/heads/{stream.base}",
            depth=0,
            credential=project.credential,
        )
        jobs = compile_jobs(spec, workstream_id=stream.id, source=source, branch=stream.branch)
        seconds, wait_seconds = spec.timeout_minutes * 60, spec.optional_wait_minutes * 60
        hashed = plan_hash(
            jobs, is_fail_fast=spec.fail_fast, timeout_seconds=seconds, optional_wait_seconds=wait_seconds
        )
        files.ready(self._context.folder, stream, jobs)
        order = decide.Plan(
            id=record.id,
            jobs=jobs,
            plan_hash=hashed,
            is_fail_fast=spec.fail_fast,
            timeout_seconds=seconds,
            optional_wait_seconds=wait_seconds,
        )
        await self._say(record, order)

    async def fail(self, record: Run, why: str) -> None:
        """There is no plan, and the run says why; so does the workstream, first."""
        kept = self._context.records.kept
        await kept.update(record.tenant, record.id, lambda known: known and replace(known, problem=why))
        await self._say(record, run.PlanFailed(id=record.id, error=why))

    async def _say(self, record: Run, order: decide.Plan | run.PlanFailed) -> None:
        refused = await say_plan(self._context.engine, record, order)
        if refused is not None:
            raise refused
