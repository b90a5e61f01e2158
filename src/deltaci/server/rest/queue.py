"""What waits and why, of all runs of a tenant at once, and what workers have.

However much there is, the cost of an answer has a limit: of every queue the first, of the runs that are not over the
newest, until so many jobs were read. The answer says whether that was all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from deltaci.api.schemas import queue as api_queue
from deltaci.audit.explain import TenantState
from deltaci.audit.explain import queue as explained
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
from deltaci.server.rest.explain import MAX_GROUPS, because, fleet_of
from deltaci.server.rest.http.cursors import read, written
from deltaci.server.rest.http.request import Call, Handler
from deltaci.storage.port import ListQuery, LoadJobs, ReadTransaction

MAX_QUEUES: Final = 50  # Sets of labels.
MAX_QUEUED: Final = 300  # Of each of them.
MAX_RUNS: Final = 100  # Of each status.
MAX_JOBS: Final = 3000  # Once so many were read, no other run's are.
MAX_TASKS: Final = 2000  # Of all workers.
MAX_RUNNING: Final = 200
_OPEN: Final = (steps.WAITING_APPROVAL, steps.RUNNING, steps.PENDING)


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """All that was looked at. `runs` has also those of which only some attempts were."""

    around: TenantState
    runs: dict[str, Run]
    open: list[Run]
    jobs: list[Job]
    attempts: list[Attempt]
    is_whole: bool


async def list_queue(call: Call) -> api_queue.Queue:
    """One page of it; what workers have, and the reasons of all, are on every page."""
    query, seen = call.query, await _look(call)
    context = ExplainContext(None, seen.jobs, seen.attempts, (), seen.around, is_brief=True)
    every = [each for each in _waits(context, seen) if _fits(query, seen, each.record)]
    every.sort(key=lambda each: each.sort_key)
    waits = [each for each in every if query.reason in ("", each.group_key, each.code)]
    running = [each for each in seen.attempts if explained.is_leased(each) and _fits(query, seen, each)]
    running.sort(key=lambda each: (explained.leased_since(each), each.id))
    after = _place(query.cursor)
    left = [each for each in waits if after is None or each.sort_key > after]
    page = left[: query.limit]
    return api_queue.Queue(
        waiting=[_waiting(seen, each) for each in page],
        next=written(_cursor(page[-1].sort_key)) if len(left) > len(page) else None,
        count=len(waits),
        reasons=[_shared(each) for each in explained.group_waits(every)],
        running=[_under_way(context, seen, each) for each in running[:MAX_RUNNING]],
        running_count=len(running),
        is_whole=seen.is_whole,
    )


# -- what is looked at


async def _look(call: Call) -> Seen:
    tenant, store = call.who.tenant, call.parts.store
    is_asked = call.query.part == "all"
    ready = await store.queued_attempts(tenant, MAX_QUEUED, MAX_QUEUES) if is_asked else []
    by_queue: dict[str, int] = {}
    for each in ready:
        by_queue[each.queue_key] = by_queue.get(each.queue_key, 0) + 1
    is_whole = len(by_queue) < MAX_QUEUES and all(count < MAX_QUEUED for count in by_queue.values())
    workers = await fleet_of(call)
    open: list[Run] = []
    for status in _OPEN if is_asked else ():
        page = await store.page(ListQuery(tenant=tenant, lists=[runs_with_status(status)], limit=MAX_RUNS))
        open += [each for each in page.records if isinstance(each, Run)]
        is_whole = is_whole and page.next is None
    jobs, is_read = await store.read(lambda: _jobs([each.id for each in open]))
    wanted = dict.fromkeys([each.id for each in ready])
    tasks = [task for each in workers for task in each.tasks]
    wanted |= dict.fromkeys(tasks[:MAX_TASKS])
    wanted |= dict.fromkeys(explained.current_attempts(jobs))
    attempts = [each for each in _own(call, await store.find_all(list(wanted))) if isinstance(each, Attempt)]
    runs = {each.id: each for each in open}
    others = dict.fromkeys(each.run_id for each in attempts if each.run_id and each.run_id not in runs)
    runs |= {each.id: each for each in _own(call, await store.find_all(list(others))) if isinstance(each, Run)}
    quota = await call.parts.tenants.running_limit(tenant)
    groups = {each.group for each in attempts if each.group and ready_at(each)}
    around = TenantState(
        now=await store.now(),
        workers=tuple(workers),
        running_quota=quota,
        running=await call.parts.tenants.running(tenant) if quota else 0,
        groups={group: await store.group_holder(tenant, group) for group in sorted(groups)[:MAX_GROUPS]},
    )
    return Seen(
        around=around,
        runs=runs,
        open=open,
        jobs=jobs,
        attempts=attempts,
        is_whole=is_whole and is_read and len(tasks) <= MAX_TASKS,
    )


def _own(call: Call, records: Iterable[Record]) -> list[Record]:
    """What cannot be read has no tenant, and is left out like what is another's."""
    return [each for each in records if each.tenant == call.who.tenant]


def _jobs(runs: Sequence[str]) -> ReadTransaction[tuple[list[Job], bool]]:
    """The jobs of these runs, and whether of all of them."""
    found: list[Job] = []
    for id in runs:
        if len(found) >= MAX_JOBS:
            return found, False
        found += [each.record for each in (yield LoadJobs(id)) if isinstance(each.record, Job)]
    return found, True


def _waits(context: ExplainContext, seen: Seen) -> list[explained.Wait]:
    found = [
        *(explained.attempt_wait(context, each) for each in seen.attempts),
        *(explained.job_wait(context, each) for each in seen.jobs),
        *(explained.run_wait(ExplainContext(each, (), (), (), seen.around), each) for each in seen.open),
    ]
    return [each for each in found if each is not None]


def _fits(query: api_queue.QueueQuery, seen: Seen, of: Record) -> bool:
    if query.label and query.label not in _labels(of):
        return False
    if not query.project:
        return True
    run = seen.runs.get(_run_id(of))
    return run is not None and run.origin.project == query.project


# -- how it is shown


def _waiting(seen: Seen, wait: explained.Wait) -> api_queue.WaitingEntry:
    at = _time(wait.record)
    return api_queue.WaitingEntry(
        **_named(seen, wait.record),
        since=serializers.moment(wait.since),
        ready_at=serializers.moment(at) if at > seen.around.now else None,
        reason=wait.group_key,
        reasons=_reasons(wait.reasons),
    )


def _under_way(context: ExplainContext, seen: Seen, attempt: Attempt) -> api_queue.RunningEntry:
    return api_queue.RunningEntry(
        **_named(seen, attempt),
        since=serializers.moment(explained.leased_since(attempt)),
        worker_id=attempt.lease.worker_id if attempt.lease is not None else "",
        reasons=_reasons(explained.lease_reasons(context, attempt)),
    )


def _shared(reason: explained.WaitGroup) -> api_queue.SharedReason:
    return api_queue.SharedReason(
        id=reason.key, code=reason.code, text=reason.text, about=reason.about, count=reason.count
    )


def _reasons(reasons: Iterable[Reason]) -> list[Any]:
    return [because(each) for each in reasons]


def _named(seen: Seen, of: Record) -> dict[str, Any]:
    run_id = _run_id(of)
    run = seen.runs.get(run_id)
    origin = run.origin if run is not None else None
    spec = of.spec if isinstance(of, Job) else None
    job_id = of.job_id if isinstance(of, Attempt) else ""
    return {
        "id": of.id,
        "run_id": run_id,
        "title": (origin.title or origin.template or origin.file or run_id) if origin is not None else run_id,
        "project": origin.project if origin is not None else "",
        "branch": origin.branch if origin is not None else "",
        "job": spec.name if spec is not None else job_id.partition("/")[2],
        "index": of.index if isinstance(of, Attempt) else 0,
        "state": of.state,
        "priority": of.priority if isinstance(of, Attempt) else spec.priority if spec is not None else 0,
        "runs_on": _labels(of),
        "group": of.group if isinstance(of, Attempt) else spec.group if spec is not None else "",
    }


def _run_id(of: Record) -> str:
    return of.id if isinstance(of, Run) else of.run_id


def _labels(of: Record) -> list[str]:
    key = of.queue_key if isinstance(of, Attempt) else of.spec.queue_key if isinstance(of, Job) else ""
    return sorted(required_labels(key))


def _time(of: Record) -> int:
    """From when on it could go on, if that is a matter of time."""
    return of.next_run_at if isinstance(of, Job) else ready_at(of) or 0


def _cursor(place: tuple[int, int, int, str]) -> str:
    return " ".join(str(each) for each in place)


def _place(cursor: str) -> tuple[int, int, int, str] | None:
    """The place that a cursor names; none for an empty one."""
    if not cursor:
        return None
    parts = read(cursor).split(" ", 3)
    try:
        rank, priority, at = (int(each) for each in parts[:3])
        found = (rank, priority, at, parts[3])
    except (ValueError, IndexError):
        found = None
    if found is None or _cursor(found) != read(cursor):
        raise Refused(
            "bad_request", f"{cursor[:80]!r} is no cursor of the queue; use `next` of the page before, as it is"
        )
    return found


HANDLERS: Final[dict[str, Handler]] = {"listQueue": list_queue}
