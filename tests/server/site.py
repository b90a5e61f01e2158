"""The server's application in this process, without a socket, and runners that speak to it.

When a site closes it shows that its log is legal, and that no token and no lease id was written anywhere.
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
from deltaci.fleet.incarnations import Incarnations
from deltaci.fleet.liveness import Fleet
from deltaci.protocol import messages as wire
from deltaci.protocol.routes import REFUSALS, ROOT
from deltaci.server.auth.credentials import REGISTRATION_SECONDS, Signer
from deltaci.server.follower import Follower
from deltaci.server.runner_api.app import RunnerApp
from deltaci.server.runner_api.control_channel import ControlHub
from deltaci.server.runner_api.lease_ids import LeaseIds
from deltaci.server.runner_api.message_handlers import MessageHandlers
from deltaci.server.runner_api.registration import RunnerRegistry
from deltaci.server.runner_api.uploads import UploadHandlers, UploadLimits
from deltaci.server.secrets import Secrets
from deltaci.storage.blobs.logs import LogStore
from deltaci.storage.blobs.memory import MemoryBlobStore
from tests.contract.places import Place, Server
from tests.lab import TENANT

KEY = b"k" * 32
LEASE_IDS = LeaseIds(KEY)
TIME = "2026-01-04T08:00:00Z"
BOUNDS = UploadLimits(files=5, file_bytes=1000, lease_bytes=2500, cache_bytes=1000)

# What each message needs beside its lease and its runner.
SAYS: dict[str, dict[str, Any]] = {
    "AckLease": {"accepted_at": TIME},
    "Heartbeat": {"ts": TIME},
    "Complete": {"status": "SUCCEEDED", "exit_code": 0},
    "CancelAck": {"final_status": "CANCELED", "ts": TIME},
}


class Reply(NamedTuple):
    """What came back, and how many parts of the body were read for it."""

    status: int
    body: Any
    parts_read: int

    @property
    def code(self) -> str:
        """The code of a refusal."""
        return str(self.body["code"])

    @property
    def message(self) -> str:
        """What the refusal says."""
        return str(self.body["message"])


class Site:
    """One server over a place. Every reply that it gives is looked at."""

    def __init__(self, place: Place, server: Server, folder: Path, fleet: Fleet | None = None) -> None:
        self.place = place
        self.server = server
        self.logs = LogStore(folder, max_bytes=1000)
        self.signer = Signer(KEY, lambda: place.now() / SECOND)
        self.lives = Incarnations(server.store)
        registry = RunnerRegistry(server.engine, self.signer, incarnations=self.lives)
        self.control = ControlHub(server.store, LEASE_IDS)
        self.follower = Follower(server.store)
        self.follower.subscribe(self.control.on_events)
        self.blobs = MemoryBlobStore()
        self.sealed = Secrets(self.blobs, KEY)
        self.protocol = protocol = MessageHandlers(server.store, server.engine, fleet=fleet)
        self.uploads = UploadHandlers(protocol, self.blobs, self.sealed, folder / "incoming", BOUNDS)
        heartbeats = fleet.heartbeats if fleet is not None else None
        self.app = RunnerApp(protocol, registry, self.logs, self.control, self.uploads, heartbeats=heartbeats)
        self.secrets: set[str] = set()

    async def listen(self) -> None:
        """Begin to follow the log; only cases that are about what it tells need that."""
        await self.follower.start()
        self.control.start()

    async def close(self) -> None:
        """Stop what follows the log."""
        await self.follower.stop()
        await self.control.stop()

    async def ask(
        self,
        method: str,
        name: str,
        *parts: bytes,
        headers: Iterable[tuple[str, str]] = (),
        root: str = ROOT,
        gone: asyncio.Event | None = None,
    ) -> Reply:
        """One request, whose body comes in these parts."""
        sent: list[dict[str, Any]] = []
        left = list(parts) or [b""]
        hung_up = gone or asyncio.Event()

        async def receive() -> dict[str, Any]:
            if left:
                part = left.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(left)}
            await hung_up.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        told = [(key.lower().encode(), value.encode()) for key, value in headers]
        scope = {"type": "http", "method": method, "path": f"{root}{name}", "headers": told}
        await self.app(scope, receive, send)
        start, *bodies = sent
        body = {"body": b"".join(each["body"] for each in bodies)}
        got = dict(start["headers"])
        assert got[b"content-length"] == str(len(body["body"])).encode()
        if got[b"content-type"] == b"application/octet-stream":
            assert got[b"delta-sha256"] == sha256(body["body"]).hexdigest().encode()
            return Reply(start["status"], body["body"], max(1, len(parts)) - len(left))
        assert (b"allow" in got, b"www-authenticate" in got) == (start["status"] == 405, start["status"] == 401)
        reply = Reply(start["status"], json.loads(body["body"]), max(1, len(parts)) - len(left))
        self._look_at(reply)
        return reply

    def _look_at(self, reply: Reply) -> None:
        if isinstance(reply.body, dict) and "code" in reply.body:
            assert reply.status == REFUSALS[reply.code].status, reply
            assert not [secret for secret in self.secrets if secret in reply.message], reply
        elif isinstance(reply.body, dict) and reply.body.get("type") == "StaleLease":
            assert reply.status == 409, reply
        else:
            assert reply.status == 200, reply
        for each in reply.body.get("leases", ()) if isinstance(reply.body, dict) else ():
            self.secrets.add(each["lease_id"])

    async def refused(self, asked: Callable[[], Any]) -> Reply:
        """A request that is refused, and after which nothing has changed."""
        before = await self.server.store.last_seq()
        reply: Reply = await asked()
        assert reply.status != 200, reply
        assert await self.server.store.last_seq() == before
        return reply

    def token(self, id: str = "w1", tenant: str = TENANT, seconds: float = REGISTRATION_SECONDS) -> str:
        """A registration token."""
        token = self.signer.sign("register", id, tenant, seconds)
        self.secrets.add(token)
        return token

    async def register(self, token: str, **fields: Any) -> Reply:
        """Show the token."""
        return await self.ask("POST", "register", json.dumps({"token": token, **fields}).encode())

    async def runner(self, id: str = "w1", tenant: str = TENANT, **fields: Any) -> Runner:
        """A runner that has registered."""
        reply = await self.register(self.token(id, tenant), **fields)
        assert reply.body["runner_id"] == id, reply
        self.secrets.add(reply.body["credential"])
        return Runner(self, id, reply.body["credential"])

    async def check_secrets(self, caplog: pytest.LogCaptureFixture) -> None:
        """No token and no lease id is in the log, in a record or in what the program says."""
        events = await self.server.log()
        records = [await self.server.store.find(id) for id in {event.entity_id for event in events}]
        written = msgspec.json.encode([events, records]).decode() + caplog.text
        parts = {secret.rpartition(".")[2] for secret in self.secrets}
        assert not [part for part in parts if part in written]


class Runner:
    """One who speaks with a credential."""

    def __init__(self, site: Site, id: str, credential: str) -> None:
        self.site = site
        self.id = id
        self.credential = credential

    async def ask(self, method: str, name: str, *parts: bytes, **headers: str) -> Reply:
        """A request with the credential; `delta_lease` becomes the header Delta-Lease."""
        told = [(key.replace("_", "-"), value) for key, value in headers.items()]
        return await self.site.ask(
            method, name, *parts, headers=[("Authorization", f"Bearer {self.credential}"), *told]
        )

    async def lease(self, **fields: Any) -> list[wire.LeaseGranted]:
        """Ask for work. What comes back is read as a runner reads it."""
        asked = {"type": "Lease", "runner_id": self.id, **fields}
        reply = await self.ask("POST", "lease", json.dumps(asked).encode())
        assert reply.status == 200, reply
        return msgspec.convert(reply.body["leases"], list[wire.LeaseGranted])

    async def control(self, *lease_ids: str, **fields: Any) -> list[wire.CancelRequested]:
        """Wait to be told. What comes back is read as a runner reads it."""
        asked = {"type": "Control", "runner_id": self.id, "lease_ids": lease_ids, **fields}
        reply = await self.ask("POST", "control", json.dumps(asked).encode())
        assert reply.status == 200, reply
        return msgspec.convert(reply.body["cancels"], list[wire.CancelRequested])

    async def take(self, **fields: Any) -> Held:
        """Ask for one job, which must be there."""
        [granted] = await self.lease(**fields)
        return Held(self, granted)


class Held:
    """A lease in the hands of its runner."""

    def __init__(self, runner: Runner, granted: wire.LeaseGranted) -> None:
        self.runner = runner
        self.granted = granted
        self.id = granted.lease_id

    @property
    def attempt_id(self) -> str:
        """What it is for."""
        return ids.lease_ref(self.id).attempt_id

    def message(self, kind: str, **fields: Any) -> dict[str, Any]:
        """One of the runner's messages, with everything that it needs."""
        own = {"job_id": self.granted.job_id} if kind == "AckLease" else {}
        told = {"type": kind, "lease_id": self.id, "runner_id": self.runner.id, **own}
        return {**told, **SAYS[kind], **fields}

    async def say(self, kind: str, by: Runner | None = None, **fields: Any) -> Reply:
        """Send it."""
        body = json.dumps(self.message(kind, **fields)).encode()
        reply = await (by or self.runner).ask("POST", "messages", body)
        if reply.status == 200:
            assert isinstance(wire.decode_answer(json.dumps(reply.body)), wire.ServerMessage)
            assert reply.body["lease_id"] == self.id
        return reply

    async def refused(self, kind: str, by: Runner | None = None, **fields: Any) -> Reply:
        """Send it; it is refused and changes nothing."""
        return await self.runner.site.refused(lambda: self.say(kind, by, **fields))

    async def stale(self, kind: str, by: Runner | None = None, **fields: Any) -> str:
        """Send it; the reason why the lease is stale."""
        reply = await self.refused(kind, by, **fields)
        return stale_reason(reply, self.id, is_heartbeat=kind == "Heartbeat")

    async def log(self, offset: int, data: bytes, by: Runner | None = None) -> Reply:
        """Append to its log."""
        return await (by or self.runner).ask("POST", "log", data, delta_lease=self.id, delta_offset=str(offset))

    async def log_size(self) -> int:
        """How much of its log is kept."""
        reply = await self.runner.ask("GET", "log", delta_lease=self.id)
        assert reply.status == 200, reply
        return int(reply.body["size"])


def stale_reason(reply: Reply, lease_id: str, *, is_heartbeat: bool = False) -> str:
    """The reason of a StaleLease, which is complete."""
    extra = {"extend_lease": False, "stale": True} if is_heartbeat else {}
    assert reply.body == {"type": "StaleLease", "lease_id": lease_id, "reason": reply.body.get("reason"), **extra}
    assert isinstance(wire.decode_answer(json.dumps(reply.body)), wire.StaleLease)
    return str(reply.body["reason"])


OpenSite = Callable[[], AbstractAsyncContextManager[Site]]


@asynccontextmanager
async def opened(place: Place, folder: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Site]:
    """A site that is open, and checked when it closes."""
    async with place.server(mint=LEASE_IDS.mint) as server:
        site = Site(place, server, folder)
        try:
            yield site
        finally:
            await site.close()
            site.uploads.close()
        await server.verified()
        await site.check_secrets(caplog)
