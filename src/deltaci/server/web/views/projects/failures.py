"""Failure rules, and flaky tests and jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from deltaci.api.schemas.failures import FailureRule, FailureRules, FlakyJob, FlakyPage
from deltaci.server.web.components import card, nothing, rows, when
from deltaci.server.web.forms import Form, FormProblem, asked, needed, way
from deltaci.server.web.markup import Child, Markup, a, code, li, p, pre, span, ul
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse, Redirect
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.paging import number, onward
from deltaci.server.web.views.projects.frame import framed

RULES: Final = "/failure-rules"
EDIT: Final = "/failure-rules/edit"
FLAKY: Final = "/flaky"
PER_PAGE: Final = 50
WHOSE: Final = {"tenant": "yours", "server": "the server's", "built-in": "built in"}
EXAMPLE: Final = """rules:
  - name: registry-away
    class: INFRA
    log: 'connection to registry\\..* refused'
"""


async def listed(visit: PageRequest) -> PageResponse:
    """In the order in which they are asked."""
    found = await visit.ask("readFailureRules", FailureRules)
    lines = [_line(at, each) for at, each in enumerate(found.rules, 1)]
    set_by: Child = [f"version {found.version}, set by {found.set_by} ", when(found.set_at)] if found.version else None
    return framed(
        "Failure rules",
        p("The first matching rule classifies a failure and decides whether the job is retried."),
        rows(("Rule", "Source", "Class", "Retried", "When"), lines, caption="Failure rules, in order of evaluation"),
        card("Your file", p(set_by, class_="quiet"), pre(code(found.text), class_="code", tabindex="0"))
        if found.text
        else None,
        tab="failure-rules",
        beside=way(visit, "setFailureRules", "Edit your rules", EDIT),
    )


def _line(at: int, rule: FailureRule) -> list[Child]:
    return [
        [span(f"{at}. ", class_="quiet number"), span(rule.name)],
        span(WHOSE[rule.source], class_="number"),
        rule.failure_class,
        "yes" if rule.is_retryable else "no",
        ul(*(li(each) for each in _conditions(rule)), class_="line-list"),
    ]


def _conditions(rule: FailureRule) -> list[Child]:
    """Everything that must hold."""
    found: list[Child] = []
    if rule.error_codes:
        found.append(["the runner reports ", code(", ".join(rule.error_codes))])
    if rule.exit_codes:
        found.append(["it exits with ", code(", ".join(map(str, rule.exit_codes)))])
    if rule.signals:
        found.append(["signal ", code(", ".join(map(str, rule.signals))), " terminates it"])
    if rule.log_pattern:
        found.append(["the end of its log matches ", code(rule.log_pattern)])
    if rule.all_failed_tests_flaky:
        found.append("every failed test is known to be flaky")
    elif rule.has_failed_tests:
        found.append("tests failed")
    return found or ["always"]


async def edit(visit: PageRequest) -> PageResponse:
    """The tenant's own file."""
    if (stop := needed(visit, "setFailureRules", "Edit failure rules", "/projects")) is not None:
        return stop
    found = await visit.ask("readFailureRules", FailureRules)
    return _form(visit, {"text": found.text or EXAMPLE}, found.version)


async def save(visit: PageRequest) -> PageResponse:
    """Keep it, if it makes sense and nobody else was faster."""
    version = number(visit.field("version"))
    text = visit.field("text").replace("\r\n", "\n")
    answer = await asked(visit, "setFailureRules", FailureRules, body={"text": text, "expected_version": version})
    if not isinstance(answer, FormProblem):
        return Redirect(to=RULES, said="The rules were saved. Earlier failures keep their class.")
    if answer.code == "stale_version":
        found = await visit.ask("readFailureRules", FailureRules)
        return _form(visit, {"text": text}, found.version, answer, found)
    return _form(visit, {"text": text}, version, answer)


def _form(
    visit: PageRequest,
    values: Mapping[str, str],
    version: int,
    problem: FormProblem | None = None,
    theirs: FailureRules | None = None,
) -> HtmlPage:
    place = None
    if problem is not None and problem.code == "bad_request":
        place = place_in(problem.message)
        lines = problem.message.replace("; failure-rules.yml:", "\nfailure-rules.yml:")
        problem = FormProblem(code=problem.code, message=lines.replace("failure-rules.yml:", "line "))
    form = Form(values, problem, "text" if problem is not None and theirs is None else "")
    kept: Child = None
    if theirs is not None:
        kept = [
            p(f"{theirs.set_by} saved version {theirs.version} in the meantime. Your input is still below."),
            pre(code(theirs.text), class_="code", tabindex="0"),
            p("Saving again replaces it with yours."),
        ]
    help = ["YAML. These rules are evaluated before all others. Enter ", code("rules: []"), " for none."]
    return form.page(
        visit,
        "Edit failure rules",
        form.area("text", "Your rules", help=help, place=place, rows=18),
        here="/projects",
        to=EDIT,
        submit="Save",
        back=RULES,
        values={"version": str(version)},
        more=kept,
    )


def place_in(message: str) -> tuple[int, int] | None:
    """The line and the column that `failure-rules.yml:3:5: …` names."""
    parts = message.split(":", 3)
    return (int(parts[1]), int(parts[2])) if len(parts) > 3 and parts[1].isdecimal() and parts[2].isdecimal() else None


# -- what is flaky


async def flaky(visit: PageRequest) -> PageResponse:
    """Jobs and tests that fail now and then."""
    query = {"limit": PER_PAGE, "cursor": visit.query.get("cursor", "")}
    page = await visit.ask("listFlaky", FlakyPage, query=query)
    return framed(
        "Flaky",
        _jobs(page.jobs)
        if page.jobs
        else nothing(
            "No flaky tests or jobs are known.",
            "A test or job that fails and succeeds on the same commit is listed here.",
        ),
        onward(visit, page.next),
        tab="flaky",
        under="Tests and jobs that both failed and succeeded on the same commit.",
    )


def _jobs(jobs: list[FlakyJob]) -> Markup:
    return rows(
        ("Job", "Project", "The job itself", "Its tests"),
        [
            [
                span(each.job, class_="name"),
                a(each.project, href=f"/runs?{urlencode({'project': each.project})}") if each.project else "",
                [_times(each.times), when(each.last_at)] if each.is_flaky else "",
                ul(
                    *(li(code(test.name), " ", _times(test.times), when(test.last_at)) for test in each.tests),
                    class_="line-list",
                ),
            ]
            for each in jobs
        ],
        caption="Flaky jobs",
    )


def _times(count: int) -> str:
    return f"{count} time{'s' * (count != 1)}, last "


PAGES: Final = (
    PageRoute(path=RULES, get=listed),
    PageRoute(path=EDIT, get=edit, post=save),
    PageRoute(path=FLAKY, get=flaky),
)
