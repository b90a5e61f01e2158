"""A cell around a supervisor: what the process executor and the sandbox share.

The supervisor holds the job together until the end. Orders go to it over a socket pair; the output of a step comes
back through a pipe of its own, so a leftover that keeps it open hinders nobody. When the runner hangs up, the
supervisor ends everybody and then itself: that is how a cell is closed, and the exit of its guard is the proof. Only
when that does not come, or not as it should, are the job's processes searched for, on the whole machine.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import os
import secrets
import signal
import socket
import termios
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from deltaci.core.errors import InvariantBroken, Refused
from deltaci.protocol.messages import Limits
from deltaci.runner.sandbox import cgroups, process_tree, supervisor
from deltaci.runner.sandbox.cell import SHELL, CellFailed, Exit
from deltaci.runner.sandbox.environment import environment
from deltaci.runner.sandbox.process_tree import JobHandle
from deltaci.runner.sandbox.zygote import MARK_CHARS, START_SECONDS, Guard, framed

KILL_SECONDS: Final = 5.0
HANG_UP_SECONDS: Final = 2.0  # How long a supervisor may take to end everybody before they are searched for.
TIMEOUT_GRACE_SECONDS: Final = 2.0  # From the TERM to a step that took too long to its KILL.
LINGER_SECONDS: Final = 0.5  # How long output is awaited after the step's exit, while somebody keeps the pipe open.
MAX_READ_BYTES: Final = 1 << 18
MAX_ANSWER_BYTES: Final = 1 << 16

# How a step ended, a signal as a negative number; and the seconds of CPU and the bytes of memory that were used.
StepReport = tuple[int, tuple[float | None, int | None]]
KILLED: Final[StepReport] = (-signal.SIGKILL, (None, None))

Launch = Callable[[str, cgroups.Groups, socket.socket], Awaitable[Guard]]
"""Starts a supervisor: with this mark, in these groups, at the other end of this socket."""


class Output:
    """The reading end of one step's output. Read to its end even when nobody listens, or writers would be killed."""

    def __init__(self, deliver: Callable[[bytes], None]) -> None:
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[None] = self._loop.create_future()
        self._read, self.write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read, False)
        self._loop.add_reader(self._read, self._pump)

    def _pump(self, limit: int = MAX_READ_BYTES) -> int:
        try:
            data = os.read(self._read, limit)
        except BlockingIOError:
            return 0
        if data:
            self._deliver(data)
        else:
            self.close()
        return len(data)

    async def finish(self) -> None:
        """Deliver all that is written by now, and what follows within a moment."""
        if not self._end.done():
            written = array.array("i", [0])
            fcntl.ioctl(self._read, termios.FIONREAD, written)
            left = written[0]
            while left > 0 and not self._end.done():
                left -= self._pump(min(left, MAX_READ_BYTES))
        await asyncio.wait([self._end], timeout=LINGER_SECONDS)

    def close(self) -> None:
        """No more of it. Safe to repeat."""
        if not self._end.done():
            self._loop.remove_reader(self._read)
            os.close(self._read)
            self._end.set_result(None)


class SupervisedCell:
    """One job under one supervisor. `launch` starts it, in whatever contains it."""

    def __init__(
        self,
        *,
        title: str,
        workspace: Path,
        groups: Callable[[str], cgroups.Groups],
        launch: Launch,
        rlimits: Callable[[cgroups.Groups], dict[str, int]],
        limits: Limits,
        has_walls: bool,
    ) -> None:
        self._marker = secrets.token_hex(MARK_CHARS // 2)
        self._workspace = workspace
        self._groups = groups(cgroups.name_for(self._marker))
        self._rlimits = rlimits(self._groups)
        self._launch = launch
        self._has_walls = has_walls
        self.description = f"{title}; {describe_limits(limits, self._groups, self._rlimits)}"
        self._handle = JobHandle(marker=self._marker, cgroup=self._groups.tracker)
        self._guard: Guard | None = None
        self._socket: socket.socket | None = None
        self._listener: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[int] | None = None
        self._exit: asyncio.Future[StepReport] | None = None
        self._own: frozenset[int] = frozenset()  # The processes that are ours: the supervisor and what is around it.
        self._outputs: list[Output] = []
        self._on_output: Callable[[bytes], None] | None = None
        self._was_struck = False  # Whether it was us who had to kill the supervisor.
        self._over = asyncio.Event()  # Nothing more is started.

    @property
    def handle(self) -> JobHandle:
        """How to find the job's processes now."""
        return self._handle

    async def open(self) -> None:
        """Start the supervisor; see `Cell.open`."""
        if self._guard is None and not self._over.is_set():
            await self._start()

    async def run(
        self,
        script: str,
        *,
        env: dict[str, str],
        workdir: Path,
        timeout_seconds: float,
        on_output: Callable[[bytes], None],
        shell: tuple[str, ...] = SHELL,
    ) -> Exit:
        """Run one step; see `Cell.run`. Output of earlier steps' leftovers goes to the step that runs meanwhile."""
        if self._exit is not None:
            raise InvariantBroken("a cell runs one step at a time, but a second one was started")
        variables = environment(self._workspace, self._marker, env)
        order = [
            *(str(workdir), str(len(shell) + 1), str(len(variables)), *shell, script),
            *(f"{name}={value}" for name, value in (*variables.items(), *self._rlimits.items())),
        ]
        if any("\0" in text for text in order):
            raise Refused("bad_spec", "the step or its environment has a NUL character, which no command can have")
        began = time.monotonic()
        killed = Exit(None, int(signal.SIGKILL), 0.0)
        if self._over.is_set():
            return killed
        self._exit = asyncio.get_running_loop().create_future()
        self._on_output = on_output
        try:
            if self._guard is None:
                await self._start()
            if self._over.is_set():  # Stopped while it started, and maybe before there was anybody to kill.
                await self._end()
                return killed
            output = Output(self._deliver)
            self._outputs.append(output)
            await self._order(output.write, "run", *order)
            told, is_timed_out = await self._await_exit(timeout_seconds)
            seconds = time.monotonic() - began
            await output.finish()
            code, used = told
            signaled = -code if code < 0 else None
            return Exit(code if code >= 0 else None, signaled, seconds, is_timed_out, *used)
        finally:
            self._exit = None
            self._on_output = None

    async def stop(self, grace_seconds: float) -> bool:
        """Ask, wait, kill; see `Cell.stop`."""
        self._over.set()
        if grace_seconds > 0:
            await asyncio.to_thread(process_tree.terminate, self._handle, grace_seconds, self._own)
        return await self._end()

    async def close(self) -> bool:
        """End of the job; see `Cell.close`."""
        self._over.set()
        is_empty = await self._end()
        if is_empty:
            await asyncio.to_thread(self._groups.remove)
        for output in self._outputs:
            output.close()
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
        return is_empty

    async def _end(self) -> bool:
        """Kill everybody. What cannot be proved is not claimed."""
        code = await self._hang_up()
        if code == 0 and not await asyncio.to_thread(process_tree.in_cgroup, self._handle):
            return True
        self._was_struck = self._was_struck or code is None
        left = await asyncio.to_thread(process_tree.kill_all, self._handle, KILL_SECONDS)
        # Somebody else killed the guard before us, and neither wall nor cgroup held the job: who knows who left?
        is_blind = not (self._was_struck or self._has_walls or self._groups.tracker)
        return not left and not is_blind

    async def _hang_up(self) -> int | None:
        """Let the supervisor end everybody and itself; the guard's exit code, or None when that takes too long."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
        if self._guard is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HANG_UP_SECONDS):
                    return await self._guard.wait()
        return None

    # -- the supervisor

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._ready = asyncio.get_running_loop().create_future()
        self._socket = ours
        with theirs:
            self._guard = await self._launch(self._marker, self._groups, theirs)
        self._handle = JobHandle(marker=self._marker, root_pids=(self._guard.pid,), cgroup=self._groups.tracker)
        self._listener = asyncio.create_task(self._listen(ours))
        await asyncio.wait([self._ready], timeout=START_SECONDS)
        if not self._ready.done() or self._ready.exception() is not None:
            if self._over.is_set():
                return
            self._over.set()
            raise CellFailed(f"the cell did not start: {await self._complaint()}")
        if self._has_walls:
            # No step has run yet, so whoever is there now is ours and not the job's.
            self._own = frozenset(await asyncio.to_thread(process_tree.members, self._handle))
        else:
            self._own = frozenset((self._guard.pid, self._ready.result()))

    async def _complaint(self) -> str:
        await self._end()
        said = await self._guard.complaint() if self._guard is not None else ""
        if not said and self._ready is not None and self._ready.done():
            said = str(self._ready.exception())
        said = said or "no word from its supervisor"
        return f"{said}; look whether the runner may start processes here, or choose another executor"

    async def _listen(self, ours: socket.socket) -> None:
        """Take the supervisor's answers until it is gone; then whatever was awaited has been killed."""
        loop = asyncio.get_running_loop()
        pending = b""
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(ours, MAX_ANSWER_BYTES):
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self._hear(line.decode(errors="replace"))
        if self._ready is not None and not self._ready.done():
            self._fail("the supervisor ended")
        self._over.set()
        self._exited(KILLED)

    def _hear(self, answer: str) -> None:
        verb, _, told = answer.partition(" ")
        if verb == "exit":
            code, cpu_seconds, peak = told.split()
            self._exited((int(code), (float(cpu_seconds), int(peak))))
        elif self._ready is not None and not self._ready.done():
            if verb == "ready":
                self._ready.set_result(int(told))
            else:
                self._fail(told)

    def _exited(self, told: StepReport) -> None:
        if self._exit is not None and not self._exit.done():
            self._exit.set_result(told)

    def _fail(self, why: str) -> None:
        assert self._ready is not None
        self._ready.set_exception(CellFailed(why))
        self._ready.exception()  # Seen: who waits for it may have given up.

    async def _order(self, file: int | None, *texts: str) -> None:
        """Send it. When nobody listens any more the exit says so, not this."""
        if self._socket is None:
            return
        data = framed(*texts)
        head = data[: supervisor.LENGTH_BYTES]
        try:
            # The first bytes carry the descriptor; the socket is empty between orders, so they always fit.
            socket.send_fds(self._socket, [head], [file] if file is not None else [])
            await asyncio.get_running_loop().sock_sendall(self._socket, data[len(head) :])
        except OSError:
            return
        finally:
            if file is not None:
                os.close(file)

    async def _await_exit(self, timeout_seconds: float) -> tuple[StepReport, bool]:
        if self._exit is None:
            raise InvariantBroken("an exit is awaited, but no step was started")
        await asyncio.wait([self._exit], timeout=timeout_seconds or None)
        if self._exit.done():
            return self._exit.result(), False
        await self._order(None, "signal", str(int(signal.SIGTERM)))
        await asyncio.wait([self._exit], timeout=TIMEOUT_GRACE_SECONDS)
        await self._order(None, "signal", str(int(signal.SIGKILL)))
        await asyncio.wait([self._exit], timeout=KILL_SECONDS)
        if not self._exit.done():  # It hangs in the kernel, or hindered its supervisor: nothing more runs in here.
            self._over.set()
            await self._end()
            return KILLED, True
        return self._exit.result(), True

    def _deliver(self, data: bytes) -> None:
        if self._on_output is not None:
            self._on_output(data)


def describe_limits(limits: Limits, groups: cgroups.Groups, rlimits: dict[str, int]) -> str:
    """Which limits hold and which do not, in words."""
    words = []
    for controller, rlimit, value, text in (
        ("memory", "RLIMIT_DATA", limits.memory_bytes, f"memory {limits.memory_bytes} bytes"),
        ("pids", "RLIMIT_NPROC", limits.processes, f"{limits.processes} processes"),
        ("cpu", "", limits.cpus, f"{limits.cpus:g} CPUs"),
    ):
        if not value:
            continue
        if controller in groups.in_force:
            words.append(f"{text} (cgroup)")
        elif rlimit in rlimits:
            words.append(f"{text} (rlimit{', each process' if controller == 'memory' else ''})")
        else:
            words.append(f"{text} NOT in force, as no {controller} cgroup can be had here")
    tracked = "tracked by a cgroup" if groups.tracker else "tracked without a cgroup"
    return f"limits: {', '.join(words) or 'none asked for'}; {tracked}"
