"""A client that reads a response while it is sent, as slowly as a test wants."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from deltaci.api.routes import ROOT
from tests.server.rest.site import WAIT_SECONDS


class StreamEvent(NamedTuple):
    """One event of a stream."""

    id: int
    kind: str
    event: dict[str, Any]
    line: str


class OpenResponse:
    """A response whose body may not be complete yet."""

    def __init__(self, reader: asyncio.StreamReader, status: int, headers: dict[str, str]) -> None:
        self._reader = reader
        self.status = status
        self.headers = headers
        self.comments = 0
        self.retry = 0

    async def read_chunk(self) -> bytes:
        """Return the next chunk, empty at the end of the body. Raise if the connection breaks before."""
        async with asyncio.timeout(WAIT_SECONDS):
            if "content-length" in self.headers:
                return await self._reader.readexactly(int(self.headers.pop("content-length")))
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            data = await self._reader.readexactly(size + 2)
            return data[:-2]

    async def read_all(self) -> bytes:
        """Return the body up to its end."""
        chunks = []
        while chunk := await self.read_chunk():
            chunks.append(chunk)
        return b"".join(chunks)

    async def read_bytes(self, size: int) -> bytes:
        """Return `size` bytes or a few more, from any number of chunks."""
        data = b""
        while len(data) < size:
            part = await self.read_chunk()
            assert part, f"it ended after {len(data)} of {size} bytes"
            data += part
        return data

    async def events(self) -> AsyncIterator[StreamEvent]:
        """Yield the events of a stream, parsed as the standard says."""
        text = b""
        while part := await self.read_chunk():
            text += part
            *blocks, text = text.split(b"\n\n")
            for block in blocks:
                fields = dict(line.split(": ", 1) for line in block.decode().split("\n") if not line.startswith(":"))
                if "retry" in fields:
                    self.retry = int(fields["retry"])
                elif fields:
                    data = fields["data"]
                    yield StreamEvent(int(fields["id"]), fields["event"], json.loads(data), data)
                else:
                    self.comments += 1
        assert not text, text


@asynccontextmanager
async def open_response(
    url: str, path: str, token: str, buffer: int = 0, **headers: str
) -> AsyncIterator[OpenResponse]:
    """Send a GET request over its own connection, which is closed at exit.

    `buffer` is the size of the receive buffer of the socket, 0 for the default.
    """
    address = urlsplit(url)
    raw = socket.socket()
    raw.setblocking(False)
    if buffer:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    try:
        await asyncio.get_running_loop().sock_connect(raw, (address.hostname, address.port))
        reader, writer = await asyncio.open_connection(sock=raw, limit=buffer or 2**20)
    except BaseException:
        raw.close()
        raise
    try:
        extra = {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"GET {ROOT}{path} HTTP/1.1", "Host: here", f"Authorization: Bearer {token}"]
        lines += [f"{name}: {value}" for name, value in extra.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        async with asyncio.timeout(WAIT_SECONDS):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        received = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
        yield OpenResponse(reader, int(head[0].split()[1]), received)
    finally:
        writer.transport.abort()


def open_stream(url: str, path: str, token: str, **headers: Any) -> Any:
    """Request a stream of events."""
    return open_response(url, path, token, accept="text/event-stream", **headers)
