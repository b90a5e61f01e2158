"""The work that waits, of all runs of a tenant, with the reasons, and the attempts that workers run.

The cost of a request is bounded: it reads the first attempts of each queue and the newest runs that are not over, up to
a number of jobs. The response says whether that was everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from deltaci.api.schemas import queue as api_queue
from deltaci.audit.explain import TenantState
from deltaci.audit.explain import queue as explain_queue
from deltaci.audit.explain.context import ExplainContext
from deltaci.audit.explain.reasons import Reason
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused
from deltaci.core.job import Job
from deltaci.core.listing import runs_with_status
from deltaci.core.machine import Record
from deltaci.core.run import Run
from deltaci.core.status import steps
from deltaci.core.timers import ready_at
from deltaci.core.worker import required_labels
from deltaci.server.rest import serializers
from deltaci.server.rest.explain import get_group_holders, get_workers, serialize_reason
from deltaci.server.rest.http.cursors import decode_cursor, encode_cursor
from deltaci.server.rest.http.request import Call, Handler
from deltaci.storage.port import ListQuery, LoadJobs, ReadTransaction

MAX_QUEUES: Final = 50  # A queue is a set of labels.
MAX_QUEUED: Final = 300  # Attempts per queue.
MAX_RUNS: Final = 100  # Runs per status.
MAX_JOBS: Final = 3000  # After so many jobs, no further run is read.
MAX_TASKS: Final = 2000  # Attempts of all workers.
MAX_RUNNING: Final = 200
_OPEN: Final = (steps.WAITING_APPROVAL, steps.RUNNING, steps.PENDING)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The records from which the queue is computed. `runs` includes runs of which only some attempts were read."""

    tenant_state: TenantState
    runs: dict[str, Run]
    open_runs: list[Run]
    jobs: list[Job]
    attempts: list[Attempt]
    is_complete: bool


async def list_queue(call: Call) -> api_queue.Queue:
    """Return a page of the waiting work. Every page has the running attempts and the reasons of all waiting work."""
    query, snapshot = call.query, await _read_snapshot(call)
    context = ExplainContext(None, snapshot.jobs, snapshot.attempts, (), snapshot.tenant_state, is_brief=True)
    all_waits = [wait for wait in _waits(context, snapshot) if _matches(query, snapshot, wait.record)]
    all_waits.sort(key=lambda wait: wait.sort_key)
    selected_waits = [wait for wait in all_waits if query.reason in ("", wait.group_key, wait.code)]
    leased_attempts = [attempt for attempt in snapshot.attempts if explain_queue.is_leased(attempt)]
    running_attempts = [attempt for attempt in leased_attempts if _matches(query, snapshot, attempt)]
    running_attempts.sort(key=lambda attempt: (explain_queue.leased_since(attempt), attempt.id))
    after_sort_key = _decode_sort_key(query.cursor)
    remaining_waits = [wait for wait in selected_waits if after_sort_key is None or wait.sort_key > after_sort_key]
    page = remaining_waits[: query.limit]
    return api_queue.Queue(
        waiting=[_waiting_entry(snapshot, wait) for wait in page],
        next=encode_cursor(_sort_key_text(page[-1].sort_key)) if len(remaining_waits) > len(page) else None,
        count=len(selected_waits),
        reasons=[_shared_reason(group) for group in explain_queue.group_waits(all_waits)],
        running=[_running_entry(context, snapshot, attempt) for attempt in running_attempts[:MAX_RUNNING]],
        running_count=len(running_attempts),
        is_whole=snapshot.is_complete,
    )


# -- reading


async def _read_snapshot(call: Call) -> Snapshot:
    tenant, store = call.caller.tenant, call.app.store
    needs_all = call.query.part == "all"
    ready_attempts = await store.queued_attempts(tenant, MAX_QUEUED, MAX_QUEUES) if needs_all else []
    ready_count_by_queue: dict[str, int] = {}
    for attempt in ready_attempts:
        ready_count_by_queue[attempt.queue_key] = ready_count_by_queue.get(attempt.queue_key, 0) + 1
    is_complete = len(ready_count_by_queue) < MAX_QUEUES and all(
        ready_count < MAX_QUEUED for ready_count in ready_count_by_queue.values()
    )
    workers = await get_workers(call)
    open_runs: list[Run] = []
    for status in _OPEN if needs_all else ():
        page = await store.page(ListQuery(tenant=tenant, lists=[runs_with_status(status)], limit=MAX_RUNS))
        open_runs += [record for record in page.records if isinstance(record, Run)]
        is_complete = is_complete and page.next is None
    jobs, has_all_jobs = await store.read(lambda: _load_jobs([run.id for run in open_runs]))
    attempt_ids = dict.fromkeys([attempt.id for attempt in ready_attempts])
    leased_ids = [attempt_id for worker in workers for attempt_id in worker.tasks]
    attempt_ids |= dict.fromkeys(leased_ids[:MAX_TASKS])
    attempt_ids |= dict.fromkeys(explain_queue.current_attempts(jobs))
    records = _of_tenant(call, await store.find_all(list(attempt_ids)))
    attempts = [record for record in records if isinstance(record, Attempt)]
    run_by_id = {run.id: run for run in open_runs}
    run_ids = dict.fromkeys(attempt.run_id for attempt in attempts if attempt.run_id)
    missing_run_ids = [run_id for run_id in run_ids if run_id not in run_by_id]
    records = _of_tenant(call, await store.find_all(missing_run_ids))
    run_by_id |= {record.id: record for record in records if isinstance(record, Run)}
    running_quota = await call.app.tenants.running_limit(tenant)
    groups, group_fences = await get_group_holders(call, attempts)
    tenant_state = TenantState(
        now=await store.now(),
        workers=tuple(workers),
        running_quota=running_quota,
        running=await call.app.tenants.running_jobs(tenant) if running_quota else 0,
        groups=groups,
        group_fences=group_fences,
    )
    return Snapshot(
        tenant_state=tenant_state,
        runs=run_by_id,
        open_runs=open_runs,
        jobs=jobs,
        attempts=attempts,
        is_complete=is_complete and has_all_jobs and len(leased_ids) <= MAX_TASKS,
    )


def _of_tenant(call: Call, records: Iterable[Record]) -> list[Record]:
    """Return the records of the caller's tenant. A record that cannot be decoded has no tenant and is left out."""
    return [record for record in records if record.tenant == call.caller.tenant]


def _load_jobs(run_ids: Sequence[str]) -> ReadTransaction[tuple[list[Job], bool]]:
    """Return the jobs of these runs, and whether they include those of all runs."""
    jobs: list[Job] = []
    for run_id in run_ids:
        if len(jobs) >= MAX_JOBS:
            return jobs, False
        jobs += [stored.record for stored in (yield LoadJobs(run_id)) if isinstance(stored.record, Job)]
    return jobs, True


def _waits(context: ExplainContext, snapshot: Snapshot) -> list[explain_queue.Wait]:
    waits = [
        *(explain_queue.attempt_wait(context, attempt) for attempt in snapshot.attempts),
        *(explain_queue.wait_before_queue(context, job) for job in snapshot.jobs),
        *(
            explain_queue.run_wait(ExplainContext(run, (), (), (), snapshot.tenant_state), run)
            for run in snapshot.open_runs
        ),
    ]
    return [wait for wait in waits if wait is not None]


def _matches(query: api_queue.QueueQuery, snapshot: Snapshot, record: Record) -> bool:
    if query.label and query.label not in _labels(record):
        return False
    if not query.project:
        return True
    run = snapshot.runs.get(_run_id(record))
    return run is not None and run.origin.project == query.project


# -- serialization


def _waiting_entry(snapshot: Snapshot, wait: explain_queue.Wait) -> api_queue.WaitingEntry:
    due_at = _ready_at(wait.record)
    return api_queue.WaitingEntry(
        **_common_fields(snapshot, wait.record),
        since=serializers.to_datetime(wait.since),
        ready_at=serializers.to_datetime(due_at) if due_at > snapshot.tenant_state.now else None,
        reason=wait.group_key,
        reasons=_reasons(wait.reasons),
    )


def _running_entry(context: ExplainContext, snapshot: Snapshot, attempt: Attempt) -> api_queue.RunningEntry:
    return api_queue.RunningEntry(
        **_common_fields(snapshot, attempt),
        since=serializers.to_datetime(explain_queue.leased_since(attempt)),
        worker_id=attempt.lease.worker_id if attempt.lease is not None else "",
        reasons=_reasons(explain_queue.lease_reasons(context, attempt)),
    )


def _shared_reason(group: explain_queue.WaitGroup) -> api_queue.SharedReason:
    return api_queue.SharedReason(id=group.key, code=group.code, text=group.text, about=group.about, count=group.count)


def _reasons(reasons: Iterable[Reason]) -> list[Any]:
    return [serialize_reason(reason) for reason in reasons]


def _common_fields(snapshot: Snapshot, record: Record) -> dict[str, Any]:
    """Return the fields that waiting and running entries have in common."""
    run_id = _run_id(record)
    run = snapshot.runs.get(run_id)
    origin = run.origin if run is not None else None
    spec = record.spec if isinstance(record, Job) else None
    return {
        "id": record.id,
        "run_id": run_id,
        "title": (origin.title or origin.template or origin.file or run_id) if origin is not None else run_id,
        "project": origin.project if origin is not None else "",
        "branch": origin.branch if origin is not None else "",
        "job": spec.name
        if spec is not None
        else record.job_id.partition("/")[2]
        if isinstance(record, Attempt)
        else "",
        "index": record.index if isinstance(record, Attempt) else 0,
        "state": record.state,
        "priority": record.priority if isinstance(record, Attempt) else spec.priority if spec is not None else 0,
        "runs_on": _labels(record),
        "group": record.group if isinstance(record, Attempt) else spec.group if spec is not None else "",
    }


def _run_id(record: Record) -> str:
    return record.id if isinstance(record, Run) else record.run_id


def _labels(record: Record) -> list[str]:
    queue_key = (
        record.queue_key if isinstance(record, Attempt) else record.spec.queue_key if isinstance(record, Job) else ""
    )
    return sorted(required_labels(queue_key))


def _ready_at(record: Record) -> int:
    """Return the time until which the record waits for a delay, 0 if it waits for something else."""
    return record.next_run_at if isinstance(record, Job) else ready_at(record) or 0


def _sort_key_text(sort_key: tuple[int, int, int, str]) -> str:
    return " ".join(str(key_part) for key_part in sort_key)


def _decode_sort_key(cursor: str) -> tuple[int, int, int, str] | None:
    """Return the sort key in a cursor, or None for an empty cursor. Raise Refused if it is malformed."""
    if not cursor:
        return None
    key_parts = decode_cursor(cursor).split(" ", 3)
    try:
        rank, priority, at = (int(key_part) for key_part in key_parts[:3])
        sort_key = (rank, priority, at, key_parts[3])
    except (ValueError, IndexError):
        sort_key = None
    if sort_key is None or _sort_key_text(sort_key) != decode_cursor(cursor):
        raise Refused(
            "bad_request", f"{cursor[:80]!r} is no cursor of the queue; use `next` of the page before, as it is"
        )
    return sort_key


HANDLERS: Final[dict[str, Handler]] = {"listQueue": list_queue}
