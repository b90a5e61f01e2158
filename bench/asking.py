"""People and programs that ask the API, from a process of its own: whole requests, made before, over plain sockets.

python -m bench.asking    every line of its input is an order in JSON, `Ask` or `Compare`, and answered by a line
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from typing import Final

import msgspec

from bench.load import Line, say
from deltaci.api.routes import IDEMPOTENCY_HEADER, ROOT
from deltaci.engine import event_loop

WARM_UP: Final = 20


class Ask(msgspec.Struct, frozen=True, tag=True):
    """So many connections send these requests in turn, each the next one as soon as the one before is answered."""

    port: int
    connections: int
    count: int
    requests: list[bytes]
    status: int = 200


class Asked(msgspec.Struct, frozen=True):
    """What it took, and how long an answer did, in seconds."""

    seconds: float
    cpu: float
    p50: float
    p99: float


class Wanted(msgspec.Struct, frozen=True):
    """One request that is compared with others."""

    port: int
    request: bytes
    status: int = 200


class Compare(msgspec.Struct, frozen=True, tag=True):
    """Send them one at a time, all of them in a new order in every round. Answered by the medians, in seconds."""

    wanted: list[Wanted]
    rounds: int


def request(method: str, path: str, token: str, body: bytes = b"", key: str = "") -> bytes:
    """All the bytes of a request to the API."""
    once = f"{IDEMPOTENCY_HEADER}: {key}\r\n" if key else ""
    head = (
        f"{method} {ROOT}{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n{once}"
        f"Content-Type: application/json\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Crowd:
    """All who ask, until enough was answered."""

    def __init__(self, order: Ask) -> None:
        self.seconds: list[float] = []
        self.is_over = asyncio.Event()
        self._requests = order.requests
        self._count = order.count
        self._sent = 0

    def next(self) -> bytes | None:
        """What to send next, if anything."""
        if self._sent == self._count:
            return None
        self._sent += 1
        return self._requests[self._sent % len(self._requests)]

    def answered(self, seconds: float) -> None:
        """One more."""
        self.seconds.append(seconds)
        if len(self.seconds) == self._count:
            self.is_over.set()


class Caller(Line):
    """One connection of a crowd."""

    def __init__(self, crowd: Crowd, status: int) -> None:
        super().__init__()
        self.status = b"%d" % status
        self._crowd = crowd
        self._asked_at = 0.0

    def begin(self) -> None:
        """Send the next one."""
        wanted = self._crowd.next()
        if wanted is not None:
            self._asked_at = time.perf_counter()
            self.transport.write(wanted)

    def answered(self, body: bytes) -> None:
        """Count it, and go on."""
        self._crowd.answered(time.perf_counter() - self._asked_at)
        self.begin()


async def ask(order: Ask) -> Asked:
    """Send it all."""
    crowd, loop = Crowd(order), asyncio.get_running_loop()
    callers = [Caller(crowd, order.status) for _ in range(order.connections)]
    for caller in callers:
        await loop.create_connection(lambda caller=caller: caller, "127.0.0.1", order.port)  # type: ignore[misc]
    began, cpu = time.perf_counter(), time.process_time()
    for caller in callers:
        caller.begin()
    await crowd.is_over.wait()
    spent, used, seconds = time.perf_counter() - began, time.process_time() - cpu, sorted(crowd.seconds)
    for caller in callers:
        caller.transport.abort()
    return Asked(spent, used, seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100])


class Single(Line):
    """One request at a time; nothing else goes on meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._answer: asyncio.Future[float] | None = None

    async def ask(self, wanted: Wanted) -> float:
        """How many seconds the answer took."""
        self.status = b"%d" % wanted.status
        self._answer = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        self.transport.write(wanted.request)
        return await self._answer - began

    def answered(self, body: bytes) -> None:
        """Now."""
        assert self._answer is not None
        self._answer.set_result(time.perf_counter())


async def compare(order: Compare) -> list[float]:
    """The median of each."""
    loop = asyncio.get_running_loop()
    lines = {each.port: Single() for each in order.wanted}
    for port, line in lines.items():
        await loop.create_connection(lambda line=line: line, "127.0.0.1", port)  # type: ignore[misc]
    took: list[list[float]] = [[] for _ in order.wanted]
    places = list(range(len(order.wanted)))
    for number in range(-WARM_UP, order.rounds):
        random.shuffle(places)
        for place in places:
            wanted = order.wanted[place]
            seconds = await lines[wanted.port].ask(wanted)
            if number >= 0:
                took[place].append(seconds)
    for line in lines.values():
        line.transport.abort()
    return [statistics.median(each) for each in took]


def main() -> int:
    """Do what the lines of the input say."""
    with open(0, "rb", closefd=False) as told:
        for line in told:
            order: Ask | Compare = msgspec.json.decode(line, type=Ask | Compare)
            if isinstance(order, Ask):
                say(event_loop.run(ask(order)))
            else:
                say(event_loop.run(compare(order)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
