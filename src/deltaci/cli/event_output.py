"""Print events and the outcome of a run line by line."""

from __future__ import annotations

from datetime import datetime

from rich.text import Text

from deltaci.api.schemas import records as api
from deltaci.cli.output import COLOURS, console, safe, span, status
from deltaci.cli.session import CommandSession

_SEVERITIES = {"warning": "yellow", "error": "red", "critical": "red"}


def tell_event(session: CommandSession, event: api.Event, run_id: str = "") -> None:
    """Print an event as JSON, or as a line of text if it changed a state.

    With `run_id`, the line leaves out the run's id.
    """
    if session.is_json:
        session.print_json(event)
    elif event.from_ != event.to:
        console().print(event_line(event, run_id), soft_wrap=True)


def event_line(event: api.Event, run_id: str = "") -> Text:
    """Return an event as a line: time, entity, states, trigger and actor."""
    at = datetime.fromisoformat(event.at).astimezone()
    line = Text(f"{at:%H:%M:%S} ", style="dim")
    line.append(f"{event.entity:<7} ", style="")
    inside = event.entity_id.removeprefix(run_id).removeprefix("/") if run_id else event.entity_id
    line.append(f"{safe(inside):<{18 if run_id else 30}} ", style="not dim bold")
    change = f"{safe(event.from_)} → {safe(event.to)}" if event.from_ else safe(event.to)
    line.append(f"{change:<28} ", style=f"not dim {COLOURS.get(event.to, '')}")
    line.append(f"{safe(event.trigger)} by {safe(event.actor)}", style=_SEVERITIES.get(event.severity, ""))
    return line


def tell_outcome(run: api.RunWithJobs) -> None:
    """Print the outcome of a run and the errors of its jobs."""
    out = console()
    line = Text(f"{safe(run.id)} ", style="bold") + status(run.status)
    if run.started_at is not None:
        line.append(f" in {span((run.updated_at - run.started_at).total_seconds())}")
    if run.reason:
        line.append(f" ({safe(run.reason)})")
    out.print(line, soft_wrap=True)
    for job in run.jobs:
        if job.last_error is not None and job.status == run.status:
            error = job.last_error
            out.print(f"  {safe(job.name)}: {safe(error.message or error.line or error.code)}", soft_wrap=True)
