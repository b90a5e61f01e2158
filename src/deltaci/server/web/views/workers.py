"""The list of workers with their state, jobs and last heartbeat, and actions on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote, urlencode

from deltaci.api.schemas.queue import RunningEntry
from deltaci.api.schemas.records import Worker, WorkerPage
from deltaci.core import worker as core
from deltaci.server.web.components import badge, lasted, nothing, path, rows, sign, tabs, top, when
from deltaci.server.web.filters import ANY, choice, filters, search
from deltaci.server.web.forms import way
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
from deltaci.server.web.paging import onward, pages, start_of
from deltaci.server.web.views import register_runner
from deltaci.server.web.views import worker as one
from deltaci.server.web.views.worker import STYLES, actions, labels_of, running_now, why_gone, words_of

PAGE: Final = 200  # Of the API.
MAX_READ: Final = 1000
SHOWN: Final = 40  # On one page: each has dialogs of its own.
MAX_TASKS: Final = 5  # Of one worker, in the list.
ALWAYS: Final = (core.READY, "busy", "drained", "quarantined", core.SILENT)  # Counted also where there is none.
HEADINGS: Final = ("Worker", "State", "Jobs", "Slots", "Labels", "Last seen", "")
GONE_HEADINGS: Final = ("Worker", "State", "Reason", "Labels", "Registered", "Left", "")


# -- the list


async def listed(visit: PageRequest) -> PageResponse:
    """Everybody who is there, or who was; as the filters want it."""
    is_gone = visit.query.get("gone") == "1"
    return await (_gone(visit) if is_gone else _there(visit))


async def _there(visit: PageRequest) -> HtmlPage:
    every, is_all = await _read(visit)
    running = await running_now(visit)
    fitting = [each for each in every if _fits(visit, each)]
    first = start_of(visit)
    some = fitting[first : first + SHOWN]
    lines = [_line(visit, each, running) for each in some]
    table = rows(HEADINGS, lines, caption="Workers", keys=[_id(each.name) for each in some])
    return _page(
        visit,
        "",
        _counts(visit, every) if every else None,
        _filters(visit, every) if every else None,
        table if some else _empty(bool(every)),
        p(f"Only the newest {len(every)} workers are shown.", class_="quiet") if not is_all else None,
        pages(visit, first, SHOWN, len(fitting), what="workers"),
    )


async def _read(visit: PageRequest) -> tuple[list[Worker], bool]:
    found: list[Worker] = []
    cursor = ""
    while len(found) < MAX_READ:
        page = await visit.ask("listWorkers", WorkerPage, query={"limit": PAGE, "cursor": cursor})
        found += page.workers
        if page.next is None:
            return sorted(found, key=lambda each: (each.name.lower(), each.id)), True
        cursor = page.next
    return sorted(found, key=lambda each: (each.name.lower(), each.id)), False


async def _gone(visit: PageRequest) -> HtmlPage:
    query = {"gone": True, "limit": SHOWN, "cursor": visit.query.get("cursor", "")}
    page = await visit.ask("listWorkers", WorkerPage, query=query)
    some = [each for each in page.workers if _fits(visit, each)]
    lines = [_gone_line(visit, each) for each in some]
    table = rows(GONE_HEADINGS, lines, caption="Workers that are gone", keys=[_id(each.id) for each in some])
    none = "None of these matches." if page.workers else "No worker is gone, or its record has expired."
    return _page(
        visit,
        "gone",
        _filters(visit, page.workers) if page.workers or visit.query.get("q") else None,
        table if some else nothing(none, a("Active workers", href="/workers")),
        onward(visit, page.next),
    )


def _page(visit: PageRequest, here: str, *body: Child) -> HtmlPage:
    entries = [("", "Active", "/workers"), ("gone", "Gone", "/workers?gone=1")]
    return HtmlPage(
        title="Workers",
        here="/workers",
        live={},
        styles=STYLES,
        body=join(
            [
                top("Workers", way(visit, "makeWorkerToken", "Add a runner", register_runner.PATH)),
                tabs(entries, here),
                *body,
            ]
        ),
    )


def _fits(visit: PageRequest, worker: Worker) -> bool:
    query = visit.query
    text = query.get("q", "").strip().lower()
    told = (worker.id, worker.hold_reason, worker.shutdown_reason, *worker.labels, *worker.tasks)
    return (
        query.get("state", "") in ("", worker.condition)
        and (not query.get("label") or query["label"] in worker.labels)
        and (not text or any(text in each.lower() for each in told))
    )


def _counts(visit: PageRequest, every: Iterable[Worker]) -> Markup:
    """The fleet at a glance; each number leads to those it counts."""
    numbers: dict[str, int] = dict.fromkeys(ALWAYS, 0)
    for each in every:
        numbers[each.condition] = numbers.get(each.condition, 0) + 1
    chosen = visit.query.get("state", "")

    def tile(word: str, number: int) -> Markup:
        to = "/workers" + visit.same(state=None if word == chosen else word, **{"from": None})
        inner = [span(number, class_="number"), span(sign(word), word, class_="word")]
        looks = "tile none" if not number else "tile"
        return li(a(*inner, href=to, class_=looks, aria_current="true" if word == chosen else None), id=f"count-{word}")

    order = [word for word in core.CONDITIONS if word in numbers]
    return ul(*(tile(word, numbers[word]) for word in order), class_="tiles", id="counts", aria_label="By state")


def _filters(visit: PageRequest, every: Iterable[Worker]) -> Markup:
    is_gone = visit.query.get("gone") == "1"
    chosen, state = visit.query.get("label", ""), visit.query.get("state", "")
    labels = sorted({name for each in every for name in each.labels} | ({chosen} if chosen else set()))
    states = [each for each in core.CONDITIONS if each != core.GONE]
    return filters(
        search(visit.query.get("q", ""), "name, label, reason, run"),
        choice("label", "Label", [ANY, *((each, each) for each in labels)], chosen),
        choice("state", "State", [ANY, *((each, each) for each in states)], state) if not is_gone else None,
        to="/workers",
        keeps={"gone": "1" if is_gone else ""},
    )


def _empty(is_filtered: bool) -> Markup:
    if is_filtered:
        return nothing("No worker matches.", a("All workers", href="/workers"))
    return nothing(
        "There are no workers: jobs wait in the queue.",
        join(["Add a runner, or start one together with a server with ", code("deltaci up"), "."]),
    )


def _line(visit: PageRequest, worker: Worker, running: Mapping[str, RunningEntry]) -> list[Child]:
    return [
        join(
            [
                a(worker.name, href=path("workers", worker.name), class_="name"),
                span(f"incarnation {worker.id}", class_="quiet mono") if worker.id != worker.name else None,
            ]
        ),
        _state(worker),
        _tasks(worker, running),
        _slots(worker),
        labels_of(worker.labels),
        when(worker.last_seen_at),
        div(*actions(visit, worker, back="list"), class_="actions compact"),
    ]


def _gone_line(visit: PageRequest, worker: Worker) -> list[Child]:
    again = f"{register_runner.PATH}?{urlencode({'name': worker.name})}"
    return [
        join(
            [
                a(worker.name, href=path("workers", worker.name), class_="name"),
                span(f"incarnation {worker.id}", class_="quiet mono") if worker.id != worker.name else None,
            ]
        ),
        badge(worker.condition),
        why_gone(worker),
        labels_of(worker.labels),
        when(worker.created_at),
        when(worker.updated_at),
        a("Add again", href=again) if visit.may("makeWorkerToken") else None,
    ]


def _id(name: str) -> str:
    """An id of the page: a name may have spaces, an id may not."""
    return f"worker-{quote(name, safe='')}"


# -- what is said of one


def _state(worker: Worker) -> Markup:
    return join([badge(worker.condition), _in_003(worker), _held(worker)])


def _in_003(worker: Worker) -> Markup | None:
    """The word of document 003, where it is another one."""
    if worker.status == worker.condition:
        return None
    return span(worker.status, class_="quiet also", title="state in the vocabulary of document 003")


def _held(worker: Worker) -> Markup | None:
    troubles = f"{worker.infra_failures} infrastructure failure{'s' * (worker.infra_failures != 1)} in a row"
    why = worker.shutdown_reason or worker.hold_reason
    said: list[Child] = []
    if worker.hold and worker.condition != worker.hold.lower():
        said.append(span(worker.hold.lower()))
    if why:
        said.append(span(f"“{words_of(why)}”", class_="why"))
    if worker.hold_started_at:
        said.append(span("since ", when(worker.hold_started_at)))
    if worker.reassign_at is not None:
        said.append(span("its jobs go to other workers ", when(worker.reassign_at)))
    if worker.infra_failures:
        said.append(span(troubles, class_="bad-ink"))
    return div(*said, class_="held-line quiet") if said else None


def _slots(worker: Worker) -> Markup:
    return span(f"{len(worker.tasks)} of {worker.slots}", class_="number")


def _tasks(worker: Worker, running: Mapping[str, RunningEntry]) -> Markup | None:
    some = worker.tasks[:MAX_TASKS]
    lines = [li(_task(id, running.get(id)), id=f"task-{quote(id, safe='')}") for id in some]
    left = len(worker.tasks) - len(some)
    if left:
        lines.append(li(a(f"and {left} more", href=path("workers", worker.name))))
    return ul(*lines, class_="tasks") if lines else None


def _task(id: str, known: RunningEntry | None) -> Markup:
    """An attempt that a worker has: its job, its run, and for how long."""
    if known is None or not known.run_id:
        return code(id)
    return join(
        [
            a(known.job, href=path("runs", known.run_id, "jobs", known.job)),
            " of ",
            a(known.title, href=path("runs", known.run_id)),
            " ",
            lasted(known.since, None),
        ]
    )


PAGES: Final[tuple[PageRoute, ...]] = (
    PageRoute(path="/workers", get=listed),
    *one.PAGES,
    *register_runner.PAGES,
)
