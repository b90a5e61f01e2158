"""Servers in a process of their own, for benchmarks: ours, told what to enqueue; and the same uvicorn with next to
nothing behind it, which is as far as any Python behind it could ever get.

    python -m bench.serving server STORE FOLDER     a whole server; lines on its input are what to enqueue
    python -m bench.serving constant SLOTS          answers every request with the bytes that a server would
    python -m bench.serving waiting                 reads the request, and waits
"""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from deltaci.app import HttpListener, Server, reduce_garbage_collection
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.engine import event_loop
from deltaci.protocol import messages as wire
from deltaci.protocol.routes import ROOT
from deltaci.storage import open_store

TENANT: Final = "default"
SPEC: Final = {"steps": ["true"]}
TTL_SECONDS: Final = 600


def births(name: str, count: int, spec: Any = SPEC) -> list[NewRecord]:
    """So many jobs, with next to nothing to do unless it is said what."""
    jobs = [Attempt(id=f"{name}-{n}", tenant=TENANT, spec=spec) for n in range(count)]
    return [NewRecord(id=job.id, record=job, has_random_id=True) for job in jobs]


class Constant:
    """An application that reads the request and answers what was made before."""

    protocol: Any

    def __init__(self, slots: int) -> None:
        self.protocol = self
        lease = "-".join("x" * 9 for _ in range(8))
        granted = wire.LeaseGranted(
            lease_id=lease,
            job_id="job-1234",
            run_id="",
            lease_ttl_seconds=120,
            heartbeat_interval_seconds=20,
            max_runtime_seconds=3600,
            job_spec=msgspec.convert(SPEC, wire.JobSpec),
        )
        beat = wire.HeartbeatAck(lease_id=lease, extend_lease=True, new_lease_ttl_seconds=120)
        ended = wire.CompleteAck(lease_id=lease, accepted=True)
        self._answers = {
            f"{ROOT}lease": wire.encode({"leases": [granted] * slots}),
            f"{ROOT}messages": wire.encode([beat, ended]),
            f"{ROOT}batch": wire.encode([beat, ended] * (slots // 2 or 1)),
        }

    def stop_waiting(self) -> None:
        """Nobody waits."""

    async def app(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Read all of it, and answer."""
        while (await receive()).get("more_body"):
            pass
        body = self._answers[scope["path"]]
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Waiting(Constant):
    """An application that reads the request and does not answer before it is stopped."""

    def __init__(self) -> None:
        super().__init__(1)
        self._is_over = asyncio.Event()

    def stop_waiting(self) -> None:
        """Answer everybody."""
        self._is_over.set()

    async def app(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Read, and wait."""
        while (await receive()).get("more_body"):
            pass
        await self._is_over.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


async def listen(service: Any, orders: asyncio.Task[None] | None = None) -> None:
    """Serve it on a port that the kernel gives, until SIGTERM."""
    listener = HttpListener(cast(Server, service), "127.0.0.1", 0)
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, listener.stop)
    reduce_garbage_collection()
    print(f"listening on {listener.url}", flush=True)
    await listener.serve()
    if orders is not None:
        orders.cancel()


async def _serve(store: str, folder: Path) -> None:
    async with Server(open_store(store), folder, ttl_seconds=TTL_SECONDS) as service:
        await listen(service, asyncio.create_task(_enqueue(service)))


async def _enqueue(service: Server) -> None:
    """Enqueue what the lines of the input say, `[name, count, spec]`; say when that began and when it was durable."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        commands = births(*msgspec.json.decode(line))
        began = time.perf_counter()
        await service.engine.do_all(commands)
        print(msgspec.json.encode([began, time.perf_counter()]).decode(), flush=True)


def more_files() -> None:
    """As many connections as this process may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> int:
    """Serve what was asked for, until SIGTERM."""
    what, *rest = sys.argv[1:]
    more_files()
    if what == "server":
        event_loop.run(_serve(rest[0], Path(rest[1])))
    elif what == "constant":
        event_loop.run(listen(Constant(int(rest[0]))))
    else:

        async def wait() -> None:
            await listen(Waiting())

        event_loop.run(wait())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
