"""`deltaci key`: create, list and revoke API keys."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, cast

import typer

from deltaci.api.schemas import records as api
from deltaci.api.schemas.inputs import SCOPES, Scope
from deltaci.cli import arguments
from deltaci.cli.completers import complete_key
from deltaci.cli.output import TableOutput, ago, facts, safe, show, since
from deltaci.cli.session import CommandSession, command

app = typer.Typer(name="key", add_completion=False, help="Create, list and revoke API keys.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="KEY", help="The key's id.", autocompletion=complete_key)]


@command(app, "create")
def create_command(
    session: CommandSession,
    person: Annotated[
        str,
        typer.Argument(
            metavar="PERSON", help="The person or program that uses the key. Its actions are recorded under this name."
        ),
    ],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A scope: {', '.join(SCOPES)}; may be repeated. admin includes all.  [default: run]",
            autocompletion=lambda: list(SCOPES),
        ),
    ] = None,
    role: Annotated[
        list[str] | None, typer.Option(help="A role of the person, for approvals. May be repeated.")
    ] = None,
    expires: Annotated[
        str, typer.Option(metavar="TIME", help="Lifetime, e.g. 12h or 30d. Default: until revoked.")
    ] = "",
    description: Annotated[str, typer.Option(help="A description.")] = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the key to this file, readable only by you."),
    ] = None,
) -> None:
    """Create an API key and print it. It is shown only once; the server stores a hash.

    Example:

      deltaci key create ada --scope run --scope approve --role release --expires 90d -o ada.key
    """
    scopes = scope or ["run"]
    if unknown := sorted(set(scopes) - set(SCOPES)):
        raise ValueError(f"unknown scope {unknown[0]!r}; expected one of: {', '.join(SCOPES)}")
    # The file comes first: a secret that cannot be kept must not be made.
    kept = None if output is None else os.open(output, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        made = session.client.make_key(
            person,
            cast("list[Scope]", scopes),
            roles=role or (),
            description=description,
            expires_seconds=arguments.seconds(expires) if expires else 0,
        )
    except BaseException:
        if output is not None and kept is not None:
            os.close(kept)
            output.unlink(missing_ok=True)
        raise
    if kept is not None:
        with os.fdopen(kept, "w", encoding="ascii") as file:
            file.write(made.token + "\n")
    if session.is_json:
        session.print_json(made)
        return
    print(f"the secret of key {made.id} for {safe(made.person)} is {_place(output)}", file=sys.stderr)
    if output is None:
        print(made.token)


def _place(output: Path | None) -> str:
    return f"in {output}" if output is not None else "shown only once; set it as DELTACI_KEY:"


@command(app, "list")
def list_command(session: CommandSession) -> None:
    """List API keys, without their secrets.

    Example:

      deltaci key list
    """
    found = list(session.client.iter_keys())
    if session.is_json:
        session.print_json(found)
        return
    rows = TableOutput("KEY", "PERSON", "SCOPES", "~ROLES", "MADE", "ENDS", "~DESCRIPTION")
    for key in found:
        rows.add(
            key.id,
            key.person,
            ", ".join(key.scopes),
            ", ".join(key.roles),
            since(key.created_at),
            _end(key),
            key.description,
        )
    rows.print("no keys; create one with 'deltaci key create PERSON'")


def _end(key: api.Key) -> str:
    if key.revoked_at is not None:
        return f"revoked {since(key.revoked_at)}"
    return since(key.expires_at) if key.expires_at is not None else "never"


@command(app, "show")
def show_command(session: CommandSession, key: IdArgument) -> None:
    """Show an API key, without its secret.

    Example:

      deltaci key show 5f3a9c0b1d2e4f60
    """
    _show(session, session.client.key(key))


@command(app, "revoke")
def revoke_command(session: CommandSession, key: IdArgument) -> None:
    """Revoke an API key. Safe to repeat.

    Example:

      deltaci key revoke 5f3a9c0b1d2e4f60
    """
    _show(session, session.client.revoke_key(key))


def _show(session: CommandSession, found: api.Key) -> None:
    if session.is_json:
        session.print_json(found)
        return
    revoked = f"{ago(found.revoked_at)} by {found.revoked_by}" if found.revoked_at is not None else ""
    show(
        facts(
            (
                ("key", found.id),
                ("person", found.person),
                ("scopes", ", ".join(found.scopes)),
                ("roles", ", ".join(found.roles)),
                ("about", found.description),
                ("made", f"{ago(found.created_at)} by {found.created_by}"),
                ("ends", ago(found.expires_at)),
                ("revoked", revoked),
            )
        )
    )
