"""Response types of `/api/v1` for the timeline of a run."""

from __future__ import annotations

from typing import Annotated

from deltaci.api.schemas.records import ResponseSchema
from deltaci.protocol.messages import Timestamp, doc


class Phase(ResponseSchema, frozen=True, kw_only=True):
    """A period during which a job was in one phase."""

    phase: Annotated[str, doc("queued, starting, running, uploading, stopping, approval or backoff")]
    attempt: Annotated[int, doc("the index of the attempt; 0: a phase of the job itself")]
    start: Timestamp
    end: Annotated[Timestamp | None, doc("absent while it lasts")]


class JobTimes(ResponseSchema, frozen=True, kw_only=True):
    """A job's phases, in order of time."""

    job: str
    phases: Annotated[list[Phase], doc("empty: it never became ready")]


class Timeline(ResponseSchema, frozen=True, kw_only=True):
    """The timeline of a run: when each of its jobs was in which phase."""

    run_id: str
    start: Timestamp
    until: Annotated[Timestamp, doc("the time of its last event")]
    is_over: Annotated[bool, doc("whether the run has ended")]
    jobs: Annotated[list[JobTimes], doc("in the order of the plan")]
    critical: Annotated[
        list[str], doc("the critical path: the jobs that determine the duration, in order; empty until all have ended")
    ]
