"""A server in the simulated world: the real write path, timers and protocol handlers, over a simulated database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from deltaci.core.errors import Refused
from deltaci.engine.clock import MonotonicClock
from deltaci.engine.engine import Engine
from deltaci.engine.timers import Timers
from deltaci.server.auth.credentials import Signer
from deltaci.server.follower import Follower
from deltaci.server.runner_api.app import RunnerApp
from deltaci.server.runner_api.control_channel import ControlHub
from deltaci.server.runner_api.lease_ids import LeaseIds
from deltaci.server.runner_api.message_handlers import Protocol
from deltaci.server.runner_api.registration import Registry
from deltaci.server.runner_api.uploads import Uploads
from deltaci.server.secrets import Secrets
from deltaci.simulation.database import Connection, Disk
from deltaci.simulation.virtual_time import Node, VirtualLoop
from deltaci.storage.blobs.logs import LogStore
from deltaci.storage.blobs.memory import MemoryBlobStore

KEY: Final = b"simulated" * 4

Asked = asyncio.Task[tuple[int, bytes]]
Seen = Callable[[str, int, int, bytes], None]


class MemoryLogs(LogStore):
    """Logs that are kept in memory. They survive a server, as the disk does. `seen` is told what comes."""

    def __init__(self, seen: Seen) -> None:
        super().__init__(Path("/nowhere"))
        self._seen = seen
        self.kept: dict[tuple[str, int], bytes] = {}

    def size(self, attempt_id: str, number: int) -> int:
        """How many bytes are kept."""
        return len(self.kept.get((attempt_id, number), b""))

    def append(self, attempt_id: str, number: int, offset: int, data: bytes) -> int:
        """Keep the bytes that begin at this offset."""
        kept = self.kept.get((attempt_id, number), b"")
        if offset > len(kept):
            raise Refused("log_gap", f"the log ends at byte {len(kept)}")
        self._seen(attempt_id, number, offset, data)
        self.kept[attempt_id, number] = kept + data[len(kept) - offset :]
        return self.size(attempt_id, number)


class Shelf:
    """What all servers keep beside the database. It survives them."""

    def __init__(self, folder: Path, seen: Seen) -> None:
        self.logs = MemoryLogs(seen)
        self.blobs = MemoryBlobStore()
        self.folder = folder


class SimServer:
    """One server process; it may die and come back. `witness` is told every answer, before anybody else."""

    def __init__(
        self, name: str, loop: VirtualLoop, disk: Disk, shelf: Shelf, random: Random, wall: Callable[[], float]
    ) -> None:
        self.name = name
        self._loop = loop
        self._disk = disk
        self._shelf = shelf
        self._random = random
        self._wall = wall
        self.ttl_seconds = 120
        self.poll_seconds = 60.0
        self.credential_seconds = 900
        self.node = Node(name)
        self.node.is_dead = True
        self.connection: Connection | None = None
        self.engine: Engine | None = None
        self._app: RunnerApp | None = None
        self.witness: Callable[[str, bytes, int, bytes], None] | None = None
        self.open_calls: dict[Asked, Callable[[], None]] = {}  # Who waits for an answer, and how to hang up.

    @property
    def is_up(self) -> bool:
        """Whether it answers."""
        return not self.node.is_dead

    def start(self) -> None:
        """A new process."""
        self.node = Node(self.name)
        self.connection = Connection(self._disk, self._random, self.kill, self.poll_seconds)
        self._loop.spawn(self.node, self._serve(self.connection), self.name)

    def kill(self) -> None:
        """SIGKILL."""
        if self.connection is not None and self.connection in self._disk.connections:
            self._disk.connections.remove(self.connection)
        self._loop.kill(self.node)
        for reset in self.open_calls.values():
            reset()
        self.open_calls.clear()

    def revive(self) -> None:
        """Start it if it is not there."""
        if not self.is_up:
            self.start()

    async def _serve(self, store: Connection) -> None:
        lease_ids = LeaseIds(KEY)
        signer = Signer(KEY, self._wall)
        self.engine = Engine(store, lease_ids.mint, MonotonicClock(lambda: round(self._loop.now * 1e9)))
        await self.engine.start()
        protocol = Protocol(store, self.engine, self.ttl_seconds)
        control = ControlHub(store, lease_ids)
        follower = Follower(store)
        follower.tell(control.hear)
        await follower.start()
        control.start()
        uploads = Uploads(protocol, self._shelf.blobs, Secrets(self._shelf.blobs, KEY), self._shelf.folder)
        registry = Registry(self.engine, signer, self.credential_seconds)
        self._app = RunnerApp(protocol, registry, self._shelf.logs, control, uploads)
        await Timers(self.engine, self.poll_seconds).run()

    def ask(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Asked:
        """One request arrives."""
        return self._loop.spawn(self.node, self._answer(method, path, headers, body))

    async def _answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """One request."""
        if self._app is None:
            return 503, b'{"code":"unavailable","message":"it starts"}'
        sent: list[dict[str, Any]] = []
        is_read = False

        async def receive() -> dict[str, Any]:
            nonlocal is_read
            if not is_read:
                is_read = True
                return {"type": "http.request", "body": body, "more_body": False}
            await asyncio.get_running_loop().create_future()  # Nobody hangs up: the network takes care of that.
            raise AssertionError("not reached")

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        told = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self._app({"type": "http", "method": method, "path": path, "headers": told}, receive, send)
        status, answer = sent[0]["status"], sent[1]["body"]
        if self.witness is not None:
            self.witness(path, body, status, answer)
        return status, answer
