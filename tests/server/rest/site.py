"""A running server with its API, API clients with keys, and scripted runners that speak the runner protocol."""

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
from tests.contract.backends import Backend, legal
from tests.support.plain_http import NO_TLS

WAIT_SECONDS: Final = 30.0
TIME: Final = "2026-01-04T08:00:00Z"
TENANT: Final = "default"


class Reply(NamedTuple):
    """A response of the API."""

    status: int
    body: Any
    headers: httpx.Headers

    @property
    def code(self) -> str:
        """Return the code of an error response."""
        assert self.headers["content-type"] == "application/problem+json", self.body
        return str(self.body["code"])


class Caller:
    """An API client with a key."""

    def __init__(self, http: httpx.AsyncClient, token: str) -> None:
        self._http = http
        self.token = token

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Send a request. A keyword such as `idempotency_key` becomes the header Idempotency-Key."""
        extra = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self._http.request(
            method, f"{ROOT}{path}", json=body, headers={"Authorization": f"Bearer {self.token}", **extra}
        )
        kind = answer.headers.get("content-type", "")
        return Reply(answer.status_code, answer.json() if "json" in kind else answer.content, answer.headers)

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.ask("GET", path, **headers)

    async def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        return await self.ask("POST", path, body, **headers)

    async def start(self, *jobs: dict[str, Any], **fields: Any) -> str:
        """Start a run of these jobs and return its id."""
        plan = {"jobs": list(jobs), **fields.pop("plan", {})}
        reply = await self.post("/runs", {"plan": plan, **fields})
        assert reply.status == 201, reply
        return str(reply.body["id"])

    async def run(self, id: str) -> Any:
        """Return the run with its jobs."""
        reply = await self.get(f"/runs/{id}")
        assert reply.status == 200, reply
        return reply.body


class ScriptedRunner:
    """A runner that sends the messages that a test asks for, over the real protocol."""

    def __init__(self, http: httpx.AsyncClient, name: str, credential: str, labels: Sequence[str]) -> None:
        self._http = http
        self.name = name
        self._credential = credential
        self._labels = list(labels)

    async def request(self, name: str, body: Any, **headers: str) -> Any:
        """Post a message and return the response."""
        answer = await self._http.post(
            f"/runner/v1/{name}",
            json=body,
            headers={"Authorization": f"Bearer {self._credential}", **headers},
        )
        return answer.json()

    async def lease(self, slots: int = 1, wait_seconds: int = 20) -> list[Any]:
        """Claim up to `slots` attempts."""
        message = {
            **{"type": "Lease", "runner_id": self.name, "slots": slots},
            **{"capabilities": self._labels, "wait_seconds": wait_seconds},
        }
        return list((await self.request("lease", message))["leases"])

    async def take(self) -> Any:
        """Claim one job and start it."""
        [lease] = await self.lease()
        await self.begin(lease)
        return lease

    async def begin(self, lease: Any) -> None:
        """Accept the lease and send the first heartbeat."""
        await self.send(lease, "AckLease", job_id=lease["job_id"], accepted_at=TIME)
        await self.send(lease, "Heartbeat", ts=TIME)

    async def send(self, lease: Any, kind: str, **fields: Any) -> Any:
        """Send a message under a lease and return the response."""
        message = {"type": kind, "lease_id": lease["lease_id"], "runner_id": self.name, **fields}
        return await self.request("messages", message)

    async def finish(self, lease: Any, **fields: Any) -> None:
        """Complete the attempt, by default as SUCCEEDED."""
        response = await self.send(lease, "Complete", **{"status": "SUCCEEDED", "exit_code": 0, **fields})
        assert response["accepted"], response

    async def fail(self, lease: Any, **fields: Any) -> None:
        """Complete the attempt as FAILED."""
        await self.finish(lease, status="FAILED", **{"exit_code": 1, **fields})

    async def hand_back(self, lease: Any) -> None:
        """Hand the lease back, so that another runner may claim the attempt."""
        answer = await self._http.post(
            "/runner/v1/hand-back",
            headers={"Authorization": f"Bearer {self._credential}", "Delta-Lease": lease["lease_id"]},
        )
        assert answer.status_code == 200, answer.text

    async def log(self, lease: Any, data: bytes, offset: int = 0) -> None:
        """Append to the log."""
        answer = await self._http.post(
            "/runner/v1/log",
            content=data,
            headers={
                **{"Authorization": f"Bearer {self._credential}", "Delta-Lease": lease["lease_id"]},
                "Delta-Offset": str(offset),
            },
        )
        assert answer.status_code == 200, answer.text

    async def upload_artifact(self, lease: Any, path: str, data: bytes) -> httpx.Response:
        """Upload an artifact."""
        return await self._http.put(
            f"/runner/v1/artifacts/{path}",
            content=data,
            headers={"Authorization": f"Bearer {self._credential}", "Delta-Lease": lease["lease_id"]},
        )


class ApiSite:
    """A running server."""

    def __init__(self, backend: Backend, service: Server, url: str, folder: Path, http: httpx.AsyncClient) -> None:
        self.backend = backend
        self.service = service
        self.url = url
        self.folder = folder
        self.http = http
        self._names = 0

    @property
    def store(self) -> Store:
        return self.service.store

    def operator(self, tenant: str = TENANT, person: str = "root") -> Caller:
        """Return a client with the operator token, which is signed with the server's key."""
        signer = Signer(load_server_key(self.folder / KEY_FILE), self.now)
        return Caller(self.http, signer.sign("operate", person, tenant, 3600))

    def now(self) -> float:
        """Return the time with which the server checks the expiry of tokens."""
        return self.service.signer.now()

    async def key(
        self, person: str = "ada", *scopes: str, tenant: str = TENANT, roles: Sequence[str] = (), **fields: Any
    ) -> Caller:
        """Create a key and return a client with it."""
        params = {"person": person, "scopes": list(scopes or ("run", "approve")), "roles": list(roles), **fields}
        reply = await self.operator(tenant).post("/keys", params)
        assert reply.status == 201, reply
        return Caller(self.http, reply.body["token"])

    async def register_runner(self, *labels: str, tenant: str = TENANT, slots: int = 10) -> ScriptedRunner:
        """Register a runner."""
        self._names += 1
        name = f"w{self._names}"
        token = registration_token(self.folder, name, tenant)
        answer = await self.http.post(
            "/runner/v1/register", json={"token": token, "capabilities": list(labels), "slots": slots}
        )
        return ScriptedRunner(self.http, name, answer.json()["credential"], labels)

    async def until(self, caller: Caller, run_id: str, *states: str) -> Any:
        """Return the run once it is in one of these states. Follows its events instead of polling."""
        async with asyncio.timeout(WAIT_SECONDS):
            async for event in feed.follow(self.store, 0, run_id=run_id):
                if event.entity == "run" and event.to in states:
                    return await caller.run(run_id)
        raise AssertionError("the log ended")

    async def log(self) -> list[Event]:
        """Return all events."""
        return await feed.read(self.store, 0, 1_000_000)


@asynccontextmanager
async def opened(backend: Backend, folder: Path) -> AsyncIterator[ApiSite]:
    """Start a server and check its log when it is closed."""
    folder.mkdir(parents=True, exist_ok=True)
    async with Server(backend.store(), folder) as service:
        listener = HttpListener(service, "127.0.0.1", 0)
        serving = asyncio.create_task(listener.serve())
        limits = httpx.Limits(max_connections=100)
        try:
            async with httpx.AsyncClient(
                verify=NO_TLS, base_url=listener.url, timeout=WAIT_SECONDS, limits=limits
            ) as http:
                site = ApiSite(backend, service, listener.url, folder, http)
                yield site
                legal(await site.log())
        finally:
            listener.stop()
            await serving


async def all_runs(caller: Caller) -> list[Any]:
    """Return all runs of the caller's tenant, the newest first."""
    runs: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        page = (await caller.get(f"/runs?limit=200&cursor={cursor}")).body
        runs += page["runs"]
        cursor = page["next"]
    return runs


async def storm(url: str, request: bytes, *, times: int, connections: int) -> list[tuple[int, Any]]:
    """Send a request `times` times over concurrent connections. Return the status and body of each response."""
    responses: list[tuple[int, Any]] = []
    remaining = iter(range(times))

    async def send_until_done() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        try:
            for _ in remaining:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                size = re.search(rb"content-length: (\d+)", head)
                assert size is not None, head
                responses.append((int(head.split()[1]), json.loads(await reader.readexactly(int(size[1])))))
        finally:
            writer.close()
            await writer.wait_closed()

    await asyncio.gather(*(send_until_done() for _ in range(connections)))
    return responses


def task(name: str, **fields: Any) -> dict[str, Any]:
    """Return a job that a worker runs."""
    return {"name": name, "work": {"steps": ["true"]}, **fields}


def gate(name: str, needs: Sequence[str] | None = None, **approval: Any) -> dict[str, Any]:
    """Return an approval job."""
    job: dict[str, Any] = {"name": name, "kind": "approval", "approval": approval}
    return job if needs is None else {**job, "needs": list(needs)}
