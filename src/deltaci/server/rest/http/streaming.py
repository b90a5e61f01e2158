"""Responses that are sent in chunks to a client that may read slowly or disconnect."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import coroutine
from typing import Any, Final
from urllib.parse import quote

from deltaci.api.routes import REQUEST_ID_HEADER
from deltaci.server.disk import DiskThreads
from deltaci.server.request import Request, Send
from deltaci.server.rest.http.ranges import ByteRange

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._\-]")
STALL_SECONDS: Final = 60.0  # A client that reads nothing for this long is disconnected.


class ClientDisconnected(Exception):
    """The client has disconnected or has stopped reading."""


class ResponseStream:
    """Sends the head and then the chunks of the body of a response. Buffers nothing."""

    def __init__(self, send: Send, disconnect_task: asyncio.Task[None], request_id: str) -> None:
        self._send = send
        self._disconnect_task = disconnect_task
        self._request_id = request_id
        self.is_started = False

    @property
    def is_disconnected(self) -> bool:
        """Return True if the client has closed the connection."""
        return self._disconnect_task.done()

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the client closes the connection, or else at the end of the response."""
        self._disconnect_task.add_done_callback(lambda _: callback())

    async def start(self, headers: Mapping[str, str], status: int = 200) -> None:
        """Send the status and the headers."""
        all_headers = {REQUEST_ID_HEADER: self._request_id, **headers}
        raw_headers = [
            (header_name.lower().encode(), header_value.encode("latin-1", "replace"))
            for header_name, header_value in all_headers.items()
        ]
        self.is_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": raw_headers})

    async def write(self, chunk: bytes) -> None:
        """Send a chunk of the body, waiting while the send buffer is full.

        Raise ClientDisconnected if the client has closed the connection or reads nothing for STALL_SECONDS.
        """
        if self._disconnect_task.done():
            raise ClientDisconnected
        send_steps = self._send({"type": "http.response.body", "body": chunk, "more_body": True}).__await__()
        try:
            awaited_value = next(send_steps)
        except StopIteration:
            return  # The common case: sent without blocking, so no timer is needed.
        try:
            async with asyncio.timeout(STALL_SECONDS):
                await _resume(send_steps, awaited_value)
        except TimeoutError:
            raise ClientDisconnected from None


@coroutine
def _resume(coroutine: Generator[Any, Any, Any], awaited_value: Any) -> Generator[Any, Any, None]:
    """Run a coroutine to its end. It was started with `next` before and has yielded `awaited_value`."""
    while True:
        try:
            awaited_result = yield awaited_value
        except BaseException as error:
            next_step = partial(coroutine.throw, error)
        else:
            next_step = partial(coroutine.send, awaited_result)
        try:
            awaited_value = next_step()
        except StopIteration:
            return


@asynccontextmanager
async def open_response(send: Send, request: Request) -> AsyncIterator[ResponseStream]:
    """Yield a stream for the response and end its body afterwards.

    After an exception the body is not ended, so that the client sees a broken connection and no complete response.
    """
    disconnect_task = asyncio.create_task(request.wait_for_disconnect())
    out = ResponseStream(send, disconnect_task, request.id)
    try:
        yield out
        if out.is_started:
            await send({"type": "http.response.body", "body": b""})
    except ClientDisconnected:
        return
    finally:
        disconnect_task.cancel()


async def write_range(
    out: ResponseStream, byte_range: ByteRange, disk: DiskThreads, read: Callable[[int], bytes]
) -> None:
    """Write all bytes of a range. `read(offset)` returns the next chunk, after the previous one was sent."""
    offset = byte_range.start
    while offset < byte_range.stop:
        chunk = await disk.run(partial(read, offset))
        await out.write(chunk)
        offset += len(chunk)


def content_disposition(file_name: str) -> str:
    """Return a Content-Disposition header (RFC 6266) that saves a file under this name.

    `filename` has only safe ASCII characters, for old clients; `filename*` has the exact name.
    """
    ascii_name = _UNSAFE.sub("_", file_name)
    return f"attachment; filename=\"{ascii_name}\"; filename*=UTF-8''{quote(file_name, safe='')}"
