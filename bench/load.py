"""Runners that only speak: the real protocol over real sockets, from a process of its own, and no jobs.

Lean on purpose, so that it is the server that is measured: requests are put together from bytes that were made before,
and of an answer only what the next request needs is looked for.

    python -m bench.load    one line of JSON on its input, `Work`, `Wait` or `Beat`, says what to do
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
    """So many connections lease, acknowledge and complete until so many jobs are done."""

    port: int
    key: bytes
    connections: int
    slots: int
    jobs: int
    is_batched: bool


class Worked(msgspec.Struct, frozen=True):
    """What it took, and how long an answer did."""

    seconds: float
    cpu: float
    requests: int
    p50: float
    p99: float


class Wait(msgspec.Struct, frozen=True, tag=True):
    """So many runners, each with its own credential and connection, wait for work again and again."""

    port: int
    key: bytes
    first: int
    count: int
    wait_seconds: float


class Beat(msgspec.Struct, frozen=True, tag=True):
    """One machine takes so many leases, and renews all of them in batches of this size when it is told to."""

    port: int
    key: bytes
    leases: int
    batch: int


class Beaten(msgspec.Struct, frozen=True):
    """How long all of them took, and a batch."""

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
        """All of it."""
        return b"%s%d\r\n\r\n%s" % (self._head, len(body), body)


class Line(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    transport: asyncio.WriteTransport
    status = b"200"  # What every answer must have, or the figures are worth nothing.

    def __init__(self) -> None:
        self._heard = b""
        self._need = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        self.transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Wait for all of an answer."""
        heard = self._heard = self._heard + data if self._heard else data
        if len(heard) < self._need:
            return
        at = heard.find(b"\r\n\r\n")
        if at < 0:
            return
        size_at = heard.index(b"content-length: ") + 16
        size = int(heard[size_at : heard.index(b"\r", size_at)])
        if len(heard) < at + 4 + size:
            self._need = at + 4 + size
            return
        assert heard.startswith(b"HTTP/1.1 " + self.status), heard
        self._heard, self._need = b"", 0
        self.answered(heard[at + 4 :])

    def answered(self, body: bytes) -> None:
        """What follows from it."""
        raise NotImplementedError


class Crew:
    """All who work, until enough is done."""

    def __init__(self, jobs: int) -> None:
        self.left = jobs
        self.requests = 0
        self.answers: list[float] = []
        self.is_over = asyncio.Event()

    def done(self, count: int) -> None:
        """So many more."""
        self.left -= count
        if self.left <= 0:
            self.is_over.set()


class Worker(Line):
    """Lease, acknowledge, complete; one message a request, or all that it has in one."""

    def __init__(self, crew: Crew, work: Work, name: str, credential: str) -> None:
        super().__init__()
        self._crew = crew
        self._name = name.encode()
        self._is_batched = work.is_batched
        self._lease = Request("lease", credential).around(
            b'{"type":"Lease","runner_id":"%s","slots":%d,"wait_seconds":2.0}' % (self._name, work.slots)
        )
        self._say = Request("batch" if work.is_batched else "messages", credential)
        self._steps = self._next()
        self._asked_at = 0.0
        self._body = b""

    def begin(self) -> None:
        """The first request."""
        self._ask(next(self._steps))

    def answered(self, body: bytes) -> None:
        """The next one."""
        self._crew.answers.append(time.perf_counter() - self._asked_at)
        self._body = body
        self._ask(next(self._steps))

    def _ask(self, request: bytes) -> None:
        self._asked_at = time.perf_counter()
        self._crew.requests += 1
        self.transport.write(request)

    def _next(self) -> Iterator[bytes]:
        while True:
            yield self._lease
            granted = GRANTED.findall(self._body)
            acks = [message(b"AckLease", self._name, *each) for each in granted]
            ends = [message(b"Complete", self._name, *each) for each in granted]
            if self._is_batched:
                yield from self._all(acks, b'"extend_lease":true')
                yield from self._all(ends, b'"accepted":true')
                continue
            for ack in acks:
                yield self._say.around(ack)
                assert b'"extend_lease":true' in self._body, self._body
            for end in ends:
                yield self._say.around(end)
                assert b'"accepted":true' in self._body, self._body
                self._crew.done(1)

    def _all(self, messages: list[bytes], sign: bytes) -> Iterator[bytes]:
        if messages:
            yield self._say.around(b"[%s]" % b",".join(messages))
            assert self._body.count(sign) >= len(messages) // 2, self._body
            if sign == b'"accepted":true':
                self._crew.done(len(messages))


def message(kind: bytes, name: bytes, lease_id: bytes, job_id: bytes) -> bytes:
    """One of the runner's messages."""
    own = {
        b"AckLease": b'"job_id":"%s","accepted_at":"%s"' % (job_id, STAMP),
        b"Heartbeat": b'"ts":"%s"' % STAMP,
        b"Complete": b'"status":"SUCCEEDED","exit_code":0',
    }[kind]
    return b'{"type":"%s","lease_id":"%s","runner_id":"%s",%s}' % (kind, lease_id, name, own)


def credential(key: bytes, name: str) -> str:
    """What the server would have given this runner."""
    return Signer(key, time.time).sign("run", name, TENANT, CREDENTIAL_SECONDS)


async def work(order: Work) -> Worked:
    """Work it all off."""
    crew = Crew(order.jobs)
    loop = asyncio.get_running_loop()
    workers: list[Worker] = []
    for n in range(order.connections):
        worker = Worker(crew, order, f"runner-{n}", credential(order.key, f"runner-{n}"))
        await loop.create_connection(lambda worker=worker: worker, "127.0.0.1", order.port)  # type: ignore[misc]
        workers.append(worker)
    began, cpu = time.perf_counter(), time.process_time()
    for worker in workers:
        worker.begin()
    await crew.is_over.wait()
    seconds, used, answers = time.perf_counter() - began, time.process_time() - cpu, sorted(crew.answers)
    for worker in workers:
        worker.transport.abort()
    return Worked(seconds, used, crew.requests, answers[len(answers) // 2], answers[len(answers) * 99 // 100])


class Waiter(Line):
    """Asks for work, waits, and asks again; remembers when it was given any."""

    def __init__(self, order: Wait, number: int, granted: list[tuple[str, float]]) -> None:
        super().__init__()
        name = f"idle-{number}"
        self.polls = 0
        self._granted = granted
        self._request = Request("lease", credential(order.key, name))
        self._body = b'{"type":"Lease","runner_id":"%s","wait_seconds":%%.1f}' % name.encode()
        self._wait_seconds = order.wait_seconds

    def begin(self) -> None:
        """The first request waits for less: not all of them shall ask again at the same time."""
        self._ask(self._wait_seconds * random.random())

    def _ask(self, seconds: float) -> None:
        self.transport.write(self._request.around(self._body % seconds))

    def answered(self, body: bytes) -> None:
        """Remember what came, and ask again."""
        for _, job_id in GRANTED.findall(body):
            self._granted.append((job_id.decode(), time.perf_counter()))
        self.polls += 1
        self._ask(self._wait_seconds)


def say(what: object) -> None:
    """One line."""
    print(msgspec.json.encode(what).decode(), flush=True)


async def wait(order: Wait) -> None:
    """Connect all of them, say so, and go on until the input ends.

    Asked for `polls` it says how many there were; asked for anything else, when the jobs of that name were granted.
    """
    loop = asyncio.get_running_loop()
    granted: list[tuple[str, float]] = []
    waiters = [Waiter(order, order.first + n, granted) for n in range(order.count)]
    for start in range(0, order.count, CONNECTS_AT_ONCE):
        some = waiters[start : start + CONNECTS_AT_ONCE]
        await asyncio.gather(
            *(loop.create_connection(lambda each=each: each, "127.0.0.1", order.port) for each in some)  # type: ignore[misc]
        )
        for each in some:
            each.begin()
    say("connected")
    reader = await orders()
    while line := await reader.readline():
        asked = msgspec.json.decode(line)
        if asked == "polls":
            say(sum(each.polls for each in waiters))
        else:
            say([at for job_id, at in granted if job_id.rpartition("-")[0] == asked])
            granted[:] = [each for each in granted if each[0].rpartition("-")[0] != asked]
    for each in waiters:
        each.transport.abort()


async def orders() -> asyncio.StreamReader:
    """What is told after the first line."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


class Beater(Line):
    """Waits for each answer before it asks the next."""

    def __init__(self) -> None:
        super().__init__()
        self._answer: asyncio.Future[bytes] | None = None

    async def ask(self, request: bytes) -> bytes:
        """One request, and its answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._answer

    def answered(self, body: bytes) -> None:
        """Hand it over."""
        assert self._answer is not None
        self._answer.set_result(body)


async def beat(order: Beat) -> None:
    """Take the leases and say so; when told to, renew all of them and say how that went."""
    line = Beater()
    await asyncio.get_running_loop().create_connection(lambda: line, "127.0.0.1", order.port)
    token = credential(order.key, "host")
    lease, batch = Request("lease", token), Request("batch", token)
    held: list[tuple[bytes, bytes]] = []
    while len(held) < order.leases:
        asked = b'{"type":"Lease","runner_id":"host","slots":%d}' % order.batch
        found = GRANTED.findall(await line.ask(lease.around(asked)))
        assert found, f"only {len(held)} leases"
        held += found
        await line.ask(batch.around(b"[%s]" % b",".join(message(b"AckLease", b"host", *each) for each in found)))
    say("held")
    await (await orders()).readline()
    took: list[float] = []
    for start in range(0, order.leases, order.batch):
        beats = [message(b"Heartbeat", b"host", *each) for each in held[start : start + order.batch]]
        began = time.perf_counter()
        heard = await line.ask(batch.around(b"[%s]" % b",".join(beats)))
        took.append(time.perf_counter() - began)
        assert heard.count(b'"extend_lease":true') == len(beats), heard[:500]
    took.sort()
    say(Beaten(sum(took), took[len(took) // 2], took[len(took) * 99 // 100]))
    line.transport.abort()


def main() -> int:
    """Do what the first line of the input says."""
    more_files()
    with open(0, "rb", buffering=0, closefd=False) as told:  # What follows is for the loop to read.
        order: Work | Wait | Beat = msgspec.json.decode(told.readline(), type=Work | Wait | Beat)
    if isinstance(order, Work):
        say(event_loop.run(work(order)))
    elif isinstance(order, Beat):
        event_loop.run(beat(order))
    else:
        event_loop.run(wait(order))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
