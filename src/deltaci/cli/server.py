"""`deltaci server` and `deltaci token`: the control plane, and who may work for it."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import Annotated

import typer

from deltaci.core import lease
from deltaci.engine import loops
from deltaci.server.service import Listener, Service, collect_seldom, registration_token
from deltaci.store import open_store
from deltaci.store.port import Unavailable

app = typer.Typer()

StoreOption = Annotated[str, typer.Option("--store", help="Where records are kept: sqlite:PATH or postgresql://…")]
DataOption = Annotated[Path, typer.Option("--data", help="The folder for logs and the server's key.")]


@app.command("server")
def server_command(
    store: StoreOption = "sqlite:.state/deltaci.db",
    data: DataOption = Path(".state"),
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8080,
    lease_ttl: Annotated[
        int, typer.Option(min=2, max=86400, help="Seconds after which a runner that is silent has lost its jobs.")
    ] = lease.TTL_SECONDS,
) -> None:
    """Run a server. Any number may share one PostgreSQL. Stops on Ctrl-C, when what is under way has ended."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    data.mkdir(parents=True, exist_ok=True)
    try:
        loops.run(_serve(store, data, host, port, lease_ttl))
    except (Unavailable, ValueError, OSError) as error:
        typer.echo(f"deltaci server: {error}", err=True)
        raise typer.Exit(1) from None


async def _serve(store: str, data: Path, host: str, port: int, lease_ttl: int) -> None:
    async with Service(open_store(store), data, ttl_seconds=lease_ttl) as service:
        listener = Listener(service, host, port)
        for each in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(each, listener.stop)
        collect_seldom()
        print(f"deltaci server: listening on {listener.url}", flush=True)
        await listener.serve()


@app.command("token")
def token_command(
    runner: Annotated[str, typer.Argument(help="The name of the runner that may register with it.")],
    tenant: Annotated[str, typer.Option(help="For whom it works.")] = "default",
    data: DataOption = Path(".state"),
    hours: Annotated[int, typer.Option(min=1, max=24 * 30, help="How long it is good.")] = 24,
) -> None:
    """Make a registration token for a runner: it is good once. Run it where the server's data is."""
    if not runner.isprintable() or not runner.isascii() or not 0 < len(runner) <= 100 or "/" in runner:
        typer.echo("deltaci token: give a name of 1 to 100 printable ASCII characters without a slash", err=True)
        raise typer.Exit(2)
    print(registration_token(data, runner, tenant, hours * 3600))
