"""Load the runs, jobs and attempts that the path of a request names, if they belong to the caller's tenant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from deltaci.core.attempt import Attempt
from deltaci.core.ids import attempt_id, job_id
from deltaci.core.job import Job
from deltaci.core.machine import Record
from deltaci.core.run import Run
from deltaci.engine.unreadable_records import unreadable_refusal
from deltaci.server.rest.http.request import Call, check_owner, not_found
from deltaci.storage.port import Load, LoadJobs, ReadTransaction


class RunRecords(NamedTuple):
    """A run, its jobs in the order of the plan, and their attempts by job id, ordered by index."""

    run: Run
    jobs: list[Job]
    attempts: dict[str, list[Attempt]]


async def get_run(call: Call) -> Run:
    """Return the run in the path. Raise Refused if it does not exist or belongs to another tenant."""
    run_id = str(call.params["run"])
    return _check_run(call, run_id, await call.app.store.find(run_id))


async def get_workstream(call: Call) -> Run:
    """Return the run of the workstream in the path. Raise Refused like `get_run`."""
    workstream_id = str(call.params["workstream"])
    return _check_run(call, workstream_id, await call.app.store.find(workstream_id), is_workstream=True)


def _check_run(call: Call, run_id: str, stored_record: Record | None, *, is_workstream: bool = False) -> Run:
    kind = "workstream" if is_workstream else "run"
    record = check_owner(call, stored_record, kind, run_id)
    if not isinstance(record, Run) or (is_workstream and not record.origin.workstream):
        raise not_found(kind, run_id)
    return record


async def get_run_records(call: Call, max_jobs: int | None = None) -> RunRecords:
    """Return the run in the path with all its jobs, and the attempts of its first `max_jobs` jobs."""
    return await call.app.store.read(lambda: _load_run_records(call, str(call.params["run"]), max_jobs))


async def get_workstream_records(call: Call, workstream_id: str) -> RunRecords:
    """Return the run of a workstream with its jobs and attempts. Raise Refused like `get_run`."""
    return await call.app.store.read(lambda: _load_run_records(call, workstream_id, None, is_workstream=True))


def _load_run_records(
    call: Call, run_id: str, max_jobs: int | None, *, is_workstream: bool = False
) -> ReadTransaction[RunRecords]:
    """Read a run with all its jobs, and the attempts of its first `max_jobs` jobs.

    Raise Refused if there is no such run.
    """
    stored_runs = yield Load((run_id,))
    # Checked before anything else is read: the response time must not reveal that another tenant has this run.
    run = _check_run(call, run_id, stored_runs[0].record if stored_runs else None, is_workstream=is_workstream)
    jobs = _in_plan_order((yield from load_all_jobs(run_id)))
    attempt_ids = _attempt_ids(jobs[:max_jobs])
    stored_attempts = (yield Load(attempt_ids)) if attempt_ids else []
    return RunRecords(run, jobs, _attempts_by_job(stored_runs.record for stored_runs in stored_attempts))


async def get_job(call: Call) -> Job:
    """Return the job in the path. Raise Refused if it does not exist or belongs to another tenant."""
    run, job_name = await get_run(call), str(call.params["job"])
    record = check_owner(call, await call.app.store.find(job_id(run.id, job_name)), "job", job_name)
    if not isinstance(record, Job):
        raise not_found("job", job_name)
    return record


async def get_attempt(call: Call) -> Attempt:
    """Return the attempt in the path. Raise Refused if it does not exist or belongs to another tenant."""
    job, attempt_index = await get_job(call), int(call.params["index"])
    record = check_owner(
        call, await call.app.store.find(attempt_id(job.id, attempt_index)), "attempt", str(attempt_index)
    )
    if not isinstance(record, Attempt):
        raise not_found("attempt", str(attempt_index))
    return record


async def get_jobs(call: Call, run: Run) -> list[Job]:
    """Return all jobs of a run in the order of the plan."""
    return _in_plan_order(await call.app.store.read(lambda: load_all_jobs(run.id)))


def load_all_jobs(run_id: str) -> ReadTransaction[list[Record]]:
    """Return all jobs of a run, also finished ones, in no particular order."""
    return [stored_record.record for stored_record in (yield LoadJobs(run_id))]


def _in_plan_order(records: Iterable[Record]) -> list[Job]:
    jobs = [record for record in check_readable(records) if isinstance(record, Job)]
    return sorted(jobs, key=lambda job: job.position)


async def get_attempts(call: Call, jobs: Iterable[Job]) -> dict[str, list[Attempt]]:
    """Return all attempts of these jobs by job id, ordered by index."""
    attempt_ids = _attempt_ids(jobs)
    return _attempts_by_job(await call.app.store.find_all(attempt_ids) if attempt_ids else ())


def _attempt_ids(jobs: Iterable[Job]) -> tuple[str, ...]:
    return tuple(attempt_id(job.id, attempt_number + 1) for job in jobs for attempt_number in range(job.attempts))


def _attempts_by_job(records: Iterable[Record]) -> dict[str, list[Attempt]]:
    attempts_by_job: dict[str, list[Attempt]] = {}
    for record in check_readable(records):
        if isinstance(record, Attempt):
            attempts_by_job.setdefault(record.job_id, []).append(record)
    for attempts in attempts_by_job.values():
        attempts.sort(key=lambda attempt: attempt.index)
    return attempts_by_job


def check_readable(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records. Raise Refused at the first record that this version of the server cannot decode."""
    for record in records:
        refusal = unreadable_refusal(record)
        if refusal is not None:
            raise refusal
        yield record
