"""One address before many servers, as a deployment has it: whoever connects is led to one that answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Self

PIECE_BYTES = 65536


class Front:
    """Listens on a port of its own; `ports` says where the servers are now."""

    def __init__(self, ports: Callable[[], Sequence[int]]) -> None:
        self._ports = ports
        self._turn = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.is_open = True  # Whoever comes while it is not is sent away.
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._meet, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            behind = await self._reach()
            if behind is not None:
                await _join((reader, writer), behind)
        except asyncio.CancelledError:
            pass
        finally:
            writer.transport.abort()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """The next in turn that accepts a connection."""
        ports = list(self._ports()) if self.is_open else []
        first = next(self._turn)
        for step in range(len(ports)):
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", ports[(first + step) % len(ports)])
        return None


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _join(one: Ends, other: Ends) -> None:
    """Pass on both ways until either hangs up; then both are cut, as a crash of the server would."""
    ways = {asyncio.create_task(_pass(one[0], other[1])), asyncio.create_task(_pass(other[0], one[1]))}
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        other[1].transport.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
