"""Runs, jobs and attempts by their addresses, for whoever may see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from deltaci.core.attempt import Attempt
from deltaci.core.decide import job_id
from deltaci.core.errors import Refused
from deltaci.core.ids import attempt_id
from deltaci.core.job import Job
from deltaci.core.machine import Record
from deltaci.core.run import Run
from deltaci.engine.unreadable import refusal
from deltaci.server.api.calls import Call, missing, own


async def run_of(call: Call) -> Run:
    """The run that the address names."""
    id = str(call.params["run"])
    record = own(call, await call.parts.store.find(id), "run", id)
    if not isinstance(record, Run):
        raise missing("run", id)
    return record


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
    found = [each for each in readable(await call.parts.store.jobs_of(run.id)) if isinstance(each, Job)]
    return sorted(found, key=lambda each: each.position)


async def attempts_of(call: Call, jobs: Iterable[Job]) -> dict[str, list[Attempt]]:
    """Every attempt of these jobs, by job, the first one first."""
    ids = [attempt_id(job.id, index + 1) for job in jobs for index in range(job.attempts)]
    found: dict[str, list[Attempt]] = {}
    for each in readable(await call.parts.store.find_all(ids) if ids else ()):
        if isinstance(each, Attempt):
            found.setdefault(each.job_id, []).append(each)
    for tries in found.values():
        tries.sort(key=lambda each: each.index)
    return found


def readable(records: Sequence[Record]) -> Sequence[Record]:
    """The records, if all of them can be read."""
    unread: Refused | None = next(filter(None, map(refusal, records)), None)
    if unread is not None:
        raise unread
    return records
