"""`deltaci secret`: what jobs need and nobody should see. Run it where the server's data is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
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

app = typer.Typer(
    add_completion=False, help="Set, list and remove the secrets that jobs may name.", no_args_is_help=True
)

NameArgument = Annotated[str, typer.Argument(help="Its name: the variable in which a job finds it.")]
TenantOption = Annotated[str, typer.Option(help="Whose it is.")]


@contextmanager
def _opened(data: Path, blobs: str) -> Iterator[Secrets]:
    """The secrets; and one line for what goes wrong with them."""
    try:
        yield Secrets(open_blobs(blobs or str(data / BLOBS_FOLDER)), server_key(data / KEY_FILE))
    except (Refused, BlobsUnavailable, ValueError, OSError) as error:
        typer.echo(f"deltaci secret: {error.message if isinstance(error, Refused) else error}", err=True)
        raise typer.Exit(1) from None


@app.command("set")
def set_command(
    name: NameArgument,
    tenant: TenantOption = "default",
    data: DataOption = Path(".state"),
    blobs: BlobsOption = "",
) -> None:
    """Keep a secret, sealed. Its value is read from stdin, or asked for without being shown; never an argument."""
    with _opened(data, blobs) as secrets:
        secrets.set(tenant, name, _value(name))


def _value(name: str) -> str:
    if sys.stdin.isatty():
        return getpass(f"value of {name}, which is not shown: ")
    value = sys.stdin.buffer.read(MAX_BYTES + 2).decode()
    return value.removesuffix("\n")  # `echo value | deltaci secret set` means the value.


@app.command("list")
def list_command(tenant: TenantOption = "default", data: DataOption = Path(".state"), blobs: BlobsOption = "") -> None:
    """Show the names of the secrets; nobody is shown a value."""
    with _opened(data, blobs) as secrets:
        for name in secrets.names(tenant):
            print(name)


@app.command("remove")
def remove_command(
    name: NameArgument,
    tenant: TenantOption = "default",
    data: DataOption = Path(".state"),
    blobs: BlobsOption = "",
) -> None:
    """Forget a secret."""
    with _opened(data, blobs) as secrets:
        if not secrets.remove(tenant, name):
            raise Refused("no_secret", f"there is no secret {name!r}; 'deltaci secret list' shows which there are")
