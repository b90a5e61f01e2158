"""The nursery: a small warm process from which the supervisors of cells are forked, as starting one anew is slow.

It belongs to one runner and is started when it is needed first. When it dies, so do its cells; the next cell gets a new
one. When the runner dies, the nursery does, and all of its cells with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from deltaci.runner.sandbox import supervisor
from deltaci.runner.sandbox.cell import CellFailed
from deltaci.runner.sandbox.environment import environment, interpreter

SCRIPT: Final = Path(supervisor.__file__)
START_SECONDS: Final = 20.0
MAX_ANSWER_BYTES: Final = 1 << 16
MARK_CHARS: Final = 32
UNKNOWN: Final = -1  # How a guard ended whose nursery is gone: nobody knows.


class Guard(Protocol):
    """The outermost process of a cell. Its exit with 0 proves that nobody is left behind it."""

    @property
    def pid(self) -> int:
        """Its number."""

    async def wait(self) -> int:
        """Its exit code, once it is gone."""

    async def complaint(self) -> str:
        """What it said when it did not start; empty when it said nothing."""


class Forked:
    """A guard that the nursery made."""

    def __init__(self, pid: int, gone: asyncio.Future[int]) -> None:
        self.pid = pid
        self._gone = gone

    async def wait(self) -> int:
        """Its exit code, once it is gone."""
        return await asyncio.shield(self._gone)

    async def complaint(self) -> str:
        """It complains to the cell itself."""
        return ""


class Zygote:
    """One warm process, for one event loop."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._socket: socket.socket | None = None
        self._listener: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._ready: asyncio.Future[None] | None = None
        self._born: dict[str, asyncio.Future[int]] = {}
        self._gone: dict[str, asyncio.Future[int]] = {}

    async def fork_supervisor(self, mark: str, groups: Sequence[str], theirs: socket.socket) -> Forked:
        """A fresh supervisor at the other end of this socket, with this mark, in these groups."""
        assert len(mark) == MARK_CHARS, mark
        await self.start()
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        born = self._born[mark] = loop.create_future()
        gone = self._gone[mark] = loop.create_future()
        try:
            order = framed(mark, *groups)
            if socket.send_fds(self._socket, [order], [theirs.fileno()]) < len(order):
                raise OSError("it has too many orders")
            async with asyncio.timeout(START_SECONDS):
                return Forked(await born, gone)
        except (OSError, TimeoutError) as error:
            self._gone.pop(mark, None)
            raise CellFailed(f"the nursery of cells does not answer: {str(error) or 'it takes too long'}") from error
        finally:
            self._born.pop(mark, None)

    async def start(self) -> None:
        """Have it ready. Safe to repeat."""
        async with self._starting:
            if self._listener is not None and not self._listener.done():
                return
            await self.close()
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *(str(interpreter()), "-I", "-S", "-B", str(SCRIPT), "nursery"),
                    stdin=theirs.fileno(),
                    stdout=asyncio.subprocess.DEVNULL,
                    env=environment(Path("/"), "0" * MARK_CHARS, {}),
                    cwd="/",
                    start_new_session=True,
                )
            self._socket = ours
            self._ready = asyncio.get_running_loop().create_future()
            self._listener = asyncio.create_task(self._listen(ours, self._ready))
            await asyncio.wait([self._ready, self._listener], timeout=START_SECONDS, return_when="FIRST_COMPLETED")
            if not self._ready.done():
                await self.close()
                raise CellFailed("the nursery of cells did not start; look whether the runner may start processes here")

    async def close(self) -> None:
        """No more cells, and an end to all of them. Safe to repeat."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            await self._process.wait()
            self._process = None

    async def _listen(self, ours: socket.socket, ready: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        pending = b""
        try:
            with contextlib.suppress(OSError):
                while data := await loop.sock_recv(ours, MAX_ANSWER_BYTES):
                    *lines, pending = (pending + data).split(b"\n")
                    for line in lines:
                        self._hear(line.decode(errors="replace"), ready)
        finally:
            for born in self._born.values():
                if not born.done():
                    born.set_exception(CellFailed("the nursery of cells ended"))
            for gone in self._gone.values():
                gone.set_result(UNKNOWN)
            self._gone.clear()

    def _hear(self, line: str, ready: asyncio.Future[None]) -> None:
        verb, _, rest = line.partition(" ")
        mark, _, told = rest.partition(" ")
        if verb == "ready":
            ready.set_result(None)
        elif verb == "gone":
            if (gone := self._gone.pop(mark, None)) is not None:
                gone.set_result(int(told))
        elif (born := self._born.get(mark)) is not None and not born.done():
            if verb == "born":
                born.set_result(int(told))
            else:
                born.set_exception(CellFailed(f"no cell could be made: {told}"))


def framed(*texts: str) -> bytes:
    """An order for a supervisor or a nursery."""
    data = "\0".join(texts).encode(errors="surrogateescape")
    return len(data).to_bytes(supervisor.LENGTH_BYTES, "big") + data
