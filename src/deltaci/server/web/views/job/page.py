"""The page of one job."""

from __future__ import annotations

from typing import Final

from deltaci.api.schemas.records import Attempt, Explanation, Job, Reason, RunWithJobs
from deltaci.core.ids import worker_name
from deltaci.server.web.components import badge, lasted, nothing, path, stop_unconfirmed, tabs, top, when, words
from deltaci.server.web.markup import Child, Markup, a, details, div, h2, li, nav, p, section, span, summary, ul
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse
from deltaci.server.web.views.job.attempt import attempt_part, name_of_attempt
from deltaci.server.web.views.job.gate import gate_part
from deltaci.server.web.views.run.actions import JOB_PAGE, cancel_job
from deltaci.server.web.views.runs import name_of

BESIDE: Final = "beside"
MAX_HISTORY: Final = 50


async def shown(visit: PageRequest) -> PageResponse:
    """The job as it is now: `?attempt=2`, `?lease=1` of it, or `?beside=1` for that attempt next to another one."""
    job = await visit.ask("readJob", Job, run=visit.params["run"], job=visit.params["job"])
    run = await visit.ask("readRun", RunWithJobs, run=job.run_id)
    why = await visit.ask("explainJob", Explanation, run=job.run_id, job=job.name)
    tries = _chosen(visit, job)
    body: Child = [
        nav(
            a("All runs", href="/runs"),
            " / ",
            a(name_of(run), href=path("runs", run.id)),
            class_="crumbs",
            aria_label="Breadcrumbs",
        ),
        top(
            job.name,
            cancel_job(visit, job, "cancel-job", "Cancel the job", back=JOB_PAGE),
            a("Artifacts", href=path("runs", run.id, "results"), class_="button"),
            under=_about(job),
        ),
        _why(why),
        gate_part(job, run) if job.approval is not None else None,
        _attempts(visit, job, tries) if len(job.tries) > 1 else None,
        await _bodies(visit, job, tries) if job.approval is None else None,
    ]
    return HtmlPage(
        title=f"{job.name} · {words(job.status)}",
        here="/runs",
        live={"run": run.id},
        modules=("log.js",),
        styles=("log.css",),
        body=div(body, class_="job"),
    )


def _chosen(visit: PageRequest, job: Job) -> list[Attempt]:
    """The attempts that the address asks for, the earlier one first: one, or two beside each other."""
    if not job.tries:
        return []
    one = _named(job, visit.query.get("attempt", "")) or job.tries[-1]
    if BESIDE not in visit.query or len(job.tries) < 2:
        return [one]
    other = _named(job, visit.query[BESIDE])
    if other is None or other is one:
        other = next(each for each in reversed(job.tries) if each is not one)
    return sorted((one, other), key=lambda each: each.index)


def _named(job: Job, index: str) -> Attempt | None:
    return next((each for each in job.tries if str(each.index) == index), None)


def _about(job: Job) -> Child:
    worker = worker_name(job.worker_id)
    return [
        span(badge(job.status, "canceling" if job.canceling else job.state), id="job-status", role="status"),
        stop_unconfirmed(job.stop_unconfirmed_until),
        span(job.reason) if job.reason else None,
        span("on ", a(worker, href=path("workers", worker))) if worker else None,
        [span(each, class_="label") for each in job.runs_on],
        span("may fail") if job.allow_failure else None,
        span("began ", when(job.started_at)) if job.started_at else span("planned ", when(job.created_at)),
        span("took ", lasted(job.started_at, job.completed_at)) if job.started_at else None,
        span("next attempt ", when(job.next_run_at)) if job.next_run_at else None,
        span(f"attempt {job.attempts} of {job.max_attempts}") if job.max_attempts > 1 and job.attempts else None,
        span("needs ", [_need(job, each) for each in job.needs]) if job.needs else None,
    ]


def _need(job: Job, name: str) -> Child:
    return [a(name, href=path("runs", job.run_id, "jobs", name)), " "]


def _why(why: Explanation) -> Markup:
    return section(
        h2("Why", class_="hidden", id="why-title"),
        p(_summary(why)),
        ul(*(_because(each) for each in why.waiting)) if len(why.waiting) > 1 else None,
        details(
            summary("History"),
            ul(*(_because(each) for each in why.history[-MAX_HISTORY:])),
            id="job-history",
        )
        if why.history
        else None,
        id="why",
        class_="card why",
        aria_labelledby="why-title",
    )


def _summary(why: Explanation) -> str:
    """In one sentence; the only reason to wait says the same, and more."""
    return why.waiting[0].text if len(why.waiting) == 1 else why.summary


def _because(reason: Reason) -> Markup:
    return li(reason.text, [" ", when(reason.at)] if reason.at else None)


def _attempts(visit: PageRequest, job: Job, tries: list[Attempt]) -> Markup:
    """Links to each attempt, and to two of them beside each other."""
    is_beside = len(tries) > 1
    entries = [
        (str(each.index), name_of_attempt(each), visit.same(attempt=str(each.index), beside=None, lease=None))
        for each in job.tries
    ]
    if len(job.tries) > 1:
        first = tries[0].index if is_beside else min(each.index for each in job.tries if each is not tries[0])
        entries.append((BESIDE, "Compare", visit.same(beside=str(first), lease=None)))
    here = BESIDE if is_beside else str(tries[0].index)
    others = nav(
        "Compare with attempt ",
        [
            [a(str(each.index), href=visit.same(beside=str(each.index), attempt=str(tries[-1].index))), " "]
            for each in job.tries
            if each not in tries
        ],
        class_="quiet",
        aria_label="Attempts",
    )
    return div(tabs(entries, here), others if is_beside and len(job.tries) > 2 else None)


async def _bodies(visit: PageRequest, job: Job, tries: list[Attempt]) -> Markup:
    if not tries:
        return nothing(
            "No worker has taken this job yet, so there is no log.", "It appears here as soon as a worker writes one."
        )
    is_beside = len(tries) > 1
    parts = [await attempt_part(visit, job, each, is_beside=is_beside) for each in tries]
    return div(*parts, class_="beside two" if is_beside else "beside")
