"""The administrative log: who changed which key, project, secret, worker and so on, from what to what."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from deltaci.api.schemas.audit import AuditEvent, AuditPage
from deltaci.audit.projections.administration import changed_fields
from deltaci.server.web.components import nothing, rows, top, when, words
from deltaci.server.web.filters import box, filters
from deltaci.server.web.forms import STYLES, needed
from deltaci.server.web.markup import Child, Markup, a, code, join, li, span, ul
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.paging import onward

HERE: Final = "/audit"
PER_PAGE: Final = 50
MAX_VALUE_CHARS: Final = 200
MAX_FIELDS: Final = 30
HEADINGS: Final = ("When", "Who", "Action", "What", "Changes")
KINDS: Final = (
    *("failure-rules", "key", "project", "quotas", "registration-token", "secret", "sign-in-grants", "template"),
    *("template-version", "worker", "worker-removal"),
)
FILTERS: Final = ("kind", "name", "actor")


async def listed(visit: PageRequest) -> PageResponse:
    """Return the page with the newest changes that match its filters."""
    if (stop := needed(visit, "listAudit", "Audit", HERE)) is not None:
        return stop
    chosen = {name: value for name in FILTERS if (value := visit.query.get(name, "").strip())}
    query: dict[str, Any] = {"limit": PER_PAGE, "cursor": visit.query.get("cursor", ""), **chosen}
    page = await visit.ask("listAudit", AuditPage, query=query)
    return HtmlPage(
        title="Audit",
        here=HERE,
        live={},
        styles=STYLES,
        body=join(
            [
                top("Audit", under="Every change of keys, projects, secrets, workers and other settings."),
                _filters(chosen),
                _table(page.events) if page.events else _empty(chosen, is_more=page.next is not None),
                onward(visit, page.next),
            ]
        ),
    )


def _filters(chosen: dict[str, str]) -> Markup:
    return filters(
        box("kind", "Kind", chosen.get("kind", ""), known=KINDS, key="/"),
        box("name", "Name", chosen.get("name", "")),
        box("actor", "Who", chosen.get("actor", "")),
        to=HERE,
    )


def _empty(chosen: dict[str, str], *, is_more: bool) -> Markup:
    if is_more:
        return nothing("None of the newest changes matches; older ones might.")
    return nothing("No change matches.", a("All changes", href=HERE)) if chosen else nothing("No change yet.")


def _table(events: list[AuditEvent]) -> Markup:
    keys = [f"change-{event.seq}-{event.kind}-{event.name}" for event in events]
    return rows(HEADINGS, [_cells(event) for event in events], caption="Changes, newest first", keys=keys)


def _cells(event: AuditEvent) -> list[Child]:
    return [
        when(event.at),
        event.actor.removeprefix("user:"),
        words(event.action),
        [span(event.kind, class_="quiet"), " ", span(event.name, class_="name")],
        _changes(event),
    ]


def _changes(event: AuditEvent) -> Markup:
    fields = changed_fields(event.before, event.after)
    is_update = event.before is not None and event.after is not None
    lines = [
        li(f"{path}: ", [code(_text(before)), " → ", code(_text(after))] if is_update else code(_text(before or after)))
        for path, before, after in fields[:MAX_FIELDS]
    ]
    if len(fields) > MAX_FIELDS:
        lines.append(li(f"and {len(fields) - MAX_FIELDS} more fields"))
    if event.is_sealed_changed:
        lines.append(li("a value that is not shown", class_="quiet"))
    return ul(*lines, class_="line-list")


def _text(value: object) -> str:
    """Return a value as short text."""
    text = value if isinstance(value, str) and value else msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"


PAGES: Final = (PageRoute(path=HERE, get=listed),)
