"""The timeline of a run: the phases of its attempts, from its events and the reports of its runners."""

from __future__ import annotations

from typing import Final

from deltaci.api.schemas import timeline as wire
from deltaci.audit import timeline
from deltaci.engine import feed
from deltaci.server.rest.explain import MAX_EVENTS
from deltaci.server.rest.http.lookup import get_run_records
from deltaci.server.rest.http.request import Call, Handler
from deltaci.server.rest.serializers import to_datetime, to_optional_datetime


async def read_timeline(call: Call) -> wire.Timeline:
    """Return the phases of every job of a run, as far as the event log has them."""
    run, jobs, attempts_by_job = await get_run_records(call)
    events = await feed.read(call.app.store, 0, MAX_EVENTS, run_id=run.id)
    run_timeline = timeline.timeline(
        run, jobs, (attempt for job_attempts in attempts_by_job.values() for attempt in job_attempts), events
    )
    return wire.Timeline(
        run_id=run.id,
        start=to_datetime(run_timeline.start),
        until=to_datetime(run_timeline.until),
        is_over=run_timeline.is_over,
        jobs=[
            wire.JobTimes(job=job.name, phases=[_serialize_phase(phase) for phase in job.phases])
            for job in run_timeline.jobs
        ],
        critical=list(run_timeline.critical),
    )


def _serialize_phase(phase: timeline.Phase) -> wire.Phase:
    return wire.Phase(
        phase=phase.name,
        attempt=phase.attempt_index,
        start=to_datetime(phase.start),
        end=to_optional_datetime(phase.end),
    )


HANDLERS: Final[dict[str, Handler]] = {"readTimeline": read_timeline}
