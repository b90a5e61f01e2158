"""Jobs through one real server over HTTP: 32 runners that lease, acknowledge and complete, and no job in between.

The server is the command `deltaci server` in a process of its own; the runners are `bench/load.py`, in another one. Two
limits are measured in the same run: the same uvicorn behind which nothing is done (`bench/serving.py`), asked the same
requests; and the queue itself, called in this process by as many callers with batches of the same size.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from bench.bench_queue import all_heard, at_new_place, chunks
from bench.databases import POSTGRES, SQLITE, BenchDatabase, DatabaseFactory, log_progress
from bench.figures import Figure
from bench.load import Work, WorkResult
from bench.processes import Process, address, started
from bench.serving import births
from deltaci.app import KEY_FILE
from deltaci.engine.engine import Engine
from deltaci.engine.queue import AsyncQueue, ClaimedJob, JobOutcome, NewJob
from deltaci.server.auth.credentials import load_server_key
from tests.support.postgres_server import PostgresServer, ServerFailed

RUNNERS: Final = 32


class Shape(msgspec.Struct, frozen=True):
    """How the runners speak: over how many connections, how much at once, and about how many jobs."""

    name: str
    connections: int
    slots: int
    jobs: int

    @property
    def is_batched(self) -> bool:
        """Whether one request carries what many say."""
        return self.slots > 1


SHAPES = (
    Shape("one message a request", RUNNERS, 1, 4000),
    Shape("batched, 2 connections for 16 runners each", 2, 16, 8000),
    Shape("batched, 2 connections for 250 runners each", 2, 250, 16_000),
)


TICK_SECONDS: Final = 0.01  # What the kernel counts CPU in: a small run may be shorter.


class Measured(msgspec.Struct, frozen=True):
    """What the load saw, and what the server used for it."""

    worked: WorkResult
    server_cpu: float

    @property
    def shares(self) -> str:
        """Who used how much of a core meanwhile."""
        seconds = self.worked.seconds
        return (
            f"CPU: {self.server_cpu / seconds:.0%} of a core in the server, {self.worked.cpu / seconds:.0%} in the load"
        )


def run() -> list[Figure]:
    """Every shape on every store that there is."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kinds = [SQLITE]
        try:
            yard = DatabaseFactory(stack.enter_context(PostgresServer()), folder)
            kinds.append(POSTGRES)
        except ServerFailed as error:
            log_progress(f"without PostgreSQL: {error}")
            yard = DatabaseFactory(None, folder)
        return [figure for shape in SHAPES for figure in _measure(yard, kinds, shape)]


def _measure(yard: DatabaseFactory, kinds: list[str], shape: Shape) -> list[Figure]:
    bare = _bare(shape)
    requests = bare.worked.requests
    bare_rate = shape.jobs / bare.worked.seconds
    log_progress(f"{shape.name}, nothing behind uvicorn: {bare_rate:,.0f} jobs/s. {bare.shares}")
    figures = [
        Figure(f"{shape.name}, nothing behind uvicorn", requests / bare.worked.seconds, "requests/s"),
        Figure(f"{shape.name}, nothing behind uvicorn: server CPU", bare.server_cpu / requests * 1e6, "µs/request"),
    ]
    for kind in kinds:
        found = _served(yard, kind, shape)
        inside = shape.jobs / at_new_place(yard, kind, _inside, shape)
        rate, spent = shape.jobs / found.worked.seconds, found.server_cpu / shape.jobs * 1e6
        log_progress(f"{shape.name}, {kind}: {rate:,.0f} jobs/s, without HTTP {inside:,.0f}. {found.shares}")
        name = f"{shape.name}, {kind}"
        ratios = {"nothing behind uvicorn": rate / bare_rate, "the queue without HTTP": rate / inside}
        figures += [
            Figure(name, rate, "jobs/s", ratios),
            Figure(
                f"{name}: server CPU",
                spent,
                "µs/job",
                {"nothing behind uvicorn": spent / (max(bare.server_cpu, TICK_SECONDS) / shape.jobs * 1e6)},
            ),
            Figure(f"{name}: an answer, p50", found.worked.p50 * 1e3, "ms"),
            Figure(f"{name}: an answer, p99", found.worked.p99 * 1e3, "ms"),
            Figure(f"{name}: the load's share of a core", found.worked.cpu / found.worked.seconds * 100, "%"),
        ]
    return figures


def _bare(shape: Shape) -> Measured:
    with started("-m", "bench.serving", "constant", str(shape.slots)) as server:
        return _loaded(server, address(server), b"", shape)


def _served(yard: DatabaseFactory, kind: str, shape: Shape) -> Measured:
    place = yard.new(kind)
    data = yard.folder / "data"
    try:
        asyncio.run(_fill(place, shape.jobs))
        store = place.url if kind == POSTGRES else f"sqlite:{place.url}"
        with _server(store, data) as server:
            return _loaded(server, address(server), load_server_key(data / KEY_FILE), shape)
    finally:
        yard.drop(place)


@contextmanager
def _server(store: str, data: Path) -> Iterator[Process]:
    with started("-m", "deltaci", "server", "--store", store, "--data", str(data), "--port", "0") as process:
        yield process


async def _fill(place: BenchDatabase, jobs: int) -> None:
    """What is to be done is there before the server starts."""
    store = place.store()
    await store.open()
    engine = Engine(store)
    await engine.start()
    try:
        all_heard(await engine.do_all(births("job", jobs)))
    finally:
        await engine.stop()
        await store.close()


def _loaded(server: Process, url: str, key: bytes, shape: Shape) -> Measured:
    with started("-m", "bench.load") as load:
        before = server.cpu()
        load.send(Work(int(url.rpartition(":")[2]), key, shape.connections, shape.slots, shape.jobs, shape.is_batched))
        worked = msgspec.convert(load.receive(), WorkResult)
        return Measured(worked, server.cpu() - before)


async def _inside(place: BenchDatabase, shape: Shape) -> float:
    """The same by direct calls; the seconds that it took."""
    async with AsyncQueue(place.store()) as queue:
        for start in range(0, shape.jobs, 1000):
            await queue.enqueue_all([NewJob()] * min(1000, shape.jobs - start))
        began = time.perf_counter()
        await asyncio.gather(*(_works(queue, f"runner-{n}", shape) for n in range(shape.connections)))
        return time.perf_counter() - began


async def _works(queue: AsyncQueue, name: str, shape: Shape) -> None:
    claimed: list[ClaimedJob]
    while claimed := await queue.claim_next(name, limit=shape.slots):
        for some in chunks(claimed, shape.slots):
            held = [job.lease_id for job in some]
            all_heard(await queue.start_all(held, name))
            all_heard(await queue.finish_all([JobOutcome(lease_id=lease_id) for lease_id in held], name))
