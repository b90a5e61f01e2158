"""`deltaci events`: export or follow the event log."""

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
from deltaci.cli import arguments
from deltaci.cli.completers import complete_run
from deltaci.cli.event_output import tell_event
from deltaci.cli.session import CommandSession, command
from deltaci.client.atomic_file import AtomicFile
from deltaci.core.events import Event
from deltaci.core.instants import from_datetime

app = typer.Typer(
    name="events",
    add_completion=False,
    help="Export or follow the event log.",
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
    str,
    typer.Option(
        "--run", metavar="RUN", help="Only events of this run. Default: all runs.", autocompletion=complete_run
    ),
]
AfterOption = Annotated[int, typer.Option(min=0, metavar="SEQ", help="Only events after this sequence number.")]


@command(app, "export")
def export_command(
    session: CommandSession,
    run: RunOption = "",
    format: Annotated[
        str,
        typer.Option(
            help=f"One of {', '.join(FORMATS)}: native, document 003, document 004.",
            autocompletion=lambda: list(FORMATS),
        ),
    ] = "canonical",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The output file. Default: standard output.")
    ] = None,
) -> None:
    """Write all current events as JSON lines, which 'deltaci verify' can check.

    Example:

      deltaci events export --run r4c1d -o events.jsonl && deltaci verify events.jsonl
    """
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; expected one of: {', '.join(FORMATS)}")
    events = core_events(session.client.iter_events(arguments.run_only(run) if run else ""))
    count = 0
    with AtomicFile(output) if output is not None else nullcontext() as draft:
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
def follow_command(session: CommandSession, run: RunOption = "", after: AfterOption = 0) -> None:
    """Print events as they happen: of one run until it ends, or of all runs until Ctrl-C.

    Reconnects automatically after an interruption.

    Example:

      deltaci events follow --run r4c1d
    """
    run_id = arguments.run_only(run) if run else ""
    for event in session.client.follow(run_id, after=after):
        tell_event(session, event, run_id)
