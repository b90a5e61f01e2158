"""All workstreams in columns by state; finished ones only if they ended recently."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from deltaci.api.schemas.workstreams import WORKSTREAM_STATES, WorkstreamPage, WorkstreamProgress, WorkstreamSummary
from deltaci.server.web.components import badge, lasted, nothing, rows, sign, top, when
from deltaci.server.web.filters import box, filters, search
from deltaci.server.web.markup import (
    Child,
    Markup,
    a,
    code,
    div,
    h2,
    join,
    li,
    ol,
    p,
    section,
    span,
)
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.paging import onward
from deltaci.server.web.views.workstreams.components import (
    HERE,
    QUEUES,
    STYLES,
    bar,
    link,
    listed,
    name_of,
    nth,
    so_far,
    to_base,
)

FILTERS: Final = ("project", "person")
PER_PAGE: Final = 40
SEARCHED: Final = 200  # Of each column, where somebody searches.
MOST: Final = 60
RECENT: Final = 8


class BoardColumn(msgspec.Struct, frozen=True):
    """A column: a state, its description, and the maximum number of cards."""

    state: str
    means: str
    shows: int = MOST


COLUMNS: Final = (
    BoardColumn("planned", "its base and branch are being resolved"),
    BoardColumn("ready", "no task has started yet"),
    BoardColumn("executing", "its tasks are running"),
    BoardColumn("validating", "in the merge queue"),
    BoardColumn("completed", "merged into the base", RECENT),
    BoardColumn("failed", "a task, a validation rule or the merge failed", RECENT),
    BoardColumn("cancelled", "somebody cancelled it", RECENT),
)


class FilledColumn(msgspec.Struct, frozen=True):
    """A column with its cards, and whether more exist."""

    column: BoardColumn
    lines: list[WorkstreamSummary]
    is_more: bool


async def board(visit: PageRequest) -> PageResponse:
    """The board; or, of one state, the whole list."""
    wanted = {name: visit.query[name] for name in FILTERS if visit.query.get(name)}
    search = visit.query.get("q", "").strip()
    state = visit.query.get("state", "")
    is_filtered = bool(wanted or search or state)
    if state:
        body = await _all_of(visit, {**wanted, "state": state}, search)
    else:
        filled = await asyncio.gather(*(_filled(visit, each, wanted, search) for each in COLUMNS))
        body = _columns(visit, filled) if any(each.lines for each in filled) else _empty(visit, is_filtered=is_filtered)
    return HtmlPage(
        title="Workstreams",
        here=HERE,
        live={},
        styles=STYLES,
        modules=("workstreams.js",),
        keys=(("n", "new workstream"),) if visit.may("createWorkstream") else (),
        body=join([_head(visit), _filters(visit, search, state), body]),
    )


def _head(visit: PageRequest) -> Markup:
    return top(
        "Workstreams",
        a("Merge queues", href=QUEUES, class_="button"),
        a("New workstream", href=f"{HERE}/new", class_="button primary", data_key="n")
        if visit.may("createWorkstream")
        else None,
    )


async def _filled(visit: PageRequest, column: BoardColumn, wanted: dict[str, str], search: str) -> FilledColumn:
    limit = SEARCHED if search else column.shows
    asked: dict[str, Any] = {**wanted, "state": column.state, "progress": True, "limit": limit}
    page = await visit.ask("listWorkstreams", WorkstreamPage, query=asked)
    found = sorted((each for each in page.workstreams if _has(each, search.lower())), key=_place)
    is_more = page.next is not None or len(found) > column.shows
    return FilledColumn(column, found[: column.shows], is_more)


def _place(line: WorkstreamSummary) -> int:
    """In the order in which they are merged; all others stay as they came."""
    return line.progress.position if line.progress is not None else 0


def _has(line: WorkstreamSummary, text: str) -> bool:
    told = (line.id, line.name, line.title, line.project, line.base, line.created_by)
    return not text or any(text in each.lower() for each in told)


# -- columns and cards


def _columns(visit: PageRequest, filled: Sequence[FilledColumn]) -> Markup:
    return div(*(_column(visit, each) for each in filled), class_="ws-board", id="board")


def _column(visit: PageRequest, filled: FilledColumn) -> Markup:
    state, count = filled.column.state, f"{len(filled.lines)}{'+' if filled.is_more else ''}"
    return section(
        h2(state.capitalize(), " ", span(count, class_="count"), id=f"{state}-title"),
        p(filled.column.means, class_="quiet means"),
        ol(*(card(each) for each in filled.lines), class_="ws-cards") if filled.lines else p("none", class_="none"),
        p(a(f"All {state}", href=HERE + visit.same(state=state))) if filled.is_more else None,
        id=f"column-{state}",
        class_="ws-column" if filled.lines else "ws-column empty",
        aria_labelledby=f"{state}-title",
    )


def card(line: WorkstreamSummary) -> Markup:
    """One workstream in a few lines."""
    far = line.progress
    begun = line.started_at or line.created_at
    return li(
        link(line.id, name_of(line), class_="name", data_walk=True, id=f"link-{line.id}"),
        div(to_base(line), class_="quiet"),
        div(bar(far.counts, far.tasks), span(so_far(far.counts, far.tasks)), class_="so-far") if far else None,
        now(line),
        div(
            span(line.created_by),
            lasted(begun, line.ended_at),
            when(line.ended_at) if line.ended_at else None,
            class_="by",
        ),
        id=f"ws-{line.id}",
        class_="ws-card",
    )


def now(line: WorkstreamSummary) -> Markup | None:
    """What it does, waits for or failed by, in a few words; a failure beside it, for one that is not critical."""
    far = line.progress
    if far is None:
        return None
    is_bad = far.failed_rule is not None or far.failed_task or far.problem
    said = [_goes_on(far), div(sign("failed"), _failed(far), class_="now bad-ink") if is_bad else None]
    return join(said) if any(said) else None


def _goes_on(far: WorkstreamProgress) -> Markup | None:
    if far.position:
        doing = f", {far.doing}" if far.doing else ""
        waits = div(far.waits_for, class_="quiet clipped") if far.waits_for else None
        return div(f"{nth(far.position)} in the merge queue{doing}", waits, class_="now")
    if far.under_way:
        return div(sign("running"), span("runs ", listed(far.under_way)), class_="now busy-ink")
    if far.waiting:
        waits_for = "waits for a worker" if len(far.waiting) == 1 else "wait for workers"
        return div(sign("queued"), span(listed(far.waiting), f" {waits_for}"), class_="now quiet")
    return None


def _failed(far: WorkstreamProgress) -> Markup:
    task: Child = [code(far.failed_task), ": "] if far.failed_task else None
    broken = far.failed_rule
    if broken is None:
        return span(task, far.problem or "failed", class_="clipped")
    return span(
        task, f"{broken.rule}: found {broken.actual or 'nothing'}, expected {broken.expected}", class_="clipped"
    )


# -- all of one state


async def _all_of(visit: PageRequest, wanted: dict[str, Any], search: str) -> Markup:
    cursor = visit.query.get("cursor", "")
    limit = SEARCHED if search else PER_PAGE
    asked = {**wanted, "progress": True, "limit": limit, "cursor": cursor}
    page = await visit.ask("listWorkstreams", WorkstreamPage, query=asked)
    found = [each for each in page.workstreams if _has(each, search.lower())]
    if not found and page.next is None:
        return _empty(visit, is_filtered=True)
    return join(
        [
            p(a("The board", href=HERE + visit.same(state=None, cursor=None))),
            rows(
                ("Workstream", "State", "To", "Tasks", "What", "By", "Ended", "Took"),
                [_line(each) for each in found],
                caption=f"Workstreams that are {wanted['state']}",
                keys=[f"ws-{each.id}" for each in found],
            ),
            onward(visit, page.next),
        ]
    )


def _line(line: WorkstreamSummary) -> list[Child]:
    far = line.progress
    return [
        join([link(line.id, name_of(line), class_="name"), span(line.id, class_="quiet mono")]),
        badge(line.state, line.run_state),
        to_base(line),
        so_far(far.counts, far.tasks) if far else "",
        now(line) or "",
        line.created_by,
        when(line.ended_at),
        lasted(line.started_at, line.ended_at),
    ]


# -- around it


def _filters(visit: PageRequest, search_for: str, state: str) -> Markup:
    return filters(
        search(search_for, "title, name, id"),
        box("project", "Project", visit.query.get("project", "")),
        box("person", "Person", visit.query.get("person", "")),
        to=HERE,
        keeps={"state": state if state in WORKSTREAM_STATES else ""},
    )


def _empty(visit: PageRequest, *, is_filtered: bool) -> Markup:
    if is_filtered:
        return nothing("No workstream matches.", a("The whole board", href=HERE))
    start: Child = join(["Start one: ", code("deltaci ws create FILE")])
    if visit.may("createWorkstream"):
        start = join([a("Start one", href=f"{HERE}/new"), ", or by ", code("deltaci ws create FILE"), "."])
    return nothing(
        "There is no workstream yet. A workstream runs tasks on its own branch, checks validation rules, and merges "
        "exactly the tested commit.",
        start,
    )


PAGES: Final = (PageRoute(path=HERE, get=board),)
