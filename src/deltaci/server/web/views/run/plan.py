"""The plan of a run: which jobs run, which were left out, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from deltaci.api.schemas import records as api
from deltaci.server.web.components import card, nothing, path, rows, seconds_text
from deltaci.server.web.markup import Child, Markup, a, code, details, div, join, li, ol, p, span, strong, summary, ul
from deltaci.server.web.page_request import PageRequest, PageResponse
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.paging import pages, start_of
from deltaci.server.web.views.run.collapsible import STYLES, facts, told
from deltaci.server.web.views.run.frame import framed

PER_PAGE: Final = 50
MAX_STEPS: Final = 50
MAX_NAMES: Final = 20
JOB_HEADINGS: Final = ("Job", "Needs", "Runs on", "Steps", "Limits", "Why it runs")
LEFT_HEADINGS: Final = ("Job", "Why it was left out", "Decided by")


async def shown(visit: PageRequest) -> PageResponse:
    """The plan, as far as there is one."""
    run = await visit.ask("readRun", api.RunWithJobs, run=visit.params["run"])
    plan = await visit.ask("readPlan", api.Plan, run=run.id)
    kept = {each.name: each for each in plan.choices if each.is_kept}
    left = [each for each in plan.choices if not each.is_kept]
    return framed(
        visit,
        run,
        "plan",
        _problems(plan) if plan.problems else None,
        _about(plan, len(left)),
        _jobs(visit, run.id, plan.jobs, kept) if plan.jobs else _empty(plan),
        _left_out(visit, left) if left else None,
        styles=STYLES,
    )


def _problems(plan: api.Plan) -> Markup:
    return card(
        "This run could not be planned",
        ul(*(li(code(each)) for each in plan.problems), class_="problems"),
        p("Correct the file and push it; the next run uses it. Check it first with ", code("deltaci lint")),
        id="problems",
    )


def _about(plan: api.Plan, left: int) -> Markup:
    count = len(plan.jobs)
    known: list[tuple[str, Child]] = [
        ("Jobs", strong(f"{count} {'runs' if count == 1 else 'run'}, {left} left out")),
        ("Made from", code(plan.file) if plan.file else "jobs in the request"),
    ]
    if plan.compared_with:
        known.append(("Compared with", code(plan.compared_with[:12], title=plan.compared_with)))
    if plan.unknown_because:
        known.append(("Everything runs", f"because the changes are unknown: {plan.unknown_because}"))
    if plan.group:
        known.append(("Concurrency group", join(["one run at a time in ", code(plan.group)])))
    known += [
        ("When a job fails", "all other jobs are canceled" if plan.fail_fast else "jobs that do not need it continue"),
        ("Time limit", seconds_text(plan.timeout_seconds) if plan.timeout_seconds else "none"),
        ("Wait for optional jobs", seconds_text(plan.optional_wait_seconds) if plan.optional_wait_seconds else "none"),
        ("Hash", code(plan.plan_hash or "none yet", class_="told")),
    ]
    return card("Plan", facts(known), id="plan")


def _jobs(visit: PageRequest, run_id: str, jobs: list[api.PlannedJob], kept: Mapping[str, api.JobChoice]) -> Markup:
    start = start_of(visit, "jobs")
    lines = [_job(run_id, each, kept.get(each.name)) for each in jobs[start : start + PER_PAGE]]
    keys = [f"planned-{at}" for at in range(start, start + len(lines))]
    headings = JOB_HEADINGS if kept else JOB_HEADINGS[:-1]  # Without a file nobody had to choose.
    return card(
        "Jobs that run",
        rows(headings, [line[: len(headings)] for line in lines], caption="Jobs that run", keys=keys),
        pages(visit, start, PER_PAGE, len(jobs), what="jobs", name="jobs"),
        id="kept",
    )


def _job(run_id: str, each: api.PlannedJob, why: api.JobChoice | None) -> list[Child]:
    origin = f"of {why.job}" if why is not None and why.job != each.name else ""
    return [
        join(
            [
                a(each.name, href=path("runs", run_id, "jobs", each.name), class_="name"),
                span(origin, class_="quiet") if origin else None,
            ]
        ),
        _needs(each),
        [[span(label, class_="label"), " "] for label in each.runs_on] if each.approval is None else "",
        _gate(each.approval) if each.approval is not None else _steps(each),
        _limits(each),
        _reason(why) if why is not None else "",
    ]


def _needs(each: api.PlannedJob) -> Child:
    names = [*each.needs[:MAX_NAMES], *([f"{len(each.needs) - MAX_NAMES} more"] if len(each.needs) > MAX_NAMES else [])]
    after = ", ".join(each.after[:MAX_NAMES])
    return [", ".join(names) or None, span(f" after {after}", class_="quiet") if after else None]


def _gate(gate: Any) -> Markup:
    many = f"{gate.approvers} people" if gate.approvers > 1 else "one person"
    return span(
        f"waits for {many}",
        f" with the role {gate.role}" if gate.role else None,
        ", not by the person who started it" if gate.not_by_starter else None,
        f", for {seconds_text(gate.expires_seconds)}" if gate.expires_seconds else None,
    )


def _steps(each: api.PlannedJob) -> Child:
    work = each.work if isinstance(each.work, dict) else {}
    steps = work.get("steps") or []
    if not steps:
        return None
    lines = [li(_step(step)) for step in steps[:MAX_STEPS]]
    more = f"and {len(steps) - MAX_STEPS} more" if len(steps) > MAX_STEPS else None
    name = f"{len(steps)} {'step' if len(steps) == 1 else 'steps'}"
    return details(summary(name, span(f" of {each.name}", class_="hidden")), ol(*lines), more, class_="steps")


def _step(step: Any) -> Markup:
    if not isinstance(step, dict):
        return told(str(step), "Command")
    name, run, uses = (str(step.get(key) or "") for key in ("name", "run", "uses"))
    condition = str(step.get("condition") or "")
    return join(
        [
            span(name, " ") if name else None,
            join(["uses ", code(uses)]) if uses else told(run, "Command"),
            span(" if ", code(condition), class_="quiet") if condition else None,
        ]
    )


def _limits(each: api.PlannedJob) -> Child:
    retry = each.retry
    said = [
        f"at most {seconds_text(each.timeout_seconds)}" if each.timeout_seconds and each.approval is None else "",
        f"{retry.max_attempts} attempts{' on ' if retry.on else ''}{', '.join(retry.on)}"
        if retry.max_attempts > 1
        else "",
        "may fail" if each.allow_failure else "",
        f"one at a time in {each.group}" if each.group else "",
        f"priority {each.priority}" if each.priority else "",
    ]
    return [div(each) for each in said if each]


def _reason(why: api.JobChoice) -> Markup:
    return join([why.reason, [" ", code(why.path)] if why.path and why.path not in why.reason else None])


def _left_out(visit: PageRequest, left: list[api.JobChoice]) -> Markup:
    start = start_of(visit, "left")
    lines: list[list[Child]] = [
        [
            join([span(each.name, class_="name"), span(f"of {each.job}") if each.job != each.name else None]),
            each.reason,
            _decided_by(each),
        ]
        for each in left[start : start + PER_PAGE]
    ]
    keys = [f"left-{at}" for at in range(start, start + len(lines))]
    return card(
        "Jobs left out",
        rows(LEFT_HEADINGS, lines, caption="Jobs left out", keys=keys),
        pages(visit, start, PER_PAGE, len(left), what="jobs left out", name="left"),
        id="left-out",
    )


def _decided_by(choice: api.JobChoice) -> Child:
    """Return the run and commit whose result is reused, or else the changed file that decided."""
    if choice.run:
        return [a("the run", href=path("runs", choice.run)), " of ", code(choice.commit[:12], title=choice.commit)]
    return code(choice.path) if choice.path else span("no changed file", class_="quiet")


def _empty(plan: api.Plan) -> Child:
    if plan.problems:
        return None
    if plan.choices:
        return nothing("No job runs: all were left out.", "The reasons are below.")
    return nothing("There is no plan yet.", "It appears here when the run is planned.")


PAGES: Final[tuple[PageRoute, ...]] = (PageRoute(path="/runs/{run}/plan", get=shown),)
