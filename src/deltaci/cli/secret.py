"""`deltaci secret`: what jobs need and nobody should see. Run it where the server's data is."""

from __future__ import annotations

import sys
from getpass import getpass
from pathlib import Path
from typing import Annotated

import typer

from deltaci.blobs import open_blobs
from deltaci.blobs.store import BlobsUnavailable
from deltaci.cli.server import BlobsOption, DataOption
from deltaci.core.errors import Refused
from deltaci.server.credentials import server_key
from deltaci.server.secrets import MAX_BYTES, Secrets
from deltaci.server.service import BLOBS_FOLDER, KEY_FILE

app = typer.Typer(help="Set, list and remove the secrets that jobs may name.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="Its name: the variable in which a job finds it.")]
TenantOption = Annotated[str, typer.Option(help="Whose it is.")]


def _secrets(data: Path, blobs: str) -> Secrets:
    return Secrets(open_blobs(blobs or str(data / BLOBS_FOLDER)), server_key(data / KEY_FILE))


def _fail(error: Exception) -> typer.Exit:
    typer.echo(f"deltaci secret: {error.message if isinstance(error, Refused) else error}", err=True)
    return typer.Exit(1)


@app.command("set")
def set_command(
    name: NameArgument,
    tenant: TenantOption = "default",
    data: DataOption = Path(".state"),
    blobs: BlobsOption = "",
) -> None:
    """Keep a secret, sealed. Its value is read from stdin, or asked for without being shown; never an argument."""
    try:
        _secrets(data, blobs).set(tenant, name, _value(name))
    except (Refused, BlobsUnavailable, ValueError, OSError) as error:
        raise _fail(error) from None


def _value(name: str) -> str:
    if sys.stdin.isatty():
        return getpass(f"value of {name}, which is not shown: ")
    value = sys.stdin.buffer.read(MAX_BYTES + 2).decode()
    return value.removesuffix("\n")  # `echo value | deltaci secret set` means the value.


@app.command("list")
def list_command(tenant: TenantOption = "default", data: DataOption = Path(".state"), blobs: BlobsOption = "") -> None:
    """Show the names of the secrets; nobody is shown a value."""
    try:
        for name in _secrets(data, blobs).names(tenant):
            print(name)
    except (Refused, BlobsUnavailable, ValueError, OSError) as error:
        raise _fail(error) from None


@app.command("remove")
def remove_command(
    name: NameArgument,
    tenant: TenantOption = "default",
    data: DataOption = Path(".state"),
    blobs: BlobsOption = "",
) -> None:
    """Forget a secret."""
    try:
        if not _secrets(data, blobs).remove(tenant, name):
            raise Refused("no_secret", f"there is no secret {name!r}; 'deltaci secret list' shows which there are")
    except (Refused, BlobsUnavailable, ValueError, OSError) as error:
        raise _fail(error) from None
