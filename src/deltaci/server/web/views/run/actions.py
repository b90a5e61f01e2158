"""The actions on a run: approve, reject, cancel, rerun."""

from __future__ import annotations

from typing import Any, Final

from deltaci.api.schemas.records import ApprovalGate, DecisionResult, Job, Run, RunWithJobs
from deltaci.core import approvals as approvals_core
from deltaci.core import job as job_core
from deltaci.core import run as run_core
from deltaci.core.plan import can_rerun
from deltaci.server.web.components import action, card, path, when
from deltaci.server.web.markup import EMPTY, Child, Markup, a, code, div, h3, join, li, p, span, strong, ul
from deltaci.server.web.page_request import PageRequest, PageResponse, Redirect
from deltaci.server.web.page_route import PageRoute

# The single keys of a run's pages.
KEYS: Final = (
    ("a", "approve the first waiting job"),
    ("x", "cancel the run"),
    ("R", "rerun all jobs"),
    ("F", "rerun failed jobs"),
    ("z", "switch between the fitted and the full-size graph"),
)

# From which page a job was canceled: that is where one sees it happen.
RUN_PAGE: Final = "run"
JOB_PAGE: Final = "job"


def actions(visit: PageRequest, run: Run) -> Markup:
    """The buttons of what can be done now."""
    to = path("runs", run.id)
    found: list[Markup] = []
    if run.tally.waiting:
        found.append(a("Approve or reject", href=f"{to}#approvals", class_="button primary"))
    if run_core.MACHINE.changes(run.state, run_core.Cancel):
        found.append(_cancel(visit, to))
    if can_rerun(run.state, run.reason) and not run.workstream:
        found += _again(visit, run, to)
    return join(found)


def _cancel(visit: PageRequest, to: str) -> Markup:
    return action(
        visit,
        "cancel-run",
        "Cancel",
        route="cancelRun",
        to=f"{to}/cancel",
        asks=p("Cancel this run? Running jobs are stopped, waiting jobs are not started."),
        reason="reason",
        is_dangerous=True,
        key="x",
    )


def _again(visit: PageRequest, run: Run, to: str) -> list[Markup]:
    found = []
    if run.tally.lost:
        found.append(
            action(
                visit,
                "rerun-failed",
                "Rerun failed",
                route="rerunRun",
                to=f"{to}/rerun",
                asks=p("Start a new run of the failed and canceled jobs, and of the approvals before them?"),
                values={"failed_only": "yes"},
                is_primary=True,
                key="F",
            )
        )
    return [
        *found,
        action(
            visit,
            "rerun-all",
            "Rerun all",
            route="rerunRun",
            to=f"{to}/rerun",
            asks=p("Start a new run of all jobs with the same plan?"),
            key="R",
        ),
    ]


# -- approvals


def approvals(visit: PageRequest, run: RunWithJobs) -> Markup:
    """Every gate that waits: for whom, who said yes, and the buttons of whoever may decide it."""
    waiting = [
        (at, each)
        for at, each in enumerate(run.jobs)
        if each.approval is not None and job_core.MACHINE.changes(each.state, job_core.Approve)
    ]
    if not waiting:
        return EMPTY
    first = waiting[0][0]
    lines = [_gate(visit, run, at, each, is_first=at == first) for at, each in waiting]
    return card("Waiting for approval", *lines, id="approvals")


def _gate(visit: PageRequest, run: RunWithJobs, at: int, job: Job, *, is_first: bool) -> Markup:
    gate = job.approval
    assert gate is not None
    given = [
        li(strong(each.person), " approved ", when(each.at), span(f": {each.comment}") if each.comment else None)
        for each in gate.approvals
    ]
    return div(
        div(
            h3(a(job.name, href=path("runs", run.id, "jobs", job.name))),
            p(_needed(gate, run), class_="quiet"),
            ul(*given, class_="given") if given else None,
            class_="gate-told",
        ),
        div(*_decisions(visit, run, at, job, gate, is_first=is_first), class_="actions"),
        class_="gate-line",
        id=f"gate-{at}",
    )


def _needed(gate: ApprovalGate, run: Run) -> Child:
    who = "one person" if gate.approvers == 1 else f"{gate.approvers} different people"
    starter = run.started_by
    return [
        f"Needs {who}",
        [" with the role ", code(gate.role)] if gate.role else None,
        f", but not {starter}, who started the run" if gate.not_by_starter and starter else None,
        f"; {len(gate.approvals)} of {gate.approvers} so far" if gate.approvers > 1 else None,
        [". It fails ", when(gate.approve_by), " without a decision"] if gate.approve_by is not None else None,
        ".",
    ]


def _decisions(visit: PageRequest, run: Run, at: int, job: Job, gate: ApprovalGate, *, is_first: bool) -> list[Markup]:
    asked = approvals_core.Gate(role=gate.role, approvers=gate.approvers, not_by_starter=gate.not_by_starter)
    who, starter = visit.who, run.started_by
    found: list[Markup] = []

    def decides(id: str, title: str, route: str, *asks: Child, **more: Any) -> None:
        values = {"job": job.name, "plan_hash": run.plan_hash}
        to = path("runs", run.id, id)
        found.append(
            action(
                visit, f"{id}-{at}", title, route=route, to=to, asks=p(*asks), values=values, reason="comment", **more
            )
        )

    why_not = approvals_core.refusal_reason(asked, who.person, who.roles, starter, approves=True)
    if any(each.person == who.person for each in gate.approvals):
        found.append(span("You approved it.", class_="quiet"))
    elif why_not:
        found.append(span(f"You cannot approve it: {why_not}.", class_="quiet"))
    else:
        asks = ("Approve ", strong(job.name), ", with its current plan?")
        decides("approve", "Approve", "approveRun", *asks, is_primary=True, key="a" if is_first else "")
    if not approvals_core.refusal_reason(asked, who.person, who.roles, starter, approves=False):
        asks = ("Reject ", strong(job.name), "? Jobs that need it will not run.")
        decides("reject", "Reject", "rejectRun", *asks, is_dangerous=True)
    return found


def cancel_job(visit: PageRequest, job: Job, id: str, title: str, *, back: str) -> Markup:
    """The button that stops one job, while that does something; `back` is the page to see that on."""
    if not job_core.MACHINE.changes(job.state, job_core.Cancel):
        return EMPTY
    return action(
        visit,
        id,
        title,
        route="cancelJob",
        to=path("runs", job.run_id, "jobs", job.name, "cancel"),
        asks=p(
            "Cancel ", strong(job.name), "? Jobs that need it will not run. Files it has already kept remain available."
        ),
        values={"back": back},
        reason="reason",
        is_dangerous=True,
    )


# -- what forms do


async def cancel(visit: PageRequest) -> PageResponse:
    """Stop the run."""
    id = visit.params["run"]
    await visit.ask("cancelRun", Run, run=id, body={"reason": visit.field("reason").strip()})
    return Redirect(to=path("runs", id), said="The run is being canceled.")


async def cancel_one(visit: PageRequest) -> PageResponse:
    """Stop one job."""
    id, name = visit.params["run"], visit.params["job"]
    await visit.ask("cancelJob", Job, run=id, job=name, body={"reason": visit.field("reason").strip()})
    to = path("runs", id) if visit.field("back") == RUN_PAGE else path("runs", id, "jobs", name)
    return Redirect(to=to, said=f"{name} is being canceled.")


async def approve(visit: PageRequest) -> PageResponse:
    """Say yes to one gate."""
    id = visit.params["run"]
    decided = await visit.ask("approveRun", DecisionResult, run=id, body=_decision(visit))
    more = " It needs more approvals." if decided.still_waiting else ""
    return Redirect(to=path("runs", id), said=f"You approved {', '.join(decided.jobs)}.{more}")


async def reject(visit: PageRequest) -> PageResponse:
    """Reject one gate."""
    id = visit.params["run"]
    decided = await visit.ask("rejectRun", DecisionResult, run=id, body=_decision(visit))
    return Redirect(to=path("runs", id), said=f"You rejected {', '.join(decided.jobs)}.")


def _decision(visit: PageRequest) -> dict[str, str]:
    return {
        "job": visit.field("job"),
        "comment": visit.field("comment").strip(),
        "plan_hash": visit.field("plan_hash"),
    }


async def again(visit: PageRequest) -> PageResponse:
    """A new run of the same; that is where one looks then."""
    id, failed_only = visit.params["run"], visit.field("failed_only") == "yes"
    new = await visit.ask("rerunRun", Run, run=id, body={"failed_only": failed_only})
    return Redirect(to=path("runs", new.id), said="Started this rerun.")


PAGES: Final[tuple[PageRoute, ...]] = (
    PageRoute(path="/runs/{run}/cancel", post=cancel),
    PageRoute(path="/runs/{run}/jobs/{job}/cancel", post=cancel_one),
    PageRoute(path="/runs/{run}/approve", post=approve),
    PageRoute(path="/runs/{run}/reject", post=reject),
    PageRoute(path="/runs/{run}/rerun", post=again),
)
