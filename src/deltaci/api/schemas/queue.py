"""What `/api/v1` says about the queue: what waits and why, and what workers have."""

from __future__ import annotations

from typing import Annotated, Literal

from deltaci.api.schemas.inputs import PageQuery, Word
from deltaci.api.schemas.records import Because, Shown
from deltaci.protocol.messages import Moment, says


class QueueQuery(PageQuery, frozen=True, kw_only=True):
    """What of the queue."""

    part: Annotated[Literal["all", "running"], says("all, or only what workers have: that costs less")] = "all"
    reason: Annotated[Word, says("only what waits for this: the `id` or the `code` of a reason; empty: all")] = ""
    label: Annotated[Word, says("only what asks for this label; empty: all")] = ""
    project: Annotated[Word, says("only of this project; empty: of all")] = ""


class Queued(Shown, frozen=True, kw_only=True):
    """What both have, who waits and who is under way."""

    id: Annotated[str, says("the attempt; or the job or the run, where there is none yet")]
    run_id: Annotated[str, says("empty for a job of the plain queue")]
    title: Annotated[str, says("what people call the run")]
    project: str
    branch: str
    job: Annotated[str, says("the name of the job; empty for a run that has no plan yet")]
    index: Annotated[int, says("which attempt of the job; 0: there is none yet")]
    state: str
    priority: Annotated[int, says("the higher, the sooner")]
    runs_on: Annotated[list[str], says("labels that its worker must have")]
    group: Annotated[str, says("of all that have the same one, one is under way at a time")]
    since: Annotated[Moment, says("since when it waits, or a worker has it")]


class Waiting(Queued, frozen=True, kw_only=True):
    """One that waits."""

    ready_at: Annotated[Moment | None, says("when its time comes, if that is later than now")]
    reason: Annotated[str, says("the `id` of the reason that it shares with others")]
    reasons: Annotated[list[Because], says("why it waits, the most important first")]


class UnderWay(Queued, frozen=True, kw_only=True):
    """One that a worker has."""

    worker_id: str
    reasons: Annotated[list[Because], says("that it was not begun yet, or is being stopped; mostly nothing")]


class SharedReason(Shown, frozen=True, kw_only=True):
    """So many wait for the same."""

    id: Annotated[str, says("its code, and behind a colon what else those have in common")]
    code: str
    text: str
    about: Annotated[str, says("the job or the worker that has to be looked at; empty: none in particular")]
    count: int


class Queue(Shown, frozen=True, kw_only=True):
    """What waits, in the order in which it is claimed; then what waits for people, for a time and for other jobs."""

    waiting: list[Waiting]
    next: str | None
    count: Annotated[int, says("how many wait, as the filters want it, on all pages")]
    reasons: Annotated[list[SharedReason], says("what all wait for, whatever `reason` says; first what needs somebody")]
    running: Annotated[list[UnderWay], says("what workers have, the oldest first")]
    running_count: int
    is_whole: Annotated[bool, says("whether all was looked at; of what is very long only the beginning is")]
