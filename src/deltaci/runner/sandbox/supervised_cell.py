"""A cell whose processes are children of a supervisor: shared by the process executor and the sandbox.

The supervisor starts the steps and adopts their orphans. It receives orders over a socket pair; each step writes its
output into its own pipe, so that a leftover process that keeps the pipe open delays nothing. To close the cell, the
runner closes its end of the socket: the supervisor then kills all descendants and exits, and an exit of its guard with
code 0 proves that none is left. Without that proof, the job's processes are searched on the whole machine.
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
from deltaci.runner.sandbox.zygote import MARKER_CHARS, START_SECONDS, Guard, encode_order

KILL_SECONDS: Final = 5.0
SHUTDOWN_SECONDS: Final = 2.0  # For the supervisor to end all processes, before they are searched.
TIMEOUT_GRACE_SECONDS: Final = 2.0  # Between SIGTERM and SIGKILL to a step that took too long.
OUTPUT_GRACE_SECONDS: Final = 0.5  # For output after the step's exit, while a leftover keeps the pipe open.
MAX_READ_BYTES: Final = 1 << 18
MAX_REPLY_BYTES: Final = 1 << 16

# The exit code of a step, negative for a signal, and its CPU seconds and peak memory in bytes.
StepReport = tuple[int, tuple[float | None, int | None]]
KILLED: Final[StepReport] = (-signal.SIGKILL, (None, None))

Launch = Callable[[str, cgroups.Groups, socket.socket], Awaitable[Guard]]
"""Starts a supervisor with this marker, in these cgroups, at the other end of this socket."""


class StepOutput:
    """Reads the output of one step to its end, even if it is not delivered: a closed pipe would kill its writers."""

    def __init__(self, deliver: Callable[[bytes], None]) -> None:
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._end_future: asyncio.Future[None] = self._loop.create_future()
        self._read, self.write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read, False)
        self._loop.add_reader(self._read, self._pump)

    def _pump(self, max_bytes: int = MAX_READ_BYTES) -> int:
        """Deliver the output that can be read at once, up to a maximum. Return its size."""
        try:
            chunk = os.read(self._read, max_bytes)
        except BlockingIOError:
            return 0
        if chunk:
            self._deliver(chunk)
        else:
            self.close()
        return len(chunk)

    async def finish(self) -> None:
        """Deliver all that has been written so far, and wait a moment for more."""
        if not self._end_future.done():
            available_bytes = array.array("i", [0])
            fcntl.ioctl(self._read, termios.FIONREAD, available_bytes)
            remaining_bytes = available_bytes[0]
            while remaining_bytes > 0 and not self._end_future.done():
                remaining_bytes -= self._pump(min(remaining_bytes, MAX_READ_BYTES))
        await asyncio.wait([self._end_future], timeout=OUTPUT_GRACE_SECONDS)

    def close(self) -> None:
        """Stop reading. Idempotent."""
        if not self._end_future.done():
            self._loop.remove_reader(self._read)
            os.close(self._read)
            self._end_future.set_result(None)


class SupervisedCell:
    """One job below one supervisor, which `launch` starts."""

    def __init__(
        self,
        *,
        title: str,
        workspace: Path,
        groups: Callable[[str], cgroups.Groups],
        launch: Launch,
        rlimits: Callable[[cgroups.Groups], dict[str, int]],
        limits: Limits,
        is_isolated: bool,
    ) -> None:
        self._marker = secrets.token_hex(MARKER_CHARS // 2)
        self._workspace = workspace
        self._groups = groups(cgroups.name_for(self._marker))
        self._rlimits = rlimits(self._groups)
        self._launch = launch
        self._is_isolated = is_isolated
        self.description = f"{title}; {describe_limits(limits, self._groups, self._rlimits)}"
        self._handle = JobHandle(marker=self._marker, cgroup=self._groups.tracker)
        self._guard: Guard | None = None
        self._socket: socket.socket | None = None
        self._listen_task: asyncio.Task[None] | None = None
        self._started_pid_future: asyncio.Future[int] | None = None
        self._exit_future: asyncio.Future[StepReport] | None = None
        # Not the job's: the supervisor and its guard or sandbox.
        self._infrastructure_pids: frozenset[int] = frozenset()
        self._step_outputs: list[StepOutput] = []
        self._on_output: Callable[[bytes], None] | None = None
        self._lease_order: tuple[float, int] | None = None  # For the supervisor: the deadline and the FIFO of renewals.
        self.is_lease_over = False
        self._was_killed_here = False  # Whether the runner had to kill the supervisor.
        self._is_stopping = asyncio.Event()  # Then nothing more is started.

    @property
    def handle(self) -> JobHandle:
        """Return the data that finds the job's processes now."""
        return self._handle

    async def open(self) -> None:
        """Start the supervisor; see `Cell.open`."""
        if self._guard is None and not self._is_stopping.is_set():
            await self._start_supervisor()

    async def bind_lease(self, deadline: float, renewals_path: Path) -> None:
        """Make the supervisor end the job with its lease; see `Cell.bind_lease`."""
        self._lease_order = (deadline, os.open(renewals_path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        if self._guard is not None:
            await self._send_lease()

    async def keep_open(self, descriptor: int) -> None:
        """Move a descriptor into the supervisor, whose end closes it. Starts the supervisor if none runs."""
        await self.open()
        await self._send_order(descriptor, "keep_open")

    async def _send_lease(self) -> None:
        if self._lease_order is not None:
            (deadline, renewals), self._lease_order = self._lease_order, None
            await self._send_order(renewals, "lease", str(deadline))

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
        """Run one step; see `Cell.run`. Output of leftovers of earlier steps goes to the current step."""
        if self._exit_future is not None:
            raise InvariantBroken("a cell runs one step at a time, but a second one was started")
        variables = environment(self._workspace, self._marker, env)
        order = [
            *(str(workdir), str(len(shell) + 1), str(len(variables)), *shell, script),
            *(f"{variable}={value}" for variable, value in variables.items()),
            *(f"{limit_name}={limit}" for limit_name, limit in self._rlimits.items()),
        ]
        if any("\0" in order_text for order_text in order):
            raise Refused("bad_spec", "the step or its environment has a NUL character, which no command can have")
        started_at = time.monotonic()
        killed_exit = Exit(None, int(signal.SIGKILL), 0.0)
        if self._is_stopping.is_set():
            return killed_exit
        self._exit_future = asyncio.get_running_loop().create_future()
        self._on_output = on_output
        try:
            if self._guard is None:
                await self._start_supervisor()
            if self._is_stopping.is_set():  # Stopped during the start, possibly before any process existed.
                await self._end_processes()
                return killed_exit
            step_output = StepOutput(self._deliver)
            self._step_outputs.append(step_output)
            await self._send_order(step_output.write, "run", *order)
            report, is_timed_out = await self._await_exit(timeout_seconds)
            elapsed_seconds = time.monotonic() - started_at
            await step_output.finish()
            exit_code, cpu_and_memory = report
            signal_number = -exit_code if exit_code < 0 else None
            return Exit(
                exit_code if exit_code >= 0 else None, signal_number, elapsed_seconds, is_timed_out, *cpu_and_memory
            )
        finally:
            self._exit_future = None
            self._on_output = None

    async def stop(self, grace_seconds: float) -> bool:
        """Terminate, wait and kill; see `Cell.stop`."""
        self._is_stopping.set()
        if grace_seconds > 0:
            await asyncio.to_thread(process_tree.terminate, self._handle, grace_seconds, self._infrastructure_pids)
        return await self._end_processes()

    async def close(self) -> bool:
        """Kill the remaining processes and clean up; see `Cell.close`."""
        self._is_stopping.set()
        is_empty = await self._end_processes()
        if is_empty:
            await asyncio.to_thread(self._groups.remove)
        for step_output in self._step_outputs:
            step_output.close()
        if self._lease_order is not None:
            os.close(self._lease_order[1])
            self._lease_order = None
        if self._listen_task is not None:
            self._listen_task.cancel()
            await asyncio.gather(self._listen_task, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
        return is_empty

    async def _end_processes(self) -> bool:
        """Kill all processes of the job. Return True only if it is proved that none is left."""
        guard_exit_code = await self._shut_down()
        if guard_exit_code == 0 and not await asyncio.to_thread(process_tree.in_cgroup, self._handle):
            return True
        self._was_killed_here = self._was_killed_here or guard_exit_code is None
        remaining_pids = await asyncio.to_thread(process_tree.kill_all, self._handle, KILL_SECONDS)
        # Another process killed the guard, and neither isolation nor a cgroup contained the job: some may have escaped.
        is_blind = not (self._was_killed_here or self._is_isolated or self._groups.tracker)
        return not remaining_pids and not is_blind

    async def _shut_down(self) -> int | None:
        """Let the supervisor end all processes. Return the guard's exit code, or None if that takes too long."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
        if self._guard is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SHUTDOWN_SECONDS):
                    return await self._guard.wait()
        return None

    # -- the supervisor

    async def _start_supervisor(self) -> None:
        """Start the supervisor and bind the lease to it. Raise `CellFailed` if it does not become ready in time."""
        runner_socket, supervisor_socket = socket.socketpair()
        runner_socket.setblocking(False)
        self._started_pid_future = asyncio.get_running_loop().create_future()
        self._socket = runner_socket
        with supervisor_socket:
            self._guard = await self._launch(self._marker, self._groups, supervisor_socket)
        self._handle = JobHandle(marker=self._marker, root_pids=(self._guard.pid,), cgroup=self._groups.tracker)
        self._listen_task = asyncio.create_task(self._listen(runner_socket))
        await asyncio.wait([self._started_pid_future], timeout=START_SECONDS)
        if not self._started_pid_future.done() or self._started_pid_future.exception() is not None:
            if self._is_stopping.is_set():
                return
            self._is_stopping.set()
            raise CellFailed(f"the cell did not start: {await self._startup_error()}")
        await self._send_lease()
        if self._is_isolated:
            # No step has run yet, so no process is the job's.
            self._infrastructure_pids = frozenset(await asyncio.to_thread(process_tree.members, self._handle))
        else:
            self._infrastructure_pids = frozenset((self._guard.pid, self._started_pid_future.result()))

    async def _startup_error(self) -> str:
        await self._end_processes()
        error_text = await self._guard.startup_error() if self._guard is not None else ""
        if not error_text and self._started_pid_future is not None and self._started_pid_future.done():
            error_text = str(self._started_pid_future.exception())
        error_text = error_text or "no reply from its supervisor"
        return f"{error_text}; check whether the runner may start processes here, or choose another executor"

    async def _listen(self, runner_socket: socket.socket) -> None:
        """Process the supervisor's replies until it has ended; then report a step in progress as killed."""
        loop = asyncio.get_running_loop()
        unfinished_bytes = b""
        with contextlib.suppress(OSError):
            while chunk := await loop.sock_recv(runner_socket, MAX_REPLY_BYTES):
                *reply_lines, unfinished_bytes = (unfinished_bytes + chunk).split(b"\n")
                for line in reply_lines:
                    self._on_reply(line.decode(errors="replace"))
        if self._started_pid_future is not None and not self._started_pid_future.done():
            self._fail_start("the supervisor ended")
        self._is_stopping.set()
        self._on_exit(KILLED)

    def _on_reply(self, reply: str) -> None:
        """Process one line from the supervisor: that it is ready, that a step exited or that the lease is over."""
        verb, _, report = reply.partition(" ")
        if verb == "exit":
            exit_code, cpu_seconds, peak_memory_bytes = report.split()
            self._on_exit((int(exit_code), (float(cpu_seconds), int(peak_memory_bytes))))
        elif verb == "lease_over":
            self.is_lease_over = True
        elif self._started_pid_future is not None and not self._started_pid_future.done():
            if verb == "ready":
                self._started_pid_future.set_result(int(report))
            else:
                self._fail_start(report)

    def _on_exit(self, report: StepReport) -> None:
        if self._exit_future is not None and not self._exit_future.done():
            self._exit_future.set_result(report)

    def _fail_start(self, reason: str) -> None:
        assert self._started_pid_future is not None
        self._started_pid_future.set_exception(CellFailed(reason))
        self._started_pid_future.exception()  # Marks it as retrieved: the waiter may have timed out.

    async def _send_order(self, descriptor: int | None, *texts: str) -> None:
        """Send an order with an optional descriptor. A lost connection is reported as the exit, not here."""
        if self._socket is None:
            return
        framed_order = encode_order(*texts)
        length_bytes = framed_order[: supervisor.LENGTH_BYTES]
        try:
            # The first bytes carry the descriptor. The socket buffer is empty between orders, so they always fit.
            socket.send_fds(self._socket, [length_bytes], [descriptor] if descriptor is not None else [])
            await asyncio.get_running_loop().sock_sendall(self._socket, framed_order[len(length_bytes) :])
        except OSError:
            return
        finally:
            if descriptor is not None:
                os.close(descriptor)

    async def _await_exit(self, timeout_seconds: float) -> tuple[StepReport, bool]:
        if self._exit_future is None:
            raise InvariantBroken("an exit is awaited, but no step was started")
        await asyncio.wait([self._exit_future], timeout=timeout_seconds or None)
        if self._exit_future.done():
            return self._exit_future.result(), False
        await self._send_order(None, "signal", str(int(signal.SIGTERM)))
        await asyncio.wait([self._exit_future], timeout=TIMEOUT_GRACE_SECONDS)
        await self._send_order(None, "signal", str(int(signal.SIGKILL)))
        await asyncio.wait([self._exit_future], timeout=KILL_SECONDS)
        if not self._exit_future.done():  # It hangs in the kernel or stopped its supervisor: give up the cell.
            self._is_stopping.set()
            await self._end_processes()
            return KILLED, True
        return self._exit_future.result(), True

    def _deliver(self, chunk: bytes) -> None:
        if self._on_output is not None:
            self._on_output(chunk)


def describe_limits(limits: Limits, groups: cgroups.Groups, limit_by_rlimit: dict[str, int]) -> str:
    """Return a sentence about the limits and whether each is in force."""
    limit_texts = []
    for controller, rlimit, limit_value, limit_text in (
        ("memory", "RLIMIT_DATA", limits.memory_bytes, f"memory {limits.memory_bytes} bytes"),
        ("pids", "RLIMIT_NPROC", limits.processes, f"{limits.processes} processes"),
        ("cpu", "", limits.cpus, f"{limits.cpus:g} CPUs"),
    ):
        if not limit_value:
            continue
        if controller in groups.in_force:
            limit_texts.append(f"{limit_text} (cgroup)")
        elif rlimit in limit_by_rlimit:
            limit_texts.append(f"{limit_text} (rlimit{', each process' if controller == 'memory' else ''})")
        else:
            limit_texts.append(f"{limit_text} NOT in force, as no {controller} cgroup is available here")
    tracking_text = "tracked by a cgroup" if groups.tracker else "tracked without a cgroup"
    return f"limits: {', '.join(limit_texts) or 'none requested'}; {tracking_text}"
