"""Many clients that follow the events of one server, and the least that any server could do for them.

Each runs in its own process:

python -m bench.watching watch    reads what to follow, then again and again how many events to wait for
    python -m bench.watching bare     sends every line of its input to all clients
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import msgspec

from bench.serving import more_files
from deltaci.engine import event_loop

CONNECTS_AT_ONCE: Final = 50
MARK: Final = b"\nid: "  # Of a line of its own: a header may end like it.
MAX_LINE: Final = 2**26


class Watch(msgspec.Struct, frozen=True):
    """So many connections, each with a stream of this address."""

    port: int
    path: str
    token: str
    streams: int


class Crowd:
    """All connections together: how many events they wait for, and when the last one of them had come."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.missing = size  # Those who have not heard anything yet.
        self.wanted = 0
        self.last = 0.0
        self.is_done = asyncio.Event()

    def want(self, events: int) -> None:
        """So many more for each."""
        self.wanted += events
        self.missing = self.size
        self.is_done.clear()

    def one_has_all(self) -> None:
        """One connection got what it waited for."""
        self.missing -= 1
        if not self.missing:
            self.last = time.perf_counter()
            self.is_done.set()


class Stream(asyncio.Protocol):
    """One connection: counts the events that come, and keeps none."""

    def __init__(self, crowd: Crowd, request: bytes) -> None:
        self._crowd = crowd
        self._request = request
        self._tail = b""
        self._is_begun = False
        self._events = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        cast(asyncio.WriteTransport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count."""
        text = self._tail + data
        if not self._is_begun:
            assert text.startswith(b"HTTP/1.1 200"[: len(text)]), text
            if b"retry: " in text:
                self._is_begun = True
                self._crowd.one_has_all()
            else:
                self._tail = text
                return
        before = self._events
        self._events += text.count(MARK)
        if before < self._crowd.wanted <= self._events:
            self._crowd.one_has_all()
        self._tail = text[1 - len(MARK) :]


async def _lines() -> AsyncIterator[Any]:
    reader = asyncio.StreamReader(limit=MAX_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield msgspec.json.decode(line)


def _say(what: Any) -> None:
    print(msgspec.json.encode(what).decode(), flush=True)


async def _watch() -> None:
    lines = _lines()
    asked = msgspec.convert(await anext(lines), Watch)
    request = (
        f"GET {asked.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
        f"Authorization: Bearer {asked.token}\r\n\r\n"
    ).encode()
    crowd, loop = Crowd(asked.streams), asyncio.get_running_loop()
    for start in range(0, asked.streams, CONNECTS_AT_ONCE):
        some = min(CONNECTS_AT_ONCE, asked.streams - start)
        await asyncio.gather(
            *(loop.create_connection(lambda: Stream(crowd, request), "127.0.0.1", asked.port) for _ in range(some))
        )
    await crowd.is_done.wait()
    _say("connected")
    async for events in lines:
        crowd.want(events)
        _say("waiting")
        await crowd.is_done.wait()
        _say(crowd.last)


class Bare(asyncio.Protocol):
    """Answers with the head of a stream, whatever is asked."""

    everybody: Final[list[asyncio.WriteTransport]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember it."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """All of the request, it is small."""
        self._transport.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nd\r\nretry: 1000\n\n\r\n")
        self.everybody.append(self._transport)


async def _bare() -> None:
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0, backlog=1000)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async for parts in _lines():
        texts = [part.encode() for part in parts]
        chunks = [b"%x\r\n%s\r\n" % (len(text), text) for text in texts]
        began = time.perf_counter()
        for chunk in chunks:
            for transport in Bare.everybody:
                transport.write(chunk)
        _say([began, began])


def main() -> int:
    """Until the input ends."""
    more_files()
    event_loop.run(_watch() if sys.argv[1] == "watch" else _bare())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
