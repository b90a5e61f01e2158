"""`deltaci workers`: the fleet, and how a runner gets into it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.text import Text

from deltaci.cli import inputs
from deltaci.cli.completing import complete_worker
from deltaci.cli.session import Defaults, Session, command
from deltaci.cli.shown import Rows, ago, facts, show, since

app = typer.Typer(add_completion=False, cls=Defaults, help="List workers, look at one, let a new one in.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The runner's name.", autocompletion=complete_worker)]


@command(app, "list")
def list_command(
    session: Session,
    gone: Annotated[
        bool, typer.Option("--gone", help="Those that were shut down, instead of those that are there.")
    ] = False,
) -> None:
    """List workers, the newest first.

    Example:

      deltaci workers list
    """
    found = list(session.client.iter_workers(gone=gone))
    if session.is_json:
        session.print_json(found)
        return
    rows = Rows("WORKER", "STATE", "#BUSY", "~LABELS", "SINCE", "~REASON")
    for each in found:
        busy = f"{len(each.tasks)}/{each.slots}"
        rows.add(each.id, each.state, busy, ", ".join(each.labels), since(each.created_at), each.shutdown_reason)
    rows.print("none was shut down" if gone else "no workers; 'deltaci workers token NAME' lets one in")


@command(app, "show")
def show_command(session: Session, name: NameArgument) -> None:
    """Show a worker and what it holds.

    Example:

      deltaci workers show build-1
    """
    found = session.client.worker(name)
    if session.is_json:
        session.print_json(found)
        return
    show(
        facts(
            (
                ("worker", found.id),
                ("state", found.state),
                ("reason", found.shutdown_reason),
                ("labels", ", ".join(found.labels)),
                ("slots", found.slots),
                ("holds", ", ".join(found.tasks) or Text("nothing", style="dim")),
                ("since", ago(found.created_at)),
                ("changed", ago(found.updated_at)),
            )
        )
    )


@command(app, "token")
def token_command(
    session: Session,
    name: NameArgument,
    again: Annotated[
        bool, typer.Option("--again", help="For a runner that is registered and has lost its credential.")
    ] = False,
    expires: Annotated[str, typer.Option(metavar="TIME", help="How long the token is good.")] = "24h",
) -> None:
    """Make a token with which a runner can come in, once, and print it.

    Example:

      deltaci workers token build-1 > token && deltaci runner --token-file token
    """
    made = session.client.worker_token(name, again=again, expires_seconds=inputs.seconds(expires))
    if session.is_json:
        session.print_json(made)
        return
    if sys.stdout.isatty():
        print(f"good {ago(made.expires_at)}; for: deltaci runner --token-file FILE", file=sys.stderr)
    print(made.token)
