"""A running server with its API, people with keys, and runners that play their part over the protocol."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

from deltaci.api.routes import ROOT
from deltaci.app import KEY_FILE, HttpListener, Server, registration_token
from deltaci.core.events import Event
from deltaci.engine import feed
from deltaci.server.auth.credentials import Signer, load_server_key
from deltaci.storage.port import Store
from tests.contract.places import Place, legal

WAIT_SECONDS: Final = 30.0
TIME: Final = "2026-01-04T08:00:00Z"
TENANT: Final = "default"


class Reply(NamedTuple):
    """What came back."""

    status: int
    body: Any
    headers: httpx.Headers

    @property
    def code(self) -> str:
        """The code of a refusal."""
        assert self.headers["content-type"] == "application/problem+json", self.body
        return str(self.body["code"])


class Caller:
    """Somebody with a key."""

    def __init__(self, http: httpx.AsyncClient, token: str) -> None:
        self._http = http
        self.token = token

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """One request; `idempotency_key` becomes the header Idempotency-Key."""
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self._http.request(
            method, f"{ROOT}{path}", json=body, headers={"Authorization": f"Bearer {self.token}", **told}
        )
        kind = answer.headers.get("content-type", "")
        return Reply(answer.status_code, answer.json() if "json" in kind else answer.content, answer.headers)

    async def get(self, path: str, **headers: str) -> Reply:
        """Read something."""
        return await self.ask("GET", path, **headers)

    async def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        """Do something."""
        return await self.ask("POST", path, body, **headers)

    async def start(self, *jobs: dict[str, Any], **fields: Any) -> str:
        """Start a run of these jobs; its id."""
        plan = {"jobs": list(jobs), **fields.pop("plan", {})}
        reply = await self.post("/runs", {"plan": plan, **fields})
        assert reply.status == 201, reply
        return str(reply.body["id"])

    async def run(self, id: str) -> Any:
        """The run with its jobs."""
        reply = await self.get(f"/runs/{id}")
        assert reply.status == 200, reply
        return reply.body


class Player:
    """A runner that does what the case says, over the real protocol."""

    def __init__(self, http: httpx.AsyncClient, name: str, credential: str, labels: Sequence[str]) -> None:
        self._http = http
        self.name = name
        self._credential = credential
        self._labels = list(labels)

    async def _post(self, name: str, body: Any, **headers: str) -> Any:
        answer = await self._http.post(
            f"/runner/v1/{name}",
            json=body,
            headers={"Authorization": f"Bearer {self._credential}", **headers},
        )
        return answer.json()

    async def lease(self, slots: int = 1, wait_seconds: int = 20) -> list[Any]:
        """Ask for work."""
        asked = {
            **{"type": "Lease", "runner_id": self.name, "slots": slots},
            **{"capabilities": self._labels, "wait_seconds": wait_seconds},
        }
        return list((await self._post("lease", asked))["leases"])

    async def take(self) -> Any:
        """One job, begun."""
        [lease] = await self.lease()
        await self.begin(lease)
        return lease

    async def begin(self, lease: Any) -> None:
        """Take the job, and start."""
        await self.say(lease, "AckLease", job_id=lease["job_id"], accepted_at=TIME)
        await self.say(lease, "Heartbeat", ts=TIME)

    async def say(self, lease: Any, kind: str, **fields: Any) -> Any:
        """One message under a lease."""
        message = {"type": kind, "lease_id": lease["lease_id"], "runner_id": self.name, **fields}
        return await self._post("messages", message)

    async def finish(self, lease: Any, **fields: Any) -> None:
        """End it, well unless something else is said."""
        said = await self.say(lease, "Complete", **{"status": "SUCCEEDED", "exit_code": 0, **fields})
        assert said["accepted"], said

    async def fail(self, lease: Any, **fields: Any) -> None:
        """End it badly."""
        await self.finish(lease, status="FAILED", **{"exit_code": 1, **fields})

    async def hand_back(self, lease: Any) -> None:
        """Give it up; somebody else may have it."""
        answer = await self._http.post(
            "/runner/v1/hand-back",
            headers={"Authorization": f"Bearer {self._credential}", "Delta-Lease": lease["lease_id"]},
        )
        assert answer.status_code == 200, answer.text

    async def log(self, lease: Any, data: bytes, offset: int = 0) -> None:
        """Add to the log."""
        answer = await self._http.post(
            "/runner/v1/log",
            content=data,
            headers={
                **{"Authorization": f"Bearer {self._credential}", "Delta-Lease": lease["lease_id"]},
                "Delta-Offset": str(offset),
            },
        )
        assert answer.status_code == 200, answer.text

    async def keep(self, lease: Any, path: str, data: bytes) -> httpx.Response:
        """Send an artifact."""
        return await self._http.put(
            f"/runner/v1/artifacts/{path}",
            content=data,
            headers={"Authorization": f"Bearer {self._credential}", "Delta-Lease": lease["lease_id"]},
        )


class ApiSite:
    """One server that runs."""

    def __init__(self, place: Place, service: Server, url: str, folder: Path, http: httpx.AsyncClient) -> None:
        self.place = place
        self.service = service
        self.url = url
        self.folder = folder
        self.http = http
        self._names = 0

    @property
    def store(self) -> Store:
        """What it keeps."""
        return self.service.store

    def operator(self, tenant: str = TENANT, person: str = "root") -> Caller:
        """Whoever can read the server's key."""
        signer = Signer(load_server_key(self.folder / KEY_FILE), self.now)
        return Caller(self.http, signer.sign("operate", person, tenant, 3600))

    def now(self) -> float:
        """The time by which the server's tokens end."""
        return self.service.signer.now()

    async def key(
        self, person: str = "ada", *scopes: str, tenant: str = TENANT, roles: Sequence[str] = (), **fields: Any
    ) -> Caller:
        """Somebody with a key of their own."""
        asked = {"person": person, "scopes": list(scopes or ("run", "approve")), "roles": list(roles), **fields}
        reply = await self.operator(tenant).post("/keys", asked)
        assert reply.status == 201, reply
        return Caller(self.http, reply.body["token"])

    async def player(self, *labels: str, tenant: str = TENANT, slots: int = 10) -> Player:
        """A runner that has come in."""
        self._names += 1
        name = f"w{self._names}"
        token = registration_token(self.folder, name, tenant)
        answer = await self.http.post(
            "/runner/v1/register", json={"token": token, "capabilities": list(labels), "slots": slots}
        )
        return Player(self.http, name, answer.json()["credential"], labels)

    async def until(self, caller: Caller, run_id: str, *states: str) -> Any:
        """The run, as soon as it is in one of these states; found by its events, never by waiting for a while."""
        async with asyncio.timeout(WAIT_SECONDS):
            async for event in feed.follow(self.store, 0, run_id=run_id):
                if event.entity == "run" and event.to in states:
                    return await caller.run(run_id)
        raise AssertionError("the log ended")

    async def log(self) -> list[Event]:
        """Every event."""
        return await feed.read(self.store, 0, 1_000_000)


@asynccontextmanager
async def opened(place: Place, folder: Path) -> AsyncIterator[ApiSite]:
    """The server, listening. When it closes its log must be legal."""
    folder.mkdir(parents=True, exist_ok=True)
    async with Server(place.store(), folder) as service:
        listener = HttpListener(service, "127.0.0.1", 0)
        serving = asyncio.create_task(listener.serve())
        limits = httpx.Limits(max_connections=100)
        try:
            async with httpx.AsyncClient(base_url=listener.url, timeout=WAIT_SECONDS, limits=limits) as http:
                site = ApiSite(place, service, listener.url, folder, http)
                yield site
                legal(await site.log())
        finally:
            listener.stop()
            await serving


async def all_runs(caller: Caller) -> list[Any]:
    """Every run of the caller's tenant, the newest first."""
    found: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        page = (await caller.get(f"/runs?limit=200&cursor={cursor}")).body
        found += page["runs"]
        cursor = page["next"]
    return found


async def storm(url: str, request: bytes, *, times: int, connections: int) -> list[tuple[int, Any]]:
    """The same request again and again, over so many connections at once: status and body of every answer."""
    found: list[tuple[int, Any]] = []
    left = iter(range(times))

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        try:
            for _ in left:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                size = re.search(rb"content-length: (\d+)", head)
                assert size is not None, head
                found.append((int(head.split()[1]), json.loads(await reader.readexactly(int(size[1])))))
        finally:
            writer.close()
            await writer.wait_closed()

    await asyncio.gather(*(one() for _ in range(connections)))
    return found


def task(name: str, **fields: Any) -> dict[str, Any]:
    """A job for a worker."""
    return {"name": name, "work": {"steps": ["true"]}, **fields}


def gate(name: str, needs: Sequence[str] | None = None, **approval: Any) -> dict[str, Any]:
    """A job for people."""
    made: dict[str, Any] = {"name": name, "kind": "approval", "approval": approval}
    return made if needs is None else {**made, "needs": list(needs)}
