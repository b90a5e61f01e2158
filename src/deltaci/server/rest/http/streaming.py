"""An answer that is sent part by part, to somebody who may read slowly, or be gone."""

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
from deltaci.server.disk import Disk
from deltaci.server.request import Request, Send
from deltaci.server.rest.http.ranges import Bytes

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._\-]")
STALL_SECONDS: Final = 60.0  # Who takes nothing for so long is given up.


class Gone(Exception):
    """Nobody reads the answer any more."""


class Outlet:
    """Where an answer is sent. What was taken from it is not kept."""

    def __init__(self, send: Send, gone: asyncio.Task[None], request_id: str) -> None:
        self._send = send
        self._gone = gone
        self._request_id = request_id
        self.is_begun = False

    @property
    def is_gone(self) -> bool:
        """Whether whoever asked has hung up."""
        return self._gone.done()

    def when_gone(self, tell: Callable[[], None]) -> None:
        """Tell this when whoever asked hangs up."""
        self._gone.add_done_callback(lambda _: tell())

    async def begin(self, headers: Mapping[str, str], status: int = 200) -> None:
        """The head of the answer."""
        named = {REQUEST_ID_HEADER: self._request_id, **headers}
        told = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in named.items()]
        self.is_begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": told})

    async def write(self, data: bytes) -> None:
        """One part more, as soon as the part before is on its way."""
        if self._gone.done():
            raise Gone
        sent = self._send({"type": "http.response.body", "body": data, "more_body": True}).__await__()
        try:
            blocked = next(sent)
        except StopIteration:
            return  # As good as always; only who has to wait needs a timer.
        try:
            async with asyncio.timeout(STALL_SECONDS):
                await _rest(sent, blocked)
        except TimeoutError:
            raise Gone from None


@coroutine
def _rest(begun: Generator[Any, Any, Any], blocked: Any) -> Generator[Any, Any, None]:
    """Go on with what was begun, and waits."""
    while True:
        try:
            told = yield blocked
        except BaseException as error:
            step = partial(begun.throw, error)
        else:
            step = partial(begun.send, told)
        try:
            blocked = step()
        except StopIteration:
            return


@asynccontextmanager
async def sending(send: Send, request: Request) -> AsyncIterator[Outlet]:
    """An answer from its head to its end. One that fails breaks off, so that nobody takes half for the whole."""
    gone = asyncio.create_task(request.disconnected())
    out = Outlet(send, gone, request.id)
    try:
        yield out
        if out.is_begun:
            await send({"type": "http.response.body", "body": b""})
    except Gone:
        return
    finally:
        gone.cancel()


async def write_span(out: Outlet, span: Bytes, disk: Disk, read: Callable[[int], bytes]) -> None:
    """All bytes of a span, each part read once the one before is taken."""
    at = span.start
    while at < span.stop:
        part = await disk.do(partial(read, at))
        await out.write(part)
        at += len(part)


def disposition(name: str) -> str:
    """To be saved under this name: in plain letters for old clients, and as it is for others (RFC 6266)."""
    plain = _UNSAFE.sub("_", name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
