"""A job's way through a real server and a real runner, over HTTP, with real processes.

The physical limit is what it takes to run the same shell command as a child, and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.figures import Figure
from deltaci.app import HttpListener, Server, registration_token
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.events import Event
from deltaci.engine import event_loop, feed
from deltaci.storage.sqlite import SqliteStore

SINGLE = 40
MANY = 200
SLOTS: Final = 2
STEP: Final = "true"
BUILDBOT_MS: Final = 447.0  # Measured on a machine like this one: the median of an empty build.
BUILDBOT_RATE: Final = 4.5


def run() -> list[Figure]:
    """One after the other on an idle runner, then many at once through one runner with two slots."""
    with tempfile.TemporaryDirectory() as folder:
        singles, rate = event_loop.run(_measure(Path(folder)))
    bare = min(_bare() for _ in range(20))
    p50 = statistics.median(singles) * 1e3
    return [
        Figure(
            "an empty job, enqueued to finished, p50",
            p50,
            "ms",
            {"Buildbot": p50 / BUILDBOT_MS, "sh": p50 / bare / 1e3},
        ),
        Figure("the same, p99", sorted(singles)[len(singles) * 99 // 100] * 1e3, "ms"),
        Figure(f"jobs through one runner with {SLOTS} slots", rate, "jobs/s", {"Buildbot": rate / BUILDBOT_RATE}),
    ]


def _bare() -> float:
    started = time.perf_counter()
    subprocess.run(["sh", "-c", STEP], check=True)
    return time.perf_counter() - started


async def _measure(folder: Path) -> tuple[list[float], float]:
    async with Server(SqliteStore(str(folder / "bench.db")), folder) as service:
        listener = HttpListener(service, "127.0.0.1", 0)
        serving = asyncio.create_task(listener.serve())
        runner = await asyncio.create_subprocess_exec(
            sys.executable,
            *(
                "-m",
                "deltaci",
                "runner",
                "--server",
                listener.url,
                "--slots",
                str(SLOTS),
                "--work",
                str(folder / "work"),
            ),
            env={**os.environ, "DELTACI_TOKEN": registration_token(folder, "bench", "default")},
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await _finished(service, 1, "warm")
            singles = [await _finished(service, 1, f"single-{n}") for n in range(SINGLE)]
            rate = MANY / await _finished(service, MANY, "many")
        finally:
            runner.terminate()
            await runner.wait()
            listener.stop()
            await serving
    return singles, rate


async def _finished(service: Server, count: int, name: str) -> float:
    """Seconds from the call to the last end."""
    after = await service.store.last_seq()
    jobs = [
        Attempt(id=f"{name}-{n}", tenant="default", spec={"steps": [STEP], "executor": "process"}) for n in range(count)
    ]
    started = time.perf_counter()
    await service.engine.do_all([NewRecord(id=job.id, record=job) for job in jobs])
    ended: set[str] = set()
    async for event in feed.follow(service.store, after):
        if _is_end(event):
            ended.add(event.entity_id)
            if len(ended) == count:
                break
    return time.perf_counter() - started


def _is_end(event: Event) -> bool:
    assert event.to != "FAILED", f"{event.entity_id} failed: {event.metadata}"
    return event.entity == "attempt" and event.trigger == "succeeded"
