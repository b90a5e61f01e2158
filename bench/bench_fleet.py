"""A large fleet at one server: ten thousand runners that wait, each with its own credential, connection and long poll.

What they cost in memory and in time of the processor, how soon one of them has a job that comes, and what the
heartbeats of ten thousand leases cost. The limit is the same uvicorn with as many connections, behind which every
request waits on one event and nothing else is done.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from bench.databases import log_progress
from bench.figures import Figure
from bench.load import Beat, BeatResult, Wait
from bench.processes import Memory, Process, address, started
from deltaci.app import KEY_FILE
from deltaci.server.auth.credentials import load_server_key

RUNNERS = 10_000
HELPERS: Final = 2
WAIT_SECONDS = 20.0  # As long as a runner of ours waits.
IDLE_SECONDS = 20.0
JOBS = 50
PAUSE_SECONDS = 0.05
BURST = 200
BEATS = 10_000
BEAT_BATCH: Final = 500
SPARE_FILES: Final = 200
SETTLE_SECONDS: Final = 15.0


def run() -> list[Figure]:
    """All of it, with as many runners as this machine lets a process have connections."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - SPARE_FILES
    runners = min(RUNNERS, most) if most > 0 else RUNNERS
    if runners < RUNNERS:
        log_progress(f"only {runners} connections: this machine allows a process no more files")
    bare = bare_bytes(runners)
    with tempfile.TemporaryDirectory() as folder:
        return _waiting(Path(folder), runners, bare) + _beating(Path(folder))


def bare_bytes(runners: int) -> float:
    """Bytes for each connection behind which nothing is done."""
    with started("-m", "bench.serving", "waiting") as server:
        url = address(server)
        before = server.memory()
        with _fleet(url, b"k" * 32, runners, 3600.0):
            return _each(before, _settled(server), runners)


def _waiting(folder: Path, runners: int, bare: float) -> list[Figure]:
    with started("-m", "bench.serving", "server", f"sqlite:{folder}/fleet.db", str(folder)) as server:
        url = address(server)
        before = server.memory()
        with _fleet(url, load_server_key(folder / KEY_FILE), runners, WAIT_SECONDS) as fleet:
            _settled(server)
            share, polls = _idle(server, fleet)
            after = server.memory()  # By now everybody has asked again.
            each = _each(before, after, runners)
            log_progress(f"{runners:,} runners wait: {each:,.0f} bytes each, nothing behind uvicorn {bare:,.0f}")
            log_progress(f"idle: {share:.1%} of a core, {polls:,.0f} long polls a second")
            singles, cpu = _enqueued_and_granted(server, fleet, share)
            burst = _burst(server, fleet)
            p50 = singles[len(singles) // 2] * 1e3
            log_progress(f"enqueued to granted: p50 {p50:.1f} ms; {BURST} at once {burst * 1e3:.0f} ms")
    name = f"{runners:,} runners wait"
    ratios = {"nothing behind uvicorn": each / bare} if bare > 0 else {}  # Too little to be measured.
    return [
        Figure(f"{name}: memory a runner (PSS)", each, "bytes", ratios),
        Figure(f"{name}: memory of the server (PSS)", after.pss / 2**20, "MiB"),
        Figure(f"{name}: memory of the server (RSS)", after.rss / 2**20, "MiB"),
        Figure(f"{name}: CPU while idle", share * 100, "%"),
        Figure(f"{name}: long polls while idle", polls, "requests/s"),
        Figure(f"{name}: enqueued to granted, p50", p50, "ms"),
        Figure(f"{name}: enqueued to granted, p99", singles[len(singles) * 99 // 100] * 1e3, "ms"),
        Figure(f"{name}: server CPU a job, enqueued to granted", cpu * 1e3, "ms"),
        Figure(f"{name}: {BURST} jobs at once, enqueued to all granted", burst * 1e3, "ms"),
    ]


@contextmanager
def _fleet(url: str, key: bytes, runners: int, wait_seconds: float) -> Iterator[list[Process]]:
    """Processes that hold the connections, when all of them are made and asked for work."""
    port = int(url.rpartition(":")[2])
    share = runners // HELPERS
    with started("-m", "bench.load") as first, started("-m", "bench.load") as second:
        for place, helper in enumerate((first, second)):
            helper.send(Wait(port, key, place * share, share, wait_seconds))
        for helper in (first, second):
            assert helper.receive() == "connected"
        yield [first, second]


def _settled(server: Process) -> Memory:
    """What it keeps when it has taken in all that was sent: it does nothing more, or not much."""
    give_up = time.monotonic() + SETTLE_SECONDS
    while True:
        cpu = server.cpu()
        time.sleep(0.5)
        if server.cpu() - cpu < 0.2 or time.monotonic() > give_up:
            return server.memory()


def _each(before: Memory, after: Memory, runners: int) -> float:
    return (after.pss - before.pss) / runners


def _idle(server: Process, fleet: list[Process]) -> tuple[float, float]:
    """The share of a core that the server uses while nothing happens but long polls, and how many of those."""
    polls, cpu, began = _polls(fleet), server.cpu(), time.perf_counter()
    time.sleep(IDLE_SECONDS)
    seconds = time.perf_counter() - began
    return (server.cpu() - cpu) / seconds, (_polls(fleet) - polls) / seconds


def _polls(fleet: list[Process]) -> int:
    for helper in fleet:
        helper.send("polls")
    return sum(int(helper.receive()) for helper in fleet)


def _enqueued_and_granted(server: Process, fleet: list[Process], share: float) -> tuple[list[float], float]:
    """One job after the other: the seconds from the call until its runner has it, and the server's CPU seconds each,
    without those that the others' long polls take."""
    found: list[float] = []
    cpu, began = server.cpu(), time.perf_counter()
    for n in range(JOBS):
        time.sleep(PAUSE_SECONDS)
        found.append(_given(server, fleet, f"single-{n}", 1))
    idle = share * (time.perf_counter() - began)
    return sorted(found), max(0.0, server.cpu() - cpu - idle) / JOBS


def _burst(server: Process, fleet: list[Process]) -> float:
    return _given(server, fleet, "burst", BURST)


def _given(server: Process, fleet: list[Process], name: str, count: int) -> float:
    """Seconds from the call until the last of so many jobs is with its runner."""
    server.send([name, count])
    began, _ = server.receive()
    granted: list[float] = []
    for helper in fleet:
        helper.send(name)
    give_up = time.monotonic() + 30
    while len(granted) < count:
        assert time.monotonic() < give_up, f"{len(granted)} of {count} jobs were granted"
        for helper in fleet:
            granted += helper.receive()
            helper.send(name)
        time.sleep(0.002)
    for helper in fleet:
        granted += helper.receive()
    return max(granted) - float(began)


def _beating(folder: Path) -> list[Figure]:
    """Every lease is renewed, in batches, one after the other."""
    with started("-m", "bench.serving", "server", f"sqlite:{folder}/beats.db", str(folder)) as server:
        port = int(address(server).rpartition(":")[2])
        server.send(["beat", BEATS])
        server.receive()
        with started("-m", "bench.load") as load:
            load.send(Beat(port, load_server_key(folder / KEY_FILE), BEATS, BEAT_BATCH))
            assert load.receive() == "held"
            cpu = server.cpu()
            load.send("beat")
            beaten = msgspec.convert(load.receive(), BeatResult)
            spent = server.cpu() - cpu
    name = f"heartbeats of {BEATS:,} leases by {BEAT_BATCH}"
    log_progress(f"{name}: all within {beaten.seconds:.2f} s, server CPU {spent:.2f} s")
    return [
        Figure(f"{name}: all of them", beaten.seconds, "s"),
        Figure(f"{name}: a batch, p50", beaten.p50 * 1e3, "ms"),
        Figure(f"{name}: a batch, p99", beaten.p99 * 1e3, "ms"),
        Figure(f"{name}: server CPU", spent / BEATS * 1e6, "µs/heartbeat"),
        Figure(f"{name}: a core's share at one every 20 s", spent / 20 * 100, "%"),
    ]
