"""The zygote: a small process from which supervisors of cells are forked, as starting an interpreter is slow.

It belongs to one runner and is started on first use. When it dies, its cells die, too, and the next cell starts a new
one. When the runner dies, so do the zygote and all of its cells. Its code is in `supervisor.py`.
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
MAX_REPLY_BYTES: Final = 1 << 16
MARKER_CHARS: Final = 32
UNKNOWN_EXIT: Final = -1  # The exit code of a guard whose zygote has died.


class Guard(Protocol):
    """The outermost process of a cell. Its exit with code 0 proves that no process of the cell is left."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """Return its exit code once it has ended."""

    async def startup_error(self) -> str:
        """Return its error output, if it did not start; may be empty."""


class ForkedGuard:
    """A guard that the zygote forked."""

    def __init__(self, pid: int, ended: asyncio.Future[int]) -> None:
        self.pid = pid
        self._ended = ended

    async def wait(self) -> int:
        """Return its exit code once it has ended."""
        return await asyncio.shield(self._ended)

    async def startup_error(self) -> str:
        """Return an empty string: it sends errors over the cell's own socket."""
        return ""


class Zygote:
    """The runner's connection to its zygote, for one event loop."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._socket: socket.socket | None = None
        self._listener: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._ready_future: asyncio.Future[None] | None = None
        self._forked: dict[str, asyncio.Future[int]] = {}
        self._ended: dict[str, asyncio.Future[int]] = {}

    async def fork_supervisor(
        self, marker: str, procs_files: Sequence[str], supervisor_socket: socket.socket
    ) -> ForkedGuard:
        """Fork a supervisor that serves this socket, has this marker, and joins these cgroups."""
        assert len(marker) == MARKER_CHARS, marker
        await self.start()
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        forked = self._forked[marker] = loop.create_future()
        ended = self._ended[marker] = loop.create_future()
        try:
            order = encode_order(marker, *procs_files)
            if socket.send_fds(self._socket, [order], [supervisor_socket.fileno()]) < len(order):
                raise OSError("its queue of orders is full")
            async with asyncio.timeout(START_SECONDS):
                return ForkedGuard(await forked, ended)
        except (OSError, TimeoutError) as error:
            self._ended.pop(marker, None)
            raise CellFailed(f"the zygote does not answer: {str(error) or 'timeout'}") from error
        finally:
            self._forked.pop(marker, None)

    async def start(self) -> None:
        """Start the zygote if it is not running."""
        async with self._starting:
            if self._listener is not None and not self._listener.done():
                return
            await self.close()
            runner_socket, child_socket = socket.socketpair()
            runner_socket.setblocking(False)
            with child_socket:
                self._process = await asyncio.create_subprocess_exec(
                    *(str(interpreter()), "-I", "-S", "-B", str(SCRIPT), "zygote"),
                    stdin=child_socket.fileno(),
                    stdout=asyncio.subprocess.DEVNULL,
                    env=environment(Path("/"), "0" * MARKER_CHARS, {}),
                    cwd="/",
                    start_new_session=True,
                )
            self._socket = runner_socket
            self._ready_future = asyncio.get_running_loop().create_future()
            self._listener = asyncio.create_task(self._listen(runner_socket, self._ready_future))
            await asyncio.wait(
                [self._ready_future, self._listener], timeout=START_SECONDS, return_when="FIRST_COMPLETED"
            )
            if not self._ready_future.done():
                await self.close()
                raise CellFailed("the zygote did not start; check whether the runner may start processes here")

    async def close(self) -> None:
        """End the zygote and all of its cells. Idempotent."""
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

    async def _listen(self, runner_socket: socket.socket, ready: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        pending = b""
        try:
            with contextlib.suppress(OSError):
                while data := await loop.sock_recv(runner_socket, MAX_REPLY_BYTES):
                    *lines, pending = (pending + data).split(b"\n")
                    for line in lines:
                        self._on_reply(line.decode(errors="replace"), ready)
        finally:
            for forked in self._forked.values():
                if not forked.done():
                    forked.set_exception(CellFailed("the zygote ended"))
            for ended in self._ended.values():
                ended.set_result(UNKNOWN_EXIT)
            self._ended.clear()

    def _on_reply(self, line: str, ready: asyncio.Future[None]) -> None:
        verb, _, rest = line.partition(" ")
        marker, _, details = rest.partition(" ")
        if verb == "ready":
            ready.set_result(None)
        elif verb == "ended":
            if (ended := self._ended.pop(marker, None)) is not None:
                ended.set_result(int(details))
        elif (forked := self._forked.get(marker)) is not None and not forked.done():
            if verb == "forked":
                forked.set_result(int(details))
            else:
                forked.set_exception(CellFailed(f"the zygote cannot fork a cell: {details}"))


def encode_order(*texts: str) -> bytes:
    """Return the bytes of an order for a supervisor or the zygote."""
    data = "\0".join(texts).encode(errors="surrogateescape")
    return len(data).to_bytes(supervisor.LENGTH_BYTES, "big") + data
