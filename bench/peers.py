"""The queues that Delta CI is measured against. Each runs in a process and a virtual environment of its own.

`make bench PEERS=1` installs them into `.venv/peers`, where `make clean` and every check look past them. This file
is both ends: `measure` starts `python -m bench.peers PEER WHAT DSN COUNT` with the other interpreter and reads one
line of JSON. Nothing here but the standard library is imported before that.

What each does for one job, from the claim to its end:

- Delta CI: a claim with a start, and an end, each a transition of a record that is fenced by lease and version, each
  with its event in the log in the same transaction (five transitions: claimed, accepted, started, uploading, ended); a
  heartbeat renews the lease. The finished record moves to its history. One transaction takes up to 1,000 jobs.
- PgQueuer 1.6: one UPDATE that claims a batch and inserts a log row for each job; at the end one DELETE for a batch,
  with one log row for each. No fencing token: whoever finishes a job deletes its row by id. Ends gather for 0.1 s or
  one batch; a crash meanwhile runs them again.
- Procrastinate 3.10: two transactions for each job (fetch, finish); a trigger inserts an event row at each. No
  fencing token: a finish is checked against the status, not against the worker.
- DBOS 3.3: a batch of workflows is claimed in one transaction; each then ends in one of its own, which updates its row
  (fenced by an owner's token) and inserts its output. No log rows for a workflow without steps. Its queue polls.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
PYTHON = ROOT / ".venv" / "peers" / "bin" / "python"
DEADLINE = 180.0  # seconds
PAUSE = 0.01  # seconds between two jobs of an idle system
CHUNK = 1000

# The fastest of what was tried on two cores; what each does with it is in bench_queue's docstring.
PGQUEUER_BATCH = 2000
PROCRASTINATE_WORKERS = 8
PROCRASTINATE_CONCURRENCY = 10
DBOS_CONCURRENCY = 1000
DBOS_POLL_SECONDS = 0.01

PEERS = {
    "PgQueuer": ("pgqueuer", f"batch {PGQUEUER_BATCH}, one process, uvloop"),
    "Procrastinate": (
        "procrastinate",
        f"{PROCRASTINATE_WORKERS} workers with concurrency {PROCRASTINATE_CONCURRENCY} in one process",
    ),
    "DBOS": ("dbos", f"worker_concurrency {DBOS_CONCURRENCY}, poll {DBOS_POLL_SECONDS} s"),
}


class PeerResult(NamedTuple):
    """The result of a peer's process: its version, and the seconds of the drain or of every single job."""

    version: str
    seconds: list[float]
    cpu: float


def is_installed(peer: str) -> bool:
    """Return whether the peers' environment has this package."""
    check = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{PEERS[peer][0]}') is None)"
    return PYTHON.exists() and subprocess.run([PYTHON, "-c", check], check=False).returncode == 0


def measure(peer: str, what: str, dsn: str, count: int) -> PeerResult | str:
    """Measure a peer on an empty database. Returns a text with the reason if there is no figure."""
    package = PEERS[peer][0]
    if not is_installed(peer):
        return f"not installed: {peer} (make bench PEERS=1)"
    command = [str(PYTHON), "-m", "bench.peers", package, what, dsn, str(count)]
    try:
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE, check=False)
    except subprocess.TimeoutExpired:
        return f"{peer} did not end within {DEADLINE:.0f} s"
    if ran.returncode:
        return f"{peer} failed: {ran.stderr.strip().splitlines()[-1:]}"
    return PeerResult(**json.loads(ran.stdout.splitlines()[-1]))


# --- The other end: everything below runs in the peer's environment --------------------------------


class Idle:
    """Measures single jobs on an idle system: the time from the enqueue call to the handler."""

    def __init__(self, count: int) -> None:
        self.seconds: list[float] = []
        self._count = count
        self._came = asyncio.Event()
        self._came_at = 0.0

    async def handle(self, *_: object, **__: object) -> None:
        self._came_at = time.perf_counter()
        self._came.set()

    async def feed(self, enqueue: Callable[[], Awaitable[Any]]) -> None:
        """Enqueue, wait for the handler, pause; the first few jobs are not counted."""
        for number in range(self._count + 5):
            await asyncio.sleep(PAUSE)
            self._came.clear()
            started = time.perf_counter()
            await enqueue()
            await asyncio.wait_for(self._came.wait(), 60)
            if number >= 5:
                self.seconds.append(self._came_at - started)


class Countdown:
    """Calls `at_zero` when the last handler has run."""

    def __init__(self, count: int, at_zero: Callable[[], object]) -> None:
        self._left = count
        self._at_zero = at_zero
        self._lock = threading.Lock()

    async def handle(self, *_: object, **__: object) -> None:
        """Count one job."""
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._at_zero()


async def pgqueuer(what: str, dsn: str, count: int) -> list[float]:
    """PgQueuer, over asyncpg: its own connection for the worker, another to enqueue."""
    asyncpg: Any = importlib.import_module("asyncpg")
    library: Any = importlib.import_module("pgqueuer")
    driver: Any = importlib.import_module("pgqueuer.db")
    queries: Any = importlib.import_module("pgqueuer.queries")
    working, feeding = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    feed = queries.Queries(driver.AsyncpgDriver(feeding))
    await feed.install()
    manager = library.QueueManager(queries.Queries(driver.AsyncpgDriver(working)))
    settings = {"batch_size": PGQUEUER_BATCH, "dequeue_timeout": timedelta(seconds=30)}
    if what == "drain":
        for start in range(0, count, CHUNK):
            some = min(CHUNK, count - start)
            await feed.enqueue(["noop"] * some, [None] * some, [0] * some)
        await feeding.execute("ANALYZE")
        manager.entrypoint("noop")(Countdown(count, manager.shutdown.set).handle)
        started = time.perf_counter()
        await manager.run(**settings)  # Ends when every result is written.
        spent = time.perf_counter() - started
        left = await feeding.fetchval("SELECT count(*) FROM pgqueuer")
        assert left == 0, f"{left} jobs are left"
        return [spent]
    idle = Idle(count)
    manager.entrypoint("noop")(idle.handle)
    running = asyncio.create_task(manager.run(**settings))
    await asyncio.sleep(1)
    await idle.feed(lambda: feed.enqueue("noop", None, 0))
    manager.shutdown.set()
    await running
    return idle.seconds


async def procrastinate(what: str, dsn: str, count: int) -> list[float]:
    """Procrastinate, over psycopg: several workers share a pool, so that their commits overlap."""
    library: Any = importlib.import_module("procrastinate")
    size = 2 * PROCRASTINATE_WORKERS + 4
    app = library.App(connector=library.PsycopgConnector(conninfo=dsn, min_size=size, max_size=size))
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        if what == "drain":
            task = app.task(name="noop")(Countdown(count, lambda: None).handle)
            for start in range(0, count, CHUNK):
                await task.batch_defer_async(*[{}] * min(CHUNK, count - start))
            await app.connector.execute_query_async("ANALYZE")
            workers = [
                app.run_worker_async(
                    wait=False,
                    listen_notify=False,
                    concurrency=PROCRASTINATE_CONCURRENCY,
                    install_signal_handlers=False,
                )
                for _ in range(PROCRASTINATE_WORKERS)
            ]
            started = time.perf_counter()
            await asyncio.gather(*workers)
            spent = time.perf_counter() - started
            left = await app.job_manager.list_jobs_async(status="todo")
            assert not list(left), "jobs are left"
            return [spent]
        idle = Idle(count)
        task = app.task(name="noop")(idle.handle)
        running = asyncio.create_task(app.run_worker_async(install_signal_handlers=False, concurrency=10))
        await asyncio.sleep(1)
        await idle.feed(task.defer_async)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        return idle.seconds


async def dbos(what: str, dsn: str, count: int) -> list[float]:
    """DBOS: a queued workflow without steps. It polls, so it has no figure for an idle system."""
    assert what == "drain", "DBOS's queue polls"
    library: Any = importlib.import_module("dbos")
    enough = threading.Event()
    countdown = Countdown(count, enough.set)
    library.DBOS(
        config={
            "name": "bench",
            "system_database_url": dsn,
            "log_level": "ERROR",
            "run_admin_server": False,
            "sys_db_pool_size": 20,
        }
    )

    async def noop() -> None:
        await countdown.handle()

    flow = library.DBOS.workflow(name="noop")(noop)
    library.DBOS.launch()
    # No worker yet: the queue may run nothing until everything is enqueued.
    queue = await library.DBOS.register_queue_async(
        "noop", worker_concurrency=0, polling_interval_sec=DBOS_POLL_SECONDS
    )
    for start in range(0, count, 50):
        handles = await asyncio.gather(*(queue.enqueue_async(flow) for _ in range(min(50, count - start))))
    started = time.perf_counter()
    await queue.set_worker_concurrency_async(DBOS_CONCURRENCY)
    await asyncio.to_thread(enough.wait)
    await asyncio.gather(*(handle.get_result() for handle in handles))
    spent = time.perf_counter() - started
    library.DBOS.destroy()
    return [spent]


def main() -> int:
    """Measure one peer in this process and print the result."""
    package, what, dsn, count = sys.argv[1:]
    logging.disable(logging.WARNING)
    work = {"pgqueuer": pgqueuer, "procrastinate": procrastinate, "dbos": dbos}[package]
    runner: Any = importlib.import_module("uvloop").run if package == "pgqueuer" else asyncio.run
    seconds = runner(work(what, dsn, int(count)))
    result = PeerResult(importlib.metadata.version(package), seconds, time.process_time())
    print(json.dumps(result._asdict()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
