"""One template: its inputs, jobs, versions and runs."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from deltaci.api.schemas.inputs import MAX_PAGE, InputRule, JobInput
from deltaci.api.schemas.records import Run, RunPage, Template, TemplatePage, TemplateSummary
from deltaci.server.rest.job_specs import needs_of
from deltaci.server.web.components import action, card, nothing, path, rows, top, when
from deltaci.server.web.forms import STYLES, way
from deltaci.server.web.markup import Child, Markup, a, code, div, join, p, pre, span, strong
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse, Redirect
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.views.runs import table
from deltaci.server.web.views.templates.plan_text import written

RUNS: Final = 10
MAX_VERSION_PAGES: Final = 5
MAX_JOBS: Final = 100
HEADINGS: Final = ("Run", "Status", "Version", "Inputs", "By", "Started", "Took")


async def newest(visit: PageRequest) -> PageResponse:
    """The newest version."""
    template = await visit.ask("readTemplate", Template, template=visit.params["template"])
    return await _page(visit, template)


async def older(visit: PageRequest) -> PageResponse:
    """The version that the address names."""
    name, version = visit.params["template"], visit.params["version"]
    return await _page(visit, await visit.ask("readVersion", Template, template=name, version=version), is_named=True)


async def _page(visit: PageRequest, template: Template, *, is_named: bool = False) -> HtmlPage:
    versions, is_all = await _versions(visit, template.name)
    latest = versions[0].version if versions and is_all else template.version
    runs = (await visit.ask("listRuns", RunPage, query={"template": template.name, "limit": RUNS})).runs
    is_old = is_named and template.version != latest
    return HtmlPage(
        title=f"{template.name} · version {template.version}" if is_named else template.name,
        here="/templates",
        live={},
        styles=STYLES,
        body=join(
            [
                top(template.name, *_actions(visit, template, is_old=is_old), under=_under(template, latest)),
                p(template.description, class_="text") if template.description else None,
                div(_inputs(template), _jobs(template), class_="cards"),
                card("Plan", pre(code(written(template.plan)), class_="code", tabindex="0", aria_label="Plan as JSON")),
                card("Runs", _runs(template.name, runs), id="runs"),
                card("Versions", _table(template, versions, is_all=is_all), id="versions"),
            ]
        ),
    )


async def _versions(visit: PageRequest, name: str) -> tuple[list[TemplateSummary], bool]:
    """The versions, the newest first, and whether these are all."""
    found: list[TemplateSummary] = []
    cursor = ""
    for _ in range(MAX_VERSION_PAGES):
        query = {"limit": MAX_PAGE, "cursor": cursor}
        page = await visit.ask("listVersions", TemplatePage, query=query, template=name)
        found += page.templates
        if page.next is None:
            return found[::-1], True
        cursor = page.next
    return found[::-1], False


def _actions(visit: PageRequest, template: Template, *, is_old: bool) -> list[Markup]:
    name = template.name
    which = f"?version={template.version}" if is_old else ""
    starts = way(visit, "startRun", "Start a run", path("templates", name, "start") + which, is_primary=True)
    edits = way(
        visit, "saveTemplate", "Edit from this version" if is_old else "Edit", path("templates", name, "edit") + which
    )
    if is_old:
        return [starts, edits]
    removes = action(
        visit,
        "remove",
        "Remove",
        route="removeTemplate",
        to=path("templates", name, "remove"),
        asks=join(
            [
                p("No run can be started from ", strong(name), " any more."),
                p("Existing runs continue. A template saved later under this name continues its version numbers."),
            ]
        ),
        is_dangerous=True,
    )
    return [starts, edits, removes]


def _under(template: Template, latest: int) -> Child:
    return [
        span(f"version {template.version}"),
        span("the newest is ", a(f"version {latest}", href=path("templates", template.name)))
        if template.version != latest
        else None,
        span("saved ", when(template.created_at), f" by {template.created_by}"),
    ]


def _inputs(template: Template) -> Markup:
    if not template.inputs:
        return card("Inputs", p("This template has no inputs.", class_="quiet"))
    lines = [_input(name, rule) for name, rule in template.inputs.items()]
    return card("Inputs", rows(("Input", "Allowed values", "Default"), lines, caption="Inputs of the template"))


def _input(name: str, rule: InputRule) -> list[Child]:
    otherwise: Child = "none: required" if rule.required else code(rule.default) if rule.default else "empty"
    return [
        [code(name, class_="name"), span(rule.description, class_="quiet") if rule.description else None],
        ", ".join(rule.choices) if rule.choices else span("any text", class_="quiet"),
        otherwise,
    ]


def _jobs(template: Template) -> Markup:
    jobs = template.plan.jobs
    more = len(jobs) - MAX_JOBS
    lines = [_job(job, needs) for job, needs in zip(jobs[:MAX_JOBS], needs_of(template.plan), strict=False)]
    return card(
        "Jobs",
        rows(("Job", "Needs", "Runs on"), lines, caption="Jobs of the template"),
        p(f"And {more:,} more; the plan shows all of them.", class_="quiet") if more > 0 else None,
    )


def _job(job: JobInput, needs: tuple[str, ...]) -> list[Child]:
    return [
        [span(job.name, class_="name"), span(job.kind, class_="quiet") if job.approval or not job.work else None],
        ", ".join([*needs, *(f"{each} (order only)" for each in job.after)]),
        ", ".join(job.runs_on),
    ]


def _runs(name: str, runs: list[Run]) -> Markup:
    if not runs:
        return nothing("No run was started from this template yet.")
    to = f"/runs?{urlencode({'template': name})}"
    return join([p(a("All runs", href=to)), table(runs, HEADINGS, caption="Newest runs")])


def _table(template: Template, versions: list[TemplateSummary], *, is_all: bool) -> Markup:
    lines: list[list[Child]] = [
        [
            a(
                f"Version {each.version}",
                href=path("templates", each.name, "versions", each.version),
                aria_current="true" if each.version == template.version else None,
            ),
            each.description,
            [when(each.created_at), span(f" by {each.created_by}", class_="quiet")],
        ]
        for each in versions
    ]
    return join(
        [
            rows(("Version", "Description", "Saved"), lines, caption="Versions"),
            None if is_all else p("Only the oldest versions are shown.", class_="quiet"),
        ]
    )


async def remove(visit: PageRequest) -> PageResponse:
    """Let nobody start runs from it any more."""
    gone = await visit.ask("removeTemplate", TemplateSummary, template=visit.params["template"])
    return Redirect(to="/templates", said=f"The template {gone.name} was removed.")


PAGES: Final = (
    PageRoute(path="/templates/{template}", get=newest),
    PageRoute(path="/templates/{template}/versions/{version}", get=older),
    PageRoute(path="/templates/{template}/remove", post=remove),
)
