"""The overview of a run: its jobs as a graph, a list and a waterfall, and why it is in its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from deltaci.api.routes import ROOT
from deltaci.api.schemas.records import Explanation, Job, Plan, Reason, RunWithJobs
from deltaci.api.schemas.timeline import Timeline
from deltaci.core.ids import worker_name
from deltaci.server.web.components import card, lasted, nothing, path, rows, stroke, when
from deltaci.server.web.markup import (
    EMPTY,
    Child,
    Markup,
    a,
    code,
    dd,
    details,
    div,
    dl,
    dt,
    join,
    li,
    nav,
    ol,
    p,
    span,
    summary,
    svg,
    tag,
    ul,
)
from deltaci.server.web.page_request import PageRequest, PageResponse
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.paging import pages, start_of
from deltaci.server.web.views.run.actions import RUN_PAGE, approvals, cancel_job
from deltaci.server.web.views.run.frame import framed
from deltaci.server.web.views.run.graph import graph
from deltaci.server.web.views.run.job_status import JobStatusLabel, look, why
from deltaci.server.web.views.run.waterfall import waterfall

PER_PAGE: Final = 100
MAX_WAITS: Final = 6  # Told at once; the others are a click away.
# What can be chosen of many jobs: how they feel, and what that is called.
CHOICES: Final = (
    ("bad", "failed"),
    ("busy", "running"),
    ("held", "need attention"),
    ("idle", "pending"),
    ("good", "succeeded"),
    ("gone", "not run"),
)
HEADINGS: Final = ("Job", "Status", "Why", "Worker", "Took", "")


async def overview(visit: PageRequest) -> PageResponse:
    """All of it on one page."""
    id = visit.params["run"]
    run = await visit.ask("readRun", RunWithJobs, run=id)
    told = await visit.ask("explainRun", Explanation, run=id)
    parts: list[Child] = [_why(run, told), approvals(visit, run)]
    if run.jobs:
        times = await visit.ask("readTimeline", Timeline, run=id)
        first = start_of(visit)
        chosen = _chosen(visit, run)
        shown = chosen[first : first + PER_PAGE]
        parts += [
            card("Graph", graph(run.id, run.jobs), id="graph"),
            card(
                "Jobs",
                _choices(visit, run),
                _table(visit, run, shown, told),
                pages(visit, first, PER_PAGE, len(chosen), what="jobs", at="jobs"),
                id="jobs",
            ),
            card("Timing", waterfall(run.id, times, [each for _, each in shown]), id="timing"),
        ]
    elif run.conclusion:
        parts.append(_unplanned(await visit.ask("readPlan", Plan, run=id)))
    else:
        parts.append(nothing("There are no jobs yet: the run is being planned."))
    return framed(visit, run, "", *parts, _facts(run), modules=("graph.js", "waterfall.js"))


# -- why


def _why(run: RunWithJobs, told: Explanation) -> Markup:
    links = _links(run)
    waiting = told.waiting if len(told.waiting) > 1 or not _is_said(told) else []
    first, others = waiting[:MAX_WAITS], waiting[MAX_WAITS:]
    return card(
        "Why",
        p(told.summary, class_="why-summary"),
        _failed(run),
        ul(*(_because(each, links) for each in first), class_="why-waits") if first else None,
        details(
            summary(f"{len(others)} more"),
            ul(*(_because(each, links) for each in others), class_="why-waits"),
            id="why-more",
        )
        if others
        else None,
        details(
            summary(f"History ({len(told.history)})"),
            ol(*(_because(each, links, is_past=True) for each in told.history), class_="why-past"),
            id="why-history",
        )
        if told.history
        else None,
        id="why",
    )


def _is_said(told: Explanation) -> bool:
    """Whether the summary says already what the only reason says."""
    return all(each.text.partition(". ")[0].rstrip(".")[1:] in told.summary for each in told.waiting)


def _failed(run: RunWithJobs) -> Markup:
    """The way to what went wrong."""
    lost = [each.name for each in run.jobs if look(each).tone == "bad"]
    if not lost:
        return EMPTY
    others = len(lost) - MAX_WAITS
    return p(
        _sign("bad"),
        " Failed: ",
        [
            [", " if at else "", a(name, href=path("runs", run.id, "jobs", name))]
            for at, name in enumerate(lost[:MAX_WAITS])
        ],
        f" and {others} more" if others > 0 else None,
        class_="why-failed",
    )


def _links(run: RunWithJobs) -> Mapping[str, str]:
    """Where to look for what an explanation is about."""
    found: dict[str, str] = {}
    for each in run.jobs:
        address = path("runs", run.id, "jobs", each.name)
        found[each.id] = address
        found |= {tried.id: f"{address}?attempt={tried.index}" for tried in each.tries}
        if each.worker_id:
            found[each.worker_id] = path("workers", worker_name(each.worker_id))
    return found


def _because(reason: Reason, links: Mapping[str, str], *, is_past: bool = False) -> Markup:
    to = links.get(reason.about)
    return li(
        when(reason.at) if is_past and reason.at is not None else None,
        " " if is_past else None,
        reason.text,
        [" ", a("look", href=to, aria_label=f"look at {reason.about}")] if to else None,
    )


# -- jobs


def _chosen(visit: PageRequest, run: RunWithJobs) -> list[tuple[int, Job]]:
    """The jobs that are wanted, with their numbers."""
    only = visit.query.get("only", "")
    return [(at, each) for at, each in enumerate(run.jobs) if not only or look(each).tone == only]


def _choices(visit: PageRequest, run: RunWithJobs) -> Markup:
    """How many there are of each kind, as links that show them alone."""
    counts: dict[str, int] = {}
    for each in run.jobs:
        feels = look(each).tone
        counts[feels] = counts.get(feels, 0) + 1
    only = visit.query.get("only", "")
    links = [
        a(
            _sign(feels),
            f"{counts.get(feels, 0)} {name}",
            href=f"{visit.same(only=feels, **{'from': None})}#jobs",
            class_=f"choice {feels}",
            aria_current="true" if only == feels else None,
            id=f"only-{feels}",
        )
        for feels, name in CHOICES
        if feels in counts or only == feels
    ]
    if len(links) < 2 and not only:
        return EMPTY
    every = a(
        f"all {len(run.jobs)}",
        href=f"{visit.same(only=None, **{'from': None})}#jobs",
        class_="choice",
        aria_current="true" if not only else None,
        id="only-all",
    )
    return nav(every, *links, class_="choices", aria_label="Filter jobs")


def _sign(feels: str) -> Markup:
    return svg(
        tag("path", d=stroke(feels)), class_=f"sign {feels}", viewbox="0 0 16 16", aria_hidden="true", focusable="false"
    )


def _badge(seen: JobStatusLabel) -> Markup:
    return span(_sign(seen.tone), seen.word, class_=f"badge {seen.tone}")


def _table(visit: PageRequest, run: RunWithJobs, shown: Sequence[tuple[int, Job]], told: Explanation) -> Markup:
    if not shown:
        return nothing("No job matches now.", a("All jobs", href=f"{visit.same(only=None)}#jobs"))
    known = {each.name: each for each in run.jobs}
    return rows(
        HEADINGS,
        [_line(visit, run, at, each, _reason(each, known, told.waiting)) for at, each in shown],
        caption="Jobs in plan order",
        keys=[f"job-{at}" for at, _ in shown],
    )


def _line(visit: PageRequest, run: RunWithJobs, at: int, job: Job, reason: Child) -> list[Child]:
    attempts = f"attempt {len(job.tries)} of {job.max_attempts}" if len(job.tries) > 1 else ""
    return [
        join(
            [
                a(job.name, href=path("runs", run.id, "jobs", job.name), class_="name"),
                span(attempts, class_="quiet") if attempts else "",
            ]
        ),
        _badge(look(job)),
        reason,
        a(worker_name(job.worker_id), href=path("workers", worker_name(job.worker_id))) if job.worker_id else "",
        lasted(job.started_at, job.completed_at) if job.started_at is not None else "",
        cancel_job(visit, job, f"cancel-job-{at}", "Cancel job", back=RUN_PAGE) if visit.may("cancelJob") else "",
    ]


def _reason(job: Job, known: Mapping[str, Job], reasons: Sequence[Reason]) -> Child:
    """Why it is so: what the job itself tells, or what was found to keep it."""
    said = why(job, known)
    if not said:
        begins, ids = f"Job {job.name} ", {job.id, *(each.id for each in job.tries)}
        found = [each.text for each in reasons if each.text.startswith(begins) or each.about in ids]
        said = found[0].removeprefix(begins).partition(". ")[0].rstrip(".") if found else ""
    if not said:
        return ""
    if job.next_run_at is not None:
        return span(said, "; next attempt at ", when(job.next_run_at), class_="reason")
    return span(said, class_="reason")


# -- what it is


def _unplanned(plan: Plan) -> Markup:
    if not plan.problems:
        return nothing("The run ended before it was planned.")
    return card("Problems", ul(*(li(code(each)) for each in plan.problems), class_="problems"), id="problems")


def _facts(run: RunWithJobs) -> Markup:
    change = path("projects", run.project) if run.project and run.event else ""
    template = f"{run.template} (version {run.template_version})" if run.template_version else run.template
    found: list[tuple[str, Child]] = [
        ("Project", a(run.project, href=path("projects", run.project)) if run.event and run.project else run.project),
        ("Repository", run.repository),
        ("Template", a(template, href=path("templates", run.template)) if run.template else ""),
        ("File", code(run.file) if run.file else ""),
        ("Change", a(run.change, href=change) if run.change and change else run.change),
        ("Event", run.event),
        ("Pull request", f"#{run.number}{' from a fork' if run.is_fork else ''}" if run.number else ""),
        ("Ref", code(run.ref) if run.ref else ""),
        ("Commit", code(run.commit) if run.commit else ""),
        ("Workstream", a(run.workstream, href=path("workstreams", run.id)) if run.workstream else ""),
        ("Labels", [span(each, class_="label") for each in run.labels] if run.labels else ""),
        ("Inputs", [div(code(name), " = ", code(value)) for name, value in sorted(run.inputs.items())] or ""),
        ("Plan", code(run.plan_hash[:12]) if run.plan_hash else ""),
        ("Fail fast", "yes" if run.fail_fast else ""),
    ]
    lines = [join([dt(name), dd(value)]) for name, value in found if value]
    too_many = None
    if run.job_count > len(run.jobs):
        others = code(f"GET {ROOT}/runs/{run.id}/jobs")
        too_many = p(f"The first {len(run.jobs)} of {run.job_count} jobs are shown. All of them: ", others)
    return join([too_many, card("About", dl(*lines, class_="facts"), id="about") if lines else EMPTY])


PAGES: Final[tuple[PageRoute, ...]] = (PageRoute(path="/runs/{run}", get=overview),)
