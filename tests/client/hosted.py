"""A server in a thread of this process, and a runner that does what the case says: the caller may block."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from pathlib import Path
from typing import Any, Final

import httpx

from deltaci.app import KEY_FILE, HttpListener, Server, registration_token, write_url_file
from deltaci.client import Client, Patience
from deltaci.core.events import Event
from deltaci.engine import feed
from deltaci.server.auth.credentials import Signer, load_server_key
from deltaci.storage import open_store
from tests.contract.backends import legal
from tests.support.plain_http import NO_TLS

WAIT_SECONDS: Final = 30.0
TIME: Final = "2026-01-04T08:00:00Z"
QUICK: Final = Patience(first_seconds=0.01, most_seconds=0.1, give_up_seconds=20, lost_seconds=20)


class Hosted:
    """Starts, stops, and starts again on the same port."""

    def __init__(self, folder: Path, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = 0
        self.url = ""
        self._names = 0
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: HttpListener | None = None
        self._service: Server | None = None
        self._trouble: list[BaseException] = []

    def start(self, port: int | None = None) -> Hosted:
        """Returns when it listens."""
        self._ready.clear()
        self._thread = threading.Thread(target=self._run, args=(self.port if port is None else port,), name="server")
        self._thread.start()
        assert self._ready.wait(WAIT_SECONDS), "the server did not start"
        assert not self._trouble, self._trouble
        return self

    def _run(self, port: int) -> None:
        try:
            asyncio.run(self._serve(port))
        except BaseException as error:
            self._trouble.append(error)
        finally:
            self._ready.set()

    async def _serve(self, port: int) -> None:
        async with Server(open_store(f"sqlite:{self.folder / 'deltaci.db'}"), self.folder) as service:
            self._loop = asyncio.get_running_loop()
            self._service = service
            self._listener = HttpListener(service, "127.0.0.1", port, self._tls)
            self.url = self._listener.url
            self.port = int(self.url.rpartition(":")[2])
            write_url_file(self.folder, self.url)
            self._ready.set()
            await self._listener.serve()
            legal(await _everything(service))

    def stop(self) -> None:
        """Returns when it is gone; its log must be legal."""
        if self._thread is None or self._loop is None or self._listener is None:
            return
        self._loop.call_soon_threadsafe(self._listener.stop)
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive(), "the server did not stop"
        self._thread = None
        assert not self._trouble, self._trouble

    def __enter__(self) -> Hosted:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def learn(self) -> None:
        """Returns when everything was learned that the log tells of flaky tests."""
        assert self._service is not None
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self._service.flaky.catch_up(), self._loop).result(WAIT_SECONDS)

    def token(self, tenant: str = "default", person: str = "root") -> str:
        """An operator's."""
        return Signer(load_server_key(self.folder / KEY_FILE), time.time).sign("operate", person, tenant, 3600)

    def client(self, tenant: str = "default", person: str = "root", patience: Patience = QUICK) -> Client:
        """Somebody who operates the server."""
        return Client(self.url, self.token(tenant, person), patience=patience)

    def player(self, *labels: str, tenant: str = "default") -> Player:
        """A runner that has come in."""
        self._names += 1
        name = f"w{self._names}"
        return Player(self.url, name, registration_token(self.folder, name, tenant), labels)


async def _everything(service: Server) -> list[Event]:
    return await feed.read(service.store, 0, 1_000_000)


class Player:
    """A runner over the real protocol."""

    def __init__(self, url: str, name: str, token: str, labels: tuple[str, ...]) -> None:
        self.name = name
        self._labels = list(labels)
        self._http = httpx.Client(verify=NO_TLS, base_url=f"{url}/runner/v1", timeout=WAIT_SECONDS, trust_env=False)
        answer = self._http.post("/register", json={"token": token, "capabilities": self._labels, "slots": 10})
        self._http.headers["Authorization"] = f"Bearer {answer.json()['credential']}"

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def take(self) -> Any:
        """One job, begun."""
        asked = {"type": "Lease", "runner_id": self.name, "slots": 1, "capabilities": self._labels, "wait_seconds": 20}
        [lease] = self._http.post("/lease", json=asked).json()["leases"]
        self.say(lease, "AckLease", job_id=lease["job_id"], accepted_at=TIME)
        self.say(lease, "Heartbeat", ts=TIME)
        return lease

    def say(self, lease: Any, kind: str, **fields: Any) -> Any:
        """One message under a lease."""
        message = {"type": kind, "lease_id": lease["lease_id"], "runner_id": self.name, **fields}
        return self._http.post("/messages", json=message).json()

    def finish(self, lease: Any, **fields: Any) -> None:
        """End it, well unless something else is said."""
        said = self.say(lease, "Complete", **{"status": "SUCCEEDED", "exit_code": 0, **fields})
        assert said["accepted"], said

    def fail(self, lease: Any, **fields: Any) -> None:
        """End it badly."""
        self.finish(lease, status="FAILED", **{"exit_code": 1, **fields})

    def log(self, lease: Any, data: bytes, offset: int = 0) -> None:
        """Add to the log."""
        headers = {"Delta-Lease": lease["lease_id"], "Delta-Offset": str(offset)}
        answer = self._http.post("/log", content=data, headers=headers)
        assert answer.status_code == 200, answer.text

    def keep(self, lease: Any, path: str, data: bytes) -> Any:
        """Send an artifact; what to say of it in the end."""
        answer = self._http.put(f"/artifacts/{path}", content=data, headers={"Delta-Lease": lease["lease_id"]})
        assert answer.status_code == 200, answer.text
        return {"type": "file", "uri": answer.json()["uri"], "name": path, "bytes": len(data)}

    def hand_back(self, lease: Any) -> None:
        """Let another one have it."""
        answer = self._http.post("/hand-back", headers={"Delta-Lease": lease["lease_id"]})
        assert answer.status_code < 300, answer.text


def task(name: str, **fields: Any) -> dict[str, Any]:
    """A job for a worker."""
    return {"name": name, "work": {"steps": ["true"]}, **fields}


def gate(name: str, **fields: Any) -> dict[str, Any]:
    """A job for people."""
    return {"name": name, "kind": "approval", **fields}


def plan(*jobs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A plan of these jobs."""
    return {"jobs": list(jobs), **fields}
