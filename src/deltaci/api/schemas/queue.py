"""What `/api/v1` says about the queue: what waits and why, and what workers have."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from deltaci.api.schemas.inputs import LineText, PageQuery
from deltaci.api.schemas.records import Reason, ResponseSchema
from deltaci.protocol.messages import Timestamp, doc


class QueueQuery(PageQuery, frozen=True, kw_only=True):
    """What of the queue."""

    part: Annotated[Literal["all", "running"], doc("all, or only what workers have: that costs less")] = "all"
    reason: Annotated[LineText, doc("only what waits for this: the `id` or the `code` of a reason; empty: all")] = ""
    label: Annotated[LineText, doc("only what asks for this label; empty: all")] = ""
    project: Annotated[LineText, doc("only of this project; empty: of all")] = ""


class QueueEntry(ResponseSchema, frozen=True, kw_only=True):
    """What both have, who waits and who is under way."""

    schema_name: ClassVar[str] = "Queued"

    id: Annotated[str, doc("the attempt; or the job or the run, where there is none yet")]
    run_id: Annotated[str, doc("empty for a job of the plain queue")]
    title: Annotated[str, doc("what people call the run")]
    project: str
    branch: str
    job: Annotated[str, doc("the name of the job; empty for a run that has no plan yet")]
    index: Annotated[int, doc("which attempt of the job; 0: there is none yet")]
    state: str
    priority: Annotated[int, doc("the higher, the sooner")]
    runs_on: Annotated[list[str], doc("labels that its worker must have")]
    group: Annotated[str, doc("of all that have the same one, one is under way at a time")]
    since: Annotated[Timestamp, doc("since when it waits, or a worker has it")]


class WaitingEntry(QueueEntry, frozen=True, kw_only=True):
    """One that waits."""

    schema_name: ClassVar[str] = "Waiting"

    ready_at: Annotated[Timestamp | None, doc("when its time comes, if that is later than now")]
    reason: Annotated[str, doc("the `id` of the reason that it shares with others")]
    reasons: Annotated[list[Reason], doc("why it waits, the most important first")]


class RunningEntry(QueueEntry, frozen=True, kw_only=True):
    """One that a worker has."""

    schema_name: ClassVar[str] = "UnderWay"

    worker_id: str
    reasons: Annotated[list[Reason], doc("that it was not begun yet, or is being stopped; mostly nothing")]


class SharedReason(ResponseSchema, frozen=True, kw_only=True):
    """So many wait for the same."""

    id: Annotated[str, doc("its code, and behind a colon what else those have in common")]
    code: str
    text: str
    about: Annotated[str, doc("the job or the worker that has to be looked at; empty: none in particular")]
    count: int


class Queue(ResponseSchema, frozen=True, kw_only=True):
    """What waits, in the order in which it is claimed; then what waits for people, for a time and for other jobs."""

    waiting: list[WaitingEntry]
    next: str | None
    count: Annotated[int, doc("how many wait, as the filters want it, on all pages")]
    reasons: Annotated[list[SharedReason], doc("what all wait for, whatever `reason` says; first what needs somebody")]
    running: Annotated[list[RunningEntry], doc("what workers have, the oldest first")]
    running_count: int
    is_whole: Annotated[bool, doc("whether all was looked at; of what is very long only the beginning is")]
