"""`deltaci approve` and `deltaci reject`: decide approval gates."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from deltaci.api.schemas import records as api
from deltaci.cli import arguments
from deltaci.cli.completers import complete_run
from deltaci.cli.output import about, console, safe, status_of
from deltaci.cli.session import CommandSession, command

app = typer.Typer(add_completion=False)

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", autocompletion=complete_run)]
JobOption = Annotated[str | None, typer.Option(help="The approval gate to decide. Default: all waiting gates.")]
CommentOption = Annotated[str, typer.Option(help="The reason, kept in the record.")]
HashOption = Annotated[
    str, typer.Option(metavar="HASH", help="The hash of the plan you reviewed. Fails if the run has a different plan.")
]


@command(app, "approve")
def approve_command(
    session: CommandSession,
    run: RunArgument,
    job: JobOption = None,
    comment: CommentOption = "",
    plan_hash: HashOption = "",
) -> None:
    """Approve the waiting gates of a run. Safe to repeat.

    Example:

      deltaci approve r4c1d --comment "checked the diff"
    """
    found = session.client.run(arguments.run_only(run))
    if not session.is_json:
        _show(found, job, "approving")
    # Exactly what was shown is approved: a run with another plan is refused.
    decided = session.client.approve(found.id, job=job, comment=comment, plan_hash=plan_hash or found.plan_hash)
    _tell(session, decided, "approved")


@command(app, "reject")
def reject_command(
    session: CommandSession,
    run: RunArgument,
    job: JobOption = None,
    comment: CommentOption = "",
    plan_hash: HashOption = "",
) -> None:
    """Reject the waiting gates of a run; they fail, and jobs that need them do not run.

    Example:

      deltaci reject r4c1d --job deploy-gate --comment "not on a Friday"
    """
    found = session.client.run(arguments.run_only(run))
    if not session.is_json:
        _show(found, job, "rejecting")
    decided = session.client.reject(found.id, job=job, comment=comment, plan_hash=plan_hash or found.plan_hash)
    _tell(session, decided, "rejected")


def _show(run: api.RunWithJobs, job: str | None, doing: str) -> None:
    """What is being decided: the gates, what is behind them, and of which plan."""
    out = console()
    description = " ".join(part for part in (about(run), run.branch and f"on {run.branch}", run.commit[:12]) if part)
    out.print(f"{doing} in run {safe(run.id)}" + (f": {safe(description)}" if description else ""), soft_wrap=True)
    for gate in run.jobs:
        if gate.approval is None or (gate.name != job if job is not None else gate.completed_at is not None):
            continue
        behind = [each.name for each in run.jobs if gate.name in (*each.needs, *each.after)]
        opens = f"opens {', '.join(behind)}" if behind else "no job needs it"
        given = ", ".join(each.person for each in gate.approval.approvals)
        more = f"; approved so far by {given}" if given else ""
        waits = [
            need
            for need in dict.fromkeys((*gate.needs, *gate.after))
            if any(each.name == need and not each.completed_at for each in run.jobs)
        ]
        waiting = f"; waits for {', '.join(waits)} first" if waits else ""
        out.print(f"  {safe(gate.name)}: {safe(opens + more + waiting)}", soft_wrap=True)
    out.print(Text(f"  plan {safe(run.plan_hash)}, started by {safe(run.started_by)}", style="dim"), soft_wrap=True)


def _tell(session: CommandSession, decided: api.DecisionResult, done: str) -> None:
    if session.is_json:
        session.print_json(decided)
        return
    out = console()
    more = f"; {', '.join(decided.still_waiting)} needs more approvals" if decided.still_waiting else ""
    out.print(f"{done} {safe(', '.join(decided.jobs) + more)}; the run is", status_of(decided.run), soft_wrap=True)
