"""A small HTTP/1.1 server whose every answer can be scripted, also the one that never comes.

Only what a runner of the protocol needs: bodies by length or in chunks, connections that are kept, `Expect`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Final, NamedTuple

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_BODY_BYTES: Final = 8 * 1024 * 1024


class Request(NamedTuple):
    """What came in, and a way to find out whether anybody still waits for the answer."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    is_gone: Callable[[], bool]


class Response(NamedTuple):
    """What goes back."""

    status: int
    body: bytes


Handler = Callable[[Request], Awaitable[Response | None]]  # None: hang up without an answer.


class BadHttp(Exception):
    """No request that can be understood."""


class HttpServer:
    """Use it as a context manager; `url` is where it listens."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> HttpServer:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=MAX_HEAD_BYTES)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for each in self._talks:
            each.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        task.add_done_callback(self._talks.discard)
        try:
            while (request := await _read(reader, writer)) is not None:
                answer = await self._handler(request)
                if answer is None:
                    writer.transport.abort()
                    return
                writer.write(_written(answer))
                await writer.drain()
                if request.headers.get("connection", "").lower() == "close":
                    return
        except (OSError, asyncio.IncompleteReadError):
            pass  # The runner hung up: its right.
        except (BadHttp, ValueError) as error:
            with suppress(OSError):
                told = json.dumps({"code": "bad_request", "message": str(error)})
                writer.write(_written(Response(400, told.encode())))
        except asyncio.CancelledError:
            writer.transport.abort()  # The scenario is over.
        finally:
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """The next request; None when the runner has hung up between two."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    except asyncio.LimitOverrunError:
        raise BadHttp("the headers are too long") from None
    first, *lines = head.decode("latin-1").split("\r\n")
    try:
        method, path, _ = first.split(" ")
    except ValueError:
        raise BadHttp("the request line is none of HTTP/1.1") from None
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
    }
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return Request(method, path, headers, await _body(reader, headers), reader.at_eof)


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "chunked" not in headers.get("transfer-encoding", "").lower():
        return await reader.readexactly(_bounded(int(headers.get("content-length") or 0)))
    parts: list[bytes] = []
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        parts.append(await reader.readexactly(_bounded(size)))
        _bounded(sum(map(len, parts)))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return b"".join(parts)


def _bounded(size: int) -> int:
    if not 0 <= size <= MAX_BODY_BYTES:
        raise BadHttp(f"the body has more than {MAX_BODY_BYTES} bytes")
    return size


def _written(answer: Response) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(answer.body)}\r\n\r\n"
    )
    return head.encode("latin-1") + answer.body
