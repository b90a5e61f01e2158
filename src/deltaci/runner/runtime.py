"""The runtime: the runner's access to clocks, randomness, the server, its lease keeper and the executors of jobs.

The rest of the runner uses these only through the runtime, so that the simulation can replace them.
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from deltaci.runner.client import RunnerClient
from deltaci.runner.lease.keeper import KeeperCommand, KeeperEvent, decode_event
from deltaci.runner.log.sections import new_nonce
from deltaci.runner.sandbox import Executors
from deltaci.runner.sandbox.supervisor import boottime
from deltaci.runner.tls import TlsConfig
from deltaci.runner.workspace.source_policy import allowed_protocols


class KeeperConnection(Protocol):
    """The runner's connection to its lease keeper, the process that sends heartbeats."""

    def send(self, command: KeeperCommand) -> None: ...

    async def receive(self) -> KeeperEvent | None:
        """Wait for the keeper's next message and return it; None when the keeper has ended."""

    async def close(self) -> None:
        """Close the connection, which ends the keeper."""


class Runtime:
    """The runtime of a real machine: its clocks, randomness, network and processes."""

    def __init__(self, url: str, tls: TlsConfig | None = None) -> None:
        self._url = url
        self._tls = tls or TlsConfig()

    def clock(self) -> float:
        """Return the seconds since boot, suspension included; the keeper and the supervisors read the same clock."""
        return boottime()

    def now(self) -> datetime:
        """Return the wall-clock time, for display only."""
        return datetime.now(UTC)

    def nonce(self) -> str:
        """Return an unguessable string."""
        return new_nonce()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for some seconds."""
        time.sleep(seconds)

    def git_protocols(self) -> tuple[str, ...]:
        """Return the protocols with which git may fetch sources."""
        return allowed_protocols()

    def connect(self, token: str = "") -> RunnerClient:
        """Return a new client of the server, with this credential; without one if it is empty."""
        return RunnerClient(self._url, token, self._tls)

    def executors(self) -> Executors:
        """Return the executors, which create the cells in which jobs run."""
        return Executors()

    async def start_keeper(self) -> KeeperConnection:
        """Start the process that keeps this runner's leases, and return a connection to it."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "deltaci.runner.lease.keeper",
            self._url,
            *self._tls.paths,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must not reach the keeper, which ends after the runner.
        )
        return KeeperProcess(process)


class KeeperProcess:
    """A connection to a keeper process over its standard input and output."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout

    def send(self, command: KeeperCommand) -> None:
        self._stdin.write(msgspec.json.encode(command) + b"\n")

    async def receive(self) -> KeeperEvent | None:
        message_line = await self._stdout.readline()
        return decode_event(message_line) if message_line else None

    async def close(self) -> None:
        """Close the keeper's standard input and wait until it has ended."""
        self._stdin.close()
        await self._process.wait()
