"""What `/api/v1` is asked and answers about a run's past: its events in the words of each document."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from deltaci.api.schemas.inputs import MAX_EVENTS, JobName, Quantity, RequestSchema
from deltaci.api.schemas.records import ResponseSchema
from deltaci.audit.projections.vocabularies import CANONICAL, VOCABULARIES
from deltaci.protocol.messages import doc

VIEWS: Final = tuple(VOCABULARIES)
KINDS: Final = tuple(dict.fromkeys(kind for each in VOCABULARIES.values() for kind in each.kinds))
PAGE: Final = 100


class TransitionQuery(RequestSchema, frozen=True, kw_only=True):
    """In which words, and which of them."""

    view: Annotated[Literal[VIEWS], doc("ours, or the words of one document")] = CANONICAL.name  # type: ignore[valid-type]
    order: Annotated[Literal["oldest", "newest"], doc("which is the first")] = "oldest"
    after: Annotated[Quantity, doc("only what comes after this seq")] = 0
    before: Annotated[Quantity, doc("only what comes before this seq; 0: up to the end")] = 0
    kind: Annotated[Literal[KINDS] | None, doc("only of records that the document calls so")] = None  # type: ignore[valid-type]
    job: Annotated[JobName | None, doc("only of this job, its attempts and their leases")] = None
    limit: Annotated[Annotated[int, Meta(ge=1, le=MAX_EVENTS)], doc("how many, give or take those of one seq")] = PAGE


class Transition(ResponseSchema, frozen=True, kw_only=True, rename={"from_": "from"}):
    """One step, in the words that were asked for. One event may be none of them, or several."""

    seq: int
    at: str
    kind: Annotated[str, doc("what the document calls the record")]
    entity: Annotated[str, doc("what we call it")]
    entity_id: str
    job: Annotated[str, doc("the job that it is about; empty for the run itself")]
    from_: str | None
    to: str
    trigger: str
    actor: Annotated[str, doc("who acted, as the document sees it")]
    severity: str
    rule: Annotated[str, doc("the rule of the document that allows the step; empty in our own words")]
    why: Annotated[str, doc("why it is legal without one")]
    request_id: str
    rev: int
    metadata: dict[str, Any]


class TransitionPage(ResponseSchema, frozen=True, kw_only=True):
    """Steps in the order that was asked for."""

    view: str
    transitions: list[Transition]
    next: Annotated[int | None, doc("`after` of the next page, or its `before` if the newest is the first")]
