"""`deltaci audit`: list the changes of keys, projects, secrets, workers and other administrative objects."""

from __future__ import annotations

import itertools
from typing import Annotated, Any

import msgspec
import typer

from deltaci.api.schemas.audit import AuditEvent
from deltaci.audit.projections.administration import changed_fields
from deltaci.cli import arguments
from deltaci.cli.output import TableOutput
from deltaci.cli.output import since as ago
from deltaci.cli.session import CommandSession, command

MAX_VALUE_CHARS = 60

app = typer.Typer(add_completion=False)


@command(app, "audit")
def audit_command(
    session: CommandSession,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="Only changes of this kind: project, key, secret, worker …")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Only changes of the object with this name.")] = None,
    actor: Annotated[str | None, typer.Option(metavar="PERSON", help="Only changes by this person.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Only changes since: 2h, 3d, 2026-01-31.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 20,
) -> None:
    """List changes of keys, projects, secrets, workers and so on, newest first: who, when, before, after.

    Values of secrets and keys are never shown.

    Example:

      deltaci audit --kind project --actor ada --since 7d
    """
    filters: dict[str, Any] = {"kind": kind, "name": name, "actor": actor, "since": arguments.moment(since)}
    events = list(itertools.islice(session.client.iter_audit(**filters), limit))
    if session.is_json:
        session.print_json(events)
        return
    rows = TableOutput("WHEN", "ACTOR", "ACTION", "KIND", "NAME", "~CHANGES")
    for event in events:
        person = event.actor.removeprefix("user:")
        rows.add(ago(event.at), person, event.action, event.kind, event.name, _changes(event))
    rows.print("no administrative changes")


def _changes(event: AuditEvent) -> str:
    is_update = event.before is not None and event.after is not None
    changes = [
        f"{path}: {_text(before)} → {_text(after)}" if is_update else f"{path}: {_text(before or after)}"
        for path, before, after in changed_fields(event.before, event.after)
    ]
    return ", ".join(changes + (["a value that is not shown"] if event.is_sealed_changed else []))


def _text(value: object) -> str:
    """Return a value as short text."""
    text = value if isinstance(value, str) and value else msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"
