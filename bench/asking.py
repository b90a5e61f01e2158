"""API clients in a process of their own: they send complete, prepared requests over plain sockets.

python -m bench.asking reads orders as lines of JSON, `Ask` or `Compare`, and answers each with a line
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from typing import Final

import msgspec

from bench.load import HttpConnection, say
from deltaci.api.routes import IDEMPOTENCY_HEADER, ROOT
from deltaci.engine import event_loop

WARM_UP: Final = 20


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Send these requests in turn over so many connections, each when the one before is answered."""

    port: int
    connections: int
    count: int
    requests: list[bytes]
    status: int = 200


class AskResult(msgspec.Struct, frozen=True):
    """The seconds and CPU seconds of an `Ask`, and percentiles of the response time."""

    seconds: float
    cpu: float
    p50: float
    p99: float


class ComparedRequest(msgspec.Struct, frozen=True):
    """One request that is compared with others."""

    port: int
    request: bytes
    status: int = 200


class Compare(msgspec.Struct, frozen=True, tag=True):
    """Send the requests one at a time, in a new random order per round. The answer is the median seconds of each."""

    wanted: list[ComparedRequest]
    rounds: int


def request(method: str, path: str, token: str, body: bytes = b"", key: str = "") -> bytes:
    """Return the bytes of a request to the API."""
    once = f"{IDEMPOTENCY_HEADER}: {key}\r\n" if key else ""
    head = (
        f"{method} {ROOT}{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n{once}"
        f"Content-Type: application/json\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class RequestSource:
    """Hands out the requests to all connections, until enough are answered."""

    def __init__(self, order: Ask) -> None:
        self.seconds: list[float] = []
        self.is_over = asyncio.Event()
        self._requests = order.requests
        self._count = order.count
        self._sent = 0

    def next(self) -> bytes | None:
        """Return the next request; None if all were sent."""
        if self._sent == self._count:
            return None
        self._sent += 1
        return self._requests[self._sent % len(self._requests)]

    def answered(self, seconds: float) -> None:
        """Record one response."""
        self.seconds.append(seconds)
        if len(self.seconds) == self._count:
            self.is_over.set()


class Caller(HttpConnection):
    """One connection of a crowd."""

    def __init__(self, source: RequestSource, status: int) -> None:
        super().__init__()
        self.status = b"%d" % status
        self._source = source
        self._sent_at = 0.0

    def begin(self) -> None:
        """Send the next request."""
        wanted = self._source.next()
        if wanted is not None:
            self._sent_at = time.perf_counter()
            self.transport.write(wanted)

    def answered(self, body: bytes) -> None:
        """Record the response and send the next request."""
        self._source.answered(time.perf_counter() - self._sent_at)
        self.begin()


async def ask(order: Ask) -> AskResult:
    """Carry out an `Ask`."""
    source, loop = RequestSource(order), asyncio.get_running_loop()
    callers = [Caller(source, order.status) for _ in range(order.connections)]
    for caller in callers:
        await loop.create_connection(lambda caller=caller: caller, "127.0.0.1", order.port)  # type: ignore[misc]
    began, cpu = time.perf_counter(), time.process_time()
    for caller in callers:
        caller.begin()
    await source.is_over.wait()
    spent, used, seconds = time.perf_counter() - began, time.process_time() - cpu, sorted(source.seconds)
    for caller in callers:
        caller.transport.abort()
    return AskResult(spent, used, seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100])


class Single(HttpConnection):
    """A connection that sends one request at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._answer: asyncio.Future[float] | None = None

    async def ask(self, wanted: ComparedRequest) -> float:
        """Send a request. Returns the seconds until its response."""
        self.status = b"%d" % wanted.status
        self._answer = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        self.transport.write(wanted.request)
        return await self._answer - began

    def answered(self, body: bytes) -> None:
        assert self._answer is not None
        self._answer.set_result(time.perf_counter())


async def compare(order: Compare) -> list[float]:
    """Carry out a `Compare`."""
    loop = asyncio.get_running_loop()
    connections = {each.port: Single() for each in order.wanted}
    for port, connection in connections.items():
        await loop.create_connection(lambda connection=connection: connection, "127.0.0.1", port)  # type: ignore[misc]
    durations: list[list[float]] = [[] for _ in order.wanted]
    indexes = list(range(len(order.wanted)))
    for number in range(-WARM_UP, order.rounds):
        random.shuffle(indexes)
        for index in indexes:
            wanted = order.wanted[index]
            seconds = await connections[wanted.port].ask(wanted)
            if number >= 0:
                durations[index].append(seconds)
    for connection in connections.values():
        connection.transport.abort()
    return [statistics.median(duration) for duration in durations]


def main() -> int:
    """Carry out the orders on standard input."""
    with open(0, "rb", closefd=False) as input_file:
        for line in input_file:
            order: Ask | Compare = msgspec.json.decode(line, type=Ask | Compare)
            if isinstance(order, Ask):
                say(event_loop.run(ask(order)))
            else:
                say(event_loop.run(compare(order)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
