"""The server's application in this process, without a socket, and runners that use it.

When a site closes, it checks that its log is legal, and that no token and no lease id was written anywhere.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from deltaci.core import ids
from deltaci.core.instants import SECOND
from deltaci.core.lease import TTL_SECONDS
from deltaci.engine.lease_ids import LeaseIdMinter
from deltaci.fleet.incarnations import Incarnations
from deltaci.fleet.liveness import Fleet
from deltaci.protocol import messages as wire
from deltaci.protocol.routes import REFUSALS, ROOT
from deltaci.server.auth.credentials import REGISTRATION_SECONDS, Signer
from deltaci.server.follower import Follower
from deltaci.server.runner_api.app import RunnerApp
from deltaci.server.runner_api.control_channel import ControlHub
from deltaci.server.runner_api.job_data import JobResourceHandlers, UploadLimits
from deltaci.server.runner_api.message_handlers import MessageHandlers
from deltaci.server.runner_api.registration import RunnerRegistry
from deltaci.server.secrets import Secrets
from deltaci.storage.blobs.logs import LogStore
from deltaci.storage.blobs.memory import MemoryBlobStore
from tests.contract.backends import Backend, Server
from tests.support.lab import TENANT

KEY = b"k" * 32
LEASE_ID_MINTER = LeaseIdMinter(KEY)
TIME = "2026-01-04T08:00:00Z"
BOUNDS = UploadLimits(files=5, file_bytes=1000, lease_bytes=2500, cache_bytes=1000)

# The required fields of each message besides lease and runner.
REQUIRED_FIELDS: dict[str, dict[str, Any]] = {
    "AckLease": {"accepted_at": TIME},
    "Heartbeat": {"ts": TIME},
    "Complete": {"status": "SUCCEEDED", "exit_code": 0},
    "CancelAck": {"final_status": "CANCELED", "ts": TIME},
}


class Reply(NamedTuple):
    """A response, and how many chunks of the request's body were read for it."""

    status: int
    body: Any
    parts_read: int

    @property
    def code(self) -> str:
        """Return the code of an error."""
        return str(self.body["code"])

    @property
    def message(self) -> str:
        """Return the message of an error."""
        return str(self.body["message"])


class Site:
    """A server with the runner protocol over a store. Every response is checked."""

    def __init__(
        self,
        backend: Backend,
        server: Server,
        folder: Path,
        fleet: Fleet | None = None,
        ttl_seconds: int = TTL_SECONDS,
    ) -> None:
        self.backend = backend
        self.server = server
        self.logs = LogStore(folder, max_bytes=1000)
        self.signer = Signer(KEY, lambda: backend.now() / SECOND)
        self.incarnations = Incarnations(server.engine, server.store)
        registry = RunnerRegistry(server.engine, self.signer, incarnations=self.incarnations)
        self.control = ControlHub(server.store, LEASE_ID_MINTER)
        self.follower = Follower(server.store)
        self.follower.subscribe(self.control.on_events)
        self.blobs = MemoryBlobStore()
        self.sealed = Secrets(self.blobs, KEY)
        self.message_handlers = protocol = MessageHandlers(server.store, server.engine, ttl_seconds, fleet=fleet)
        self.job_data = JobResourceHandlers(protocol, self.blobs, self.sealed, folder / "incoming", BOUNDS)
        heartbeats = fleet.heartbeats if fleet is not None else None
        self.app = RunnerApp(protocol, registry, self.logs, self.control, self.job_data, heartbeats=heartbeats)
        self.secrets: set[str] = set()

    async def listen(self) -> None:
        """Start to follow the event log; only tests of the control channel need that."""
        await self.follower.start()
        self.control.start()

    async def close(self) -> None:
        """Stop following the event log."""
        await self.follower.stop()
        await self.control.stop()

    async def request(
        self,
        method: str,
        name: str,
        *chunks: bytes,
        headers: Iterable[tuple[str, str]] = (),
        root: str = ROOT,
        disconnected_event: asyncio.Event | None = None,
    ) -> Reply:
        """Send a request whose body arrives in these chunks."""
        sent: list[dict[str, Any]] = []
        remaining = list(chunks) or [b""]
        disconnected = disconnected_event or asyncio.Event()

        async def receive() -> dict[str, Any]:
            if remaining:
                chunk = remaining.pop(0)
                return {"type": "http.request", "body": chunk, "more_body": bool(remaining)}
            await disconnected.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        raw_headers = [(key.lower().encode(), value.encode()) for key, value in headers]
        scope = {"type": "http", "method": method, "path": f"{root}{name}", "headers": raw_headers}
        await self.app(scope, receive, send)
        start, *bodies = sent
        body = {"body": b"".join(message["body"] for message in bodies)}
        response_headers = dict(start["headers"])
        assert response_headers[b"content-length"] == str(len(body["body"])).encode()
        if response_headers[b"content-type"] == b"application/octet-stream":
            assert response_headers[b"delta-sha256"] == sha256(body["body"]).hexdigest().encode()
            return Reply(start["status"], body["body"], max(1, len(chunks)) - len(remaining))
        assert (b"allow" in response_headers, b"www-authenticate" in response_headers) == (
            start["status"] == 405,
            start["status"] == 401,
        )
        reply = Reply(start["status"], json.loads(body["body"]), max(1, len(chunks)) - len(remaining))
        self._check(reply)
        return reply

    def _check(self, reply: Reply) -> None:
        if isinstance(reply.body, dict) and "code" in reply.body:
            assert reply.status == REFUSALS[reply.code].status, reply
            assert not [secret for secret in self.secrets if secret in reply.message], reply
        elif isinstance(reply.body, dict) and reply.body.get("type") == "StaleLease":
            assert reply.status == 409, reply
        else:
            assert reply.status == 200, reply
        for granted in reply.body.get("leases", ()) if isinstance(reply.body, dict) else ():
            self.secrets.add(granted["lease_id"])

    async def refused(self, send_request: Callable[[], Any]) -> Reply:
        """Assert that a request is refused and writes no event. Return the response."""
        before = await self.server.store.last_seq()
        reply: Reply = await send_request()
        assert reply.status != 200, reply
        assert await self.server.store.last_seq() == before
        return reply

    def token(self, id: str = "w1", tenant: str = TENANT, seconds: float = REGISTRATION_SECONDS) -> str:
        """Return a registration token."""
        token = self.signer.sign("register", id, tenant, seconds)
        self.secrets.add(token)
        return token

    async def register(self, token: str, **fields: Any) -> Reply:
        """Register with the token."""
        return await self.request("POST", "register", json.dumps({"token": token, **fields}).encode())

    async def runner(self, id: str = "w1", tenant: str = TENANT, **fields: Any) -> RegisteredRunner:
        """Return a registered runner."""
        reply = await self.register(self.token(id, tenant), **fields)
        assert reply.body["runner_id"] == id, reply
        self.secrets.add(reply.body["credential"])
        return RegisteredRunner(self, id, reply.body["credential"])

    async def check_secrets(self, caplog: pytest.LogCaptureFixture) -> None:
        """Assert that no token and no lease id is in the event log, in a record or in the program's log."""
        events = await self.server.log()
        records = [await self.server.store.find(id) for id in {event.entity_id for event in events}]
        written = msgspec.json.encode([events, records]).decode() + caplog.text
        parts = {secret.rpartition(".")[2] for secret in self.secrets}
        assert not [part for part in parts if part in written]


class RegisteredRunner:
    """A registered runner with its credential."""

    def __init__(self, site: Site, id: str, credential: str) -> None:
        self.site = site
        self.id = id
        self.credential = credential

    async def request(self, method: str, name: str, *chunks: bytes, **headers: str) -> Reply:
        """Send a request with the credential; `delta_lease` becomes the header Delta-Lease."""
        extra_headers = [(key.replace("_", "-"), value) for key, value in headers.items()]
        return await self.site.request(
            method, name, *chunks, headers=[("Authorization", f"Bearer {self.credential}"), *extra_headers]
        )

    async def lease(self, **fields: Any) -> list[wire.LeaseGranted]:
        """Claim work. The response is decoded as a runner does."""
        message = {"type": "Lease", "runner_id": self.id, **fields}
        reply = await self.request("POST", "lease", json.dumps(message).encode())
        assert reply.status == 200, reply
        return msgspec.convert(reply.body["leases"], list[wire.LeaseGranted])

    async def control(self, *lease_ids: str, **fields: Any) -> list[wire.CancelRequested]:
        """Open a long poll of the control channel. The response is decoded as a runner does."""
        message = {"type": "Control", "runner_id": self.id, "lease_ids": lease_ids, **fields}
        reply = await self.request("POST", "control", json.dumps(message).encode())
        assert reply.status == 200, reply
        return msgspec.convert(reply.body["cancels"], list[wire.CancelRequested])

    async def take(self, **fields: Any) -> RunnerLease:
        """Claim one job, which must be available."""
        [granted] = await self.lease(**fields)
        return RunnerLease(self, granted)


class RunnerLease:
    """A lease that its runner holds."""

    def __init__(self, runner: RegisteredRunner, granted: wire.LeaseGranted) -> None:
        self.runner = runner
        self.granted = granted
        self.id = granted.lease_id

    @property
    def attempt_id(self) -> str:
        """Return the id of the leased attempt."""
        return ids.lease_ref(self.id).attempt_id

    def message(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Return a message of this kind with all required fields."""
        extra = {"job_id": self.granted.job_id} if kind == "AckLease" else {}
        common = {"type": kind, "lease_id": self.id, "runner_id": self.runner.id, **extra}
        return {**common, **REQUIRED_FIELDS[kind], **fields}

    async def send(self, kind: str, by: RegisteredRunner | None = None, **fields: Any) -> Reply:
        """Send a message under the lease."""
        body = json.dumps(self.message(kind, **fields)).encode()
        reply = await (by or self.runner).request("POST", "messages", body)
        if reply.status == 200:
            assert isinstance(wire.decode_answer(json.dumps(reply.body)), wire.ServerMessage)
            assert reply.body["lease_id"] == self.id
        return reply

    async def refused(self, kind: str, by: RegisteredRunner | None = None, **fields: Any) -> Reply:
        """Send a message. Assert that it is refused and changes nothing."""
        return await self.runner.site.refused(lambda: self.send(kind, by, **fields))

    async def stale(self, kind: str, by: RegisteredRunner | None = None, **fields: Any) -> str:
        """Send a message. Return the reason why the lease is stale."""
        reply = await self.refused(kind, by, **fields)
        return stale_reason(reply, self.id, is_heartbeat=kind == "Heartbeat")

    async def log(self, offset: int, data: bytes, by: RegisteredRunner | None = None) -> Reply:
        """Append to the attempt's log."""
        return await (by or self.runner).request("POST", "log", data, delta_lease=self.id, delta_offset=str(offset))

    async def log_size(self) -> int:
        """Return the size of the attempt's log."""
        reply = await self.runner.request("GET", "log", delta_lease=self.id)
        assert reply.status == 200, reply
        return int(reply.body["size"])


def stale_reason(reply: Reply, lease_id: str, *, is_heartbeat: bool = False) -> str:
    """Return the reason of a StaleLease response. Asserts that the response is complete."""
    extra = {"extend_lease": False, "stale": True} if is_heartbeat else {}
    assert reply.body == {"type": "StaleLease", "lease_id": lease_id, "reason": reply.body.get("reason"), **extra}
    assert isinstance(wire.decode_answer(json.dumps(reply.body)), wire.StaleLease)
    return str(reply.body["reason"])


OpenSite = Callable[[], AbstractAsyncContextManager[Site]]


@asynccontextmanager
async def open_site(backend: Backend, folder: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Site]:
    """Open a site, and check the event log and secrets when it closes."""
    async with backend.server(mint=LEASE_ID_MINTER.mint) as server:
        site = Site(backend, server, folder)
        try:
            yield site
        finally:
            await site.close()
            site.job_data.close()
        await server.verified()
        await site.check_secrets(caplog)
