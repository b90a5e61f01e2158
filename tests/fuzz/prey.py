"""A real server process on SQLite with plenty of work in it, to be asked anything."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from deltaci.app import KEY_FILE, registration_token
from deltaci.audit.projections.canonical import canonical_lines
from deltaci.audit.verify import Report, verify
from deltaci.core.events import Event
from deltaci.engine import feed
from deltaci.engine.queue import AsyncQueue, NewJob
from deltaci.runner.client import RunnerClient
from deltaci.server.auth.credentials import Signer, load_server_key
from deltaci.storage import open_store
from tests.support.fork_server import Deltaci

RUNNER: Final = "w1"
JOBS: Final = 2000
MEMORY_BYTES: Final = 3 * 1024**3  # Of addresses, most of which is never used.
STOP_SECONDS: Final = 120.0
EVERYTHING: Final = 10_000_000
SPEC: Final[dict[str, Any]] = {"steps": ["true"]}


class Prey:
    """The server, and one runner's way in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store_url = f"sqlite:{folder / 'deltaci.db'}"
        self.log = folder / "server.log"
        self.url = ""
        self.credential = ""

    async def fill(self) -> None:
        """Work for every runner: small jobs, one that is too large to be embedded, one that makes no sense."""
        large = {"steps": ["true"], "env": {"LARGE": "x" * 70_000}}
        specs = [SPEC] * (JOBS - 20) + [large] * 10 + [{"steps": 5}] * 10
        async with AsyncQueue(open_store(self.store_url), has_timers=False) as queue:
            await queue.enqueue_all([NewJob(payload=spec) for spec in specs])

    def register(self) -> None:
        """Come in as a runner."""
        client = RunnerClient(self.url)
        try:
            token = registration_token(self.folder, RUNNER, "default")
            self.credential = client.register(token, [], 1000).credential
        finally:
            client.close()

    def token(self) -> str:
        """A token of a runner that has never registered."""
        return registration_token(self.folder, f"r{os.urandom(6).hex()}", "default")

    def operator(self) -> str:
        """A token of whoever operates the server."""
        return Signer(load_server_key(self.folder / KEY_FILE), time.time).sign("operate", "root", "default", 7200)

    async def events(self) -> list[Event]:
        """Everything that happened."""
        store = open_store(self.store_url)
        await store.open()
        try:
            return await feed.read(store, 0, EVERYTHING)
        finally:
            await store.close()

    def verified(self) -> Report:
        """What the verifier says about the log of the server."""
        return verify(canonical_lines(asyncio.run(self.events())))

    def complaints(self) -> str:
        """What the server said to people, if it is more than it should be: a traceback, an error."""
        told = self.log.read_text(errors="replace")
        return told if "Traceback" in told or " ERROR " in told or "Exception" in told else ""


@contextmanager
def prey(folder: Path, *, has_work: bool = True) -> Iterator[Prey]:
    """A server from here to the end of the block. It must still be there then, and end when it is asked to."""
    folder.mkdir(parents=True, exist_ok=True)
    here = Prey(folder)
    if has_work:
        asyncio.run(here.fill())
    words = ("server", "--store", here.store_url, "--data", str(folder), "--port", "0")
    with (
        here.log.open("ab") as log,
        Deltaci(words, stdout=subprocess.PIPE, stderr=log) as server,
    ):
        try:
            resource.prlimit(server.pid, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            assert server.stdout is not None
            line = server.stdout.readline().decode()
            assert "listening on" in line, here.log.read_text()
            here.url = line.split()[-1]
            here.register()
            yield here
            assert server.poll() is None, f"the server is gone: {here.log.read_text()}"
            server.terminate()
            assert server.wait(STOP_SECONDS) == 0
        finally:
            server.kill()
