"""Workstreams: start one from its file, find, read and stop it; and what waits to be merged.

A workstream is a run with a document beside it: what its tasks are doing is the run's, where its branch is the
document's. Both vocabularies are shown; neither is stored twice.
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
from deltaci.core import job as jobs
from deltaci.core import listing, run
from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.core.job import Job
from deltaci.core.run import Run, is_over, may_discard_workspace
from deltaci.core.status.steps import run_status, step_attempts
from deltaci.core.status.workstreams import derive_workstream_state, task_state, workstream_state
from deltaci.pipeline.workstream import model, parse
from deltaci.pipeline.workstream.compile import task_levels
from deltaci.server.rest.http.cursors import cursor, place
from deltaci.server.rest.http.idempotency import Repeat
from deltaci.server.rest.http.lookup import Family, workstream_family, workstream_of
from deltaci.server.rest.http.request import Call, Handler, Made, WorkstreamDesk, missing
from deltaci.server.rest.progress import Known, known_of, report, rules, verdicts
from deltaci.server.rest.progress import shown as progress_shown
from deltaci.server.rest.serializers import failure, maybe, moment
from deltaci.storage.port import ListQuery

MAX_PROBLEMS: Final = 20  # The rest is told when these are gone.


# -- start and stop


async def create_workstream(call: Call) -> Made:
    """One decision for all repeats with the same idempotency key. A file with problems starts nothing."""
    asked: wire.WorkstreamInput = call.body
    repeat = Repeat(call, "workstream", asked)
    if (known := await repeat.known()) is not None:
        return await _made(call, known.id, is_repeat=True)
    stream = await asyncio.to_thread(_read, asked)  # A large file takes seconds, and others wait for none of them.
    await call.parts.tenants.check_queue(call.who.tenant)
    try:
        made = await _desk(call).create(
            call.who.tenant,
            stream,
            id=repeat.id,
            by=call.who.person,
            request_id=call.request.id,
            asked=repeat.asked,
        )
    except Refused:
        # Of many repeats at once the first one made it; the others are answered with what it made.
        if (known := await repeat.known()) is not None:
            return await _made(call, known.id, is_repeat=True)
        raise
    return await _made(call, made.id, is_repeat=False)


async def _made(call: Call, id: str, *, is_repeat: bool) -> Made:
    headers = {"Location": f"{ROOT}/workstreams/{id}", **({REPLAYED_HEADER: "true"} if is_repeat else {})}
    return Made(value=await _workstream(call, id), status=200 if is_repeat else 201, headers=headers)


def _read(asked: wire.WorkstreamInput) -> model.Workstream:
    """What is asked for, or all that is wrong with it."""
    if (asked.file is None) == (asked.spec is None):
        found = "both" if asked.file is not None else "neither"
        raise Refused("bad_request", f"{found} of 'file' and 'spec' is given; give exactly one of them")
    problems: Sequence[str]
    if asked.file is not None:
        read = parse.parse_file(asked.file, asked.name or parse.DEFAULT_FILE)
        stream, problems = read.workstream, [str(each) for each in read.problems if not each.is_warning]
    else:
        stream, problems = parse.parse_values(asked.spec)
    if stream is None:
        more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
        raise Refused("bad_request", "; ".join(problems[:MAX_PROBLEMS]) + more)
    return replace(
        stream,
        **({"project": asked.project} if asked.project else {}),
        **({"base": parse.parse_branch_name(asked.base)} if asked.base else {}),
    )


def _desk(call: Call) -> WorkstreamDesk:
    if call.parts.workstreams is None:
        raise Refused("wrong_state", "this server takes no workstreams; ask one that keeps repositories")
    return call.parts.workstreams


async def cancel_workstream(call: Call) -> wire.Workstream:
    """Safe to repeat. Its branch and its tree are let go of like those of any workstream that is over."""
    record = await workstream_of(call)
    order = run.Cancel(id=record.id, actor=call.actor)
    if call.body.reason:
        order = replace(order, reason=call.body.reason)
    await call.parts.engine.do(order)
    return await _workstream(call, record.id)


# -- find and read


async def list_workstreams(call: Call) -> wire.WorkstreamPage:
    """The newest first."""
    query: wire.WorkstreamQuery = call.query
    asked = (
        (listing.runs_started_by, query.person),
        (listing.runs_of_project, query.project),
        (listing.workstreams_in_state, query.state),
    )
    names = [name(value) for name, value in asked if value]
    if not query.state:  # The lists by state have nothing but workstreams.
        names = [listing.WORKSTREAMS, *names]
    search = ListQuery(tenant=call.who.tenant, lists=names, before=place(query.cursor), limit=query.limit)
    page = await call.parts.store.page(search)
    now = await call.parts.store.now()
    runs = [each for each in page.records if isinstance(each, Run)]
    known = await known_of(call.parts.store, runs) if query.progress else {}
    queues = await _queues(call) if any(not is_over(each) for each in runs) and query.progress else ()
    kept = records.Workstreams(call.parts.store)
    found = []
    for each in runs:
        line = _line(each, now)
        # The document knows the repository's default branch, which only the planning has found out.
        record = await kept.find(call.who.tenant, each.id) if query.progress or not line["base"] else None
        if record is not None:
            line["base"] = line["base"] or record.base
            line["progress"] = _progress(known[each.id], record, queues) if query.progress else None
        found.append(wire.WorkstreamSummary(**{"progress": None, **line}))
    return wire.WorkstreamPage(workstreams=found, next=cursor(page.next))


def _progress(known: Known, record: records.Workstream, queues: Sequence[QueueView]) -> wire.WorkstreamProgress:
    stream = msgspec.convert(record.spec, model.Workstream)
    return progress_shown(known, record, _merge(stream, record, queues))


async def _queues(call: Call) -> Sequence[QueueView]:
    return await call.parts.workstreams.queues(call.who.tenant) if call.parts.workstreams is not None else ()


async def read_workstream(call: Call) -> wire.Workstream:
    """With its tasks, and how far its merge is."""
    return await _workstream(call, str(call.params["workstream"]))


async def _workstream(call: Call, id: str) -> wire.Workstream:
    family = await workstream_family(call, id)
    record = await records.Workstreams(call.parts.store).find(call.who.tenant, id)
    if record is None:
        raise missing("workstream", id)
    queues = () if is_over(family.run) else await _queues(call)
    return _shown(family, record, queues, await call.parts.store.now())


async def list_merge_queues(call: Call) -> wire.MergeQueues:
    """By project and branch."""
    wanted = call.query.project
    kept = [each for each in await _queues(call) if wanted is None or each.project == wanted]
    return wire.MergeQueues(queues=[_queue(each) for each in sorted(kept, key=lambda each: (each.project, each.base))])


# -- how it looks


def _line(record: Run, now: int) -> dict[str, Any]:
    origin, ended = record.origin, record.updated_at if is_over(record) else 0
    return {
        "id": record.id,
        "name": origin.workstream,
        "title": origin.title,
        "project": origin.project,
        "base": origin.branch,
        "state": workstream_state(record),
        "run_state": record.state,
        "status": run_status(record),
        "reason": record.reason,
        "created_by": record.started_by,
        "created_at": moment(record.created_at),
        "started_at": maybe(record.started_at),
        "ended_at": maybe(ended),
        "seconds": _seconds(record.started_at, ended, now),
    }


def _shown(family: Family, record: records.Workstream, queues: Sequence[QueueView], now: int) -> wire.Workstream:
    stream = msgspec.convert(record.spec, model.Workstream)
    known = {each.spec.name: each for each in family.jobs}
    stages = task_levels(stream)
    level = {name: number for number, names in enumerate(stages, 1) for name in names}
    joined = {each.task: each for each in record.joined}
    tasks = [_task(task, level[task.name], known, family, joined.get(task.name), record, now) for task in stream.tasks]
    states = [(task_state(each), each.spec.is_required) for each in family.jobs]
    line = _line(family.run, now)
    merge = _merge(stream, record, queues)
    so_far = progress(family.jobs)
    last = family.tries.get(so_far.failed.id, [])[-1:] if so_far.failed is not None else []
    return wire.Workstream(
        **{**line, "project": record.project or line["project"], "base": record.base or line["base"]},
        progress=progress_shown(Known(so_far, next(iter(last), None)), record, merge),
        derived_state=derive_workstream_state(states) if states else line["state"],
        base_commit=record.base_commit,
        branch=record.branch,
        tip=record.tip,
        worktree_path=""
        if may_discard_workspace(family.run)
        else record.place or next((each.worktree_path for each in tasks if each.worktree_path), ""),
        stages=[list(names) for names in stages],
        tasks=tasks,
        counts=dict(sorted(Counter(each.state for each in tasks if each.state).items())),
        merge=merge,
    )


def _task(
    task: model.Task,
    stage: int,
    known: Mapping[str, Job],
    family: Family,
    joined: records.Joined | None,
    stream: records.Workstream,
    now: int,
) -> wire.WorkstreamTask:
    found = known.get(task.name)
    told: dict[str, Any] = {
        "name": task.name,
        "stage": stage,
        "needs": list(task.needs),
        "waits_for": [need for need in task.needs if need not in known or not known[need].completed_at],
        "is_critical": task.critical,
        "worktree": task.worktree,
        "added": _added(joined),
    }
    if found is None:  # It is not planned yet.
        most = task.retry.max_attempts if task.retry is not None else 1
        return wire.WorkstreamTask(**told, **_NOT_PLANNED, max_attempts=most)
    last = family.tries.get(found.id, [])[-1:]
    held = last[0].lease or last[0].ended_lease if last else None
    return wire.WorkstreamTask(
        **told,
        state=task_state(found),
        job_state=found.state,
        reason=found.reason,
        attempts=step_attempts(found),
        max_attempts=found.spec.max_attempts,
        next_run_at=maybe(found.next_run_at) if jobs.MACHINE.changes(found.state, jobs.RetryDue) else None,
        worker_id=found.worker_id or (held.worker_id if held is not None else ""),
        started_at=maybe(found.started_at),
        completed_at=maybe(found.completed_at),
        seconds=_seconds(found.started_at, found.completed_at, now),
        last_error=failure(found.last_error),
        failed_rules=rules([*verdicts(last), *stream.verdicts.get(task.name, ())]),
        worktree_path="" if may_discard_workspace(family.run) else str(report(last).get("place", "")),
    )


_NOT_PLANNED: Final[dict[str, Any]] = {
    **{"state": "", "job_state": "", "reason": "", "attempts": 0, "next_run_at": None, "worker_id": ""},
    **{"started_at": None, "completed_at": None, "seconds": None, "last_error": None, "failed_rules": []},
    "place": "",
}


def _added(joined: records.Joined | None) -> wire.TaskCommits | None:
    if joined is None:
        return None
    return wire.TaskCommits(
        attempt_id=joined.attempt_id,
        is_changed=bool(joined.bundle),
        start=joined.start,
        head=joined.head,
        tip=joined.tip,
    )


def _merge(stream: model.Workstream, record: records.Workstream, queues: Sequence[QueueView]) -> wire.WorkstreamMerge:
    places = [
        (position, (entry, next((each for each in queue.batches if each.number == entry.batch), None), queue))
        for queue in queues
        for position, entry in enumerate(queue.entries, 1)
        if entry.id == record.id
    ]
    position, (entry, batch, queue) = places[0] if places else (0, (None, None, None))
    return wire.WorkstreamMerge(
        method=stream.merge.method if stream.merge is not False else NONE,
        position=position,
        ahead=max(0, position - 1),
        doing=batch.doing if batch is not None else "",
        run_id=batch.run_id if batch is not None else "",
        waits_for=next((each.problem for each in (entry, batch, queue) if each is not None and each.problem), ""),
        tested_with=[other for other in batch.members if other != record.id] if batch is not None else [],
        commit=record.merged_as,
        problem=record.problem,
        failed_rules=rules(record.verdicts.get("", ())),
    )


def _queue(queue: QueueView) -> wire.MergeQueue:
    return wire.MergeQueue(
        project=queue.project,
        base=queue.base,
        entries=[
            wire.QueuedMerge(
                id=each.id,
                position=position,
                title=each.title,
                method=each.method,
                head=each.head,
                batch=each.batch,
                since=moment(each.at),
                problem=each.problem,
                not_before=maybe(each.not_before),
            )
            for position, each in enumerate(queue.entries, 1)
        ],
        batches=[
            wire.MergeBatch(
                number=each.number,
                method=each.method,
                members=list(each.members),
                doing=each.doing,
                run_id=each.run_id,
                base_commit=each.start,
                commit=each.commit,
                is_good=each.is_good,
                problem=each.problem,
                not_before=maybe(each.not_before),
            )
            for each in queue.batches
        ],
        splits=[
            wire.MergeSplit(number=each.number, first=list(each.first), second=list(each.second), problem=each.problem)
            for each in queue.splits
        ],
        problem=queue.problem,
        not_before=maybe(queue.not_before),
    )


def _seconds(begun: int, ended: int, now: int) -> float | None:
    return max(0, (ended or now) - begun) / SECOND if begun else None


HANDLERS: Final[dict[str, Handler]] = {
    "createWorkstream": create_workstream,
    "listWorkstreams": list_workstreams,
    "readWorkstream": read_workstream,
    "cancelWorkstream": cancel_workstream,
    "listMergeQueues": list_merge_queues,
}
