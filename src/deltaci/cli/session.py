"""The options, the authentication and the exit codes of all commands that talk to a server."""

from __future__ import annotations

import getpass
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, Final, NoReturn, ParamSpec

import msgspec
import typer
from typer.core import TyperGroup

from deltaci.api.schemas import inputs as api_input
from deltaci.api.schemas import records as api
from deltaci.client import server_address
from deltaci.client.blocking import Client
from deltaci.client.connection import ANSWER_SECONDS, Key
from deltaci.client.errors import ApiError, Unreachable
from deltaci.client.retry import Patience
from deltaci.client.run_status import is_good
from deltaci.core.text import plain_line

GOOD, BAD, USAGE, REFUSED, NOT_ALLOWED, UNREACHABLE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 3, 4, 5, 130, 141
EXIT_CODES: Final = {
    GOOD: "success",
    BAD: "the run failed, was cancelled or timed out",
    USAGE: "invalid usage, or a file cannot be read",
    REFUSED: "the server refused the request: not found, wrong state, invalid field …",
    NOT_ALLOWED: "not allowed: the key is missing, invalid or lacks permission",
    UNREACHABLE: "the server cannot be reached",
    INTERRUPTED: "Ctrl-C",
    PIPE_CLOSED: "the output pipe was closed",
}
NOT_ALLOWED_STATUSES: Final = frozenset({401, 403})
PATIENCE_SECONDS = 8.0  # Somebody sits there and waits.
TOKEN_SECONDS: Final = 300
SIGNED_AGAIN_SECONDS: Final = 120.0
OPERATOR: Final = "operator"
CONNECTION: Final = "Server"
KEY_FILE: Final = "server.key"
MAX_SHOWN: Final = 2000

NO_KEY: Final = (
    "no API key: set DELTACI_KEY, or name a file with --key-file. Where the server's data is, none is needed: "
    "go there, or name the folder with --data; and 'deltaci key create NAME' makes one for somebody else"
)

P = ParamSpec("P")

ServerOption = Annotated[
    str | None,
    typer.Option(
        help="The URL of the server. Default: the server in the --data folder, else 127.0.0.1:8080.",
        envvar=server_address.SERVER_VARIABLE,
        rich_help_panel=CONNECTION,
    ),
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        help="A file with your API key; or put the key into DELTACI_KEY.", rich_help_panel=CONNECTION, metavar="FILE"
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        help="The folder of a server on this machine. Default: .state. No key is needed if you can read it.",
        rich_help_panel=CONNECTION,
        metavar="FOLDER",
    ),
]
TenantOption = Annotated[
    str, typer.Option(help="The tenant, if no key determines it.", rich_help_panel=CONNECTION, metavar="NAME")
]
CaOption = Annotated[
    Path | None,
    typer.Option(help="A CA file (PEM) for the server certificate.", rich_help_panel=CONNECTION, metavar="FILE"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

_SHARED: Final[dict[str, tuple[Any, Any]]] = {
    "json": (JsonOption, False),
    "server": (ServerOption, None),
    "key_file": (KeyFileOption, None),
    "data": (DataOption, None),
    "tenant": (TenantOption, "default"),
    "ca": (CaOption, None),
}


def shared_options() -> frozenset[str]:
    """Return the names of the options of every command that talks to a server."""
    return frozenset(_SHARED)


class MissingKeyError(Exception):
    """There is neither an API key nor a server's data folder with the key to sign a token."""


class CommandSession:
    """The client of a command, and whether the command prints JSON or text."""

    def __init__(self, client: Client, *, is_json: bool) -> None:
        self.client = client
        self.is_json = is_json

    def print_json(self, value: Any) -> None:
        """Print a value as one JSON document on one line."""
        print(msgspec.json.encode(value).decode(), flush=True)


class SharedOptionsGroup(TyperGroup):
    """A group that calls its first command if none is given: `deltaci workers` is `deltaci workers list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the name of the first command if the arguments name none."""
        asks_for_help = bool(args) and args[0] in ctx.help_option_names
        if not asks_for_help and (not args or args[0].startswith("-")):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


def command(app: typer.Typer, name: str) -> Callable[[Callable[Concatenate[CommandSession, P], None]], None]:
    """Return a decorator that adds a command to `app`. It adds the shared options and passes a session."""

    group = app.info.name
    whole = f"{group} {name}" if isinstance(group, str) else name

    def made(function: Callable[Concatenate[CommandSession, P], None]) -> None:
        @wraps(function)
        def called(**given: Any) -> None:
            shared = {option: given.pop(option) for option in _SHARED}
            with reported(whole), patient_client(shared) as client:
                function(CommandSession(client, is_json=shared["json"]), **given)  # type: ignore[call-arg]
                sys.stdout.flush()

        asked = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        added = [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for option, (kind, default) in _SHARED.items()
        ]
        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in asked] + added
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        app.command(name)(called)

    return made


@contextmanager
def reported(name: str) -> Iterator[None]:
    """Print an error of a command as one line and exit with its code, instead of a traceback."""
    try:
        yield
    except ApiError as error:
        told = [f"{error.message} ({error.code})", *([error.hint] if error.hint else [])]
        if error.request_id and error.status >= 500:
            told.append(f"see request {error.request_id}")
        fail(name, "; ".join(told), NOT_ALLOWED if error.status in NOT_ALLOWED_STATUSES else REFUSED)
    except MissingKeyError as error:
        fail(name, str(error), NOT_ALLOWED)
    except Unreachable as error:
        fail(name, str(error), UNREACHABLE)
    except BrokenPipeError:
        _forget_output()
        raise typer.Exit(PIPE_CLOSED) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except (ValueError, OSError) as error:
        fail(name, str(error), USAGE)


def _forget_output() -> None:
    """Discard further output, because its reader has closed the pipe."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(name: str, message: str, code: int) -> NoReturn:
    """Print the error message and exit with this code."""
    print(f"deltaci {name}: {plain_line(message, MAX_SHOWN)}", file=sys.stderr)
    raise typer.Exit(code)


def leave_by(run: api.Run) -> NoReturn:
    """Exit with the code for the outcome of a run."""
    raise typer.Exit(GOOD if is_good(run) else BAD)


def quick_client(given: Mapping[str, Any], seconds: float) -> Client:
    """Return a client without retries and with a short timeout, for shell completion.

    `given` are the options on the command line so far.
    """
    return _client(given, Patience(give_up_seconds=0), seconds)


def patient_client(given: Mapping[str, Any]) -> Client:
    """Return a client with the usual retries. `given` are the shared options."""
    return _client(given, Patience(give_up_seconds=PATIENCE_SECONDS), ANSWER_SECONDS)


def person() -> str:
    """Return the name of the user who runs the command."""
    return _person()


def _client(given: Mapping[str, Any], patience: Patience, seconds: float) -> Client:
    data: Path | None = given.get("data")
    server = given.get("server") or server_address.server_url(data or server_address.DATA_FOLDER)
    key = _key(given.get("key_file"), data, given.get("tenant") or "default", server)
    return Client(server, key, ca=given.get("ca"), patience=patience, timeout_seconds=seconds)


def _key(file: Path | None, data: Path | None, tenant: str, server: str) -> Key:
    """Return the API key in the file or environment, else tokens signed with the key of the server's data folder."""
    if file is not None:
        return server_address.key_in(file)
    if given := server_address.checked_key(os.environ.get(server_address.KEY_VARIABLE, "")):
        return given
    folder = data or server_address.DATA_FOLDER
    # Who is shown an operator's token could use it: it goes to the server of that folder, or where it was meant to.
    is_meant = data is not None or server_address.is_at_home(server, folder)
    if not is_meant or not os.access(folder / KEY_FILE, os.R_OK):
        raise MissingKeyError(NO_KEY)
    return _OperatorTokens(folder, tenant)


class _OperatorTokens:
    """Creates short-lived operator tokens on demand, signed with the server key."""

    def __init__(self, data: Path, tenant: str) -> None:
        from deltaci.server.auth.credentials import Signer, is_tenant_name, load_server_key

        if not is_tenant_name(tenant):
            raise ValueError("--tenant has 1 to 200 printable ASCII characters")
        self._signer = Signer(load_server_key(data / KEY_FILE), time.time)
        self._tenant = tenant
        self._token = ""
        self._until = 0.0

    def __call__(self) -> str:
        if time.monotonic() >= self._until:
            self._token = self._signer.sign("operate", _person(), self._tenant, TOKEN_SECONDS)
            self._until = time.monotonic() + SIGNED_AGAIN_SECONDS
        return self._token


def _person() -> str:
    """Return the user's name, or a default if it is not a valid name of a person."""
    try:
        name = os.environ.get("USER") or getpass.getuser()
    except (KeyError, OSError):
        name = ""
    try:
        return msgspec.convert(name, api_input.Person)
    except msgspec.ValidationError:
        return OPERATOR
