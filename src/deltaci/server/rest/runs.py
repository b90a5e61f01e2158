"""Runs: start, list, read, cancel, approve, reject and rerun them."""

from __future__ import annotations

from typing import Final

import msgspec

from deltaci.api.routes import REPLAYED_HEADER, ROOT
from deltaci.api.schemas import records as api
from deltaci.api.schemas.inputs import DecisionInput, PlanInput, RerunInput, RunInput, RunQuery
from deltaci.controllers.repositories.planner import PlanReport, reasons_of
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
from deltaci.server.rest.http.cursors import decode_position, encode_position
from deltaci.server.rest.http.idempotency import IdempotentRequest
from deltaci.server.rest.http.lookup import get_jobs, get_run, get_run_records
from deltaci.server.rest.http.request import Call, Handler, JsonResponse
from deltaci.server.rest.templates import get_template
from deltaci.storage.port import ListQuery

# -- start and rerun


async def start_run(call: Call) -> JsonResponse:
    """Start a run from a template, a plan or a repository. With an idempotency key, a repeat returns the first run."""
    params: RunInput = call.body
    request = IdempotentRequest(call, "start", params)
    if (existing := await request.find_existing()) is not None:
        return _response(existing, 200, is_repeat=True)
    if params.template is None and params.plan is None and params.repository:
        await call.app.tenants.check_queue(call.caller.tenant)
        return await _create_unplanned(call, request, await changes.new_manual_run(call, params, request.new_run()))
    plan, origin = await _plan_and_origin(call, params)
    specs = job_specs.specs(plan, job_specs.as_env(origin.inputs))
    record = request.new_run(
        is_fail_fast=plan.fail_fast,
        timeout_seconds=plan.timeout_seconds,
        optional_wait_seconds=plan.optional_wait_seconds,
        origin=origin,
    )
    return await _start(call, request, record, specs)


async def _plan_and_origin(call: Call, params: RunInput) -> tuple[PlanInput, Origin]:
    origin = Origin(
        project=params.project,
        branch=params.branch,
        repository=params.repository,
        commit=params.commit,
        title=params.title,
        labels=tuple(dict.fromkeys(params.labels)),
    )
    if (params.template is None) == (params.plan is None):
        provided_text = "both" if params.plan is not None else "neither"
        hint = ", or a 'repository' instead" if provided_text == "neither" else ""
        raise Refused(
            "bad_request", f"{provided_text} of 'template' and 'plan' is given; give exactly one of them{hint}"
        )
    if params.file:
        raise Refused("bad_request", "'file' belongs to a repository; leave it out with a template or a plan")
    if params.plan is not None:
        if params.inputs or params.version is not None:
            raise Refused("bad_request", "'inputs' and 'version' belong to a template; leave them out with a plan")
        return params.plan, origin
    template = await get_template(call, str(params.template), params.version)
    inputs = job_specs.resolve_inputs(template.inputs, params.inputs)
    return template.plan, msgspec.structs.replace(
        origin, template=template.name, template_version=template.version, inputs=inputs
    )


async def rerun_run(call: Call) -> JsonResponse:
    """Start a new run with all jobs of an earlier run, or with its failed jobs and the jobs that depend on them."""
    params: RerunInput = call.body
    request = IdempotentRequest(call, f"rerun {call.params['run']}", params)
    if (existing := await request.find_existing()) is not None:
        return _response(existing, 200, is_repeat=True)
    original = await get_run(call)
    if original.origin.workstream:
        raise Refused(
            "wrong_state", f"{original.id} is a workstream and has its own branch; create it again from its file"
        )
    specs = rerun_jobs(original, await get_jobs(call, original), failed_only=params.failed_only)
    record = request.new_run(
        is_fail_fast=original.is_fail_fast,
        timeout_seconds=original.timeout_seconds,
        optional_wait_seconds=original.optional_wait_seconds,
        origin=original.origin,
        rerun_of=original.id,
    )
    return await _start(call, request, record, specs)


async def _start(call: Call, request: IdempotentRequest, record: Run, specs: tuple[JobSpec, ...]) -> JsonResponse:
    await call.app.tenants.check_queue(record.tenant)
    hash_of_plan = plan_hash(
        specs,
        is_fail_fast=record.is_fail_fast,
        timeout_seconds=record.timeout_seconds,
        optional_wait_seconds=record.optional_wait_seconds,
    )
    command = StartRun(
        id=record.id, actor=call.actor, record=record, jobs=specs, plan_hash=hash_of_plan, has_random_id=not request.key
    )
    return await _create(call, request, command)


async def _create_unplanned(call: Call, request: IdempotentRequest, record: Run) -> JsonResponse:
    """Create a run without a plan, for which the planner makes one."""
    return await _create(
        call, request, NewRecord(id=record.id, actor=call.actor, record=record, has_random_id=not request.key)
    )


async def _create(call: Call, request: IdempotentRequest, command: Command) -> JsonResponse:
    try:
        decision = await call.app.engine.do(command)
    except Refused:
        # A concurrent repeat may have created the run.
        if (existing := await request.find_existing()) is not None:
            return _response(existing, 200, is_repeat=True)
        raise
    created_run = decision.record
    assert isinstance(created_run, Run)
    return _response(created_run, 201, is_repeat=False)


def _response(record: Run, status: int, *, is_repeat: bool) -> JsonResponse:
    headers = {"Location": f"{ROOT}/runs/{record.id}"}
    if is_repeat:
        headers[REPLAYED_HEADER] = "true"
    return JsonResponse(value=serializers.run(record), status=status, headers=headers)


# -- list and read


async def list_runs(call: Call) -> api.RunPage:
    """Return a page of runs, the newest first."""
    query: RunQuery = call.query
    list_query = ListQuery(
        tenant=call.caller.tenant,
        lists=_lists(query),
        before=decode_position(query.cursor),
        since=from_datetime(query.since) if query.since is not None else 0,
        until=from_datetime(query.until) if query.until is not None else 0,
        limit=query.limit,
    )
    page = await call.app.store.page(list_query)
    runs = [serializers.run(record) for record in page.records if isinstance(record, Run)]
    return api.RunPage(runs=runs, next=encode_position(page.next))


def _lists(query: RunQuery) -> list[str]:
    """Return the names of the lists that all requested runs are in, with the probably shortest first."""
    filters = (
        (listing.runs_of_branch, query.branch),
        (listing.runs_started_by, query.person),
        (listing.runs_of_project, query.project),
        (listing.runs_of_template, query.template),
        (listing.runs_in_state, query.state),
        (listing.runs_with_status, query.status),
    )
    names = [listing.runs_with_label(label) for label in query.label]
    names += [name(str(value)) for name, value in filters if value]
    return names or [listing.RUNS]


async def read_run(call: Call) -> api.RunWithJobs:
    """Return a run with its first jobs and their attempts."""
    record, jobs, attempts = await get_run_records(call, api.MAX_EMBEDDED_JOBS)
    embedded = [serializers.job(job, attempts.get(job.id, ())) for job in jobs[: api.MAX_EMBEDDED_JOBS]]
    return serializers.run_with_jobs(record, embedded, len(jobs))


async def read_plan(call: Call) -> api.Plan:
    """Return the plan of a run, and why the planner kept or left out jobs."""
    record = await get_run(call)
    reasons = await reasons_of(call.app.store, record) or PlanReport()
    return api.Plan(
        plan_hash=record.plan_hash,
        jobs=[serializers.planned_job(job.spec) for job in await get_jobs(call, record)],
        fail_fast=record.is_fail_fast,
        timeout_seconds=record.timeout_seconds,
        optional_wait_seconds=record.optional_wait_seconds,
        file=reasons.file,
        compared_with=reasons.compared_with,
        unknown_because=reasons.unknown_because,
        group=reasons.group,
        choices=[api.JobChoice(**msgspec.structs.asdict(choice)) for choice in reasons.choices],
        problems=list(reasons.problems),
    )


async def read_outputs(call: Call) -> api.Outputs:
    """Return the outputs of the last attempt of every job that has outputs."""
    _, jobs, attempts = await get_run_records(call)
    return api.Outputs(
        outputs={
            job.spec.name: attempt.result
            for job in jobs
            for attempt in attempts.get(job.id, ())[-1:]
            if attempt.result not in (None, {})  # An attempt without a result has an empty one.
        }
    )


async def read_costs(call: Call) -> api.Costs:
    """Return the costs that runners reported for attempts, and the sums of the numeric ones."""
    _, jobs, attempts = await get_run_records(call)
    costs = [
        api.JobCost(job=job.spec.name, attempt=attempt.index, cost=reported_cost)
        for job in jobs
        for attempt in attempts.get(job.id, ())
        if isinstance(reported_cost := (attempt.report or {}).get("cost"), dict)
    ]
    total: dict[str, float] = {}
    for job_cost in costs:
        for name, value in job_cost.cost.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                total[name] = total.get(name, 0) + value
    return api.Costs(attempts=costs, total=total)


# -- cancel, approve and reject


async def cancel_run(call: Call) -> api.Run:
    """Request the cancellation of a run; `canceling` in the response says whether its jobs still have to stop.

    Has no effect if it is already being canceled.
    """
    record = await get_run(call)
    command = run.Cancel(id=record.id, actor=call.actor)
    if call.body.reason:
        command = msgspec.structs.replace(command, reason=call.body.reason)
    changed = (await call.app.engine.do(command)).record
    assert isinstance(changed, Run)
    return serializers.run(changed)


async def approve_run(call: Call) -> api.DecisionResult:
    """Approve one or all waiting approval jobs of a run.

    Has no effect on a job that the caller has already approved.
    """
    return await _decide(call, job.Approve)


async def reject_run(call: Call) -> api.DecisionResult:
    """Reject one or all waiting approval jobs of a run."""
    return await _decide(call, job.Reject)


async def _decide(call: Call, command_type: type[job.Approve] | type[job.Reject]) -> api.DecisionResult:
    params: DecisionInput = call.body
    record = await get_run(call)
    run.check_may_decide(record)
    gates = select_gates(await get_jobs(call, record), command_type, call.caller.person, params.job)
    commands: list[Command] = [
        command_type(
            id=gate.id,
            actor=call.actor,
            comment=params.comment,
            roles=call.caller.roles,
            plan_hash=params.plan_hash,
        )
        for gate in gates
    ]
    decided_jobs: list[Job] = []
    refusals: list[Refused] = []
    for result in await call.app.engine.do_all(commands):
        if isinstance(result, Refused):
            refusals.append(result)
        elif isinstance(result.record, Job):
            decided_jobs.append(result.record)
    if refusals and not decided_jobs:
        raise refusals[0]
    updated_run = await get_run(call)
    return api.DecisionResult(
        run=serializers.run(updated_run),
        jobs=[gate.spec.name for gate in decided_jobs],
        still_waiting=[gate.spec.name for gate in decided_jobs if job.MACHINE.changes(gate.state, command_type)],
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
