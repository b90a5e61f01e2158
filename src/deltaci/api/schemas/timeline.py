"""What `/api/v1` answers about when a run did what, as types."""

from __future__ import annotations

from typing import Annotated

from deltaci.api.schemas.records import ResponseSchema
from deltaci.protocol.messages import Timestamp, doc


class Phase(ResponseSchema, frozen=True, kw_only=True):
    """What a job did for a while."""

    phase: Annotated[str, doc("queued, starting, running, uploading, stopping, approval or backoff")]
    attempt: Annotated[int, doc("0: it is the job's own")]
    start: Timestamp
    end: Annotated[Timestamp | None, doc("absent while it goes on")]


class JobTimes(ResponseSchema, frozen=True, kw_only=True):
    """A job's phases, in order of time."""

    job: str
    phases: Annotated[list[Phase], doc("none: it had no turn")]


class Timeline(ResponseSchema, frozen=True, kw_only=True):
    """When a run did what."""

    run_id: str
    start: Timestamp
    until: Annotated[Timestamp, doc("when something was heard of it last")]
    is_over: Annotated[bool, doc("whether nothing goes on any more")]
    jobs: Annotated[list[JobTimes], doc("in the order of the plan")]
    critical: Annotated[
        list[str], doc("the jobs that its length comes from, the first one first; empty until all are over")
    ]
