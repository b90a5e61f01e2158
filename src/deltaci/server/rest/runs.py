"""Runs: start, find, read, stop, decide, repeat."""

from __future__ import annotations

from typing import Final

import msgspec

from deltaci.api.routes import REPLAYED_HEADER, ROOT
from deltaci.api.schemas import records as api
from deltaci.api.schemas.inputs import DecisionInput, PlanInput, RerunInput, RunInput, RunQuery
from deltaci.controllers.planner import Reasons, reasons_of
from deltaci.core import job, listing, run
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import StartRun
from deltaci.core.errors import Refused
from deltaci.core.instants import from_datetime
from deltaci.core.job import Job, JobSpec, select_gates
from deltaci.core.machine import Command
from deltaci.core.plan import plan_hash, rerun_jobs
from deltaci.core.run import Origin, Run
from deltaci.server.rest import changes, job_specs, serializers
from deltaci.server.rest.http.cursors import cursor, place
from deltaci.server.rest.http.idempotency import Repeat
from deltaci.server.rest.http.lookup import family_of, jobs_of, run_of
from deltaci.server.rest.http.request import Call, Handler, Made
from deltaci.server.rest.templates import template_of
from deltaci.storage.port import ListQuery

# -- start and repeat


async def start_run(call: Call) -> Made:
    """From a template or a plan; one decision, one commit. With an idempotency key, once for all repeats."""
    asked: RunInput = call.body
    repeat = Repeat(call, "start", asked)
    if (known := await repeat.known()) is not None:
        return _made(known, 200, is_repeat=True)
    if asked.template is None and asked.plan is None and asked.repository:
        await call.parts.tenants.check_queue(call.who.tenant)
        return await _born(call, repeat, await changes.started(call, asked, repeat.run()))
    plan, origin = await _wanted(call, asked)
    specs = job_specs.specs(plan, job_specs.as_env(origin.inputs))
    record = repeat.run(is_fail_fast=plan.fail_fast, timeout_seconds=plan.timeout_seconds, origin=origin)
    return await _start(call, repeat, record, specs)


async def _wanted(call: Call, asked: RunInput) -> tuple[PlanInput, Origin]:
    origin = Origin(
        project=asked.project,
        branch=asked.branch,
        repository=asked.repository,
        commit=asked.commit,
        title=asked.title,
        labels=tuple(dict.fromkeys(asked.labels)),
    )
    if (asked.template is None) == (asked.plan is None):
        found = "both" if asked.plan is not None else "neither"
        more = ", or a 'repository' instead" if found == "neither" else ""
        raise Refused("bad_request", f"{found} of 'template' and 'plan' is given; give exactly one of them{more}")
    if asked.file:
        raise Refused("bad_request", "'file' belongs to a repository; leave it out with a template or a plan")
    if asked.plan is not None:
        if asked.inputs or asked.version is not None:
            raise Refused("bad_request", "'inputs' and 'version' belong to a template; leave them out with a plan")
        return asked.plan, origin
    template = await template_of(call, str(asked.template), asked.version)
    inputs = job_specs.filled_in(template.inputs, asked.inputs)
    return template.plan, msgspec.structs.replace(
        origin, template=template.name, template_version=template.version, inputs=inputs
    )


async def rerun_run(call: Call) -> Made:
    """A new run that points at the old one."""
    asked: RerunInput = call.body
    repeat = Repeat(call, f"rerun {call.params['run']}", asked)
    if (known := await repeat.known()) is not None:
        return _made(known, 200, is_repeat=True)
    of = await run_of(call)
    if of.origin.workstream:
        raise Refused(
            "wrong_state", f"{of.id} is a workstream, with a branch of its own; create it once more from its file"
        )
    specs = rerun_jobs(of, await jobs_of(call, of), failed_only=asked.failed_only)
    record = repeat.run(
        is_fail_fast=of.is_fail_fast, timeout_seconds=of.timeout_seconds, origin=of.origin, rerun_of=of.id
    )
    return await _start(call, repeat, record, specs)


async def _start(call: Call, repeat: Repeat, record: Run, specs: tuple[JobSpec, ...]) -> Made:
    await call.parts.tenants.check_queue(record.tenant)
    hashed = plan_hash(specs, is_fail_fast=record.is_fail_fast, timeout_seconds=record.timeout_seconds)
    order = StartRun(
        id=record.id, actor=call.actor, record=record, jobs=specs, plan_hash=hashed, has_random_id=not repeat.key
    )
    return await _made_by(call, repeat, order)


async def _born(call: Call, repeat: Repeat, record: Run) -> Made:
    """A run without a plan: the planner makes one."""
    return await _made_by(
        call, repeat, NewRecord(id=record.id, actor=call.actor, record=record, has_random_id=not repeat.key)
    )


async def _made_by(call: Call, repeat: Repeat, order: Command) -> Made:
    try:
        decision = await call.parts.engine.do(order)
    except Refused:
        # Of many repeats at once the first one made it; the others are answered with what it made.
        if (known := await repeat.known()) is not None:
            return _made(known, 200, is_repeat=True)
        raise
    born = decision.record
    assert isinstance(born, Run)
    return _made(born, 201, is_repeat=False)


def _made(record: Run, status: int, *, is_repeat: bool) -> Made:
    headers = {"Location": f"{ROOT}/runs/{record.id}"}
    if is_repeat:
        headers[REPLAYED_HEADER] = "true"
    return Made(value=serializers.run(record), status=status, headers=headers)


# -- find and read


async def list_runs(call: Call) -> api.RunPage:
    """The newest first."""
    query: RunQuery = call.query
    search = ListQuery(
        tenant=call.who.tenant,
        lists=_lists(query),
        before=place(query.cursor),
        since=from_datetime(query.since) if query.since is not None else 0,
        until=from_datetime(query.until) if query.until is not None else 0,
        limit=query.limit,
    )
    page = await call.parts.store.page(search)
    found = [serializers.run(each) for each in page.records if isinstance(each, Run)]
    return api.RunPage(runs=found, next=cursor(page.next))


def _lists(query: RunQuery) -> list[str]:
    """The lists that hold what is asked for; those that are likely to be the shortest first."""
    asked = (
        (listing.runs_of_branch, query.branch),
        (listing.runs_started_by, query.person),
        (listing.runs_of_project, query.project),
        (listing.runs_of_template, query.template),
        (listing.runs_in_state, query.state),
        (listing.runs_with_status, query.status),
    )
    names = [listing.runs_with_label(label) for label in query.label]
    names += [name(str(value)) for name, value in asked if value]
    return names or [listing.RUNS]


async def read_run(call: Call) -> api.RunWithJobs:
    """With its jobs and their attempts."""
    record, every, tries = await family_of(call, api.MAX_EMBEDDED_JOBS)
    jobs = [serializers.job(each, tries.get(each.id, ())) for each in every[: api.MAX_EMBEDDED_JOBS]]
    return serializers.run_with_jobs(record, jobs, len(every))


async def read_plan(call: Call) -> api.Plan:
    """What the run does."""
    record = await run_of(call)
    why = await reasons_of(call.parts.store, record) or Reasons()
    return api.Plan(
        plan_hash=record.plan_hash,
        jobs=[serializers.planned(each.spec) for each in await jobs_of(call, record)],
        fail_fast=record.is_fail_fast,
        timeout_seconds=record.timeout_seconds,
        file=why.file,
        compared_with=why.compared_with,
        unknown_because=why.unknown_because,
        group=why.group,
        choices=[api.JobChoice(**msgspec.structs.asdict(each)) for each in why.choices],
        problems=list(why.problems),
    )


async def read_outputs(call: Call) -> api.Outputs:
    """Of every job whose attempt gave one."""
    _, every, tries = await family_of(call)
    return api.Outputs(
        outputs={
            each.spec.name: tried.result
            for each in every
            for tried in tries.get(each.id, ())[-1:]
            if tried.result not in (None, {})  # An attempt without a result has an empty one.
        }
    )


async def read_costs(call: Call) -> api.Costs:
    """Of every attempt that told it, and the sum of what is a number."""
    _, every, tries = await family_of(call)
    found = [
        api.JobCost(job=each.spec.name, attempt=tried.index, cost=cost)
        for each in every
        for tried in tries.get(each.id, ())
        if isinstance(cost := (tried.report or {}).get("cost"), dict)
    ]
    total: dict[str, float] = {}
    for each in found:
        for name, value in each.cost.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                total[name] = total.get(name, 0) + value
    return api.Costs(attempts=found, total=total)


# -- stop and decide


async def cancel_run(call: Call) -> api.Run:
    """Safe to repeat."""
    record = await run_of(call)
    order = run.Cancel(id=record.id, actor=call.actor)
    if call.body.reason:
        order = msgspec.structs.replace(order, reason=call.body.reason)
    changed = (await call.parts.engine.do(order)).record
    assert isinstance(changed, Run)
    return serializers.run(changed)


async def approve_run(call: Call) -> api.DecisionResult:
    """Every approval that waits, or the one that is named. Safe to repeat."""
    return await _decide(call, job.Approve)


async def reject_run(call: Call) -> api.DecisionResult:
    """The same, with a no."""
    return await _decide(call, job.Reject)


async def _decide(call: Call, order: type[job.Approve] | type[job.Reject]) -> api.DecisionResult:
    asked: DecisionInput = call.body
    record = await run_of(call)
    chosen = select_gates(await jobs_of(call, record), order, call.who.person, asked.job)
    orders: list[Command] = [
        order(
            id=each.id,
            actor=call.actor,
            comment=asked.comment,
            roles=call.who.roles,
            plan_hash=asked.plan_hash,
        )
        for each in chosen
    ]
    decided: list[Job] = []
    refused: list[Refused] = []
    for answer in await call.parts.engine.do_all(orders):
        if isinstance(answer, Refused):
            refused.append(answer)
        elif isinstance(answer.record, Job):
            decided.append(answer.record)
    if refused and not decided:
        raise refused[0]
    now = await run_of(call)
    return api.DecisionResult(
        run=serializers.run(now),
        jobs=[each.spec.name for each in decided],
        still_waiting=[each.spec.name for each in decided if job.MACHINE.changes(each.state, order)],
    )


HANDLERS: Final[dict[str, Handler]] = {
    "startRun": start_run,
    "listRuns": list_runs,
    "readRun": read_run,
    "cancelRun": cancel_run,
    "approveRun": approve_run,
    "rejectRun": reject_run,
    "rerunRun": rerun_run,
    "readPlan": read_plan,
    "readOutputs": read_outputs,
    "readCosts": read_costs,
}
