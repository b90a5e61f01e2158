"""When a run did what: what the core reads from its events and the reports of its attempts."""

from __future__ import annotations

from typing import Final

from deltaci.api.schemas import timeline as wire
from deltaci.audit import timeline
from deltaci.engine import feed
from deltaci.server.rest.explain import MAX_EVENTS
from deltaci.server.rest.http.lookup import family_of
from deltaci.server.rest.http.request import Call, Handler
from deltaci.server.rest.serializers import maybe, moment


async def read_timeline(call: Call) -> wire.Timeline:
    """Every job, as far as the log tells."""
    run, jobs, tries = await family_of(call)
    events = await feed.read(call.parts.store, 0, MAX_EVENTS, run_id=run.id)
    found = timeline.timeline(run, jobs, (each for some in tries.values() for each in some), events)
    return wire.Timeline(
        run_id=run.id,
        start=moment(found.start),
        until=moment(found.until),
        is_over=found.is_over,
        jobs=[wire.JobTimes(job=each.name, phases=[_phase(phase) for phase in each.phases]) for each in found.jobs],
        critical=list(found.critical),
    )


def _phase(phase: timeline.Phase) -> wire.Phase:
    return wire.Phase(phase=phase.name, attempt=phase.attempt, start=moment(phase.start), end=maybe(phase.end))


HANDLERS: Final[dict[str, Handler]] = {"readTimeline": read_timeline}
