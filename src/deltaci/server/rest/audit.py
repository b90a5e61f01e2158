"""The administrative log of a tenant: every change of its keys, projects, secrets, workers and so on."""

from __future__ import annotations

from typing import Final

from deltaci.api.schemas.audit import AuditEvent, AuditPage, AuditQuery
from deltaci.audit.projections.administration import AdministrativeEntry, administrative_entry
from deltaci.core.errors import Refused
from deltaci.core.events import USER
from deltaci.core.instants import from_datetime
from deltaci.server.rest.http.cursors import decode_cursor, encode_cursor
from deltaci.server.rest.http.request import Call, Handler
from deltaci.server.rest.serializers import to_datetime

MAX_PAGES: Final = 10  # The number of pages of the log that are searched for one page of the response.
PAGE_SIZE: Final = 200
MAX_SEQ: Final = 2**63 - 1
MAX_SEQ_DIGITS: Final = 18


async def list_audit(call: Call) -> AuditPage:
    """Return a page of the administrative log, the newest event first."""
    query: AuditQuery = call.query
    before, page = _position(query.cursor), list[AuditEvent]()
    since = from_datetime(query.since) if query.since is not None else 0
    for _ in range(MAX_PAGES):
        events = await call.app.store.administrative_events(call.caller.tenant, before, PAGE_SIZE)
        for event in events:
            if event.at < since:
                return AuditPage(events=page, next=None)
            before = event.seq
            entry = administrative_entry(event)
            if _matches(query, entry):
                page.append(_serialize(entry))
                if len(page) == query.limit:
                    return AuditPage(events=page, next=encode_cursor(str(before)))
        if len(events) < PAGE_SIZE:
            return AuditPage(events=page, next=None)
    return AuditPage(events=page, next=encode_cursor(str(before)))


def _position(cursor: str) -> int:
    """Return the seq before which the page begins."""
    if not cursor:
        return MAX_SEQ
    seq_text = decode_cursor(cursor)
    if not (seq_text.isascii() and seq_text.isdecimal() and len(seq_text) <= MAX_SEQ_DIGITS):
        raise Refused("bad_request", f"{cursor[:80]!r} is no cursor of this list; use `next` of the page before")
    return int(seq_text)


def _matches(query: AuditQuery, entry: AdministrativeEntry) -> bool:
    return (
        query.kind in (None, entry.kind)
        and query.name in (None, entry.name)
        and query.actor in (None, entry.actor, entry.actor.removeprefix(f"{USER}:"))
    )


def _serialize(entry: AdministrativeEntry) -> AuditEvent:
    return AuditEvent(
        seq=entry.seq,
        at=to_datetime(entry.at),
        kind=entry.kind,
        name=entry.name,
        action=entry.action,
        actor=entry.actor,
        before=entry.before,
        after=entry.after,
        is_sealed_changed=entry.is_sealed_changed,
    )


HANDLERS: Final[dict[str, Handler]] = {"listAudit": list_audit}
