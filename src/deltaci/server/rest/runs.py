"""Runs: start, list, read, cancel, approve, reject and rerun them."""

from __future__ import annotations

from typing import Final

import msgspec

from deltaci.api.routes import REPLAYED_HEADER, ROOT
from deltaci.api.schemas import records as api
from deltaci.api.schemas.inputs import DecisionInput, PlanInput, RerunInput, RunInput, RunQuery
from deltaci.controllers.repositories.planner import reasons_of
from deltaci.core import job, listing, run
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import StartRun
from deltaci.core.errors import Refused
from deltaci.core.instants import from_datetime
from deltaci.core.job import Job, JobSpec, select_gates
from deltaci.core.machine import Command
from deltaci.core.plan import plan_hash, rerun_jobs
from deltaci.core.run import Origin, Run
from deltaci.pipeline.planning.plan_report import PlanReport
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
    run_input: RunInput = call.body
    idempotent_request = IdempotentRequest(call, "start", run_input)
    if (existing_run := await idempotent_request.find_existing()) is not None:
        return _response(existing_run, 200, is_repeat=True)
    if run_input.template is None and run_input.plan is None and run_input.repository:
        await call.app.tenants.check_queue(call.caller.tenant)
        return await _create_unplanned(
            call, idempotent_request, await changes.new_manual_run(call, run_input, idempotent_request.new_run())
        )
    plan, origin = await _plan_and_origin(call, run_input)
    specs_of_jobs = job_specs.specs(plan, job_specs.as_env(origin.inputs))
    run_record = idempotent_request.new_run(
        is_fail_fast=plan.fail_fast,
        timeout_seconds=plan.timeout_seconds,
        optional_wait_seconds=plan.optional_wait_seconds,
        origin=origin,
    )
    return await _start(call, idempotent_request, run_record, specs_of_jobs)


async def _plan_and_origin(call: Call, run_input: RunInput) -> tuple[PlanInput, Origin]:
    """Return the plan of a manual run, which is given or that of a template, and its origin."""
    origin = Origin(
        project=run_input.project,
        branch=run_input.branch,
        repository=run_input.repository,
        commit=run_input.commit,
        title=run_input.title,
        labels=tuple(dict.fromkeys(run_input.labels)),
    )
    if (run_input.template is None) == (run_input.plan is None):
        provided_text = "both" if run_input.plan is not None else "neither"
        hint = ", or a 'repository' instead" if provided_text == "neither" else ""
        raise Refused(
            "bad_request", f"{provided_text} of 'template' and 'plan' is given; give exactly one of them{hint}"
        )
    if run_input.file:
        raise Refused("bad_request", "'file' belongs to a repository; leave it out with a template or a plan")
    if run_input.plan is not None:
        if run_input.inputs or run_input.version is not None:
            raise Refused("bad_request", "'inputs' and 'version' belong to a template; leave them out with a plan")
        return run_input.plan, origin
    template = await get_template(call, str(run_input.template), run_input.version)
    value_by_input = job_specs.resolve_inputs(template.inputs, run_input.inputs)
    return template.plan, msgspec.structs.replace(
        origin, template=template.name, template_version=template.version, inputs=value_by_input
    )


async def rerun_run(call: Call) -> JsonResponse:
    """Start a new run with all jobs of an earlier run, or with its failed jobs and the jobs that depend on them."""
    rerun_input: RerunInput = call.body
    idempotent_request = IdempotentRequest(call, f"rerun {call.params['run']}", rerun_input)
    if (existing_run := await idempotent_request.find_existing()) is not None:
        return _response(existing_run, 200, is_repeat=True)
    original_run = await get_run(call)
    if original_run.origin.workstream:
        raise Refused(
            "wrong_state", f"{original_run.id} is a workstream and has its own branch; create it again from its file"
        )
    specs = rerun_jobs(original_run, await get_jobs(call, original_run), failed_only=rerun_input.failed_only)
    plan_report = await reasons_of(call.app.store, original_run)
    if not rerun_input.failed_only and plan_report is not None and plan_report.has_reused_jobs:
        # The planner plans these jobs, too, and leaves out none in a run that repeats another one.
        await call.app.tenants.check_queue(original_run.tenant)
        repeated_run = idempotent_request.new_run(origin=original_run.origin, rerun_of=original_run.id)
        return await _create_unplanned(call, idempotent_request, repeated_run)
    run_record = idempotent_request.new_run(
        is_fail_fast=original_run.is_fail_fast,
        timeout_seconds=original_run.timeout_seconds,
        optional_wait_seconds=original_run.optional_wait_seconds,
        origin=original_run.origin,
        rerun_of=original_run.id,
    )
    return await _start(call, idempotent_request, run_record, specs)


async def _start(
    call: Call, idempotent_request: IdempotentRequest, run_record: Run, specs: tuple[JobSpec, ...]
) -> JsonResponse:
    """Create a run and plan it with one command. Raise Refused if the tenant's queue is full."""
    await call.app.tenants.check_queue(run_record.tenant)
    hash_of_plan = plan_hash(
        specs,
        is_fail_fast=run_record.is_fail_fast,
        timeout_seconds=run_record.timeout_seconds,
        optional_wait_seconds=run_record.optional_wait_seconds,
    )
    start_command = StartRun(
        id=run_record.id,
        actor=call.actor,
        record=run_record,
        jobs=specs,
        plan_hash=hash_of_plan,
        has_random_id=not idempotent_request.key,
    )
    return await _create(call, idempotent_request, start_command)


async def _create_unplanned(call: Call, idempotent_request: IdempotentRequest, run_record: Run) -> JsonResponse:
    """Create a run without a plan, for which the planner makes one."""
    return await _create(
        call,
        idempotent_request,
        NewRecord(id=run_record.id, actor=call.actor, record=run_record, has_random_id=not idempotent_request.key),
    )


async def _create(call: Call, idempotent_request: IdempotentRequest, command: Command) -> JsonResponse:
    """Submit the command that creates a run. For a repeated request, return the run that the first one created."""
    try:
        decision = await call.app.engine.do(command)
    except Refused:
        # A concurrent repeat may have created the run.
        if (existing_run := await idempotent_request.find_existing()) is not None:
            return _response(existing_run, 200, is_repeat=True)
        raise
    created_run = decision.record
    assert isinstance(created_run, Run)
    return _response(created_run, 201, is_repeat=False)


def _response(run_record: Run, http_status: int, *, is_repeat: bool) -> JsonResponse:
    response_headers = {"Location": f"{ROOT}/runs/{run_record.id}"}
    if is_repeat:
        response_headers[REPLAYED_HEADER] = "true"
    return JsonResponse(value=serializers.run(run_record), status=http_status, headers=response_headers)


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
    list_names = [listing.runs_with_label(label) for label in query.label]
    list_names += [list_of(str(value)) for list_of, value in filters if value]
    return list_names or [listing.RUNS]


async def read_run(call: Call) -> api.RunWithJobs:
    """Return a run with its first jobs and their attempts."""
    run_record, jobs, attempts_by_job = await get_run_records(call, api.MAX_EMBEDDED_JOBS)
    embedded_jobs = [serializers.job(job, attempts_by_job.get(job.id, ())) for job in jobs[: api.MAX_EMBEDDED_JOBS]]
    return serializers.run_with_jobs(run_record, embedded_jobs, len(jobs))


async def read_plan(call: Call) -> api.Plan:
    """Return the plan of a run, and why the planner kept or left out jobs."""
    run_record = await get_run(call)
    plan_report = await reasons_of(call.app.store, run_record) or PlanReport()
    return api.Plan(
        plan_hash=run_record.plan_hash,
        jobs=[serializers.planned_job(job.spec) for job in await get_jobs(call, run_record)],
        fail_fast=run_record.is_fail_fast,
        timeout_seconds=run_record.timeout_seconds,
        optional_wait_seconds=run_record.optional_wait_seconds,
        file=plan_report.file,
        compared_with=plan_report.compared_with,
        unknown_because=plan_report.unknown_because,
        group=plan_report.group,
        choices=[api.JobChoice(**msgspec.structs.asdict(choice)) for choice in plan_report.choices],
        problems=list(plan_report.problems),
    )


async def read_outputs(call: Call) -> api.Outputs:
    """Return the outputs of the last attempt of every job that has outputs."""
    _, jobs, attempts_by_job = await get_run_records(call)
    return api.Outputs(
        outputs={
            job.spec.name: attempt.result
            for job in jobs
            for attempt in attempts_by_job.get(job.id, ())[-1:]
            if attempt.result not in (None, {})  # An attempt without a result has an empty one.
        }
    )


async def read_costs(call: Call) -> api.Costs:
    """Return the costs that runners reported for attempts, and the sums of the numeric ones."""
    _, jobs, attempts_by_job = await get_run_records(call)
    costs = [
        api.JobCost(job=job.spec.name, attempt=attempt.index, cost=reported_cost)
        for job in jobs
        for attempt in attempts_by_job.get(job.id, ())
        if isinstance(reported_cost := (attempt.report or {}).get("cost"), dict)
    ]
    total_cost: dict[str, float] = {}
    for job_cost in costs:
        for resource, amount in job_cost.cost.items():
            if isinstance(amount, int | float) and not isinstance(amount, bool):
                total_cost[resource] = total_cost.get(resource, 0) + amount
    return api.Costs(attempts=costs, total=total_cost)


# -- cancel, approve and reject


async def cancel_run(call: Call) -> api.Run:
    """Request the cancellation of a run; `canceling` in the response says whether its jobs still have to stop.

    Has no effect if it is already being canceled.
    """
    run_record = await get_run(call)
    cancel_command = run.Cancel(id=run_record.id, actor=call.actor)
    if call.body.reason:
        cancel_command = msgspec.structs.replace(cancel_command, reason=call.body.reason)
    changed_run = (await call.app.engine.do(cancel_command)).record
    assert isinstance(changed_run, Run)
    return serializers.run(changed_run)


async def approve_run(call: Call) -> api.DecisionResult:
    """Approve one or all waiting approval jobs of a run.

    Has no effect on a job that the caller has already approved.
    """
    return await _decide(call, job.Approve)


async def reject_run(call: Call) -> api.DecisionResult:
    """Reject one or all waiting approval jobs of a run."""
    return await _decide(call, job.Reject)


async def _decide(call: Call, command_type: type[job.Approve] | type[job.Reject]) -> api.DecisionResult:
    """Approve or reject the gates of a run that the caller may decide. Raise Refused if none was decided."""
    decision_input: DecisionInput = call.body
    run_record = await get_run(call)
    run.check_may_decide(run_record)
    gates = select_gates(await get_jobs(call, run_record), command_type, call.caller.person, decision_input.job)
    commands: list[Command] = [
        command_type(
            id=gate.id,
            actor=call.actor,
            comment=decision_input.comment,
            roles=call.caller.roles,
            plan_hash=decision_input.plan_hash,
        )
        for gate in gates
    ]
    decided_jobs: list[Job] = []
    refusals: list[Refused] = []
    for decision in await call.app.engine.do_all(commands):
        if isinstance(decision, Refused):
            refusals.append(decision)
        elif isinstance(decision.record, Job):
            decided_jobs.append(decision.record)
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
