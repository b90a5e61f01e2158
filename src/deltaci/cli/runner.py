"""`deltaci runner`: takes work from a server and executes it here."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from deltaci.core.errors import Refused
from deltaci.engine import loops
from deltaci.runner.agent import Agent, KeeperGone
from deltaci.runner.client import Client, Unreachable
from deltaci.wire.messages import Registered

CREDENTIAL_FILE = "credential.json"
REQUEST_FILE = "registration"
REGISTER_TRIES = 5
RETRY_SECONDS = 1.0

app = typer.Typer()


@app.command("runner")
def runner_command(
    server: Annotated[str, typer.Option(help="The server's address.")] = "http://127.0.0.1:8080",
    token: Annotated[
        str, typer.Option(envvar="DELTACI_TOKEN", help="A registration token; not needed again after the first time.")
    ] = "",
    slots: Annotated[int, typer.Option(min=1, max=1000, help="How many jobs at once.")] = 1,
    labels: Annotated[str, typer.Option(help="What this machine offers, separated by commas.")] = "",
    work: Annotated[Path, typer.Option(help="The folder in which jobs run.")] = Path(".runner"),
    once: Annotated[bool, typer.Option("--once", help="Do one job, then leave.")] = False,
) -> None:
    """Run a runner. On Ctrl-C or SIGTERM it takes nothing new, finishes what runs, and leaves."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    work.mkdir(parents=True, exist_ok=True, mode=0o700)
    offered = [label.strip() for label in labels.split(",") if label.strip()]
    try:
        credential = _credential(Client(server), token, work / CREDENTIAL_FILE, offered, slots)
        os.environ.pop("DELTACI_TOKEN", None)
        loops.run(_run(Agent(server, credential, labels=offered, slots=slots, folder=work, once=once)))
    except (Refused, Unreachable, KeeperGone) as error:
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
    request_id = _request_id(path.with_name(REQUEST_FILE))
    for _ in range(REGISTER_TRIES - 1):
        with suppress(Unreachable):
            return _kept(path, client.register(token, labels, slots, request_id))
        time.sleep(RETRY_SECONDS)
    return _kept(path, client.register(token, labels, slots, request_id))


def _request_id(path: Path) -> str:
    """One word for one registration, also after a restart: a token whose answer was lost must not be lost with it."""
    if not path.exists():
        with suppress(FileExistsError), os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as f:
            f.write(secrets.token_hex(16))
    return path.read_text() or secrets.token_hex(16)


def _kept(path: Path, credential: Registered) -> Registered:
    """Only this user may read it."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.encode(credential))
    fresh.replace(path)
    return credential
