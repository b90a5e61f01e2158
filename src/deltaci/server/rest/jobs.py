"""Jobs and their attempts: list and read them, and cancel a job."""

from __future__ import annotations

from typing import Final

import msgspec

from deltaci.api.schemas import records as api
from deltaci.core.decide import CancelJob
from deltaci.core.job import Job
from deltaci.server.rest import serializers
from deltaci.server.rest.http.cursors import decode_cursor, encode_cursor
from deltaci.server.rest.http.lookup import get_attempt, get_attempts, get_job, get_jobs, get_run
from deltaci.server.rest.http.request import Call, Handler


async def list_jobs(call: Call) -> api.JobPage:
    """Return a page of the jobs of a run, in the order of the plan."""
    jobs = await get_jobs(call, await get_run(call))
    after_name = decode_cursor(call.query.cursor) if call.query.cursor else ""
    start_index = next((job_index + 1 for job_index, job in enumerate(jobs) if job.spec.name == after_name), 0)
    page_jobs = jobs[start_index : start_index + call.query.limit]
    attempts_by_job = await get_attempts(call, page_jobs)
    has_more = start_index + len(page_jobs) < len(jobs)
    return api.JobPage(
        jobs=[serializers.job(job, attempts_by_job.get(job.id, ())) for job in page_jobs],
        next=encode_cursor(page_jobs[-1].spec.name) if has_more else None,
    )


async def read_job(call: Call) -> api.Job:
    """Return a job with its attempts."""
    return await _serialize(call, await get_job(call))


async def _serialize(call: Call, job_record: Job) -> api.Job:
    return serializers.job(job_record, (await get_attempts(call, [job_record])).get(job_record.id, ()))


async def cancel_job(call: Call) -> api.Job:
    """Cancel a job. Has no effect if it is already canceled."""
    job_record = await get_job(call)
    cancel_command = CancelJob(id=job_record.id, actor=call.actor)
    if call.body.reason:
        cancel_command = msgspec.structs.replace(cancel_command, reason=call.body.reason)
    await call.app.engine.do(cancel_command)
    return await _serialize(call, await get_job(call))


async def list_attempts(call: Call) -> api.Attempts:
    """Return the attempts of a job, ordered by index."""
    job_record = await get_job(call)
    attempts_by_job = await get_attempts(call, [job_record])
    return api.Attempts(attempts=[serializers.attempt(attempt) for attempt in attempts_by_job.get(job_record.id, ())])


async def read_attempt(call: Call) -> api.Attempt:
    return serializers.attempt(await get_attempt(call))


HANDLERS: Final[dict[str, Handler]] = {
    "listJobs": list_jobs,
    "readJob": read_job,
    "cancelJob": cancel_job,
    "listAttempts": list_attempts,
    "readAttempt": read_attempt,
}
