"""The list of changes (pushes and pull requests) with the runs they started, or why none."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from deltaci.api.schemas.projects import Change, ChangePage, HandledFile
from deltaci.server.web.components import badge, nothing, path, rows, when, words
from deltaci.server.web.filters import box, filters
from deltaci.server.web.markup import Child, Markup, a, code, li, span, ul
from deltaci.server.web.page_request import PageRequest, PageResponse
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.paging import onward
from deltaci.server.web.views.projects.frame import framed

HERE: Final = "/changes"
PER_PAGE: Final = 50
LOOKED_THROUGH: Final = 200  # So many of the newest changes of all projects, for the few of one.
HEADINGS: Final = ("Change", "Project", "State", "Result", "When")


async def listed(visit: PageRequest) -> PageResponse:
    """All of them, the newest first."""
    project = visit.query.get("project", "").strip()
    query: dict[str, Any] = {"limit": PER_PAGE, "cursor": visit.query.get("cursor", "")}
    if project:
        query["project"] = project
    page = await visit.ask("listChanges", ChangePage, query=query)
    return framed(
        "Changes",
        _filter(project),
        table(page.changes) if page.changes else _empty(project, is_more=page.next is not None),
        onward(visit, page.next),
        tab="changes",
        under="Pushes and pull requests that the server received, and the runs they started.",
    )


def _filter(project: str) -> Markup:
    return filters(box("project", "Project", project, key="/"), to=HERE)


def _empty(project: str, *, is_more: bool) -> Markup:
    if is_more:
        return nothing(f"None of these {PER_PAGE} changes belongs to {project}; older ones might.")
    if project:
        return nothing(f"No change in {project} yet.", a("All changes", href=HERE))
    return nothing(
        "No change in any repository yet.",
        ["The page of a project explains how the server learns about pushes: ", a("Projects", href="/projects")],
    )


async def newest(visit: PageRequest, project: str = "") -> list[Change]:
    """The newest changes: of this project those among the newest of all."""
    query: dict[str, Any] = {"limit": LOOKED_THROUGH}
    if project:
        query["project"] = project
    return (await visit.ask("listChanges", ChangePage, query=query)).changes


def table(changes: list[Change], *, is_of_one: bool = False) -> Markup:
    """They as a table; without the project where all are of the same one."""
    headings = [each for each in HEADINGS if not (is_of_one and each == "Project")]
    lines = [[cell for name, cell in zip(HEADINGS, _line(each), strict=True) if name in headings] for each in changes]
    return rows(headings, lines, caption="Changes", keys=[f"change-{each.id}" for each in changes])


def _line(change: Change) -> list[Child]:
    return [
        [span(what(change), class_="name"), span(_about(change), class_="quiet")],
        a(change.project, href=path("projects", change.project)),
        badge(change.status),
        outcome(change),
        when(change.created_at),
    ]


def what(change: Change) -> str:
    """What happened, in a few words."""
    if change.title:
        return change.title
    where = change.branch or change.ref.removeprefix("refs/heads/").removeprefix("refs/tags/")
    return f"{words(change.event)}{f' to {where}' if where else ''}"


def _about(change: Change) -> Child:
    return [
        words(change.event),
        f" #{change.number}" if change.number else None,
        f" {words(change.action)}" if change.action else None,
        [" ", code(change.branch)] if change.branch else None,
        [" ", code(change.commit[:9])] if change.commit.strip("0") else None,
        f" by {change.actor}" if change.actor else None,
        " from a fork" if change.is_fork else None,
    ]


def outcome(change: Change) -> Markup:
    """The runs that it made, and why it made none where it made none."""
    files = [li(_file(each)) for each in change.files]
    tries = f", after {change.tries} tries" if change.tries > 1 else ""
    gone = len(change.superseded)
    return ul(
        *files,
        None if files else li(change.reason or "nothing yet", tries),
        li(f"{gone} older run{'s' * (gone != 1)} canceled by it", class_="quiet") if gone else None,
        class_="line-list",
    )


def _file(handled: HandledFile) -> Child:
    name = handled.file or "the pipeline"
    if handled.run:
        return [a(name, href=path("runs", handled.run)), span(f" {handled.reason}", class_="quiet")]
    return [f"{name}: no run, ", span(handled.reason or "no reason recorded")]


def of(project: str) -> str:
    """Where the changes of this project are."""
    return f"{HERE}?{urlencode({'project': project})}"


PAGES: Final = (PageRoute(path=HERE, get=listed),)
