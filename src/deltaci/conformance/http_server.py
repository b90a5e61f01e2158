"""A small HTTP/1.1 server whose handler decides every answer, including none at all.

It implements only what a runner of the protocol needs: bodies with a length or in chunks, keep-alive, and `Expect`.
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
    """A received request, and a function that returns whether its client has disconnected."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    is_disconnected: Callable[[], bool]


class Response(NamedTuple):
    """A response with a JSON body."""

    status: int
    body: bytes


Handler = Callable[[Request], Awaitable[Response | None]]  # None: close the connection without a response.


class BadHttp(Exception):
    """Raised when a request is not valid HTTP/1.1 or exceeds a limit."""


class HttpServer:
    """An HTTP server on a free local port, as an asynchronous context manager; `url` is its address."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._connection_tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> HttpServer:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=MAX_HEAD_BYTES)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connection_tasks:
            connection.cancel()
        await asyncio.gather(*self._connection_tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after another, until it is closed."""
        connection_task = asyncio.current_task()
        assert connection_task is not None
        self._connection_tasks.add(connection_task)
        connection_task.add_done_callback(self._connection_tasks.discard)
        try:
            while (request := await _read_request(reader, writer)) is not None:
                response = await self._handler(request)
                if response is None:
                    writer.transport.abort()
                    return
                writer.write(_encode(response))
                await writer.drain()
                if request.headers.get("connection", "").lower() == "close":
                    return
        except (OSError, asyncio.IncompleteReadError):
            pass  # The runner may disconnect at any time.
        except (BadHttp, ValueError) as error:
            with suppress(OSError):
                problem_json = json.dumps({"code": "bad_request", "message": str(error)})
                writer.write(_encode(Response(400, problem_json.encode())))
        except asyncio.CancelledError:
            writer.transport.abort()  # The scenario has ended.
        finally:
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """Read the next request; return None if the client has disconnected between two requests."""
    try:
        head_bytes = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    except asyncio.LimitOverrunError:
        raise BadHttp("the headers are too long") from None
    request_line, *header_texts = head_bytes.decode("latin-1").split("\r\n")
    try:
        method, path, _ = request_line.split(" ")
    except ValueError:
        raise BadHttp("the request line is not valid HTTP/1.1") from None
    header_by_name = {
        header_name.strip().lower(): header_value.strip()
        for header_name, _, header_value in (header_text.partition(":") for header_text in header_texts if header_text)
    }
    if header_by_name.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return Request(method, path, header_by_name, await _read_body(reader, header_by_name), reader.at_eof)


async def _read_body(reader: asyncio.StreamReader, header_by_name: dict[str, str]) -> bytes:
    """Read the body of a request, sent with a length or in chunks."""
    if "chunked" not in header_by_name.get("transfer-encoding", "").lower():
        return await reader.readexactly(_check_size(int(header_by_name.get("content-length") or 0)))
    chunks: list[bytes] = []
    while chunk_size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        chunks.append(await reader.readexactly(_check_size(chunk_size)))
        _check_size(sum(map(len, chunks)))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return b"".join(chunks)


def _check_size(body_bytes: int) -> int:
    """Return the size. Raise `BadHttp` if it is negative or exceeds the limit."""
    if not 0 <= body_bytes <= MAX_BODY_BYTES:
        raise BadHttp(f"the body has more than {MAX_BODY_BYTES} bytes")
    return body_bytes


def _encode(response: Response) -> bytes:
    """Return the bytes of a response: status line, headers and body."""
    response_head = (
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(response.body)}\r\n\r\n"
    )
    return response_head.encode("latin-1") + response.body
