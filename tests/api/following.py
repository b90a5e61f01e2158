"""A client that reads an answer while it comes, as slowly as a case wants."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from deltaci.api.routes import ROOT
from tests.api.site import WAIT_SECONDS


class Told(NamedTuple):
    """One event of a stream."""

    id: int
    kind: str
    event: dict[str, Any]
    line: str


class Answer:
    """An answer that may not be over."""

    def __init__(self, reader: asyncio.StreamReader, status: int, headers: dict[str, str]) -> None:
        self._reader = reader
        self.status = status
        self.headers = headers
        self.comments = 0
        self.retry = 0

    async def part(self) -> bytes:
        """The next part; empty when the answer is over. One that breaks off is an error."""
        async with asyncio.timeout(WAIT_SECONDS):
            if "content-length" in self.headers:
                return await self._reader.readexactly(int(self.headers.pop("content-length")))
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            data = await self._reader.readexactly(size + 2)
            return data[:-2]

    async def rest(self) -> bytes:
        """All that comes until its end."""
        parts = []
        while part := await self.part():
            parts.append(part)
        return b"".join(parts)

    async def take(self, size: int) -> bytes:
        """So many bytes, which come in whatever parts."""
        data = b""
        while len(data) < size:
            part = await self.part()
            assert part, f"it ended after {len(data)} of {size} bytes"
            data += part
        return data

    async def events(self) -> AsyncIterator[Told]:
        """A stream of events, read as the standard says."""
        text = b""
        while part := await self.part():
            text += part
            *blocks, text = text.split(b"\n\n")
            for block in blocks:
                fields = dict(line.split(": ", 1) for line in block.decode().split("\n") if not line.startswith(":"))
                if "retry" in fields:
                    self.retry = int(fields["retry"])
                elif fields:
                    data = fields["data"]
                    yield Told(int(fields["id"]), fields["event"], json.loads(data), data)
                else:
                    self.comments += 1
        assert not text, text


@asynccontextmanager
async def asked(url: str, path: str, token: str, buffer: int = 0, **headers: str) -> AsyncIterator[Answer]:
    """Ask over a connection of its own, which ends with this. With `buffer` the kernel keeps about so much."""
    where = urlsplit(url)
    raw = socket.socket()
    raw.setblocking(False)
    if buffer:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    try:
        await asyncio.get_running_loop().sock_connect(raw, (where.hostname, where.port))
        reader, writer = await asyncio.open_connection(sock=raw, limit=buffer or 2**20)
    except BaseException:
        raw.close()
        raise
    try:
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"GET {ROOT}{path} HTTP/1.1", "Host: here", f"Authorization: Bearer {token}"]
        lines += [f"{name}: {value}" for name, value in told.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        async with asyncio.timeout(WAIT_SECONDS):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
        yield Answer(reader, int(head[0].split()[1]), found)
    finally:
        writer.transport.abort()


def stream(url: str, path: str, token: str, **headers: Any) -> Any:
    """Ask for a stream of events."""
    return asked(url, path, token, accept="text/event-stream", **headers)
