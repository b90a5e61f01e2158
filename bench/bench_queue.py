"""The queue, end to end: what it does per second, how soon, and how that grows; beside others and the physical limit.

PostgreSQL runs with fsync and synchronous_commit on, SQLite with synchronous=FULL; every answer waits for its commit.
A ratio is this figure divided by the rival's. "CPU here" is our process, "CPU there" the server. The physical limit is
the very same statements without our Python, see `bench/limits.py`. Peers run on the same PostgreSQL in the same run,
each in one process, with the settings that were the fastest; `bench/peers.py` tells what each does for one job.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from bench import limits, peers
from bench.databases import KINDS, POSTGRES, SQLITE, BenchDatabase, Cost, DatabaseFactory, log_progress
from bench.figures import Figure
from deltaci.core import attempt, ids
from deltaci.core import run as runs
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Plan
from deltaci.core.errors import Refused
from deltaci.core.events import worker_actor
from deltaci.core.instants import SECOND
from deltaci.core.job import JobSpec
from deltaci.core.machine import Command
from deltaci.core.run import Run
from deltaci.engine import event_loop
from deltaci.engine.engine import Claim, Engine
from deltaci.engine.queue import AsyncQueue, ClaimedJob, JobOutcome, NewJob
from deltaci.engine.worker import Worker
from tests.support.postgres_server import PostgresServer

P = ParamSpec("P")
T = TypeVar("T")

JOBS = 20_000
CONCURRENCY = 1000
ROUNDS = 2
RIVALS = {"PgQueuer": 20_000, "Procrastinate": 2000, "DBOS": 500}  # with so many jobs each
LIFECYCLES = {100: 6000, 500: 12_000}  # the batch, and how many jobs
CALLERS = 2
IDLE_JOBS = 300
IDLE_SECONDS = 10.0
QUEUES = (1000, 1_000_000)
CLAIMS = {1: 100, 100: 8}  # the limit, and how many claims
RUNS = {10: 3000, 1000: 1000, 10_000: 10_000}  # the jobs of one run, and how many in all
GIVE_UP: Final = 5  # times the cost of a job in a small run
LEASES = 10_000
BEAT_BATCH = 500
TTL_SECONDS: Final = 300
BEAT_SECONDS: Final = 20
WORKER: Final = "bench"


def run() -> list[Figure]:
    """Everything, in one go."""
    with PostgresServer() as server, tempfile.TemporaryDirectory() as folder:
        yard = DatabaseFactory(server, Path(folder))
        parts = (drains, lifecycles, latencies, claims, run_sizes, leases)
        return [figure for part in parts for figure in part(yard)]


def at_new_place(
    yard: DatabaseFactory,
    kind: str,
    measure: Callable[Concatenate[BenchDatabase, P], Coroutine[Any, Any, T]],
    *arguments: P.args,
    **options: P.kwargs,
) -> T:
    """Run it on an empty database and drop that."""
    place = yard.new(kind)
    try:
        return event_loop.run(measure(place, *arguments, **options))
    finally:
        yard.drop(place)


async def enqueue(queue: AsyncQueue, count: int) -> None:
    """So many jobs without any content."""
    for start in range(0, count, CONCURRENCY):
        await queue.enqueue_all([NewJob()] * min(CONCURRENCY, count - start))


def chunks(found: list[ClaimedJob], size: int) -> list[list[ClaimedJob]]:
    """Cut into parts."""
    return [found[start : start + size] for start in range(0, len(found), size)]


def all_heard(answers: list[Any]) -> None:
    """Nothing may be refused, or the figure is worth nothing."""
    refused = [answer for answer in answers if isinstance(answer, Refused)]
    if refused:
        raise AssertionError(f"{len(refused)} of {len(answers)} were refused; the first: {refused[0]}")


# --- Drain ---------------------------------------------------------------------------------------


def drains(yard: DatabaseFactory) -> list[Figure]:
    """Claim, start and complete what is queued; who else does that how fast. The best of some rounds, in turn."""
    spent: dict[str, Cost] = {}
    rates: dict[str, float] = {}
    for _ in range(ROUNDS):
        for kind in KINDS:
            spent[kind] = faster(spent.get(kind), at_new_place(yard, kind, drain, yard))
            log_progress(f"drain, {kind}: {JOBS / spent[kind].wall:,.0f} jobs/s. {spent[kind].shares}")
        for name, count, seconds in rivals(yard, "drain", RIVALS):
            rates[name] = max(rates.get(name, 0.0), count / seconds[0])
    figures = []
    for kind in KINDS:
        rate = JOBS / spent[kind].wall
        ratios = {name: rate / theirs for name, theirs in rates.items()}
        figures.append(Figure(f"drain, {kind}", rate, "jobs/s", ratios))
        figures.append(Figure(f"drain, {kind}: CPU here", spent[kind].own / JOBS * 1e6, "µs/job"))
    figures.append(Figure("drain, PostgreSQL: CPU there", spent[POSTGRES].server / JOBS * 1e6, "µs/job"))
    return figures + [Figure(f"drain, {name}", rate, "jobs/s") for name, rate in rates.items()]


def faster(before: Cost | None, now: Cost) -> Cost:
    """The better of two rounds."""
    return now if before is None or now.wall < before.wall else before


async def drain(place: BenchDatabase, yard: DatabaseFactory) -> Cost:
    """One worker with an async handler that does nothing, in a process that has not seen the jobs before."""

    async def nothing(_task: object) -> None:
        return None

    async with AsyncQueue(place.store()) as queue:
        await enqueue(queue, JOBS)
    await place.query("ANALYZE")
    async with AsyncQueue(place.store()) as queue:
        worker = Worker(queue, nothing, concurrency=CONCURRENCY)
        with yard.meter() as spent:
            await worker.run(until_empty=True)
    assert worker.finished == JOBS, f"{worker.finished} of {JOBS} jobs were finished"
    return spent


def rivals(yard: DatabaseFactory, what: str, counts: dict[str, int]) -> list[tuple[str, int, list[float]]]:
    """The peers that are installed: name and settings, how many jobs, seconds."""
    found = []
    for peer, count in counts.items():
        place = yard.new(POSTGRES)
        told = peers.measure(peer, what, place.url, count)
        yard.drop(place)
        if isinstance(told, str):
            log_progress(told)
            continue
        name = f"{peer} {told.version}"
        log_progress(f"{what}, {name} ({peers.PEERS[peer][1]}): {count} jobs, CPU of its process {told.cpu:.1f} s")
        found.append((name, count, told.seconds))
    return found


# --- The whole lifecycle, and its physical limit --------------------------------------------------


def lifecycles(yard: DatabaseFactory) -> list[Figure]:
    """Enqueue, claim, start, heartbeat, complete: some callers side by side, each one batch after the other."""
    figures = []
    for kind in KINDS:
        for batch, jobs in LIFECYCLES.items():
            spent = at_new_place(yard, kind, metered_lifecycle, yard, batch, jobs)
            floor = (postgres_floor if kind == POSTGRES else sqlite_floor)(yard, batch, jobs)
            for _ in range(1, ROUNDS):
                spent = faster(spent, at_new_place(yard, kind, metered_lifecycle, yard, batch, jobs))
            rate = jobs / spent.wall
            log_progress(f"lifecycle, {kind}, {batch}: {rate:,.0f} jobs/s, limit {jobs / floor:,.0f}. {spent.shares}")
            name = f"lifecycle by {batch}, {kind}"
            figures.append(Figure(name, rate, "jobs/s", {"the physical limit": rate * floor / jobs}))
            figures.append(Figure(f"{name}: CPU here", spent.own / jobs * 1e6, "µs/job"))
    return figures


async def metered_lifecycle(place: BenchDatabase, yard: DatabaseFactory, batch: int, jobs: int) -> Cost:
    async with AsyncQueue(place.store(), has_timers=False) as queue:
        with yard.meter() as spent:
            await lifecycle(queue, batch, jobs)
    return spent


async def lifecycle(queue: AsyncQueue, batch: int, jobs: int) -> None:
    """Every job through all five steps."""
    await asyncio.gather(*(lives(queue, batch, jobs // CALLERS) for _ in range(CALLERS)))


async def lives(queue: AsyncQueue, batch: int, jobs: int) -> None:
    """What one caller does, one batch after the other."""
    for _ in range(0, jobs, batch):
        await queue.enqueue_all([NewJob()] * batch)
        claimed = await queue.claim_next(WORKER, limit=batch)
        assert len(claimed) == batch, f"claimed {len(claimed)} of {batch}"
        held = [job.lease_id for job in claimed]
        all_heard(await queue.start_all(held, WORKER))
        all_heard(await queue.heartbeat_all(held, WORKER))
        all_heard(await queue.finish_all([JobOutcome(lease_id=lease_id) for lease_id in held], WORKER))


def postgres_floor(yard: DatabaseFactory, batch: int, jobs: int) -> float:
    """Seconds that PostgreSQL takes for the same bytes, and proof that they did the same.

    As many connections as callers say it side by side, each to a database of its own: nobody waits for anybody's rows.
    """
    recorded = yard.new(POSTGRES)

    async def record() -> limits.Tape:
        await make_tables(recorded)
        recorder = limits.Recorder(recorded.url, yard.folder)
        through = BenchDatabase(POSTGRES, recorder.dsn)
        async with recorder, AsyncQueue(through.store(), has_timers=False) as queue:
            await lives(queue, batch, jobs // CALLERS)
        return recorder.tape

    tape = asyncio.run(record())
    left, spent = asyncio.run(outcome(recorded)), []
    for _ in range(ROUNDS):
        again = [yard.new(POSTGRES) for _ in range(CALLERS)]
        for place in again:
            asyncio.run(make_tables(place))
        with ThreadPoolExecutor(CALLERS) as threads:
            spent.append(max(threads.map(lambda place: limits.replay(place.url, tape), again)))
        for place in again:
            assert asyncio.run(outcome(place)) == left, "the replay did something else"
            yard.drop(place)
    yard.drop(recorded)
    return min(spent)


async def make_tables(place: BenchDatabase) -> None:
    """Let the store make its tables."""
    store = place.store()
    await store.open()
    await store.close()


def sqlite_floor(yard: DatabaseFactory, batch: int, jobs: int) -> float:
    """The same for SQLite."""
    recorded = yard.new(SQLITE)

    async def record() -> None:
        async with AsyncQueue(recorded.store(), has_timers=False) as queue:
            await lifecycle(queue, batch, jobs)

    with limits.recorded_sqlite() as tapes:
        asyncio.run(record())
    left, spent = asyncio.run(outcome(recorded)), []
    for _ in range(ROUNDS):
        again = yard.new(SQLITE)
        spent.append(limits.replay_sqlite(Path(again.url), tapes[0]))  # The writer opens first.
        assert asyncio.run(outcome(again)) == left, "the replay did something else"
        yard.drop(again)
    yard.drop(recorded)
    return min(spent)


async def outcome(place: BenchDatabase) -> tuple[object, ...]:
    """What a lifecycle leaves behind."""
    live, over = [await place.query(f"SELECT count(*) FROM {table}") for table in ("records", "history")]
    store = place.store()
    await store.open()
    last = await store.last_seq()
    await store.close()
    return live, over, last


# --- An idle system ------------------------------------------------------------------------------


def latencies(yard: DatabaseFactory) -> list[Figure]:
    """From the call to enqueue until the handler runs."""
    rows: dict[str, list[float]] = {}
    for kind, servers in ((POSTGRES, 1), (POSTGRES, 2), (SQLITE, 1)):
        name = kind if servers == 1 else f"{kind}, another server"
        rows[name] = at_new_place(yard, kind, idle, servers)
        log_progress(f"idle, {name}: p50 {percentile(rows[name], 50) * 1e3:.2f} ms")
    rival = {name: seconds for name, _, seconds in rivals(yard, "idle", idle_rivals())}
    figures = []
    for percent in (50, 99):
        for name, seconds in {**rows, **rival}.items():
            value = percentile(seconds, percent)
            ratios = {other: value / percentile(theirs, percent) for other, theirs in rival.items() if name in rows}
            figures.append(Figure(f"idle p{percent}, {name}", value * 1e3, "ms", ratios))
    return figures


def idle_rivals() -> dict[str, int]:
    """Those that are told of a new job; a queue that polls has the latency that one sets."""
    return {peer: IDLE_JOBS for peer in RIVALS if peer != "DBOS"}


def percentile(values: list[float], percent: int) -> float:
    """The value that so many percent do not exceed."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


async def idle(place: BenchDatabase, servers: int) -> list[float]:
    """Single jobs, one after the other, each when the one before is over."""
    loop = asyncio.get_running_loop()
    came, came_at = asyncio.Event(), [0.0]

    async def handler(_task: object) -> None:
        came_at[0] = time.perf_counter()
        loop.call_soon_threadsafe(came.set)

    seconds: list[float] = []
    async with AsyncQueue(place.store()) as working:
        other = working if servers == 1 else await AsyncQueue(place.store()).__aenter__()
        worker = Worker(working, handler, concurrency=10)
        running = asyncio.create_task(worker.run())
        until = time.perf_counter() + IDLE_SECONDS
        while len(seconds) < IDLE_JOBS + 5 and (len(seconds) < 6 or time.perf_counter() < until):
            await asyncio.sleep(peers.PAUSE)
            came.clear()
            started = time.perf_counter()
            await other.enqueue()
            await came.wait()
            seconds.append(came_at[0] - started)
        worker.stop()
        await running
        if other is not working:
            await other.__aexit__()
    return seconds[5:]


# --- Long queues ---------------------------------------------------------------------------------


def claims(yard: DatabaseFactory) -> list[Figure]:
    """What a claim costs, however many jobs wait. Short and long queues take turns, so both see the same machine."""
    figures = []
    for kind in KINDS:
        places = {queued: yard.new(kind) for queued in QUEUES}
        costs = event_loop.run(claim_costs(places))
        for limit in CLAIMS:
            few, many = (costs[queued, limit] for queued in QUEUES)
            log_progress(
                f"claim of {limit}, {kind}: {few * 1e3:.2f} ms of {QUEUES[0]:,}, {many * 1e3:.2f} ms of {QUEUES[1]:,}"
            )
            name, ratios = f"claim {limit} of {QUEUES[1]:,}, {kind}", {f"of {QUEUES[0]:,} (goal 1.2)": many / few}
            figures.append(Figure(name, many * 1e3, "ms", ratios))
        for place in places.values():
            yard.drop(place)
    return figures


async def claim_costs(places: dict[int, BenchDatabase]) -> dict[tuple[int, int], float]:
    """The median seconds of a claim, by the length of the queue and the limit."""
    found: dict[tuple[int, int], list[float]] = {}
    async with AsyncExitStack() as stack:
        queues: dict[int, AsyncQueue] = {}
        for queued, place in places.items():
            async with AsyncQueue(place.store()) as queue:
                await queue.enqueue()
            await place.multiply(queued)
            queues[queued] = await stack.enter_async_context(AsyncQueue(place.store(), has_timers=False))
            await queues[queued].claim_next(WORKER, limit=2)
        for limit, times in CLAIMS.items():
            for _ in range(times):
                for queued, queue in queues.items():
                    started = time.perf_counter()
                    claimed = await queue.claim_next(WORKER, limit=limit)
                    found.setdefault((queued, limit), []).append(time.perf_counter() - started)
                    assert len(claimed) == limit, f"claimed {len(claimed)} of {limit}"
    return {key: statistics.median(seconds) for key, seconds in found.items()}


# --- Long runs -----------------------------------------------------------------------------------


def run_sizes(yard: DatabaseFactory) -> list[Figure]:
    """What a job costs in a small run and in a large one, in the same batches. Goes no further where it grows."""
    figures = []
    for kind in KINDS:
        small = None
        for size, jobs in RUNS.items():
            spent = at_new_place(yard, kind, run_cost, yard, size, jobs).each(jobs)
            log_progress(f"runs of {size:,}, {kind}: {spent.wall * 1e6:,.0f} µs a job. {spent.shares}")
            small = small or spent
            if spent.wall > GIVE_UP * small.wall:
                log_progress(
                    f"a job in a run of {size:,} costs {spent.wall / small.wall:.0f} times as much: no larger runs"
                )
                break
        assert small is not None, "no runs to measure"
        for name, value, before in (("", spent.wall, small.wall), (": CPU here", spent.own, small.own)):
            ratios = {f"a run of {min(RUNS)} (goal 1)": value / before}
            figures.append(Figure(f"a job in a run of {size:,}, {kind}{name}", value * 1e6, "µs", ratios))
    return figures


async def run_cost(place: BenchDatabase, yard: DatabaseFactory, size: int, jobs: int) -> Cost:
    """Plan runs of this size and work through all their jobs: chains of five, in batches."""
    specs = tuple(JobSpec(name=f"j{n}", needs=(f"j{n - 1}",) if n % 5 else ()) for n in range(size))
    names = [f"r{n}" for n in range(jobs // size)]
    store = place.store()
    await store.open()
    engine = Engine(store)
    await engine.start()
    with yard.meter() as spent:
        for step in (
            [NewRecord(id=id, record=Run(id=id, run_id=id, tenant="bench")) for id in names],
            [runs.BeginPlanning(id=id) for id in names],
            [Plan(id=id, jobs=specs, plan_hash="bench") for id in names],
        ):
            all_heard(await engine.do_all(step))
        await work_through(engine, jobs)
    await engine.stop()
    await store.close()
    return spent


async def work_through(engine: Engine, jobs: int) -> None:
    """Claim and complete everything."""
    ttl = TTL_SECONDS
    claim = Claim(tenant="bench", worker_id=WORKER, labels=(), limit=BEAT_BATCH, ttl_seconds=ttl, accept_seconds=ttl)
    while jobs > 0:
        ends: list[Command] = [
            attempt.Complete(
                id=claimed.attempt.id,
                actor=worker_actor(WORKER),
                lease=ids.lease_ref(claimed.lease_id),
                is_success=True,
                exit_code=0,
            )
            for claimed in await engine.claim(claim)
        ]
        assert ends, f"nothing can be claimed, but {jobs} jobs are left"
        all_heard(await engine.do_all(ends))
        jobs -= len(ends)


# --- Many leases ---------------------------------------------------------------------------------


def leases(yard: DatabaseFactory) -> list[Figure]:
    """What it costs to keep many leases, and how soon many lost ones are back in the queue."""
    figures = []
    for kind in KINDS:
        beats, back = at_new_place(yard, kind, keep_and_lose, yard)
        name, percent = f"keep {LEASES:,} leases, {kind}: CPU", 100 / BEAT_SECONDS
        ratios = {"the goal of 5 %": beats.own * percent / 5}
        figures.append(Figure(f"{name} here", beats.own * percent, "% of a core", ratios))
        if kind == POSTGRES:
            figures.append(Figure(f"{name} there", beats.server * percent, "% of a core"))
        figures.append(Figure(f"requeue {LEASES:,} expired, {kind}", back, "s", {"the goal of 1 s": back}))
        log_progress(f"leases, {kind}: {LEASES} heartbeats in {beats.wall:.2f} s, expired ones back in {back:.2f} s")
    return figures


async def keep_and_lose(place: BenchDatabase, yard: DatabaseFactory) -> tuple[Cost, float]:
    """Claim and start everything, one heartbeat for each, then let the leases end."""
    shift = [0]
    store = place.store(lambda: shift[0])
    async with AsyncQueue(store, has_timers=False) as queue:
        await enqueue(queue, LEASES)
        held: list[ClaimedJob] = []
        while len(held) < LEASES:
            held += await queue.claim_next(
                WORKER, limit=BEAT_BATCH, ttl_seconds=TTL_SECONDS, accept_seconds=TTL_SECONDS
            )
        parts = [[job.lease_id for job in part] for part in chunks(held, BEAT_BATCH)]
        for part in parts:
            all_heard(await queue.start_all(part, WORKER))
        with yard.meter() as beats:
            for part in parts:
                all_heard(await queue.heartbeat_all(part, WORKER))
        shift[0] = 2 * TTL_SECONDS * SECOND
        back = await timed(requeue_all(store))
    return beats, back


async def requeue_all(store: Any) -> None:
    """What the timers do, as soon as the leases have ended."""
    engine = Engine(store)
    await engine.start()
    found = 0
    while count := await engine.tick():
        found += count
    await engine.stop()
    assert found == LEASES, f"{found} of {LEASES} leases were found"


async def timed(work: Awaitable[None]) -> float:
    """The seconds that it takes."""
    started = time.perf_counter()
    await work
    return time.perf_counter() - started
