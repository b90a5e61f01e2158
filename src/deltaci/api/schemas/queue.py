"""Query and response types of `/api/v1` for the queue: waiting and running attempts."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from deltaci.api.schemas.inputs import LineText, PageQuery
from deltaci.api.schemas.records import Reason, ResponseSchema
from deltaci.protocol.messages import Timestamp, doc


class QueueQuery(PageQuery, frozen=True, kw_only=True):
    """The page of the queue to return, and filters for it."""

    part: Annotated[Literal["all", "running"], doc("all, or only running attempts, which costs less")] = "all"
    reason: Annotated[LineText, doc("only entries that wait for this: the `id` or the `code` of a reason")] = ""
    label: Annotated[LineText, doc("only entries that require this label")] = ""
    project: Annotated[LineText, doc("only entries of this project")] = ""


class QueueEntry(ResponseSchema, frozen=True, kw_only=True):
    """The fields that waiting and running entries of the queue have in common."""

    schema_name: ClassVar[str] = "Queued"

    id: Annotated[str, doc("the attempt; or the job or the run if there is none yet")]
    run_id: Annotated[str, doc("empty for a job of the plain queue")]
    title: Annotated[str, doc("the title of the run")]
    project: str
    branch: str
    job: Annotated[str, doc("the name of the job; empty for a run without a plan yet")]
    index: Annotated[int, doc("the index of the attempt; 0: none yet")]
    state: str
    priority: Annotated[int, doc("a higher one is claimed earlier")]
    runs_on: Annotated[list[str], doc("labels that the worker must have")]
    group: Annotated[str, doc("of all entries with the same group, one runs at a time")]
    since: Annotated[Timestamp, doc("since when it waits or runs")]


class WaitingEntry(QueueEntry, frozen=True, kw_only=True):
    """An attempt, job or run that waits, and why."""

    schema_name: ClassVar[str] = "Waiting"

    ready_at: Annotated[Timestamp | None, doc("the earliest start, if it is in the future")]
    reason: Annotated[str, doc("the `id` of its shared reason")]
    reasons: Annotated[list[Reason], doc("why it waits, most important first")]


class RunningEntry(QueueEntry, frozen=True, kw_only=True):
    """An attempt that a worker executes or is about to execute."""

    schema_name: ClassVar[str] = "UnderWay"

    worker_id: str
    reasons: Annotated[
        list[Reason],
        doc("set if it has not started yet, its worker is silent, or it is being stopped"),
    ]


class SharedReason(ResponseSchema, frozen=True, kw_only=True):
    """A reason for which several entries of the queue wait."""

    id: Annotated[str, doc("its code, and after a colon what else the entries have in common")]
    code: str
    text: str
    about: Annotated[str, doc("the job or the worker to look at; empty: none in particular")]
    count: int


class Queue(ResponseSchema, frozen=True, kw_only=True):
    """A page of the queue: waiting entries, and running ones.

    Waiting attempts come first, in the order of claims, then entries that wait for people or a time, then entries that
    wait for other jobs.
    """

    waiting: list[WaitingEntry]
    next: str | None
    count: Annotated[int, doc("how many waiting entries match the filters, on all pages")]
    reasons: Annotated[
        list[SharedReason], doc("all shared reasons, without the filter `reason`; those that need a person first")
    ]
    running: Annotated[list[RunningEntry], doc("running attempts, oldest first")]
    running_count: int
    is_whole: Annotated[bool, doc("false if the queue is so long that only its beginning was read")]
