"""`deltaci workers`: manage workers, and create registration tokens for new ones."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer
from rich.text import Text

from deltaci.api.schemas import records as api
from deltaci.cli import arguments
from deltaci.cli.completers import complete_worker
from deltaci.cli.output import TableOutput, ago, facts, show, since
from deltaci.cli.session import USAGE, CommandSession, SharedOptionsGroup, command, fail

app = typer.Typer(
    name="workers",
    add_completion=False,
    cls=SharedOptionsGroup,
    help="List, drain, resume and remove workers, and add new ones.",
)

GONE: Final = "shutdown"  # As document 003 calls it.
SILENT: Final = "it sent no heartbeat for too long"

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The runner's name.", autocompletion=complete_worker)]


@command(app, "list")
def list_command(
    session: CommandSession,
    gone: Annotated[
        bool, typer.Option("--gone", help="List workers that were shut down instead of active ones.")
    ] = False,
) -> None:
    """List workers, newest first.

    Example:

      deltaci workers list
    """
    found = list(session.client.iter_workers(gone=gone))
    if session.is_json:
        session.print_json(found)
        return
    rows = TableOutput("WORKER", "STATE", "#BUSY", "~LABELS", "SEEN", "~WHY")
    for each in found:
        busy = f"{len(each.tasks)}/{each.slots}"
        name = each.id if gone else each.name
        rows.add(name, _state(each), busy, ", ".join(each.labels), since(each.last_seen_at), _why(each))
    rows.print(
        "no workers were shut down" if gone else "no workers; create a token for one with 'deltaci workers token NAME'"
    )


def _state(found: api.Worker) -> str:
    """Its state, and what else keeps it from work."""
    leaving = "leaving" if found.shutdown_reason and found.status != GONE else ""
    return " ".join(each for each in (found.state, found.hold.lower(), leaving) if each)


def _why(found: api.Worker) -> str:
    if found.status == GONE:
        return found.shutdown_reason or SILENT
    reassigned = f"its jobs go to others {since(found.reassign_at)}" if found.reassign_at else ""
    return reassigned or found.shutdown_reason or found.hold_reason


@command(app, "show")
def show_command(session: CommandSession, name: NameArgument) -> None:
    """Show a worker and what it holds.

    Example:

      deltaci workers show build-1
    """
    _print(session, session.client.worker(name))


def _print(session: CommandSession, found: api.Worker) -> None:
    if session.is_json:
        session.print_json(found)
        return
    lives = "" if found.id == found.name else f"{found.id}: it registered again after it had left"
    held = f"{found.hold.lower()} {ago(found.hold_started_at)}" if found.hold and found.hold_started_at else ""
    show(
        facts(
            (
                ("worker", found.name),
                ("life", lives),
                ("state", f"{found.state} (in document 003: {found.status})"),
                ("hold", ": ".join(each for each in (held, found.hold_reason) if each)),
                ("goes" if found.status != GONE else "went", _going(found)),
                ("labels", ", ".join(found.labels)),
                ("slots", found.slots),
                ("holds", ", ".join(found.tasks) or Text("nothing", style="dim")),
                ("silent", f"its jobs go to others {ago(found.reassign_at)}" if found.reassign_at else ""),
                (
                    "troubles",
                    f"{found.infra_failures} consecutive infrastructure failures" if found.infra_failures else "",
                ),
                ("seen", ago(found.last_seen_at)),
                ("since", ago(found.created_at)),
                ("changed", ago(found.updated_at)),
            )
        )
    )


def _going(found: api.Worker) -> str:
    return found.shutdown_reason or (SILENT if found.status == GONE else "")


@command(app, "drain")
def drain_command(
    session: CommandSession,
    name: NameArgument,
    reason: Annotated[str, typer.Option(help="The reason, kept in the record.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it holds no jobs.")] = False,
) -> None:
    """Drain a worker: it finishes its current jobs and takes no new ones until it is resumed.

    Example:

      deltaci workers drain build-1 --reason "new disk" --wait
    """
    found = session.client.drain_worker(name, reason)
    _print(session, session.client.wait_idle(name) if wait else found)


@command(app, "resume")
def resume_command(session: CommandSession, name: NameArgument) -> None:
    """Resume a drained or quarantined worker.

    Example:

      deltaci workers resume build-1
    """
    _print(session, session.client.resume_worker(name))


@command(app, "remove")
def remove_command(
    session: CommandSession,
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove a worker after its current jobs. It can register again only with a new token.

    Example:

      deltaci workers remove build-1 --yes
    """
    if not yes and not _is_sure(name):
        fail("workers remove", f"{name} was not removed; use --yes to skip the confirmation", USAGE)
    _print(session, session.client.remove_worker(name))


def _is_sure(name: str) -> bool:
    if not sys.stdin.isatty():
        return False
    print(f"remove {name}? It can register again only with a new token. [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@command(app, "token")
def token_command(
    session: CommandSession,
    name: NameArgument,
    again: Annotated[
        bool,
        typer.Option("--again", help="Allow a runner that lost its credential or was removed to register again."),
    ] = False,
    expires: Annotated[str, typer.Option(metavar="TIME", help="Lifetime of the token.")] = "24h",
) -> None:
    """Create a single-use registration token for a runner and print it.

    Example:

      deltaci workers token build-1 > token && deltaci runner --token-file token
    """
    made = session.client.worker_token(name, again=again, expires_seconds=arguments.seconds(expires))
    if session.is_json:
        session.print_json(made)
        return
    if sys.stdout.isatty():
        print(f"expires {ago(made.expires_at)}; use it with: deltaci runner --token-file FILE", file=sys.stderr)
    print(made.token)
