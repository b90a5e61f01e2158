"""What a runner stands on: time, chance, its connections, its keeper, and that which executes jobs.

Everything else of a runner asks only this, and so does not see whether the machine is a real one.
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
from deltaci.runner.tls import TlsConfig
from deltaci.runner.workspace.git import allowed_protocols


class KeeperConnection(Protocol):
    """The runner's end of the line to its keeper."""

    def send(self, order: KeeperCommand) -> None:
        """Give an order."""

    async def receive(self) -> KeeperEvent | None:
        """The next that it says; None when it is gone."""

    async def close(self) -> None:
        """Hang up: the keeper leaves."""


class Runtime:
    """This machine."""

    def __init__(self, url: str, tls: TlsConfig | None = None) -> None:
        self._url = url
        self._tls = tls or TlsConfig()

    def clock(self) -> float:
        """Seconds, which do not jump; the keeper has the same."""
        return time.monotonic()

    def now(self) -> datetime:
        """The time for people."""
        return datetime.now(UTC)

    def nonce(self) -> str:
        """A text that nobody can guess."""
        return new_nonce()

    def sleep(self, seconds: float) -> None:
        """Let so much time pass, in a thread that may wait."""
        time.sleep(seconds)

    def git_protocols(self) -> tuple[str, ...]:
        """By which protocols sources may be fetched."""
        return allowed_protocols()

    def connect(self, token: str = "") -> RunnerClient:
        """A line to the server."""
        return RunnerClient(self._url, token, self._tls)

    def executors(self) -> Executors:
        """What executes jobs."""
        return Executors()

    async def start_keeper(self) -> KeeperConnection:
        """A keeper for this runner's leases."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "deltaci.runner.lease.keeper",
            self._url,
            *self._tls.files,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the runner; the keeper leaves when the runner has.
        )
        return KeeperProcess(process)


class KeeperProcess:
    """A keeper that is a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._orders, self._news = process.stdin, process.stdout

    def send(self, order: KeeperCommand) -> None:
        """Give an order."""
        self._orders.write(msgspec.json.encode(order) + b"\n")

    async def receive(self) -> KeeperEvent | None:
        """The next that it says; None when it is gone."""
        line = await self._news.readline()
        return decode_event(line) if line else None

    async def close(self) -> None:
        """Hang up, and wait until it has left."""
        self._orders.close()
        await self._process.wait()
