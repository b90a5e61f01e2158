"""A thousand live streams of events at one server: everybody hears of everything, as soon as it is committed.

How long that takes until the last one has it, how many events a second come out, and what a stream costs in memory.
The limit is a bare server that writes the same bytes to as many sockets and does nothing else: no HTTP, no store, no
tenants. Both are read by the same client.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from bench.bench_fleet import bare_bytes
from bench.databases import log_progress
from bench.figures import Figure
from bench.processes import Memory, Process, address, started
from bench.serving import TENANT
from bench.watching import Watch
from deltaci.app import KEY_FILE
from deltaci.core.attempt import MACHINE as ATTEMPTS
from deltaci.core.attempt import Attempt, Publish
from deltaci.core.events import Event, with_seq
from deltaci.server.auth.credentials import Signer, load_server_key
from deltaci.server.rest.streams.event_streams import CHUNK_BYTES, Frame

STREAMS = 1000
SINGLES = 200
BURST = 500
ROUNDS = 3
PAUSE_SECONDS: Final = 0.05
SPARE_FILES: Final = 200
SETTLE_SECONDS: Final = 15.0

# Orders so many events; answers when the first was on its way: when they were committed, or when writing began.
Cause = Callable[[str, int], float]


class Measured(msgspec.Struct):
    """Seconds from an event to the last one who has it, sorted; deliveries a second; bytes and CPU seconds."""

    delays: list[float]
    rate: float
    memory: float
    cpu: float


def run() -> list[Figure]:
    """All of it, with as many streams as this machine lets a process have connections."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - SPARE_FILES
    streams = min(STREAMS, most) if most > 0 else STREAMS
    connection, bare, ours = bare_bytes(streams), _bare(streams), _ours(streams)
    name = f"{streams:,} streams"
    p50, p99 = _at(ours, 0.5), _at(ours, 0.99)
    limit = "a bare server"
    return [
        Figure(f"{name}: committed to the last one has it, p50", p50 * 1e3, "ms", {limit: p50 / _at(bare, 0.5)}),
        Figure(f"{name}: committed to the last one has it, p99", p99 * 1e3, "ms", {limit: p99 / _at(bare, 0.99)}),
        Figure(f"{name}: delivered, {BURST} events at once", ours.rate, "events/s", {limit: ours.rate / bare.rate}),
        Figure(
            f"{name}: memory a stream (PSS)",
            ours.memory,
            "bytes",
            _ratio("nothing behind uvicorn", ours.memory, connection),
        ),
        Figure(f"{name}: server CPU an event delivered", ours.cpu * 1e6, "µs", _ratio(limit, ours.cpu, bare.cpu)),
    ]


def _ours(streams: int) -> Measured:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with started("-m", "bench.serving", "server", f"sqlite:{folder}/streams.db", str(folder)) as server:
            signer = Signer(load_server_key(folder / KEY_FILE), time.time)
            token = signer.sign("operate", "bench", TENANT, 3600)

            def cause(order: str, count: int) -> float:
                server.send([order, count])
                return float(server.receive()[1])

            found = _measured(server, token, streams, cause)
    log_progress(f"{streams:,} streams: p50 {_at(found, 0.5) * 1e3:.1f} ms, {found.rate:,.0f} events/s")
    return found


def _bare(streams: int) -> Measured:
    with started("-m", "bench.watching", "bare") as server:

        def cause(_: str, count: int) -> float:
            server.send(_parts(count))
            return float(server.receive()[0])

        found = _measured(server, "none", streams, cause)
    log_progress(f"{streams:,} bare sockets: p50 {_at(found, 0.5) * 1e3:.1f} ms, {found.rate:,.0f} events/s")
    return found


def _measured(server: Process, token: str, streams: int, cause: Cause) -> Measured:
    port = int(address(server).rpartition(":")[2])
    cause("warm", 1)
    before = _settled(server)
    with _crowd(port, token, streams) as crowd:
        memory = (_settled(server).pss - before.pss) / streams
        delays: list[float] = []
        for n in range(SINGLES):
            time.sleep(PAUSE_SECONDS)
            delays.append(_delivered(crowd, cause, f"single-{n}", 1)[0])
        cpu, rates = server.cpu(), []
        for n in range(ROUNDS):
            rates.append(streams * BURST / _delivered(crowd, cause, f"burst-{n}", BURST)[1])
        cpu = (server.cpu() - cpu) / (ROUNDS * streams * BURST)
    return Measured(sorted(delays), sorted(rates)[ROUNDS // 2], memory, cpu)


def _delivered(crowd: Process, cause: Cause, name: str, count: int) -> tuple[float, float]:
    """Seconds until the last one has the last event: since it was committed, and since it was asked for."""
    crowd.send(count)
    assert crowd.receive() == "waiting"
    began = time.perf_counter()
    committed = cause(name, count)
    last = float(crowd.receive())
    return max(0.0, last - committed), last - began


@contextmanager
def _crowd(port: int, token: str, streams: int) -> Iterator[Process]:
    """A process that holds the streams, when all of them have begun."""
    with started("-m", "bench.watching", "watch") as crowd:
        crowd.send(Watch(port, "/api/v1/events?after=1", token, streams))
        assert crowd.receive() == "connected"
        yield crowd


def _parts(count: int) -> list[str]:
    """What a server of ours would write for so many events, in pieces of the same size."""
    events: list[Event] = []
    job = Attempt(id="single-1234", tenant=TENANT)
    for _ in range(count):
        ATTEMPTS.step(job, Publish(id=job.id), 1_767_513_600_000_000, events)
    parts, part = [], b""
    for seq, event in enumerate(events, 10_000):
        part += Frame(with_seq(event, seq)).encoded
        if len(part) >= CHUNK_BYTES:
            parts.append(part.decode())
            part = b""
    return [*parts, part.decode()] if part else parts


def _settled(server: Process) -> Memory:
    """What it keeps when it does nothing more, or not much."""
    give_up = time.monotonic() + SETTLE_SECONDS
    while True:
        cpu = server.cpu()
        time.sleep(0.5)
        if server.cpu() - cpu < 0.2 or time.monotonic() > give_up:
            return server.memory()


def _ratio(name: str, value: float, limit: float) -> dict[str, float]:
    """None where the limit is too small to be measured."""
    return {name: value / limit} if limit > 0 else {}


def _at(found: Measured, part: float) -> float:
    return found.delays[int(len(found.delays) * part)]
