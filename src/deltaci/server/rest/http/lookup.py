"""Runs, jobs and attempts by their addresses, for whoever may see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from deltaci.core.attempt import Attempt
from deltaci.core.ids import attempt_id, job_id
from deltaci.core.job import Job
from deltaci.core.machine import Record
from deltaci.core.run import Run
from deltaci.engine.unreadable_records import unreadable_refusal
from deltaci.server.rest.http.request import Call, missing, own
from deltaci.storage.port import Load, LoadJobs, ReadTransaction


class Family(NamedTuple):
    """A run, its jobs in the order of the plan, and attempts by job, the first one first."""

    run: Run
    jobs: list[Job]
    tries: dict[str, list[Attempt]]


async def run_of(call: Call) -> Run:
    """The run that the address names."""
    id = str(call.params["run"])
    return _run(call, id, await call.parts.store.find(id))


async def workstream_of(call: Call) -> Run:
    """The run of the workstream that the address names."""
    id = str(call.params["workstream"])
    return _run(call, id, await call.parts.store.find(id), is_workstream=True)


def _run(call: Call, id: str, found: Record | None, *, is_workstream: bool = False) -> Run:
    what = "workstream" if is_workstream else "run"
    record = own(call, found, what, id)
    if not isinstance(record, Run) or (is_workstream and not record.origin.workstream):
        raise missing(what, id)
    return record


async def family_of(call: Call, limit: int | None = None) -> Family:
    """The run that the address names with all that belongs to it; attempts of its first jobs only, up to a limit."""
    return await call.parts.store.read(lambda: _family(call, str(call.params["run"]), limit))


async def workstream_family(call: Call, id: str) -> Family:
    """The run of a workstream with its jobs and attempts."""
    return await call.parts.store.read(lambda: _family(call, id, None, is_workstream=True))


def _family(call: Call, id: str, limit: int | None, *, is_workstream: bool = False) -> ReadTransaction[Family]:
    found = yield Load((id,))
    # Before more is read: that it is there must not show.
    run = _run(call, id, found[0].record if found else None, is_workstream=is_workstream)
    jobs = _jobs((yield from all_jobs(id)))
    wanted = _attempt_ids(jobs[:limit])
    held = (yield Load(wanted)) if wanted else []
    return Family(run, jobs, _attempts(each.record for each in held))


async def job_of(call: Call) -> Job:
    """The job that the address names, of a run that is the caller's."""
    run, name = await run_of(call), str(call.params["job"])
    record = own(call, await call.parts.store.find(job_id(run.id, name)), "job", name)
    if not isinstance(record, Job):
        raise missing("job", name)
    return record


async def attempt_of(call: Call) -> Attempt:
    """The attempt that the address names, of a job that is the caller's."""
    job, index = await job_of(call), int(call.params["index"])
    record = own(call, await call.parts.store.find(attempt_id(job.id, index)), "attempt", str(index))
    if not isinstance(record, Attempt):
        raise missing("attempt", str(index))
    return record


async def jobs_of(call: Call, run: Run) -> list[Job]:
    """All jobs of a run, in the order of the plan."""
    return _jobs(await call.parts.store.read(lambda: all_jobs(run.id)))


def all_jobs(run_id: str) -> ReadTransaction[list[Record]]:
    """Every job of a run, finished ones too, in no order."""
    return [held.record for held in (yield LoadJobs(run_id))]


def _jobs(records: Iterable[Record]) -> list[Job]:
    found = [each for each in readable(records) if isinstance(each, Job)]
    return sorted(found, key=lambda each: each.position)


async def attempts_of(call: Call, jobs: Iterable[Job]) -> dict[str, list[Attempt]]:
    """Every attempt of these jobs, by job, the first one first."""
    ids = _attempt_ids(jobs)
    return _attempts(await call.parts.store.find_all(ids) if ids else ())


def _attempt_ids(jobs: Iterable[Job]) -> tuple[str, ...]:
    return tuple(attempt_id(job.id, index + 1) for job in jobs for index in range(job.attempts))


def _attempts(records: Iterable[Record]) -> dict[str, list[Attempt]]:
    found: dict[str, list[Attempt]] = {}
    for each in readable(records):
        if isinstance(each, Attempt):
            found.setdefault(each.job_id, []).append(each)
    for tries in found.values():
        tries.sort(key=lambda each: each.index)
    return found


def readable(records: Iterable[Record]) -> Iterator[Record]:
    """The records, if all of them can be read."""
    for each in records:
        unread = unreadable_refusal(each)
        if unread is not None:
            raise unread
        yield each
