"""Jobs and attempts: read them, stop one, and say why something is as it is."""

from __future__ import annotations

from typing import Final

import msgspec

from deltaci.api.schemas import records as api
from deltaci.core.decide import CancelJob
from deltaci.core.job import Job
from deltaci.server.rest import serializers
from deltaci.server.rest.http.cursors import read, written
from deltaci.server.rest.http.lookup import attempt_of, attempts_of, job_of, jobs_of, run_of
from deltaci.server.rest.http.request import Call, Handler


async def list_jobs(call: Call) -> api.JobPage:
    """In the order of the plan."""
    every = await jobs_of(call, await run_of(call))
    after = read(call.query.cursor) if call.query.cursor else ""
    first = next((n + 1 for n, each in enumerate(every) if each.spec.name == after), 0)
    some = every[first : first + call.query.limit]
    tries = await attempts_of(call, some)
    more = first + len(some) < len(every)
    return api.JobPage(
        jobs=[serializers.job(each, tries.get(each.id, ())) for each in some],
        next=written(some[-1].spec.name) if more else None,
    )


async def read_job(call: Call) -> api.Job:
    """With its attempts."""
    return await _shown(call, await job_of(call))


async def _shown(call: Call, record: Job) -> api.Job:
    return serializers.job(record, (await attempts_of(call, [record])).get(record.id, ()))


async def cancel_job(call: Call) -> api.Job:
    """Safe to repeat."""
    record = await job_of(call)
    order = CancelJob(id=record.id, actor=call.actor)
    if call.body.reason:
        order = msgspec.structs.replace(order, reason=call.body.reason)
    await call.parts.engine.do(order)
    return await _shown(call, await job_of(call))


async def list_attempts(call: Call) -> api.Attempts:
    """The first one first."""
    record = await job_of(call)
    tries = await attempts_of(call, [record])
    return api.Attempts(attempts=[serializers.attempt(each) for each in tries.get(record.id, ())])


async def read_attempt(call: Call) -> api.Attempt:
    """One of them."""
    return serializers.attempt(await attempt_of(call))


HANDLERS: Final[dict[str, Handler]] = {
    "listJobs": list_jobs,
    "readJob": read_job,
    "cancelJob": cancel_job,
    "listAttempts": list_attempts,
    "readAttempt": read_attempt,
}
