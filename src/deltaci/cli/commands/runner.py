"""`deltaci runner`: run jobs of a server on this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from deltaci.cli.nats import NatsCredentialsOption, NatsOption, bus_address
from deltaci.core.errors import Refused, Unreachable
from deltaci.engine import event_loop
from deltaci.runner.agent import Agent, KeeperDied, RunnerRemoved
from deltaci.runner.registration import CredentialProvider, NoCredential, read_token
from deltaci.runner.tls import InvalidTlsFiles, TlsConfig

app = typer.Typer(add_completion=False)

REMOVED: Final = 3  # The exit code of one that must not be started again.

TokenOption = Annotated[
    str,
    typer.Option(
        envvar="DELTACI_TOKEN",
        help="A registration token, needed only for the first start. "
        "Other users can read command lines: prefer the variable or --token-file.",
    ),
]
DrainOption = Annotated[
    int,
    typer.Option(
        min=0,
        help="How long running jobs may continue at shutdown before they are handed back. 0: no limit.",
    ),
]
CaOption = Annotated[
    Path | None, typer.Option(help="A CA file (PEM) for the server certificate. Default: the CAs of this machine.")
]
ClientCertOption = Annotated[
    Path | None,
    typer.Option(help="A client certificate (PEM) that names this runner, instead of a token. Reloaded when renewed."),
]
ClientKeyOption = Annotated[
    Path | None, typer.Option(help="The private key of the client certificate (PEM, no password).")
]
OidcOption = Annotated[
    Path | None,
    typer.Option(help="A file with an OIDC token, reread for each use; or set DELTACI_OIDC_TOKEN."),
]


@app.command("runner")
def runner_command(
    server: Annotated[
        str, typer.Option(envvar="DELTACI_SERVER", help="The URL of the server.")
    ] = "http://127.0.0.1:8080",
    token: TokenOption = "",
    token_file: Annotated[Path | None, typer.Option(help="A file with the registration token.")] = None,
    slots: Annotated[int, typer.Option(min=1, max=1000, help="Number of parallel jobs.")] = 1,
    labels: Annotated[str, typer.Option(help="Labels of this machine, separated by commas.")] = "",
    work: Annotated[
        Path, typer.Option(envvar="DELTACI_WORK", help="The folder for the working directories of jobs.")
    ] = Path(".runner"),
    once: Annotated[bool, typer.Option("--once", help="Run one job, then exit.")] = False,
    drain_seconds: DrainOption = 0,
    nats: NatsOption = "",
    nats_credentials: NatsCredentialsOption = "",
    ca: CaOption = None,
    client_cert: ClientCertOption = None,
    client_key: ClientKeyOption = None,
    oidc_token_file: OidcOption = None,
) -> None:
    """Run a runner. On Ctrl-C or SIGTERM it takes no new jobs, finishes its current jobs, and exits.

    On a second signal, it stops its jobs and hands them back to the server. A runner that was removed from
    the fleet finishes its current jobs and exits with code 3: do not restart it.

    It registers with a registration token, a client certificate or an OIDC token: see docs/runners.md.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    offered = [label.strip() for label in labels.split(",") if label.strip()]
    oidc = _oidc(oidc_token_file, os.environ.pop("DELTACI_OIDC_TOKEN", ""))
    os.environ.pop("DELTACI_TOKEN", None)  # No job may find it there.
    try:
        work.mkdir(parents=True, exist_ok=True, mode=0o700)
        bus = bus_address(nats, nats_credentials)
        tls = _tls(server, TlsConfig(ca, client_cert, client_key))
        shown = read_token(token_file) if token_file is not None else token
        credentials = CredentialProvider(
            server, work, labels=offered, slots=slots, tls=tls, token=shown, fetch_oidc_token=oidc
        )
        agent = Agent(
            credentials,
            credentials.obtain(),
            labels=offered,
            slots=slots,
            folder=work,
            once=once,
            drain_seconds=drain_seconds,
            nats=bus,
        )
        event_loop.run(_run(agent))
    except NoCredential as error:
        typer.echo(f"deltaci runner: {error}", err=True)
        raise typer.Exit(2) from None
    except RunnerRemoved as error:
        typer.echo(f"deltaci runner: {error}", err=True)
        raise typer.Exit(REMOVED) from None
    except (Refused, Unreachable, InvalidTlsFiles, KeeperDied, ValueError, OSError) as error:
        typer.echo(f"deltaci runner: {error.message if isinstance(error, Refused) else error}", err=True)
        raise typer.Exit(1) from None


def _oidc(path: Path | None, given: str) -> Callable[[], str] | None:
    if path is not None:
        return lambda: read_token(path)
    return (lambda: given) if given else None


def _tls(server: str, tls: TlsConfig) -> TlsConfig:
    """Say at once what is wrong with the files."""
    if server.startswith("https://"):
        tls.context()
    elif tls.has_certificate:
        raise InvalidTlsFiles(f"a client certificate needs https://, not {server}; use the URL of the server")
    return tls


async def _run(agent: Agent) -> None:
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, agent.stop)
    await agent.run()
