"""The way between a runner and its servers, on which messages can be held, lost, doubled and cut off, one by one.

    async with Proxy(lambda: [port]) as way:
        held = way.on("Complete", Held("request"))  # the next Complete stops before the server
        await held.came.wait()
        held.go()

A fault is an act: it gets the exchange, forwards the request as often as it likes, and returns the answer or raises
`Cut`. Two switches, `requests` and `answers`, stop everything in one direction, as a network does: without a word.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Literal, TypeVar

import msgspec

from tests.support.listener import Listener

ROOT: Final = "/runner/v1/"
DRIP_SECONDS: Final = 0.2


class Cut(Exception):
    """Hang up on whoever asked."""


class Exchange:
    """One request on its way. `kinds` are its address and the types of the messages in it."""

    def __init__(self, way: Proxy, raw: bytes, body: bytes, gone: asyncio.Event) -> None:
        head = raw[: len(raw) - len(body)].decode("latin-1")
        method, target, _ = head.split(" ", 2)
        self._way = way
        self._raw = raw
        self.gone = gone  # That the one who asked hung up.
        self.body = body
        self.said_at = time.monotonic()
        self.answered_at: float | None = None
        name = target.removeprefix(ROOT).partition("/")[0]
        self.kinds = {f"{name}-size" if (name, method) == ("log", "GET") else name}
        self.lease_ids: set[str] = set()
        if name in ("messages", "batch"):
            said = msgspec.json.decode(body)
            for each in said if isinstance(said, list) else [said]:
                self.kinds.add(each["type"])
                self.lease_ids.add(each["lease_id"])
        for line in head.split("\r\n"):
            title, _, value = line.partition(": ")
            if title.lower() == "delta-lease":
                self.lease_ids.add(value)

    async def forward(self) -> bytes:
        """The server's answer, over a connection of its own."""
        await self._way.requests.wait()
        asking = asyncio.create_task(self._ask())
        if "lease" in self.kinds:  # Nobody waits for work on behalf of one who is gone.
            leaving = asyncio.create_task(self.gone.wait())
            await asyncio.wait({asking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            if not asking.done():
                asking.cancel()
                raise Cut
        answer = await asking
        await self._way.answers.wait()
        return answer

    async def _ask(self) -> bytes:
        for port in self._way.ports():
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            try:
                writer.write(self._raw)
                return b"".join(await _message(reader))
            except (OSError, asyncio.IncompleteReadError):
                raise Cut from None
            finally:
                writer.close()
        raise Cut


Act = Callable[[Exchange], Awaitable[bytes]]
A = TypeVar("A", bound=Act)


class Held:
    """Stops one message, or its answer, until it may go on or is lost."""

    def __init__(self, what: Literal["request", "answer"]) -> None:
        self._what = what
        self.came = asyncio.Event()
        self.body = b""
        self._decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def go(self) -> None:
        """Let it go on, even if nobody waits for it any more."""
        if not self._decided.done():
            self._decided.set_result(True)

    def drop(self) -> None:
        """It never arrives, and the connection is cut."""
        if not self._decided.done():
            self._decided.set_result(False)

    async def __call__(self, exchange: Exchange) -> bytes:
        self.body = exchange.body
        answer = await exchange.forward() if self._what == "answer" else b""
        self.came.set()
        if not await self._decided:
            raise Cut
        return answer or await exchange.forward()


async def cut_before(exchange: Exchange) -> bytes:
    """The request is lost."""
    raise Cut


async def cut_after(exchange: Exchange) -> bytes:
    """The answer is lost."""
    await exchange.forward()
    raise Cut


async def twice(exchange: Exchange) -> bytes:
    """The request arrives, and once more after its answer; the sender hears the second one."""
    await exchange.forward()
    return await exchange.forward()


async def at_once(exchange: Exchange) -> bytes:
    """The request arrives on two connections at the same time."""
    first, _ = await asyncio.gather(exchange.forward(), exchange.forward())
    return first


def answering(answer: bytes) -> Act:
    """Something that was answered to somebody else."""

    async def act(exchange: Exchange) -> bytes:
        return answer

    return act


class Rule:
    """What happens to the next messages of one kind."""

    def __init__(self, kind: str, act: Act, times: int) -> None:
        self.kind = kind
        self.act = act
        self.times = times


class Proxy(Listener):
    """Listens on a port of its own. `said` is everything that came by, in order."""

    def __init__(self, ports: Callable[[], Sequence[int]]) -> None:
        super().__init__()
        self.ports = ports
        self.said: list[Exchange] = []
        self.drips = False  # Whether answers come byte by byte.
        self.requests = asyncio.Event()
        self.answers = asyncio.Event()
        self.requests.set()
        self.answers.set()
        self._rules: list[Rule] = []
        self._news = asyncio.Event()

    def on(self, kind: str, act: A, times: int = 1) -> A:
        """Do this to the next messages of this kind. Rules are tried in the order in which they were made."""
        self._rules.append(Rule(kind, act, times))
        return act

    def came(self, kind: str) -> list[Exchange]:
        """What came by of this kind."""
        return [exchange for exchange in self.said if kind in exchange.kinds]

    async def until(self, kind: str, count: int = 1, after: int = 0, *, is_answered: bool = True) -> Exchange:
        """Wait until so many of this kind were answered, or only came, of those behind the first `after`."""
        while True:
            found = [each for each in self.came(kind)[after:] if each.answered_at is not None or not is_answered]
            if len(found) >= count:
                return found[count - 1]
            self._news.clear()
            await self._news.wait()

    async def next(self, kind: str, count: int = 1, *, is_answered: bool = True) -> Exchange:
        """Wait for so many more of this kind, from now on."""
        return await self.until(kind, count, len(self.came(kind)), is_answered=is_answered)

    async def handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hand over one request after the other."""
        with suppress(Cut):
            while True:
                head, body = await _message(reader)
                await self._pass_on(head + body, body, reader, writer)

    async def _pass_on(
        self, raw: bytes, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        gone = asyncio.Event()
        exchange = Exchange(self, raw, body, gone)
        self.said.append(exchange)
        self._news.set()
        rule = next((rule for rule in self._rules if rule.times and rule.kind in exchange.kinds), None)
        if rule is not None:
            rule.times -= 1
        watching = asyncio.create_task(_watch(reader, gone))
        try:
            answer = await (rule.act(exchange) if rule is not None else exchange.forward())
            exchange.answered_at = time.monotonic()
            for part in _drops(answer) if self.drips else (answer,):
                writer.write(part)
                await writer.drain()
                if self.drips:
                    await asyncio.wait({watching}, timeout=DRIP_SECONDS)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            self._news.set()


def _drops(answer: bytes) -> Iterable[bytes]:
    return (answer[at : at + 1] for at in range(len(answer)))


async def _watch(reader: asyncio.StreamReader, gone: asyncio.Event) -> None:
    """Notice that the one who asked hung up: nothing else comes before the answer."""
    with suppress(OSError):
        data = await reader.read(1)
        assert not data, "a second request came before the answer to the first"
    gone.set()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """One request or answer: head and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = 0
    for line in head.split(b"\r\n"):
        title, _, value = line.partition(b":")
        if title.lower() == b"content-length":
            size = int(value)
    return head, await reader.readexactly(size)
