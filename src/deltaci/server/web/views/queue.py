"""The queue: waiting jobs with reasons, and running jobs."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from deltaci.api.schemas.queue import Queue, QueueEntry, RunningEntry, SharedReason, WaitingEntry
from deltaci.audit.explain.codes import WAITS
from deltaci.audit.explain.queue import is_about_workers, is_urgent
from deltaci.core.ids import worker_name
from deltaci.server.web.components import badge, card, lasted, nothing, path, rows, top, when, words
from deltaci.server.web.filters import ANY, box, choice, filters
from deltaci.server.web.markup import (
    Child,
    Markup,
    a,
    code,
    div,
    join,
    li,
    p,
    span,
    ul,
)
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.paging import onward
from deltaci.server.web.views.worker import labels_of

PER_PAGE: Final = 50
FILTERS: Final = ("reason", "label", "project")
HEADINGS: Final = ("Job", "Reason", "Waiting", "Priority", "Labels")
RUNNING_HEADINGS: Final = ("Job", "Worker", "State", "Duration", "Labels")
# The page goes on by itself: how long it is until a moment would be wrong a second later.
HOW_LONG: Final = re.compile(r" \((?:in [^()]{1,20}|now)\)")
COMMAND: Final = re.compile(r"`([^`]+)`")


async def listed(visit: PageRequest) -> PageResponse:
    """All of it, as the filters want it."""
    wanted = {name: visit.query[name] for name in FILTERS if visit.query.get(name)}
    query = {**wanted, "limit": PER_PAGE, "cursor": visit.query.get("cursor", "")}
    queue = await visit.ask("listQueue", Queue, query=query)
    return HtmlPage(
        title=f"Queue · {queue.count} waiting",
        here="/queue",
        live={},
        styles=("fleet.css",),
        body=join(
            [
                top("Queue", under=_counted(queue, is_filtered=bool(wanted))),
                card("Why jobs wait", _reasons(visit, queue), id="reasons") if queue.reasons else None,
                _filters(visit, queue),
                _waiting(queue) if queue.waiting else _empty(queue, is_filtered=bool(wanted)),
                None
                if queue.is_whole
                else p("The queue is longer than this page can show.", class_="quiet", id="more"),
                onward(visit, queue.next, first="first", more="more"),
                card("Running", _running(queue), id="under-way"),
            ]
        ),
    )


def _counted(queue: Queue, *, is_filtered: bool) -> list[Child]:
    at_least = "" if queue.is_whole else "at least "
    return [
        span(f"{at_least}{queue.count} waiting{' (filtered)' if is_filtered else ''}", id="waiting-count"),
        span(f"{queue.running_count} running", id="running-count"),
    ]


# -- the reasons


def _reasons(visit: PageRequest, queue: Queue) -> Markup:
    chosen = visit.query.get("reason", "")
    return ul(*(_reason(visit, each, is_chosen=each.id == chosen) for each in queue.reasons), class_="reasons")


def _reason(visit: PageRequest, reason: SharedReason, *, is_chosen: bool) -> Markup:
    to = "/queue" + visit.same(reason=None if is_chosen else reason.id, cursor=None)
    return li(
        span(reason.count, class_="how-many"),
        # It goes on after the number.
        span(sentence(reason.text[:1].lower() + reason.text[1:]), " ", _about(reason), class_="says"),
        a("show all" if is_chosen else "show", span(f": {words(reason.id)}", class_="hidden"), href=to),
        id=f"reason-{quote(reason.id, safe='')}",
        data_urgent=is_urgent(reason.code),
        data_chosen=is_chosen,
    )


def sentence(text: str) -> Markup:
    """A sentence of ours: what is between backticks is a command."""
    parts = COMMAND.split(HOW_LONG.sub("", text))
    return join(code(part) if at % 2 else part for at, part in enumerate(parts))


def _about(reason: SharedReason) -> Markup | None:
    """The way to what has to be looked at: a worker, or a job of a run."""
    if is_about_workers(reason.code):
        name = worker_name(reason.about)
        return a(f"Worker {name}", href=path("workers", name)) if name else None
    run_id, _, job = reason.about.partition("/")
    return a(f"Job {job}", href=path("runs", run_id, "jobs", job)) if job else None


# -- what waits


def _filters(visit: PageRequest, queue: Queue) -> Markup:
    asked = {name: visit.query.get(name, "") for name in FILTERS}
    chosen = asked["reason"]
    codes = sorted({each.code for each in queue.reasons} | ({chosen} if chosen in WAITS else set()))
    known = [each.id for each in queue.reasons if each.id == chosen and each.id not in codes]
    return filters(
        choice("reason", "Reason", [ANY, *((each, words(each)) for each in (*codes, *known))], chosen),
        box("label", "Label", asked["label"], key="/"),
        box("project", "Project", asked["project"]),
        to="/queue",
        beside=a("Show all", href="/queue") if any(asked.values()) else None,
    )


def _waiting(queue: Queue) -> Markup:
    keys = [f"waits-{quote(each.id, safe='')}" for each in queue.waiting]
    return rows(HEADINGS, [_line(each) for each in queue.waiting], caption="Waiting jobs, next first", keys=keys)


def _line(each: WaitingEntry) -> list[Child]:
    said: list[Child] = [div(sentence(why.text), class_="because") for why in each.reasons]
    if each.ready_at is not None:
        said.append(div("ready ", when(each.ready_at), class_="because quiet"))
    return [
        _name(each),
        join(said),
        lasted(each.since, None),
        span(each.priority, class_="number") if each.priority else None,
        _asked(each),
    ]


def _name(each: QueueEntry) -> Markup:
    if not each.run_id:
        return join([span(each.id, class_="name mono"), span("a queue job without a run", class_="quiet")])
    run = a(each.title, href=path("runs", each.run_id))
    if not each.job:
        return join(
            [a(each.title, href=path("runs", each.run_id), class_="name"), span("has no plan yet", class_="quiet")]
        )
    again = f", attempt {each.index}" if each.index > 1 else ""
    return join(
        [
            a(each.job, href=path("runs", each.run_id, "jobs", each.job), class_="name"),
            span("of ", run, again, f" · {each.project}" if each.project else None, class_="quiet"),
        ]
    )


def _asked(each: QueueEntry) -> Markup | None:
    group = span(f"group {each.group}", class_="quiet") if each.group else None
    return join([labels_of(each.runs_on), group]) if each.runs_on or group else None


def _empty(queue: Queue, *, is_filtered: bool) -> Markup:
    if is_filtered:
        return nothing("No waiting job matches.", a("The whole queue", href="/queue"))
    if queue.running_count:
        return nothing("The queue is empty: every ready job has started.")
    return nothing(
        "The queue is empty and no job is running.", join(["Start a run: ", code("deltaci submit plan.json")])
    )


# -- what is under way


def _running(queue: Queue) -> Markup:
    if not queue.running:
        return nothing("No job is running.")
    left = queue.running_count - len(queue.running)
    keys = [f"runs-{quote(each.id, safe='')}" for each in queue.running]
    lines = [_running_line(each) for each in queue.running]
    return join(
        [
            rows(RUNNING_HEADINGS, lines, caption="Running jobs, oldest first", keys=keys),
            p(f"And {left} more.", class_="quiet") if left else None,
        ]
    )


def _running_line(each: RunningEntry) -> list[Child]:
    name = worker_name(each.worker_id)
    return [
        _name(each),
        a(name, href=path("workers", name)) if name else None,
        join([badge(each.state), *(div(sentence(why.text), class_="because quiet") for why in each.reasons)]),
        lasted(each.since, None),
        _asked(each),
    ]


PAGES: Final[tuple[PageRoute, ...]] = (PageRoute(path="/queue", get=listed),)
