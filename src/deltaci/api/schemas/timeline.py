"""What `/api/v1` answers about when a run did what, as types."""

from __future__ import annotations

from typing import Annotated

from deltaci.api.schemas.records import Shown
from deltaci.protocol.messages import Moment, says


class Phase(Shown, frozen=True, kw_only=True):
    """What a job did for a while."""

    phase: Annotated[str, says("queued, starting, running, uploading, stopping, approval or backoff")]
    attempt: Annotated[int, says("0: it is the job's own")]
    start: Moment
    end: Annotated[Moment | None, says("absent while it goes on")]


class JobTimes(Shown, frozen=True, kw_only=True):
    """A job's phases, in order of time."""

    job: str
    phases: Annotated[list[Phase], says("none: it had no turn")]


class Timeline(Shown, frozen=True, kw_only=True):
    """When a run did what."""

    run_id: str
    start: Moment
    until: Annotated[Moment, says("when something was heard of it last")]
    is_over: Annotated[bool, says("whether nothing goes on any more")]
    jobs: Annotated[list[JobTimes], says("in the order of the plan")]
    critical: Annotated[
        list[str], says("the jobs that its length comes from, the first one first; empty until all are over")
    ]
