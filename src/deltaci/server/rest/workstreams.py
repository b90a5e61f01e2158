"""Workstreams: create one from its file, list, read and cancel them; and the merge queues.

A workstream is a run and a document. The run has the states of its tasks, the document has its branch and its merge. A
response contains both.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from deltaci.api.routes import REPLAYED_HEADER, ROOT
from deltaci.api.schemas import workstreams as wire
from deltaci.audit.projections.progress import progress
from deltaci.controllers.merge_queue.records import NONE, QueueView
from deltaci.controllers.workstreams import records
from deltaci.core import listing, run
from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.core.job import Job
from deltaci.core.run import Run, is_canceling, is_over, may_discard_workspace
from deltaci.core.status.steps import run_status, step_attempts
from deltaci.core.status.workstreams import derive_workstream_state, task_state, workstream_state
from deltaci.pipeline.workstream import model, parse
from deltaci.pipeline.workstream.compile import task_levels
from deltaci.server.rest.http.cursors import decode_position, encode_position
from deltaci.server.rest.http.idempotency import IdempotentRequest
from deltaci.server.rest.http.lookup import RunRecords, get_workstream, get_workstream_records
from deltaci.server.rest.http.request import Call, Handler, JsonResponse, WorkstreamService, not_found
from deltaci.server.rest.progress import (
    TaskProgress,
    failed_rules,
    load_progress,
    report,
    rule_results,
    serialize_progress,
)
from deltaci.server.rest.serializers import failure, retry_at, to_datetime, to_optional_datetime
from deltaci.storage.port import ListQuery

MAX_PROBLEMS: Final = 20  # The number of problems in an error message; the others are counted.


# -- create and cancel


async def create_workstream(call: Call) -> JsonResponse:
    """Create a workstream from its file. With an idempotency key, a repeat returns the first workstream."""
    workstream_input: wire.WorkstreamInput = call.body
    idempotent_request = IdempotentRequest(call, "workstream", workstream_input)
    if (existing_run := await idempotent_request.find_existing()) is not None:
        return await _response(call, existing_run.id, is_repeat=True)
    # A large file takes seconds, which must not block other requests.
    workstream_spec = await asyncio.to_thread(_parse_workstream, workstream_input)
    await call.app.tenants.check_queue(call.caller.tenant)
    try:
        workstream_record = await _service(call).create(
            call.caller.tenant,
            workstream_spec,
            id=idempotent_request.id,
            by=call.caller.person,
            request_id=call.request.id,
            fingerprint=idempotent_request.fingerprint,
        )
    except Refused:
        # A concurrent repeat may have created the workstream.
        if (existing_run := await idempotent_request.find_existing()) is not None:
            return await _response(call, existing_run.id, is_repeat=True)
        raise
    return await _response(call, workstream_record.id, is_repeat=False)


async def _response(call: Call, workstream_id: str, *, is_repeat: bool) -> JsonResponse:
    response_headers = {
        "Location": f"{ROOT}/workstreams/{workstream_id}",
        **({REPLAYED_HEADER: "true"} if is_repeat else {}),
    }
    return JsonResponse(
        value=await _workstream(call, workstream_id), status=200 if is_repeat else 201, headers=response_headers
    )


def _parse_workstream(workstream_input: wire.WorkstreamInput) -> model.Workstream:
    """Return the parsed workstream. Raise Refused with its problems if it has any."""
    if (workstream_input.file is None) == (workstream_input.spec is None):
        provided_text = "both" if workstream_input.file is not None else "neither"
        raise Refused("bad_request", f"{provided_text} of 'file' and 'spec' is given; give exactly one of them")
    problems: Sequence[str]
    if workstream_input.file is not None:
        parse_result = parse.parse_file(workstream_input.file, workstream_input.name or parse.DEFAULT_FILE)
        workstream_spec, problems = (
            parse_result.workstream,
            [str(problem) for problem in parse_result.problems if not problem.is_warning],
        )
    else:
        workstream_spec, problems = parse.parse_values(workstream_input.spec)
    if workstream_spec is None:
        more_text = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
        raise Refused("bad_request", "; ".join(problems[:MAX_PROBLEMS]) + more_text)
    return replace(
        workstream_spec,
        **({"project": workstream_input.project} if workstream_input.project else {}),
        **({"base": parse.parse_branch_name(workstream_input.base)} if workstream_input.base else {}),
    )


def _service(call: Call) -> WorkstreamService:
    if call.app.workstreams is None:
        raise Refused("wrong_state", "this server does not run workstreams; use one that hosts repositories")
    return call.app.workstreams


async def cancel_workstream(call: Call) -> wire.Workstream:
    """Cancel a workstream. Its branch and its worktree are released like those of any finished workstream."""
    run_record = await get_workstream(call)
    cancel_command = run.Cancel(id=run_record.id, actor=call.actor)
    if call.body.reason:
        cancel_command = replace(cancel_command, reason=call.body.reason)
    await call.app.engine.do(cancel_command)
    return await _workstream(call, run_record.id)


# -- list and read


async def list_workstreams(call: Call) -> wire.WorkstreamPage:
    """Return a page of workstreams, the newest first."""
    query: wire.WorkstreamQuery = call.query
    filters = (
        (listing.runs_started_by, query.person),
        (listing.runs_of_project, query.project),
        (listing.workstreams_in_state, query.state),
    )
    list_names = [list_name(filter_value) for list_name, filter_value in filters if filter_value]
    if not query.state:  # The lists by state contain only workstreams.
        list_names = [listing.WORKSTREAMS, *list_names]
    list_query = ListQuery(
        tenant=call.caller.tenant, lists=list_names, before=decode_position(query.cursor), limit=query.limit
    )
    page = await call.app.store.page(list_query)
    now = await call.app.store.now()
    runs = [workstream_record for workstream_record in page.records if isinstance(workstream_record, Run)]
    progress_by_id = await load_progress(call.app.store, runs) if query.progress else {}
    queues = await _queues(call) if any(not is_over(run) for run in runs) and query.progress else ()
    workstream_records = records.WorkstreamRecords(call.app.store)
    summaries = []
    for workstream_run in runs:
        summary_fields = _summary_fields(workstream_run, now)
        # The document has the repository's default branch, which is known only after planning.
        is_document_needed = query.progress or not summary_fields["base"]
        workstream_record = (
            await workstream_records.find(call.caller.tenant, workstream_run.id) if is_document_needed else None
        )
        if workstream_record is not None:
            summary_fields["base"] = summary_fields["base"] or workstream_record.base
            summary_fields["progress"] = (
                _progress(progress_by_id[workstream_run.id], workstream_record, queues) if query.progress else None
            )
        summaries.append(wire.WorkstreamSummary(**{"progress": None, **summary_fields}))
    return wire.WorkstreamPage(workstreams=summaries, next=encode_position(page.next))


def _progress(
    tasks: TaskProgress, workstream_record: records.Workstream, queues: Sequence[QueueView]
) -> wire.WorkstreamProgress:
    stream = msgspec.convert(workstream_record.spec, model.Workstream)
    return serialize_progress(tasks, workstream_record, _serialize_merge(stream, workstream_record, queues))


async def _queues(call: Call) -> Sequence[QueueView]:
    return await call.app.workstreams.queues(call.caller.tenant) if call.app.workstreams is not None else ()


async def read_workstream(call: Call) -> wire.Workstream:
    """Return a workstream with its tasks and the state of its merge."""
    return await _workstream(call, str(call.params["workstream"]))


async def _workstream(call: Call, workstream_id: str) -> wire.Workstream:
    run_records = await get_workstream_records(call, workstream_id)
    workstream_record = await records.WorkstreamRecords(call.app.store).find(call.caller.tenant, workstream_id)
    if workstream_record is None:
        raise not_found("workstream", workstream_id)
    queues = () if is_over(run_records.run) else await _queues(call)
    return _serialize(run_records, workstream_record, queues, await call.app.store.now())


async def list_merge_queues(call: Call) -> wire.MergeQueues:
    """Return the merge queues of the tenant or of a project, ordered by project and branch."""
    project_name = call.query.project
    queues = [queue for queue in await _queues(call) if project_name is None or queue.project == project_name]
    return wire.MergeQueues(
        queues=[_serialize_queue(queue) for queue in sorted(queues, key=lambda queue: (queue.project, queue.base))]
    )


# -- serialization


def _summary_fields(run_record: Run, now: int) -> dict[str, Any]:
    origin, ended_at = run_record.origin, run_record.updated_at if is_over(run_record) else 0
    return {
        "id": run_record.id,
        "name": origin.workstream,
        "title": origin.title,
        "project": origin.project,
        "base": origin.branch,
        "state": workstream_state(run_record),
        "run_state": run_record.state,
        "status": run_status(run_record),
        "canceling": is_canceling(run_record),
        "reason": run_record.reason,
        "created_by": run_record.started_by,
        "created_at": to_datetime(run_record.created_at),
        "started_at": to_optional_datetime(run_record.started_at),
        "ended_at": to_optional_datetime(ended_at),
        "seconds": _seconds(run_record.started_at, ended_at, now),
    }


def _serialize(
    run_records: RunRecords, workstream_record: records.Workstream, queues: Sequence[QueueView], now: int
) -> wire.Workstream:
    workstream_spec = msgspec.convert(workstream_record.spec, model.Workstream)
    jobs_by_name = {job.spec.name: job for job in run_records.jobs}
    task_names_by_stage = task_levels(workstream_spec)
    stage_by_task = {
        task_name: stage_number
        for stage_number, task_names in enumerate(task_names_by_stage, 1)
        for task_name in task_names
    }
    integrated_by_task = {integrated_task.task: integrated_task for integrated_task in workstream_record.joined}
    tasks = [
        _serialize_task(
            task,
            stage_by_task[task.name],
            jobs_by_name,
            run_records,
            integrated_by_task.get(task.name),
            workstream_record,
            now,
        )
        for task in workstream_spec.tasks
    ]
    states = [(task_state(job), job.spec.is_required) for job in run_records.jobs]
    summary_fields = _summary_fields(run_records.run, now)
    merge = _serialize_merge(workstream_spec, workstream_record, queues)
    job_progress = progress(run_records.jobs)
    last_attempts = run_records.attempts.get(job_progress.failed.id, [])[-1:] if job_progress.failed is not None else []
    return wire.Workstream(
        **{
            **summary_fields,
            "project": workstream_record.project or summary_fields["project"],
            "base": workstream_record.base or summary_fields["base"],
        },
        progress=serialize_progress(
            TaskProgress(job_progress, next(iter(last_attempts), None)), workstream_record, merge
        ),
        derived_state=derive_workstream_state(states) if states else summary_fields["state"],
        base_commit=workstream_record.base_commit,
        branch=workstream_record.branch,
        tip=workstream_record.tip,
        worktree_path=""
        if may_discard_workspace(run_records.run)
        else workstream_record.place or next((task.worktree_path for task in tasks if task.worktree_path), ""),
        stages=[list(stage_task_names) for stage_task_names in task_names_by_stage],
        tasks=tasks,
        counts=dict(sorted(Counter(task.state for task in tasks if task.state).items())),
        merge=merge,
    )


def _serialize_task(
    task: model.Task,
    stage: int,
    jobs_by_name: Mapping[str, Job],
    run_records: RunRecords,
    integrated_task: records.IntegratedTask | None,
    workstream_record: records.Workstream,
    now: int,
) -> wire.WorkstreamTask:
    job = jobs_by_name.get(task.name)
    task_fields: dict[str, Any] = {
        "name": task.name,
        "stage": stage,
        "needs": list(task.needs),
        "waits_for": [
            need_name
            for need_name in task.needs
            if need_name not in jobs_by_name or not jobs_by_name[need_name].completed_at
        ],
        "is_critical": task.critical,
        "worktree": task.worktree,
        "added": _serialize_commits(integrated_task),
    }
    if job is None:  # Not planned yet.
        max_attempts = task.retry.max_attempts if task.retry is not None else 1
        return wire.WorkstreamTask(**task_fields, **_NOT_PLANNED, max_attempts=max_attempts)
    last_attempts = run_records.attempts.get(job.id, [])[-1:]
    lease = last_attempts[0].lease or last_attempts[0].ended_lease if last_attempts else None
    return wire.WorkstreamTask(
        **task_fields,
        state=task_state(job),
        job_state=job.state,
        reason=job.reason,
        attempts=step_attempts(job),
        max_attempts=job.spec.max_attempts,
        next_run_at=retry_at(job),
        worker_id=job.worker_id or (lease.worker_id if lease is not None else ""),
        started_at=to_optional_datetime(job.started_at),
        completed_at=to_optional_datetime(job.completed_at),
        seconds=_seconds(job.started_at, job.completed_at, now),
        last_error=failure(job.last_error),
        failed_rules=failed_rules([*rule_results(last_attempts), *workstream_record.verdicts.get(task.name, ())]),
        worktree_path="" if may_discard_workspace(run_records.run) else str(report(last_attempts).get("place", "")),
    )


_NOT_PLANNED: Final[dict[str, Any]] = {
    **{"state": "", "job_state": "", "reason": "", "attempts": 0, "next_run_at": None, "worker_id": ""},
    **{"started_at": None, "completed_at": None, "seconds": None, "last_error": None, "failed_rules": []},
    "worktree_path": "",
}


def _serialize_commits(integrated_task: records.IntegratedTask | None) -> wire.TaskCommits | None:
    if integrated_task is None:
        return None
    return wire.TaskCommits(
        attempt_id=integrated_task.attempt_id,
        is_changed=bool(integrated_task.bundle),
        start=integrated_task.start,
        head=integrated_task.head,
        tip=integrated_task.tip,
    )


def _serialize_merge(
    workstream_spec: model.Workstream, workstream_record: records.Workstream, queues: Sequence[QueueView]
) -> wire.WorkstreamMerge:
    positioned_entries = [
        (position, (entry, next((batch for batch in queue.batches if batch.number == entry.batch), None), queue))
        for queue in queues
        for position, entry in enumerate(queue.entries, 1)
        if entry.id == workstream_record.id
    ]
    position, (entry, batch, queue) = positioned_entries[0] if positioned_entries else (0, (None, None, None))
    return wire.WorkstreamMerge(
        method=workstream_spec.merge.method if workstream_spec.merge is not False else NONE,
        position=position,
        ahead=max(0, position - 1),
        doing=batch.doing if batch is not None else "",
        run_id=batch.run_id if batch is not None else "",
        waits_for=next(
            (
                merge_part.problem
                for merge_part in (entry, batch, queue)
                if merge_part is not None and merge_part.problem
            ),
            "",
        ),
        tested_with=[member for member in batch.members if member != workstream_record.id] if batch is not None else [],
        commit=workstream_record.merged_as,
        problem=workstream_record.problem,
        failed_rules=failed_rules(workstream_record.verdicts.get("", ())),
    )


def _serialize_queue(queue: QueueView) -> wire.MergeQueue:
    return wire.MergeQueue(
        project=queue.project,
        base=queue.base,
        entries=[
            wire.QueuedMerge(
                id=entry.id,
                position=position,
                title=entry.title,
                method=entry.method,
                head=entry.head,
                batch=entry.batch,
                since=to_datetime(entry.at),
                problem=entry.problem,
                not_before=to_optional_datetime(entry.not_before),
            )
            for position, entry in enumerate(queue.entries, 1)
        ],
        batches=[
            wire.MergeBatch(
                number=batch.number,
                method=batch.method,
                members=list(batch.members),
                doing=batch.doing,
                run_id=batch.run_id,
                base_commit=batch.start,
                commit=batch.commit,
                is_good=batch.is_good,
                problem=batch.problem,
                not_before=to_optional_datetime(batch.not_before),
            )
            for batch in queue.batches
        ],
        splits=[
            wire.MergeSplit(
                number=split.number, first=list(split.first), second=list(split.second), problem=split.problem
            )
            for split in queue.splits
        ],
        problem=queue.problem,
        not_before=to_optional_datetime(queue.not_before),
    )


def _seconds(started_at: int, ended_at: int, now: int) -> float | None:
    return max(0, (ended_at or now) - started_at) / SECOND if started_at else None


HANDLERS: Final[dict[str, Handler]] = {
    "createWorkstream": create_workstream,
    "listWorkstreams": list_workstreams,
    "readWorkstream": read_workstream,
    "cancelWorkstream": cancel_workstream,
    "listMergeQueues": list_merge_queues,
}
