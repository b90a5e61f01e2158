"""The whole server in this process, behind a real socket: uvicorn, real HTTP, real TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from deltaci.app import HttpListener, Server, registration_token
from deltaci.core.events import Event
from deltaci.core.machine import Record
from deltaci.engine import feed
from deltaci.runner.client import RunnerClient
from deltaci.runner.tls import TlsConfig
from deltaci.server.runner_api.registration import RunnerTokenIssuer
from deltaci.storage import open_store

PATIENCE_SECONDS: Final = 30.0
EVERYTHING: Final = 1_000_000

T = TypeVar("T")


class LiveServer:
    """A server that listens on a socket."""

    def __init__(self, server: Server, url: str, folder: Path) -> None:
        self.server = server
        self.url = url
        self.port = int(url.rpartition(":")[2])
        self.folder = folder

    def token(self, id: str = "w1", tenant: str = "default", **options: Any) -> str:
        """Return a registration token."""
        return registration_token(self.folder, id, tenant, **options)

    async def log(self) -> list[Event]:
        """Return all events."""
        return await feed.read(self.server.store, 0, EVERYTHING)

    async def record(self, id: str) -> Record | None:
        """Return a record, if it exists."""
        return await self.server.store.find(id)

    @asynccontextmanager
    async def client(self, tls: TlsConfig | None = None, token: str = "", url: str = "") -> AsyncIterator[Caller]:
        """Open a runner's client, which runs in a thread of its own."""
        with ThreadPoolExecutor(1) as thread:
            caller = Caller(RunnerClient(url or self.url, token, tls), thread)
            try:
                yield caller
            finally:
                await caller.run(caller.client.close)


class Caller:
    """Runs calls of a client in the thread that has its connection."""

    def __init__(self, client: RunnerClient, thread: ThreadPoolExecutor) -> None:
        self.client = client
        self._thread = thread

    async def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run one call."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)


@asynccontextmanager
async def run_server(
    folder: Path, tls: ssl.SSLContext | None = None, issuer: RunnerTokenIssuer | None = None
) -> AsyncIterator[LiveServer]:
    """Run a server on a free port until the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    async with Server(open_store("memory:"), folder, issuer=issuer) as server:
        listener = HttpListener(server, "127.0.0.1", 0, tls)
        serving = asyncio.create_task(listener.serve())
        try:
            yield LiveServer(server, listener.url, folder)
        finally:
            listener.stop()
            await asyncio.wait_for(serving, PATIENCE_SECONDS)
