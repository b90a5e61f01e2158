"""What `/api/v1` is asked and answers about a run's past: its events in the words of each document."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from deltaci.api.schemas.inputs import MAX_EVENTS, Asked, JobName, Quantity
from deltaci.api.schemas.records import Shown
from deltaci.audit.projections.vocabularies import CANONICAL, VOCABULARIES
from deltaci.protocol.messages import says

VIEWS: Final = tuple(VOCABULARIES)
KINDS: Final = tuple(dict.fromkeys(kind for each in VOCABULARIES.values() for kind in each.kinds))
PAGE: Final = 100


class TransitionQuery(Asked, frozen=True, kw_only=True):
    """In which words, and which of them."""

    view: Annotated[Literal[VIEWS], says("ours, or the words of one document")] = CANONICAL.name  # type: ignore[valid-type]
    order: Annotated[Literal["oldest", "newest"], says("which is the first")] = "oldest"
    after: Annotated[Quantity, says("only what comes after this seq")] = 0
    before: Annotated[Quantity, says("only what comes before this seq; 0: up to the end")] = 0
    kind: Annotated[Literal[KINDS] | None, says("only of records that the document calls so")] = None  # type: ignore[valid-type]
    job: Annotated[JobName | None, says("only of this job, its attempts and their leases")] = None
    limit: Annotated[Annotated[int, Meta(ge=1, le=MAX_EVENTS)], says("how many, give or take those of one seq")] = PAGE


class Transition(Shown, frozen=True, kw_only=True, rename={"from_": "from"}):
    """One step, in the words that were asked for. One event may be none of them, or several."""

    seq: int
    at: str
    kind: Annotated[str, says("what the document calls the record")]
    entity: Annotated[str, says("what we call it")]
    entity_id: str
    job: Annotated[str, says("the job that it is about; empty for the run itself")]
    from_: str | None
    to: str
    trigger: str
    actor: Annotated[str, says("who acted, as the document sees it")]
    severity: str
    rule: Annotated[str, says("the rule of the document that allows the step; empty in our own words")]
    why: Annotated[str, says("why it is legal without one")]
    request_id: str
    rev: int
    metadata: dict[str, Any]


class TransitionPage(Shown, frozen=True, kw_only=True):
    """Steps in the order that was asked for."""

    view: str
    transitions: list[Transition]
    next: Annotated[int | None, says("`after` of the next page, or its `before` if the newest is the first")]
