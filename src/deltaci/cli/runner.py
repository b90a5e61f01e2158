"""`deltaci runner`: takes work from a server and executes it here."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from deltaci.cli.nats import NatsCredentialsOption, NatsOption, bus_address
from deltaci.core.errors import Refused
from deltaci.engine import loops
from deltaci.runner.agent import Agent, KeeperGone
from deltaci.runner.client import Client, Unreachable
from deltaci.wire.messages import Registered

CREDENTIAL_FILE = "credential.json"

app = typer.Typer()


@app.command("runner")
def runner_command(
    server: Annotated[
        str, typer.Option(envvar="DELTACI_SERVER", help="The server's address.")
    ] = "http://127.0.0.1:8080",
    token: Annotated[
        str, typer.Option(envvar="DELTACI_TOKEN", help="A registration token; not needed again after the first time.")
    ] = "",
    slots: Annotated[int, typer.Option(min=1, max=1000, help="How many jobs at once.")] = 1,
    labels: Annotated[str, typer.Option(help="What this machine offers, separated by commas.")] = "",
    work: Annotated[Path, typer.Option(envvar="DELTACI_WORK", help="The folder in which jobs run.")] = Path(".runner"),
    once: Annotated[bool, typer.Option("--once", help="Do one job, then leave.")] = False,
    drain_seconds: Annotated[
        int,
        typer.Option(
            min=0,
            help="How long jobs may go on when it shall leave; then they are handed back. 0: no limit.",
        ),
    ] = 0,
    nats: NatsOption = "",
    nats_credentials: NatsCredentialsOption = "",
) -> None:
    """Run a runner. On Ctrl-C or SIGTERM it takes nothing new, finishes what runs, and leaves.

    Asked a second time, it stops its jobs and hands them back to the server, for others.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    work.mkdir(parents=True, exist_ok=True, mode=0o700)
    offered = [label.strip() for label in labels.split(",") if label.strip()]
    try:
        bus = bus_address(nats, nats_credentials)
        credential = _credential(Client(server), token, work / CREDENTIAL_FILE, offered, slots)
        os.environ.pop("DELTACI_TOKEN", None)
        agent = Agent(
            server,
            credential,
            labels=offered,
            slots=slots,
            folder=work,
            once=once,
            drain_seconds=drain_seconds,
            nats=bus,
        )
        loops.run(_run(agent))
    except (Refused, Unreachable, KeeperGone, ValueError) as error:
        typer.echo(f"deltaci runner: {error}", err=True)
        raise typer.Exit(1) from None


async def _run(agent: Agent) -> None:
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, agent.stop)
    await agent.run()


def _credential(client: Client, token: str, path: Path, labels: list[str], slots: int) -> Registered:
    """The credential of the last time, if it is still good; otherwise a new one for the token."""
    if path.exists():
        client.token = msgspec.json.decode(path.read_bytes(), type=Registered).credential
        try:
            return _kept(path, client.renew())
        except Refused:
            client.token = ""
    if not token:
        typer.echo(
            "deltaci runner: no credential yet; make a token with 'deltaci token NAME' and give it with --token",
            err=True,
        )
        sys.exit(2)
    return _kept(path, client.register(token, labels, slots))


def _kept(path: Path, credential: Registered) -> Registered:
    """Only this user may read it."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.encode(credential))
    fresh.replace(path)
    return credential
