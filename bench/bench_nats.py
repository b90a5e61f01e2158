"""How soon a job has its runner: with the HTTP long poll, and with a dispatch over a real NATS JetStream.

From the commit of the enqueue to the commit of the lease, by the store's clock, on an idle server and runner.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
from pathlib import Path

from bench.figures import Figure
from deltaci.app import HttpListener, Server, registration_token
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.engine import event_loop, feed
from deltaci.protocol.nats_client import NatsAddress
from deltaci.storage.sqlite import SqliteStore
from tests.support.nats_server import NatsServer

JOBS = 40
SETTLE_SECONDS = 0.5  # The runner tidies up before it asks again; that is not measured here.


def run() -> list[Figure]:
    """The same jobs, one after the other, over each transport."""
    with tempfile.TemporaryDirectory() as folder, NatsServer() as server:
        http = event_loop.run(_measure(Path(folder) / "http", None))
        nats = event_loop.run(_measure(Path(folder) / "nats", server.url))
    p50 = statistics.median(http)
    return [
        Figure("enqueued to leased, HTTP long poll, p50", p50, "ms"),
        Figure("enqueued to leased, NATS, p50", statistics.median(nats), "ms", {"HTTP": statistics.median(nats) / p50}),
        Figure("enqueued to leased, HTTP long poll, p95", sorted(http)[len(http) * 95 // 100], "ms"),
        Figure("enqueued to leased, NATS, p95", sorted(nats)[len(nats) * 95 // 100], "ms"),
    ]


async def _measure(folder: Path, url: str | None) -> list[float]:
    folder.mkdir()
    nats = NatsAddress(url) if url else None
    async with Server(SqliteStore(str(folder / "bench.db")), folder, nats=nats) as service:
        listener = HttpListener(service, "127.0.0.1", 0)
        serving = asyncio.create_task(listener.serve())
        words = ["--nats", url] if url else []
        runner = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "deltaci", "runner", "--server", listener.url, "--work", str(folder / "work")),
            *words,
            env={**os.environ, "DELTACI_TOKEN": registration_token(folder, "bench", "default")},
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await _claimed(service, "warm")
            return [await _claimed(service, f"job-{n}") for n in range(JOBS)]
        finally:
            runner.terminate()
            await runner.wait()
            listener.stop()
            await serving


async def _claimed(service: Server, id: str) -> float:
    """Milliseconds until it was leased; returns when it is over and the runner waits again."""
    job = Attempt(id=id, tenant="default", spec={"steps": ["true"], "executor": "process"})
    await service.engine.do(NewRecord(id=id, record=job))
    at: dict[str, int] = {}
    async for event in feed.follow(service.store, 0, entity_id=id):
        assert event.trigger != "failed", event.metadata
        at[event.trigger] = event.at
        if event.trigger == "succeeded":
            break
    await asyncio.sleep(SETTLE_SECONDS)
    return (at["claimed"] - at["enqueued"]) / 1000
