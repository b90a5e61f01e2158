"""The list of projects with their last change and run."""

from __future__ import annotations

from typing import Final

from deltaci.api.schemas.projects import Change, Project, ProjectPage
from deltaci.api.schemas.records import Run, RunPage
from deltaci.server.web.components import badge, nothing, path, rows, when
from deltaci.server.web.forms import way
from deltaci.server.web.markup import Child, Markup, a, code, join, span
from deltaci.server.web.page_request import PageRequest, PageResponse
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.paging import onward
from deltaci.server.web.views.projects.changes import newest, what
from deltaci.server.web.views.projects.frame import framed
from deltaci.server.web.views.runs import exact_state, name_of

HERE: Final = "/projects"
PER_PAGE: Final = 50
RUNS: Final = 200  # So many of the newest runs are looked at for the last one of each project.
HEADINGS: Final = ("Project", "Repository", "Branch", "Last change", "Last run")


async def listed(visit: PageRequest) -> PageResponse:
    """By name."""
    query = {"limit": PER_PAGE, "cursor": visit.query.get("cursor", "")}
    page = await visit.ask("listProjects", ProjectPage, query=query)
    changes: dict[str, Change] = {}
    runs: dict[str, Run] = {}
    if page.projects:
        for change in await newest(visit):
            changes.setdefault(change.project, change)
        for run in (await visit.ask("listRuns", RunPage, query={"limit": RUNS})).runs:
            runs.setdefault(run.project, run)
    lines = [_line(each, changes.get(each.name), runs.get(each.name)) for each in page.projects]
    return framed(
        "Projects",
        rows(HEADINGS, lines, caption="Projects", keys=[f"project-{each.name}" for each in page.projects])
        if lines
        else nothing(
            "There is no project yet.",
            ["Add one here, or with ", code("deltaci project add NAME URL"), "."],
        ),
        onward(visit, page.next),
        tab="projects",
        beside=way(visit, "saveProject", "New project", "/new/project", is_primary=True),
    )


def _line(project: Project, change: Change | None, run: Run | None) -> list[Child]:
    return [
        [
            a(project.name, href=path("projects", project.name), class_="name"),
            span(project.description, class_="quiet") if project.description else None,
        ],
        [code(project.url), span(f" {project.forge}", class_="quiet")],
        code(project.default_branch) if project.default_branch else span("default branch", class_="quiet number"),
        _change(change),
        _run(run),
    ]


def _change(change: Change | None) -> Markup:
    if change is None:
        return span("none recently", class_="quiet")
    made = [each.run for each in change.files if each.run]
    told: Child = "" if made else [", no run: ", change.reason]
    return join([what(change), " ", when(change.created_at), span(told, class_="quiet")])


def _run(run: Run | None) -> Markup:
    if run is None:
        return span("none recently", class_="quiet")
    return join([badge(run.status, exact_state(run)), " ", a(name_of(run), href=path("runs", run.id))])


PAGES: Final = (PageRoute(path=HERE, get=listed),)
