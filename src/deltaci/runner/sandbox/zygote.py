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

    def __init__(self, pid: int, exit_future: asyncio.Future[int]) -> None:
        self.pid = pid
        self._exit_future = exit_future

    async def wait(self) -> int:
        """Return its exit code once it has ended."""
        return await asyncio.shield(self._exit_future)

    async def startup_error(self) -> str:
        """Return an empty string: it sends errors over the cell's own socket."""
        return ""


class Zygote:
    """The runner's connection to its zygote, for one event loop."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._socket: socket.socket | None = None
        self._listen_task: asyncio.Task[None] | None = None
        self._start_lock = asyncio.Lock()
        self._ready_future: asyncio.Future[None] | None = None
        self._fork_futures: dict[str, asyncio.Future[int]] = {}
        self._guard_exit_futures: dict[str, asyncio.Future[int]] = {}

    async def fork_supervisor(
        self, marker: str, procs_files: Sequence[str], supervisor_socket: socket.socket
    ) -> ForkedGuard:
        """Fork a supervisor that serves this socket, has this marker, and joins these cgroups."""
        assert len(marker) == MARKER_CHARS, marker
        await self.start()
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        fork_future = self._fork_futures[marker] = loop.create_future()
        guard_exit_future = self._guard_exit_futures[marker] = loop.create_future()
        try:
            order = encode_order(marker, *procs_files)
            if socket.send_fds(self._socket, [order], [supervisor_socket.fileno()]) < len(order):
                raise OSError("its queue of orders is full")
            async with asyncio.timeout(START_SECONDS):
                return ForkedGuard(await fork_future, guard_exit_future)
        except (OSError, TimeoutError) as error:
            self._guard_exit_futures.pop(marker, None)
            raise CellFailed(f"the zygote does not answer: {str(error) or 'timeout'}") from error
        finally:
            self._fork_futures.pop(marker, None)

    async def start(self) -> None:
        """Start the zygote if it is not running."""
        async with self._start_lock:
            if self._listen_task is not None and not self._listen_task.done():
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
            self._listen_task = asyncio.create_task(self._listen(runner_socket, self._ready_future))
            await asyncio.wait(
                [self._ready_future, self._listen_task], timeout=START_SECONDS, return_when="FIRST_COMPLETED"
            )
            if not self._ready_future.done():
                await self.close()
                raise CellFailed("the zygote did not start; check whether the runner may start processes here")

    async def close(self) -> None:
        """End the zygote and all of its cells. Idempotent."""
        if self._listen_task is not None:
            self._listen_task.cancel()
            await asyncio.gather(self._listen_task, return_exceptions=True)
            self._listen_task = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            await self._process.wait()
            self._process = None

    async def _listen(self, runner_socket: socket.socket, ready_future: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        unfinished_bytes = b""
        try:
            with contextlib.suppress(OSError):
                while chunk := await loop.sock_recv(runner_socket, MAX_REPLY_BYTES):
                    *reply_lines, unfinished_bytes = (unfinished_bytes + chunk).split(b"\n")
                    for line in reply_lines:
                        self._on_reply(line.decode(errors="replace"), ready_future)
        finally:
            for fork_future in self._fork_futures.values():
                if not fork_future.done():
                    fork_future.set_exception(CellFailed("the zygote ended"))
            for guard_exit_future in self._guard_exit_futures.values():
                guard_exit_future.set_result(UNKNOWN_EXIT)
            self._guard_exit_futures.clear()

    def _on_reply(self, reply: str, ready_future: asyncio.Future[None]) -> None:
        """Process one line from the zygote: that it is ready, or that a supervisor was forked or has ended."""
        verb, _, reply_arguments = reply.partition(" ")
        marker, _, details = reply_arguments.partition(" ")
        if verb == "ready":
            ready_future.set_result(None)
        elif verb == "ended":
            if (guard_exit_future := self._guard_exit_futures.pop(marker, None)) is not None:
                guard_exit_future.set_result(int(details))
        elif (fork_future := self._fork_futures.get(marker)) is not None and not fork_future.done():
            if verb == "forked":
                fork_future.set_result(int(details))
            else:
                fork_future.set_exception(CellFailed(f"the zygote cannot fork a cell: {details}"))


def encode_order(*texts: str) -> bytes:
    """Return the bytes of an order for a supervisor or the zygote."""
    encoded_texts = "\0".join(texts).encode(errors="surrogateescape")
    return len(encoded_texts).to_bytes(supervisor.LENGTH_BYTES, "big") + encoded_texts
