"""`deltaci runs`, `show`, `cancel` and `explain`: list, show, cancel and explain runs."""

from __future__ import annotations

import itertools
import sys
import time
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from deltaci.api.schemas import records as api
from deltaci.api.schemas.inputs import MAX_PAGE, RUN_STATES, STATUSES
from deltaci.cli import arguments
from deltaci.cli.completers import complete_job, complete_run, complete_template
from deltaci.cli.event_output import tell_event
from deltaci.cli.output import TableOutput, about, ago, console, facts, safe, show, since, status, status_of, took
from deltaci.cli.plan_view import show_plan
from deltaci.cli.session import CommandSession, command, leave_by
from deltaci.client.run_status import is_over, is_settled

app = typer.Typer(add_completion=False)

WATCH_SECONDS: Final = 1.0

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", autocompletion=complete_run)]


@command(app, "runs")
def runs_command(
    session: CommandSession,
    status: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(STATUSES)}.", autocompletion=lambda: list(STATUSES))
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(help="Only runs in this exact state, e.g. QUEUED.", autocompletion=lambda: list(RUN_STATES)),
    ] = None,
    project: Annotated[str | None, typer.Option(help="Only runs of this project.")] = None,
    branch: Annotated[str | None, typer.Option(help="Only runs of this branch.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="Only runs with this label. May be repeated.")] = None,
    person: Annotated[str | None, typer.Option(help="Only runs started by this person.")] = None,
    template: Annotated[
        str | None, typer.Option(help="Only runs of this template.", autocompletion=complete_template)
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only runs created since: 2h, 3d, 2026-01-31.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only runs created before.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 20,
    all: Annotated[bool, typer.Option("--all", help="Show all runs.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Update the list until Ctrl-C.")] = False,
) -> None:
    """List runs, newest first. Filters are combined with AND.

    Examples:

      deltaci runs --branch main --status FAILED --since 2d

      deltaci runs --watch
    """
    asked: dict[str, Any] = {
        **{"status": status and status.upper(), "state": state and state.upper(), "project": project, "branch": branch},
        **{"labels": label or (), "person": person, "template": template},
        **{"since": arguments.moment(since), "until": arguments.moment(until)},
    }
    most = None if all else limit
    if watch:
        _watch_runs(session, asked, most)
    found = _found(session, asked, most)
    if session.is_json:
        session.print_json(found)
    else:
        _runs_table(found).print("no runs; start one with 'deltaci submit'")
        if most is not None and len(found) == most:
            console().print(Text(f"the newest {most}; use --limit N or --all to show more", style="dim"))


def _found(session: CommandSession, asked: dict[str, Any], most: int | None) -> list[api.Run]:
    if most is not None and most <= MAX_PAGE:
        # Pages may be short, even empty, before the last one: only the iterator knows when there are no more.
        page = session.client.runs(**asked, limit=most)
        if page.next is None or len(page.runs) == most:
            return page.runs
    return list(itertools.islice(session.client.iter_runs(**asked), most))


def _runs_table(found: list[api.Run]) -> TableOutput:
    rows = TableOutput("RUN", "STATUS", "~ABOUT", "~BRANCH", "~BY", "CREATED", "~#TOOK", "~REASON")
    for run in found:
        ended = run.updated_at if is_over(run) else None
        rows.add(
            run.id,
            status_of(run),
            about(run),
            run.branch,
            run.started_by,
            since(run.created_at),
            took(run.started_at, ended),
            run.reason,
        )
    return rows


def _watch_runs(session: CommandSession, asked: dict[str, Any], most: int | None) -> None:
    if session.is_json:
        seen: dict[str, int] = {}
        while True:
            for run in reversed(_found(session, asked, most)):
                if seen.get(run.id) != run.rev:
                    seen[run.id] = run.rev
                    session.print_json(run)
            time.sleep(WATCH_SECONDS)
    _check_terminal()
    with Live(console=console(), auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            found = _found(session, asked, most)
            live.update(_runs_table(found).table() if found else Text("no runs yet"), refresh=True)
            time.sleep(WATCH_SECONDS)


def _check_terminal() -> None:
    if not sys.stdout.isatty():
        raise ValueError("--watch needs a terminal; use --json, or 'deltaci events follow'")


@command(app, "show")
def show_command(
    session: CommandSession,
    run: RunArgument,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Watch until it ends; the exit code reflects the result.")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show which jobs the plan includes and leaves out, and why.")
    ] = False,
) -> None:
    """Show a run and its jobs: progress, what they wait for, why they failed.

    Examples:

      deltaci show r4c1d --watch

      deltaci show r4c1d --plan
    """
    run_id = arguments.run_only(run)
    if plan:
        show_plan(session, run_id)
        return
    if not watch:
        found = session.client.run(run_id)
        session.print_json(found) if session.is_json else show(_run_shown(found))
        return
    if session.is_json or not sys.stdout.isatty():
        for event in session.client.follow(run_id):
            tell_event(session, event, run_id)
        leave_by(session.client.wait(run_id))
    with Live(console=console(), auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            found = session.client.run(run_id)
            live.update(_run_shown(found), refresh=True)
            if is_settled(found):
                break
            time.sleep(WATCH_SECONDS)
    leave_by(found)


def _run_shown(run: api.RunWithJobs) -> RenderableType:
    ended = run.updated_at if is_over(run) else None
    head = facts(
        (
            ("run", run.id),
            ("status", status_of(run) + Text(f"  ({safe(run.state)})", style="dim")),
            ("reason", run.reason or _optional_wait(run)),
            ("stop", _unconfirmed(run)),
            ("title", run.title),
            ("project", run.project),
            ("branch", run.branch),
            ("commit", run.commit),
            ("repository", run.repository),
            ("file", run.file),
            ("event", f"{run.event} {run.number}" if run.number else run.event),
            ("template", run.template and f"{run.template}@{run.template_version}"),
            ("inputs", ", ".join(f"{name}={value}" for name, value in run.inputs.items())),
            ("labels", ", ".join(run.labels)),
            ("again", run.rerun_of and f"a rerun of {run.rerun_of}"),
            ("started by", run.started_by),
            ("created", f"{ago(run.created_at)} ({run.created_at.astimezone():%Y-%m-%d %H:%M:%S})"),
            ("took", took(run.started_at, ended)),
            ("plan", run.plan_hash),
        )
    )
    rows = TableOutput("~JOB", "STATUS", "~STATE", "~#TRIES", "~WORKER", "~#TOOK", "~NOTE")
    jobs = {job.name: job for job in run.jobs}
    for job in run.jobs:
        is_task = job.kind == "task"
        rows.add(
            job.name,
            status_of(job),
            Text(safe(job.state) if job.state != job.status else "", style="dim"),
            f"{job.attempts}/{job.max_attempts}" if is_task else "",
            job.worker_id or (job.tries[-1].worker_id if job.tries else ""),
            took(job.started_at, job.completed_at) if job.started_at else "",
            _note(job, jobs),
        )
    parts: list[RenderableType] = [head, Text(), rows.table()]
    if run.job_count > len(run.jobs):
        parts.append(Text(f"and {run.job_count - len(run.jobs)} more jobs: --json lists all", style="dim"))
    return Group(*parts)


def _optional_wait(run: api.RunWithJobs) -> str:
    """Return why a run whose required jobs have ended still waits, and until when; empty for other runs."""
    if run.optional_until is None or is_over(run):
        return ""
    until = f"{run.optional_until.astimezone():%Y-%m-%d %H:%M:%S}"
    return f"every required job has ended; jobs that no worker runs wait until {until}"


def _unconfirmed(record: api.Run | api.Job) -> str:
    """Return a warning if the process of an ended run or job may still run, else an empty text."""
    until = record.stop_unconfirmed_until
    return f"not confirmed by the runner: its process may run until {until.astimezone():%H:%M:%S}" if until else ""


def _note(job: api.Job, jobs: dict[str, api.Job]) -> str:
    """What somebody who looks at the job would ask next."""
    if job.completed_at is not None:
        error = job.last_error
        told = (error.message or error.line or error.code) if error is not None else ""
        outcome = ": ".join(part for part in (job.reason, told) if part) + (" (allowed)" if _is_allowed(job) else "")
        stop = f"stop {_unconfirmed(job)}" if job.stop_unconfirmed_until else ""
        return "; ".join(part for part in (outcome, stop) if part)
    if job.next_run_at is not None:
        return f"next attempt {ago(job.next_run_at)}" + (f": {job.last_error.code}" if job.last_error else "")
    if waits := [
        need for need in dict.fromkeys((*job.needs, *job.after)) if need in jobs and jobs[need].completed_at is None
    ]:
        return f"waits for {', '.join(waits[:5])}" + (f" and {len(waits) - 5} more" if len(waits) > 5 else "")
    if job.approval is not None:
        gate = job.approval
        missing = gate.approvers - len(gate.approvals)
        who = f"somebody with role {gate.role}" if gate.role else "somebody"
        count = f"{missing} people" + (f" with role {gate.role}" if gate.role else "") if missing > 1 else who
        until = f", at the latest {ago(gate.approve_by)}" if gate.approve_by is not None else ""
        return f"waits for {count} to approve{until}"
    if job.started_at is None and not job.worker_id:
        return "waits for a worker" + (f" with {', '.join(job.runs_on)}" if job.runs_on else "")
    return _progress(job)


def _is_allowed(job: api.Job) -> bool:
    return job.allow_failure and job.last_error is not None


def _progress(job: api.Job) -> str:
    told = job.tries[-1].progress if job.tries else None
    if not isinstance(told, dict):
        return ""
    percent, message = told.get("percent"), told.get("message") or told.get("current_step") or ""
    return " ".join(
        part for part in (f"{percent:.0f} %" if isinstance(percent, int | float) else "", str(message)) if part
    )


@command(app, "cancel")
def cancel_command(
    session: CommandSession,
    id: Annotated[
        str, typer.Argument(metavar="RUN[/JOB]", help="The run, or one of its jobs.", autocompletion=complete_job)
    ],
    reason: Annotated[str, typer.Option(help="The reason, kept in the record.")] = "",
) -> None:
    """Cancel a run or one of its jobs. Safe to repeat.

    Example:

      deltaci cancel r4c1d --reason "wrong branch"
    """
    run_id, slash, job = id.partition("/")
    if slash:
        arguments.in_a_run(id)
        stopped: api.Job | api.Run = session.client.cancel_job(run_id, job, reason)
    else:
        stopped = session.client.cancel(arguments.run_only(id), reason)
    if session.is_json:
        session.print_json(stopped)
    else:
        what = "is being cancelled; until its jobs have stopped it is" if stopped.canceling else "is now"
        name = Text(safe(stopped.id), style="bold")
        console().print(name, what, status(stopped.status), f"({safe(stopped.state)})", soft_wrap=True)


@command(app, "explain")
def explain_command(
    session: CommandSession,
    id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="A run RUN, a job RUN/JOB or an attempt RUN/JOB.N.", autocompletion=complete_job
        ),
    ],
) -> None:
    """Explain the current state of a run, job or attempt.

    Examples:

      deltaci explain r4c1d

      deltaci explain r4c1d/build.2
    """
    told = session.client.explain(id)
    if session.is_json:
        session.print_json(told)
        return
    out = console()
    out.print(Text(safe(told.id), style="bold"), "is", status(told.status), f"({safe(told.state)})")
    out.print(safe(told.summary, 2000), soft_wrap=True)
    for title, reasons in (("waiting for", told.waiting), ("history", told.history)):
        if reasons:
            out.print(f"\n{title}:", style="bold")
        for each in reasons:
            at = f"{each.at.astimezone():%H:%M:%S}  " if each.at is not None else ""
            seq = f"  [{each.seq}]" if each.seq is not None else ""
            out.print(Text(f"  {at}{safe(each.text, 2000)}") + Text(seq, style="dim"), soft_wrap=True)
