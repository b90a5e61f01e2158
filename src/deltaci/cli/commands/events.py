"""`deltaci events`: the log of what happened, to keep, to check, or to follow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from deltaci.api.schemas import records as api
from deltaci.audit.projections.canonical import canonical_lines
from deltaci.audit.projections.job_events import job_events
from deltaci.audit.projections.transitions import TransitionsExporter
from deltaci.cli import inputs
from deltaci.cli.completing import complete_run
from deltaci.cli.session import Session, command
from deltaci.cli.telling import tell_event
from deltaci.client.drafts import Draft
from deltaci.core.events import Event
from deltaci.core.instants import from_datetime

app = typer.Typer(
    name="events",
    add_completion=False,
    help="Export or follow the log of everything that happened.",
    no_args_is_help=True,
)


def _encoded(told: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    encode = msgspec.json.Encoder().encode
    return (encode(each) for each in told)


def core_events(events: Iterable[api.Event]) -> Iterator[Event]:
    """Events as the core knows them, so that its own views write them down."""
    for each in events:
        fields = {name: getattr(each, name) for name in each.__struct_fields__}
        yield Event(**{**fields, "at": from_datetime(datetime.fromisoformat(each.at))})


FORMATS: Final[dict[str, Callable[[Iterable[Event]], Iterator[bytes]]]] = {
    "canonical": canonical_lines,
    "transitions": lambda events: _encoded(TransitionsExporter().export(events)),
    "job-events": lambda events: _encoded(job_events(events)),
}

RunOption = Annotated[
    str, typer.Option("--run", metavar="RUN", help="Of this run; without it, of all.", autocompletion=complete_run)
]
AfterOption = Annotated[int, typer.Option(min=0, metavar="SEQ", help="Only what comes after this event.")]


@command(app, "export")
def export_command(
    session: Session,
    run: RunOption = "",
    format: Annotated[
        str,
        typer.Option(
            help=f"One of {', '.join(FORMATS)}: ours, document 003's, document 004's.",
            autocompletion=lambda: list(FORMATS),
        ),
    ] = "canonical",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to; without it, standard output.")
    ] = None,
) -> None:
    """Write the events that there are now, one JSON object a line. 'deltaci verify' checks them.

    Example:

      deltaci events export --run r4c1d -o events.jsonl && deltaci verify events.jsonl
    """
    if format not in FORMATS:
        raise ValueError(f"there is no format {format!r}; expected one of: {', '.join(FORMATS)}")
    events = core_events(session.client.iter_events(inputs.run_only(run) if run else ""))
    count = 0
    with Draft(output) if output is not None else nullcontext() as draft:
        for line in FORMATS[format](events):
            count += 1
            if draft is not None:
                draft.write(line + b"\n")
            else:
                sys.stdout.buffer.write(line + b"\n")
    if output is not None:
        if session.is_json:
            session.print_json({"lines": count, "format": format, "file": str(output)})
        else:
            print(f"{count} lines in {output}")
    sys.stdout.flush()


@command(app, "follow")
def follow_command(session: Session, run: RunOption = "", after: AfterOption = 0) -> None:
    """Show what happens as it happens: of a run until it is over, or of everything until Ctrl-C.

    Goes on by itself when the server was away for a while.

    Example:

      deltaci events follow --run r4c1d
    """
    run_id = inputs.run_only(run) if run else ""
    for event in session.client.follow(run_id, after=after):
        tell_event(session, event, run_id)
