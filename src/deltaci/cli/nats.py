"""The command-line options for NATS, which the server and the runner share."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from deltaci.protocol.nats_client import NatsAddress

NatsOption = Annotated[
    str,
    typer.Option("--nats", envvar="DELTACI_NATS", help="NATS with JetStream, e.g. nats://host:4222; see docs/nats.md."),
]
NatsCredentialsOption = Annotated[str, typer.Option("--nats-credentials", help="A credentials file for NATS.")]


def bus_address(url: str, credentials: str) -> NatsAddress | None:
    """Return the validated address of NATS, or None without a URL.

    Removes DELTACI_NATS from the environment: it may contain a password, which child processes must not inherit.
    """
    os.environ.pop("DELTACI_NATS", None)
    if not url:
        return None
    address = NatsAddress(url, credentials)
    address.check()
    return address
