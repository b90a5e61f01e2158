"""`deltaci ws`: create, list, show and cancel workstreams."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from rich.live import Live

from deltaci.api.schemas import workstreams as wire
from deltaci.api.schemas.workstreams import WORKSTREAM_STATES
from deltaci.cli import arguments
from deltaci.cli.completers import complete_project, complete_workstream
from deltaci.cli.output import TableOutput, console, safe, show, since, span
from deltaci.cli.session import BAD, GOOD, USAGE, CommandSession, command
from deltaci.cli.ws_view import event_told, outcome_told, queue_shown, stated, workstream_shown
from deltaci.client.run_status import is_completed
from deltaci.pipeline.parse.problems import format_with_source
from deltaci.pipeline.parse.yaml import MAX_BYTES
from deltaci.pipeline.workstream import parse

app = typer.Typer(
    name="ws",
    add_completion=False,
    no_args_is_help=True,
    help="Create, list, show and cancel workstreams: tasks on one branch, validated and merged.",
)

WATCH_SECONDS: Final = 1.0

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The workstream's id.", autocompletion=complete_workstream)
]
ProjectOption = Annotated[
    str | None, typer.Option(help="The project. Overrides the file.", autocompletion=complete_project)
]


@command(app, "create")
def create_command(
    session: CommandSession,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The workstream file; - reads standard input.")],
    project: ProjectOption = None,
    base: Annotated[
        str, typer.Option(metavar="BRANCH", help="The branch to start from and merge into. Overrides the file.")
    ] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Watch its tasks until it ends; exits with 0 only if it completed.")
    ] = False,
    idempotency_key: Annotated[
        str, typer.Option("--idempotency-key", help="Requests with the same key start only one workstream.")
    ] = "",
) -> None:
    """Start a workstream from its file, and print its id.

    The file is checked locally first: if it has problems, each is reported with
    its position and nothing is started. See docs/workstreams.md for the format.

    Examples:

      deltaci ws create login.yml --wait

      deltaci ws create login.yml --project shop --base release/2
    """
    content, name = _content(file), "standard input" if file == "-" else file
    _check(content, name)
    made = session.client.create_workstream(
        content.decode("utf-8"),
        name=safe(name[-200:]),
        project=project or "",
        base=base,
        idempotency_key=idempotency_key,
    )
    if wait:
        if not session.is_json:
            print(made.id, flush=True)
        _watch(session, made.id)
    if session.is_json:
        session.print_json(made)
        return
    print(made.id)
    if sys.stdout.isatty():
        print(f"watch it: deltaci ws show {made.id} --watch", file=sys.stderr)


def _content(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        with Path(file).open("rb") as source:
            return source.read(MAX_BYTES + 1)  # One more than is allowed is enough to be refused.
    except OSError as error:
        raise ValueError(f"{file!r} cannot be read: {error.strerror}; give the path of a workstream file") from None


def _check(content: bytes, name: str) -> None:
    """Every problem, as `deltaci lint` shows it; a file that has one is not sent."""
    found = parse.parse_file(content, name)
    source = content.decode("utf-8", "replace")
    for problem in found.problems:
        print(format_with_source(problem, source), file=sys.stderr)
    if found.workstream is None:
        count = sum(not each.is_warning for each in found.problems)
        print(f"deltaci ws create: {count} problem{'' if count == 1 else 's'}; nothing was started", file=sys.stderr)
        raise typer.Exit(USAGE)


@command(app, "list")
def list_command(
    session: CommandSession,
    state: Annotated[
        str | None,
        typer.Option(help=f"One of {', '.join(WORKSTREAM_STATES)}.", autocompletion=lambda: list(WORKSTREAM_STATES)),
    ] = None,
    project: Annotated[
        str | None, typer.Option(help="Only workstreams of this project.", autocompletion=complete_project)
    ] = None,
    person: Annotated[str | None, typer.Option(help="Only workstreams started by this person.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 20,
) -> None:
    """List workstreams, newest first. Filters are combined with AND.

    Examples:

      deltaci ws list

      deltaci ws list --state executing --project shop
    """
    asked: dict[str, Any] = {"state": state and state.lower(), "project": project, "person": person}
    found = list(itertools.islice(session.client.iter_workstreams(**asked), limit))
    if session.is_json:
        session.print_json(found)
        return
    rows = TableOutput(
        "ID", "NAME", "STATE", "~OURS", "~PROJECT", "~BASE", "~BY", "CREATED", "~#TOOK", "~TITLE", "~REASON"
    )
    for each in found:
        rows.add(
            each.id,
            each.name,
            stated(each.state),
            each.run_state,
            each.project,
            each.base,
            each.created_by,
            since(each.created_at),
            span(each.seconds) if each.seconds is not None else "",
            each.title,
            each.reason,
        )
    rows.print("no workstreams; start one with 'deltaci ws create FILE'")
    if len(found) == limit:
        console().print(f"the newest {limit}; use --limit N to show more", style="dim")


@command(app, "show")
def show_command(
    session: CommandSession,
    id: IdArgument,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Watch until it ends; the exit code reflects the result.")
    ] = False,
) -> None:
    """Show a workstream: its stages and tasks, why it waits or failed, its worktree, and the progress of its merge.

    Examples:

      deltaci ws show r4c1d

      deltaci ws show r4c1d --watch
    """
    id = arguments.run_only(id)
    if watch:
        _watch(session, id)
    found = session.client.workstream(id)
    session.print_json(found) if session.is_json else show(workstream_shown(found))


@command(app, "cancel")
def cancel_command(
    session: CommandSession,
    id: IdArgument,
    reason: Annotated[str, typer.Option(help="The reason, kept in the record.")] = "",
) -> None:
    """Cancel a workstream. Safe to repeat; merged changes stay merged.

    Example:

      deltaci ws cancel r4c1d --reason "wrong base"
    """
    stopped = session.client.cancel_workstream(arguments.run_only(id), reason)
    if session.is_json:
        session.print_json(stopped)
    else:
        what = "is being cancelled; until its tasks have stopped it is" if stopped.canceling else "is now"
        console().print(f"{safe(stopped.id)} {what}", stated(stopped.state), f"({safe(stopped.run_state)})")


@command(app, "queue")
def queue_command(
    session: CommandSession,
    project: Annotated[
        str,
        typer.Argument(metavar="[PROJECT]", help="Only the queues of this project.", autocompletion=complete_project),
    ] = "",
) -> None:
    """Show the merge queues: waiting workstreams in order, and batches under test.

    Example:

      deltaci ws queue shop
    """
    found = session.client.merge_queues(project=project or None)
    if session.is_json:
        session.print_json(found)
        return
    if not found.queues:
        print(f"no workstream waits to be merged{f' in {safe(project)}' if project else ''}")
    for each in found.queues:
        show(queue_shown(each))


def _watch(session: CommandSession, id: str) -> NoReturn:
    """Until it is over: a table that lives where somebody looks, a line for every change where nobody does."""
    if session.is_json or not sys.stdout.isatty():
        for event in session.client.follow(id):
            if (line := event_told(event, id)) is not None and not session.is_json:
                console().print(line, soft_wrap=True)
        found = session.client.workstream(id)
        session.print_json(found) if session.is_json else show(outcome_told(found))
        _leave_by(found)
    with Live(console=console(), auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            found = session.client.workstream(id)
            live.update(workstream_shown(found), refresh=True)
            if found.ended_at is not None:
                break
            time.sleep(WATCH_SECONDS)
    _leave_by(found)


def _leave_by(found: wire.Workstream) -> NoReturn:
    raise typer.Exit(GOOD if is_completed(found) else BAD)
