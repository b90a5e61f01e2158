"""A load balancer: one address before several servers, as a deployment has it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress

from tests.support.listener import Listener

PIECE_BYTES = 65536


class LoadBalancer(Listener):
    """Listens on a port of its own and connects clients to the servers at `ports`, in turn."""

    def __init__(self, ports: Callable[[], Sequence[int]]) -> None:
        super().__init__()
        self._ports = ports
        self._turn = itertools.count()
        self.is_open = True  # While False, connections are closed at once.

    async def handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect the client to a server."""
        behind = await self._reach()
        if behind is not None:
            await _join((reader, writer), behind)

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Connect to the next server in turn that accepts a connection."""
        ports = list(self._ports()) if self.is_open else []
        first = next(self._turn)
        for step in range(len(ports)):
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", ports[(first + step) % len(ports)])
        return None


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _join(one: Ends, other: Ends) -> None:
    """Copy data both ways until one end closes; then abort both, as a crash of the server would."""
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
