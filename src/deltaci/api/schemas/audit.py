"""Request and response types of `/api/v1/audit`."""

from __future__ import annotations

from typing import Annotated, Any

from deltaci.api.schemas.inputs import LineText, PageQuery
from deltaci.api.schemas.records import ResponseSchema
from deltaci.protocol.messages import Timestamp, doc


class AuditQuery(PageQuery, frozen=True, kw_only=True):
    """The page of the administrative log to return, and filters for it."""

    kind: Annotated[LineText | None, doc("only of this kind, e.g. `project`, `key`, `secret`, `worker`")] = None
    name: Annotated[LineText | None, doc("only of the object with this name")] = None
    actor: Annotated[LineText | None, doc("only by this person, or by this actor, e.g. `orchestrator`")] = None
    since: Annotated[Timestamp | None, doc("only at this time or later")] = None


class AuditEvent(ResponseSchema, frozen=True, kw_only=True):
    """A change of an administrative object: who changed what, and when, with the values before and after."""

    seq: Annotated[int, doc("the event's position in the event log")]
    at: Timestamp
    kind: Annotated[str, doc("the kind of object, e.g. `project`")]
    name: str
    action: Annotated[str, doc("`created`, `updated`, `deleted` or `imported`; for workers e.g. `drained`")]
    actor: Annotated[str, doc("e.g. `user:ada`, or `orchestrator` for the server itself")]
    before: Annotated[dict[str, Any] | None, doc("null if it did not exist")]
    after: Annotated[dict[str, Any] | None, doc("null if it was deleted")]
    is_sealed_changed: Annotated[bool, doc("whether a part changed that is never shown, such as the hash of a key")]


class AuditPage(ResponseSchema, frozen=True, kw_only=True):
    """A page of the administrative log, newest first. With filters it may be short although more follow."""

    events: list[AuditEvent]
    next: str | None
