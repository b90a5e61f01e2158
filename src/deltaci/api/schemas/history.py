"""Query and response types of `/api/v1` for a run's events in the vocabulary of each source document."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from deltaci.api.schemas.inputs import MAX_EVENTS, JobName, Quantity, RequestSchema
from deltaci.api.schemas.records import ResponseSchema
from deltaci.audit.projections.vocabularies import CANONICAL, VOCABULARIES
from deltaci.protocol.messages import doc

VIEWS: Final = tuple(VOCABULARIES)
KINDS: Final = tuple(dict.fromkeys(kind for vocabulary in VOCABULARIES.values() for kind in vocabulary.kinds))
PAGE: Final = 100


class TransitionQuery(RequestSchema, frozen=True, kw_only=True):
    """The transitions of a run to return, and their vocabulary."""

    view: Annotated[Literal[VIEWS], doc("our own vocabulary, or that of one document")] = CANONICAL.name  # type: ignore[valid-type]
    order: Annotated[Literal["oldest", "newest"], doc("sort order")] = "oldest"
    after: Annotated[Quantity, doc("only transitions after this seq")] = 0
    before: Annotated[Quantity, doc("only transitions before this seq; 0: up to the end")] = 0
    kind: Annotated[Literal[KINDS] | None, doc("only of this kind of record, in the vocabulary's name for it")] = None  # type: ignore[valid-type]
    job: Annotated[JobName | None, doc("only of this job, its attempts and their leases")] = None
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_EVENTS)], doc("approximate page size: transitions of one seq are not split")
    ] = PAGE


class Transition(ResponseSchema, frozen=True, kw_only=True, rename={"from_": "from"}):
    """A transition in the requested vocabulary. One event gives zero or more transitions."""

    seq: int
    at: str
    kind: Annotated[str, doc("the vocabulary's name for the kind of record")]
    entity: Annotated[str, doc("our own name for it")]
    entity_id: str
    job: Annotated[str, doc("its job; empty for the run itself")]
    from_: str | None
    to: str
    trigger: str
    actor: Annotated[str, doc("the actor, in the vocabulary's terms")]
    severity: str
    rule: Annotated[str, doc("the rule of the document that allows the transition; empty in our own vocabulary")]
    why: Annotated[str, doc("why it is legal without a rule")]
    request_id: str
    rev: int
    metadata: dict[str, Any]


class TransitionPage(ResponseSchema, frozen=True, kw_only=True):
    """A page of transitions, in the requested order."""

    view: str
    transitions: list[Transition]
    next: Annotated[int | None, doc("`after` of the next page, or its `before` if the newest is first")]
