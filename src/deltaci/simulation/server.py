"""A simulated server process: the real engine, timers and protocol handlers over the simulated database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from deltaci.core.errors import Refused
from deltaci.engine.clock import MonotonicClock
from deltaci.engine.engine import Engine
from deltaci.engine.lease_ids import LeaseIdMinter
from deltaci.engine.timers import Timers
from deltaci.server.auth.credentials import Signer
from deltaci.server.follower import Follower
from deltaci.server.runner_api.app import RunnerApp
from deltaci.server.runner_api.control_channel import ControlHub
from deltaci.server.runner_api.job_data import JobResourceHandlers
from deltaci.server.runner_api.message_handlers import MessageHandlers
from deltaci.server.runner_api.registration import RunnerRegistry
from deltaci.server.secrets import Secrets
from deltaci.simulation.database import ServerConnection, SharedDatabase
from deltaci.simulation.virtual_time import Node, VirtualLoop
from deltaci.storage.blobs.logs import LogStore
from deltaci.storage.blobs.memory import MemoryBlobStore

KEY: Final = b"simulated" * 4

PendingResponse = asyncio.Task[tuple[int, bytes]]
OnLogAppend = Callable[[str, int, int, bytes], None]


class MemoryLogs(LogStore):
    """Job logs in memory, which survive a server. `on_append` is called with everything that is appended."""

    def __init__(self, on_append: OnLogAppend) -> None:
        super().__init__(Path("/nowhere"))
        self._on_append = on_append
        self.logs: dict[tuple[str, int], bytes] = {}

    def size(self, attempt_id: str, lease_number: int) -> int:
        return len(self.logs.get((attempt_id, lease_number), b""))

    def append(self, attempt_id: str, lease_number: int, offset: int, chunk: bytes) -> int:
        """Append data at this offset; bytes that are already stored are skipped."""
        stored_log = self.logs.get((attempt_id, lease_number), b"")
        if offset > len(stored_log):
            raise Refused("log_gap", f"the log ends at byte {len(stored_log)}")
        self._on_append(attempt_id, lease_number, offset, chunk)
        self.logs[attempt_id, lease_number] = stored_log + chunk[len(stored_log) - offset :]
        return self.size(attempt_id, lease_number)


class SharedStorage:
    """The logs and blobs that all servers share. They survive a server."""

    def __init__(self, folder: Path, on_append: OnLogAppend) -> None:
        self.logs = MemoryLogs(on_append)
        self.blobs = MemoryBlobStore()
        self.folder = folder


class SimServer:
    """A server that can be killed and restarted. `on_response` is called with each response before it is sent."""

    def __init__(
        self,
        name: str,
        loop: VirtualLoop,
        database: SharedDatabase,
        storage: SharedStorage,
        random: Random,
        wall_clock: Callable[[], float],
    ) -> None:
        self.name = name
        self._loop = loop
        self._database = database
        self._storage = storage
        self._random = random
        self._wall_clock = wall_clock
        self.ttl_seconds = 120
        self.poll_seconds = 60.0
        self.credential_seconds = 900
        self.node = Node(name)
        self.node.is_dead = True
        self.connection: ServerConnection | None = None
        self.engine: Engine | None = None
        self._app: RunnerApp | None = None
        self.on_response: Callable[[str, bytes, int, bytes], None] | None = None
        self.open_requests: dict[PendingResponse, Callable[[], None]] = {}  # How to reset each open request.

    @property
    def is_up(self) -> bool:
        return not self.node.is_dead

    def start(self) -> None:
        """Start the server as a new process, with a new connection to the database."""
        self.node = Node(self.name)
        self.connection = ServerConnection(self._database, self._random, self.kill, self.poll_seconds)
        self._loop.spawn(self.node, self._serve(self.connection), self.name)

    def kill(self) -> None:
        """End the server process at once, as SIGKILL does, and reset its connections."""
        if self.connection is not None and self.connection in self._database.connections:
            self._database.connections.remove(self.connection)
        self._loop.kill(self.node)
        for reset in self.open_requests.values():
            reset()
        self.open_requests.clear()

    def revive(self) -> None:
        """Start the server if it is not running."""
        if not self.is_up:
            self.start()

    async def _serve(self, store: ServerConnection) -> None:
        """Build the real server over the simulated database, and run its timers until the process is killed."""
        lease_id_minter = LeaseIdMinter(KEY)
        signer = Signer(KEY, self._wall_clock)
        self.engine = Engine(store, lease_id_minter.mint, MonotonicClock(lambda: round(self._loop.now * 1e9)))
        await self.engine.start()
        protocol = MessageHandlers(store, self.engine, self.ttl_seconds)
        control = ControlHub(store, lease_id_minter)
        follower = Follower(store)
        follower.subscribe(control.on_events)
        await follower.start()
        control.start()
        job_resource_handlers = JobResourceHandlers(
            protocol, self._storage.blobs, Secrets(self._storage.blobs, KEY), self._storage.folder
        )
        registry = RunnerRegistry(self.engine, signer, self.credential_seconds)
        self._app = RunnerApp(protocol, registry, self._storage.logs, control, job_resource_handlers)
        await Timers(self.engine, self.poll_seconds).run()

    def handle_request(
        self, method: str, url_path: str, headers: dict[str, str], request_body: bytes
    ) -> PendingResponse:
        """Start to handle one HTTP request in the server's process. Return the task of its response."""
        return self._loop.spawn(self.node, self._respond(method, url_path, headers, request_body))

    async def _respond(
        self, method: str, url_path: str, request_headers: dict[str, str], request_body: bytes
    ) -> tuple[int, bytes]:
        """Return status and body of the response to one HTTP request."""
        if self._app is None:
            return 503, b'{"code":"unavailable","message":"starting"}'
        messages: list[dict[str, Any]] = []
        is_body_read = False

        async def receive() -> dict[str, Any]:
            nonlocal is_body_read
            if not is_body_read:
                is_body_read = True
                return {"type": "http.request", "body": request_body, "more_body": False}
            await asyncio.get_running_loop().create_future()  # Never disconnects: the network simulates that.
            raise AssertionError("not reached")

        async def send(message: dict[str, Any]) -> None:
            messages.append(message)

        encoded_headers = [
            (header_name.lower().encode(), header_value.encode())
            for header_name, header_value in request_headers.items()
        ]
        await self._app({"type": "http", "method": method, "path": url_path, "headers": encoded_headers}, receive, send)
        status, response_body = messages[0]["status"], messages[1]["body"]
        if self.on_response is not None:
            self.on_response(url_path, request_body, status, response_body)
        return status, response_body
