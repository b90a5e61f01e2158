"""Simulated runners: the real protocol over real sockets, in a process of its own, without jobs.

This is as cheap as possible, so that the server is measured: requests are composed of prepared bytes, and a response is
searched only for what the next request needs.

python -m bench.load reads one line of JSON, `Work`, `Wait` or `Beat`, that says what to do
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
import time
from collections.abc import Iterator
from typing import Final, cast

import msgspec

from bench.serving import TENANT, more_files
from deltaci.engine import event_loop
from deltaci.protocol.routes import ROOT
from deltaci.server.auth.credentials import Signer

STAMP: Final = b"2026-01-04T08:00:00Z"
GRANTED: Final = re.compile(rb'"lease_id":"([^"]+)","job_id":"([^"]+)"')
CREDENTIAL_SECONDS: Final = 900
CONNECTS_AT_ONCE: Final = 50


class Work(msgspec.Struct, frozen=True, tag=True):
    """Lease, acknowledge and complete over so many connections until so many jobs are done."""

    port: int
    key: bytes
    connections: int
    slots: int
    jobs: int
    is_batched: bool


class WorkResult(msgspec.Struct, frozen=True):
    """The seconds, CPU seconds and requests of a `Work`, and percentiles of the response time."""

    seconds: float
    cpu: float
    requests: int
    p50: float
    p99: float


class Wait(msgspec.Struct, frozen=True, tag=True):
    """Wait for work again and again, as so many runners, each with its own credential and connection."""

    port: int
    key: bytes
    first: int
    count: int
    wait_seconds: float


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Lease so many jobs as one machine, and renew all leases in batches of this size when told to."""

    port: int
    key: bytes
    leases: int
    batch: int


class BeatResult(msgspec.Struct, frozen=True):
    """The seconds of all renewals, and percentiles for a batch."""

    seconds: float
    p50: float
    p99: float


class Request:
    """The bytes of a request before its body."""

    def __init__(self, name: str, credential: str) -> None:
        self._head = (
            f"POST {ROOT}{name} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: identity\r\n"
            f"Content-Type: application/json\r\nAuthorization: Bearer {credential}\r\nContent-Length: "
        ).encode()

    def around(self, body: bytes) -> bytes:
        """Return the whole request with this body."""
        return b"%s%d\r\n\r\n%s" % (self._head, len(body), body)


class HttpConnection(asyncio.Protocol):
    """An HTTP connection: a request, its response, the next request."""

    transport: asyncio.WriteTransport
    status = b"200"  # Any other status makes the figures meaningless.

    def __init__(self) -> None:
        self._received = b""
        self._need = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Collect the data until the response is complete."""
        received = self._received = self._received + data if self._received else data
        if len(received) < self._need:
            return
        head_end = received.find(b"\r\n\r\n")
        if head_end < 0:
            return
        size_at = received.index(b"content-length: ") + 16
        size = int(received[size_at : received.index(b"\r", size_at)])
        if len(received) < head_end + 4 + size:
            self._need = head_end + 4 + size
            return
        assert received.startswith(b"HTTP/1.1 " + self.status), received
        self._received, self._need = b"", 0
        self.answered(received[head_end + 4 :])

    def answered(self, body: bytes) -> None:
        """Handle a response."""
        raise NotImplementedError


class Progress:
    """The progress of all connections of a `Work`."""

    def __init__(self, jobs: int) -> None:
        self.left = jobs
        self.requests = 0
        self.answers: list[float] = []
        self.is_over = asyncio.Event()

    def done(self, count: int) -> None:
        """Record so many completed jobs."""
        self.left -= count
        if self.left <= 0:
            self.is_over.set()


class Worker(HttpConnection):
    """A connection that leases, acknowledges and completes, with one message per request or a batch."""

    def __init__(self, progress: Progress, work: Work, name: str, credential: str) -> None:
        super().__init__()
        self._progress = progress
        self._name = name.encode()
        self._is_batched = work.is_batched
        self._lease = Request("lease", credential).around(
            b'{"type":"Lease","runner_id":"%s","slots":%d,"wait_seconds":2.0}' % (self._name, work.slots)
        )
        self._messages = Request("batch" if work.is_batched else "messages", credential)
        self._steps = self._next()
        self._sent_at = 0.0
        self._body = b""

    def begin(self) -> None:
        """Send the first request."""
        self._ask(next(self._steps))

    def answered(self, body: bytes) -> None:
        """Send the next request."""
        self._progress.answers.append(time.perf_counter() - self._sent_at)
        self._body = body
        self._ask(next(self._steps))

    def _ask(self, request: bytes) -> None:
        self._sent_at = time.perf_counter()
        self._progress.requests += 1
        self.transport.write(request)

    def _next(self) -> Iterator[bytes]:
        while True:
            yield self._lease
            granted = GRANTED.findall(self._body)
            acks = [message(b"AckLease", self._name, *lease_and_job) for lease_and_job in granted]
            ends = [message(b"Complete", self._name, *lease_and_job) for lease_and_job in granted]
            if self._is_batched:
                yield from self._all(acks, b'"extend_lease":true')
                yield from self._all(ends, b'"accepted":true')
                continue
            for ack in acks:
                yield self._messages.around(ack)
                assert b'"extend_lease":true' in self._body, self._body
            for end in ends:
                yield self._messages.around(end)
                assert b'"accepted":true' in self._body, self._body
                self._progress.done(1)

    def _all(self, messages: list[bytes], sign: bytes) -> Iterator[bytes]:
        if messages:
            yield self._messages.around(b"[%s]" % b",".join(messages))
            assert self._body.count(sign) >= len(messages) // 2, self._body
            if sign == b'"accepted":true':
                self._progress.done(len(messages))


def message(kind: bytes, name: bytes, lease_id: bytes, job_id: bytes) -> bytes:
    """Return one of the runner's messages."""
    own = {
        b"AckLease": b'"job_id":"%s","accepted_at":"%s"' % (job_id, STAMP),
        b"Heartbeat": b'"ts":"%s"' % STAMP,
        b"Complete": b'"status":"SUCCEEDED","exit_code":0',
    }[kind]
    return b'{"type":"%s","lease_id":"%s","runner_id":"%s",%s}' % (kind, lease_id, name, own)


def credential(key: bytes, name: str) -> str:
    """Return the credential that the server would give to this runner."""
    return Signer(key, time.time).sign("run", name, TENANT, CREDENTIAL_SECONDS)


async def work(order: Work) -> WorkResult:
    """Carry out a `Work`."""
    progress = Progress(order.jobs)
    loop = asyncio.get_running_loop()
    workers: list[Worker] = []
    for n in range(order.connections):
        worker = Worker(progress, order, f"runner-{n}", credential(order.key, f"runner-{n}"))
        await loop.create_connection(lambda worker=worker: worker, "127.0.0.1", order.port)  # type: ignore[misc]
        workers.append(worker)
    began, cpu = time.perf_counter(), time.process_time()
    for worker in workers:
        worker.begin()
    await progress.is_over.wait()
    seconds, used, answers = time.perf_counter() - began, time.process_time() - cpu, sorted(progress.answers)
    for worker in workers:
        worker.transport.abort()
    return WorkResult(seconds, used, progress.requests, answers[len(answers) // 2], answers[len(answers) * 99 // 100])


class Waiter(HttpConnection):
    """Waits for work again and again, and records when it got some."""

    def __init__(self, order: Wait, number: int, granted: list[tuple[str, float]]) -> None:
        super().__init__()
        name = f"idle-{number}"
        self.polls = 0
        self._granted = granted
        self._request = Request("lease", credential(order.key, name))
        self._body = b'{"type":"Lease","runner_id":"%s","wait_seconds":%%.1f}' % name.encode()
        self._wait_seconds = order.wait_seconds

    def begin(self) -> None:
        """Send the first request with a random, shorter wait, so that not all runners poll at the same time."""
        self._ask(self._wait_seconds * random.random())

    def _ask(self, seconds: float) -> None:
        self.transport.write(self._request.around(self._body % seconds))

    def answered(self, body: bytes) -> None:
        """Record granted jobs and wait again."""
        for _, job_id in GRANTED.findall(body):
            self._granted.append((job_id.decode(), time.perf_counter()))
        self.polls += 1
        self._ask(self._wait_seconds)


def say(what: object) -> None:
    """Write one line of JSON."""
    print(msgspec.json.encode(what).decode(), flush=True)


async def wait(order: Wait) -> None:
    """Carry out a `Wait` until the input ends.

    Answers the line `polls` with the number of polls, and any other line with the times when jobs of that name were
    granted.
    """
    loop = asyncio.get_running_loop()
    granted: list[tuple[str, float]] = []
    waiters = [Waiter(order, order.first + n, granted) for n in range(order.count)]
    for start in range(0, order.count, CONNECTS_AT_ONCE):
        group = waiters[start : start + CONNECTS_AT_ONCE]
        await asyncio.gather(
            *(loop.create_connection(lambda waiter=waiter: waiter, "127.0.0.1", order.port) for waiter in group)  # type: ignore[misc]
        )
        for waiter in group:
            waiter.begin()
    say("connected")
    reader = await orders()
    while line := await reader.readline():
        query = msgspec.json.decode(line)
        if query == "polls":
            say(sum(waiter.polls for waiter in waiters))
        else:
            say([at for job_id, at in granted if job_id.rpartition("-")[0] == query])
            granted[:] = [waiter for waiter in granted if waiter[0].rpartition("-")[0] != query]
    for waiter in waiters:
        waiter.transport.abort()


async def orders() -> asyncio.StreamReader:
    """Return a reader for the rest of the input."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


class Beater(HttpConnection):
    """A connection that waits for each response before the next request."""

    def __init__(self) -> None:
        super().__init__()
        self._answer: asyncio.Future[bytes] | None = None

    async def ask(self, request: bytes) -> bytes:
        """Send one request and return its response."""
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._answer

    def answered(self, body: bytes) -> None:
        assert self._answer is not None
        self._answer.set_result(body)


async def beat(order: Beat) -> None:
    """Carry out a `Beat`: lease, report that, and renew when told to."""
    line = Beater()
    await asyncio.get_running_loop().create_connection(lambda: line, "127.0.0.1", order.port)
    token = credential(order.key, "host")
    lease, batch = Request("lease", token), Request("batch", token)
    leases: list[tuple[bytes, bytes]] = []
    while len(leases) < order.leases:
        body = b'{"type":"Lease","runner_id":"host","slots":%d}' % order.batch
        granted = GRANTED.findall(await line.ask(lease.around(body)))
        assert granted, f"only {len(leases)} leases"
        leases += granted
        await line.ask(
            batch.around(
                b"[%s]" % b",".join(message(b"AckLease", b"host", *lease_and_job) for lease_and_job in granted)
            )
        )
    say("held")
    await (await orders()).readline()
    durations: list[float] = []
    for start in range(0, order.leases, order.batch):
        beats = [
            message(b"Heartbeat", b"host", *lease_and_job) for lease_and_job in leases[start : start + order.batch]
        ]
        began = time.perf_counter()
        response = await line.ask(batch.around(b"[%s]" % b",".join(beats)))
        durations.append(time.perf_counter() - began)
        assert response.count(b'"extend_lease":true') == len(beats), response[:500]
    durations.sort()
    say(BeatResult(sum(durations), durations[len(durations) // 2], durations[len(durations) * 99 // 100]))
    line.transport.abort()


def main() -> int:
    """Carry out the order on the first line of the input."""
    more_files()
    with open(0, "rb", buffering=0, closefd=False) as input_file:  # Unbuffered: the event loop reads the rest.
        order: Work | Wait | Beat = msgspec.json.decode(input_file.readline(), type=Work | Wait | Beat)
    if isinstance(order, Work):
        say(event_loop.run(work(order)))
    elif isinstance(order, Beat):
        event_loop.run(beat(order))
    else:
        event_loop.run(wait(order))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
