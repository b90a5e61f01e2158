"""The list of runs, newest first, with filters and search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from deltaci.api.schemas.inputs import STATUSES
from deltaci.api.schemas.records import Run, RunPage
from deltaci.server.web.components import badge, lasted, nothing, path, rows, top, when, words
from deltaci.server.web.filters import ANY, box, choice, filters, search
from deltaci.server.web.markup import Child, Markup, a, code, div, join, span
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.paging import onward

FILTERS: Final = ("project", "branch", "template", "status", "person")
PER_PAGE: Final = 40
MAX_PAGES_SEARCHED: Final = 10  # Of two hundred runs each.
SEARCH_PAGE: Final = 200
MAX_INPUT_CHARS: Final = 40
HEADINGS: Final = ("Run", "Status", "Project", "Branch", "By", "Started", "Took")


async def listed(visit: PageRequest) -> PageResponse:
    """The list, as the filters want it."""
    wanted: dict[str, Any] = {name: visit.query[name] for name in FILTERS if visit.query.get(name)}
    search = visit.query.get("q", "").strip()
    found, next, searched = await _found(visit, wanted, search)
    is_filtered = bool(wanted or search)
    return HtmlPage(
        title="Runs",
        here="/runs",
        live={},
        body=join(
            [
                top("Runs", a("Start a run", href="/templates", class_="button") if visit.may("startRun") else None),
                _filters(visit, search),
                table(found, HEADINGS, caption="Runs") if found else _empty(is_filtered, searched if search else 0),
                div(f"Searched the newest {searched} runs.", class_="quiet") if search and next else None,
                onward(visit, next),
            ]
        ),
    )


async def _found(visit: PageRequest, wanted: dict[str, Any], search: str) -> tuple[list[Run], str | None, int]:
    """A page of runs. A search goes through pages until it has enough, and says how far it went."""
    cursor = visit.query.get("cursor", "")
    if not search:
        page = await visit.ask("listRuns", RunPage, query={**wanted, "limit": PER_PAGE, "cursor": cursor})
        return page.runs, page.next, len(page.runs)
    found: list[Run] = []
    searched = 0
    for _ in range(MAX_PAGES_SEARCHED):
        page = await visit.ask("listRuns", RunPage, query={**wanted, "limit": SEARCH_PAGE, "cursor": cursor})
        searched += len(page.runs)
        found += [each for each in page.runs if _has(each, search.lower())]
        if page.next is None or len(found) >= PER_PAGE:
            return found, page.next, searched
        cursor = page.next
    return found, cursor, searched


def _has(run: Run, text: str) -> bool:
    told = (run.id, run.title, run.project, run.branch, run.commit, run.template, run.started_by, *run.labels)
    return any(text in each.lower() for each in told)


def _filters(visit: PageRequest, search_for: str) -> Markup:
    asked = {name: visit.query.get(name, "") for name in FILTERS}
    return filters(
        search(search_for, "title, commit, id, label"),
        box("project", "Project", asked["project"]),
        box("branch", "Branch", asked["branch"]),
        box("template", "Template", asked["template"]) if asked["template"] else None,
        choice("status", "Status", [ANY, *((each, words(each)) for each in STATUSES)], asked["status"]),
        box("person", "Person", asked["person"]),
        to="/runs",
    )


def _empty(is_filtered: bool, searched: int) -> Markup:
    if is_filtered:
        return nothing(
            f"No run matches{f' among the newest {searched}' if searched else ''}.", a("All runs", href="/runs")
        )
    return nothing("There is no run yet.", join(["Start one: ", code("deltaci submit plan.json")]))


# -- a run as a line


def table(found: Sequence[Run], headings: Sequence[str], *, caption: str) -> Markup:
    """Runs, each a line, with these of the columns that there are."""
    lines = [[_CELLS[heading](each) for heading in headings] for each in found]
    return rows(headings, lines, caption=caption, keys=[f"run-{each.id}" for each in found])


def name_of(run: Run) -> str:
    """What people call it."""
    return run.title or run.template or run.file or run.id


def exact_state(run: Run) -> str:
    """Return the state of a run for its badge: `canceling` while its jobs are being stopped."""
    return "canceling" if run.canceling else run.state


def short(run: Run) -> str:
    """The commit, or the id."""
    return run.commit[:9] or run.id


def _link(run: Run) -> Child:
    return [a(name_of(run), href=path("runs", run.id), class_="name"), span(short(run), class_="quiet mono")]


_CELLS: Final[Mapping[str, Callable[[Run], Child]]] = {
    "Run": _link,
    "Status": lambda run: badge(run.status, run.conclusion or exact_state(run)),
    "Project": lambda run: run.project,
    "Branch": lambda run: code(run.branch) if run.branch else "",
    "Version": lambda run: span(str(run.template_version), class_="number"),
    "Inputs": lambda run: ", ".join(f"{name}={value[:MAX_INPUT_CHARS]}" for name, value in run.inputs.items()),
    "By": lambda run: run.started_by,
    "Started": lambda run: when(run.created_at),
    "Took": lambda run: lasted(run.started_at, run.updated_at if run.conclusion else None),
}


PAGES: Final = (PageRoute(path="/runs", get=listed),)
