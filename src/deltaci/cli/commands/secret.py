"""`deltaci secret`: set, list and remove secrets, through a server or directly in its data folder."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from getpass import getpass
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
import typer

from deltaci.api.schemas import records as api
from deltaci.app import BLOBS_FOLDER, KEY_FILE
from deltaci.cli.commands.server import BlobsOption
from deltaci.cli.embedded import StoreOption, embedded_store, run_embedded
from deltaci.cli.output import TableOutput, since
from deltaci.cli.session import (
    CaOption,
    DataOption,
    JsonOption,
    KeyFileOption,
    ServerOption,
    TenantOption,
    patient_client,
    person,
    reported,
)
from deltaci.client import server_address
from deltaci.client.blocking import Client
from deltaci.core.errors import Refused
from deltaci.core.events import USER
from deltaci.core.instants import SECOND
from deltaci.server.auth.credentials import load_server_key
from deltaci.server.disk import DiskThreads
from deltaci.server.rest.secrets import serialize_secret
from deltaci.server.secret_changes import SecretChanges
from deltaci.server.secrets import MAX_BYTES, Secrets, SecretScope
from deltaci.storage.blobs import open_blob_store
from deltaci.storage.blobs.store import BlobStoreUnavailable
from deltaci.storage.port import Store, Unavailable

T = TypeVar("T")

app = typer.Typer(
    name="secret",
    add_completion=False,
    help="Set, list and remove secrets for jobs.",
    no_args_is_help=True,
)

NameArgument = Annotated[str, typer.Argument(help="The name of the secret and of its environment variable in jobs.")]
ProjectOption = Annotated[
    str, typer.Option(help="Only for jobs of this project. Default: all jobs of the tenant.", metavar="NAME")
]
BranchOption = Annotated[
    str, typer.Option(help="Only on branches of the project that match, e.g. 'release/*'.", metavar="PATTERN")
]


class _SecretStore(Protocol):
    """The store that the secret commands use."""

    def set(self, name: str, value: str, scope: SecretScope) -> api.Secret: ...

    def listed(self) -> list[api.Secret]: ...

    def remove(self, name: str, scope: SecretScope) -> None: ...


class _RemoteSecrets:
    """Secrets of a running server, through its API."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def set(self, name: str, value: str, scope: SecretScope) -> api.Secret:
        return self._client.set_secret(name, value, project=scope.project, branch=scope.branch)

    def listed(self) -> list[api.Secret]:
        return list(self._client.iter_secrets())

    def remove(self, name: str, scope: SecretScope) -> None:
        self._client.remove_secret(name, project=scope.project, branch=scope.branch)


class _LocalSecrets:
    """Secrets in the data folder of a server, whether or not it is running."""

    def __init__(self, secrets: Secrets, tenant: str, open_store: Callable[[], Store]) -> None:
        self._secrets = secrets
        self._tenant = tenant
        self._open_store = open_store

    def set(self, name: str, value: str, scope: SecretScope) -> api.Secret:
        by, at = person(), int(time.time() * SECOND)
        return serialize_secret(
            self._change(
                lambda changes: changes.set(self._tenant, name, value, scope, person=by, actor=f"{USER}:{by}", at=at)
            )
        )

    def listed(self) -> list[api.Secret]:
        return [serialize_secret(each) for each in self._secrets.list_all(self._tenant)]

    def remove(self, name: str, scope: SecretScope) -> None:
        removed = self._change(lambda changes: changes.remove(self._tenant, name, scope, actor=f"{USER}:{person()}"))
        if removed is None:
            raise Refused("no_secret", f"there is no secret {name!r}; list them with 'deltaci secret list'")

    def _change(self, change: Callable[[SecretChanges], Awaitable[T]]) -> T:
        disk = DiskThreads("secret")
        try:
            return run_embedded(
                self._open_store(), lambda engine, store: change(SecretChanges(engine, store, self._secrets, disk))
            )
        finally:
            disk.close()


@contextmanager
def _opened(command: str, blobs: str, given: dict[str, Any], store: str = "") -> Iterator[_SecretStore]:
    """The server that is named or runs here; else its folder. What goes wrong is one line."""
    data: Path = given["data"] or server_address.DATA_FOLDER
    named = given["server"] or given["key_file"] or os.environ.get(server_address.KEY_VARIABLE, "").strip()
    if not blobs and (named or server_address.announced_url(data)):
        with reported(command), patient_client(given) as client:
            yield _RemoteSecrets(client)
        return
    try:
        yield _LocalSecrets(
            Secrets(open_blob_store(blobs or str(data / BLOBS_FOLDER)), load_server_key(data / KEY_FILE)),
            given["tenant"],
            lambda: embedded_store(data, store),
        )
    except (Refused, BlobStoreUnavailable, Unavailable, ValueError, OSError) as error:
        typer.echo(f"deltaci secret: {error.message if isinstance(error, Refused) else error}", err=True)
        raise typer.Exit(1) from None


@app.command("set")
def set_command(
    name: NameArgument,
    project: ProjectOption = "",
    branch: BranchOption = "",
    blobs: BlobsOption = "",
    store: StoreOption = "",
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    data: DataOption = None,
    tenant: TenantOption = "default",
    ca: CaOption = None,
) -> None:
    """Set a secret. Its value is read from standard input or a hidden prompt, never from an argument.

    Uses the given server, or the one in the --data folder; without one, or with --blobs, its store directly.

    Example:

      deltaci secret set DEPLOY_KEY --project shop --branch 'release/*' < key.pem
    """
    given = {"server": server, "key_file": key_file, "data": data, "tenant": tenant, "ca": ca}
    with _opened("secret set", blobs, given, store) as place:
        place.set(name, _value(name), SecretScope(project, branch))


def _value(name: str) -> str:
    if sys.stdin.isatty():
        return getpass(f"value of {name}(input is hidden): ")
    value = sys.stdin.buffer.read(MAX_BYTES + 2).decode()
    return value.removesuffix("\n")  # `echo value | deltaci secret set` means the value.


@app.command("list")
def list_command(
    blobs: BlobsOption = "",
    json: JsonOption = False,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    data: DataOption = None,
    tenant: TenantOption = "default",
    ca: CaOption = None,
) -> None:
    """List secrets with their scope and who set them. Values are never shown.

    Example:

      deltaci secret list
    """
    given = {"server": server, "key_file": key_file, "data": data, "tenant": tenant, "ca": ca}
    with _opened("secret list", blobs, given) as place:
        found = place.listed()
        if json:
            print(msgspec.json.encode(found).decode())
            return
        rows = TableOutput("NAME", "PROJECT", "BRANCH", "#VERSION", "SET", "~BY")
        for each in found:
            rows.add(each.name, each.project, each.branch, each.version, since(each.set_at), each.set_by)
        rows.print("no secrets; set one with 'deltaci secret set NAME'")


@app.command("remove")
def remove_command(
    name: NameArgument,
    project: ProjectOption = "",
    branch: BranchOption = "",
    blobs: BlobsOption = "",
    store: StoreOption = "",
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    data: DataOption = None,
    tenant: TenantOption = "default",
    ca: CaOption = None,
) -> None:
    """Remove the secret with exactly this scope.

    Example:

      deltaci secret remove DEPLOY_KEY --project shop --branch 'release/*'
    """
    given = {"server": server, "key_file": key_file, "data": data, "tenant": tenant, "ca": ca}
    with _opened("secret remove", blobs, given, store) as place:
        place.remove(name, SecretScope(project, branch))
