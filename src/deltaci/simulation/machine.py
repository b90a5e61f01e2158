"""A runner's simulated machine: its clock, its connections, its lease keeper, and jobs that only pretend to run.

Every start and end of a pretended process is reported to the `ExecutionChecker`, which compares it with the log.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from deltaci.core.errors import Refused, Unreachable
from deltaci.protocol.messages import Heartbeat, Limits
from deltaci.runner.client import RunnerClient
from deltaci.runner.lease.heartbeat import Answers
from deltaci.runner.lease.keeper import MAX_OVERRUN_SECONDS, Hold, KeeperCommand, KeeperEvent, LeaseKeeper, Ready
from deltaci.runner.lease.log_recovery import UnsentLog, send_logs
from deltaci.runner.runtime import KeeperConnection, Runtime
from deltaci.runner.sandbox import SHELL, BindMount, Cell, Executor, Executors, Exit
from deltaci.runner.sandbox.process_tree import JobHandle
from deltaci.simulation.checker.executions import ExecutionChecker
from deltaci.simulation.network import Network, NoResponse, SimRequest
from deltaci.simulation.server import SimServer
from deltaci.simulation.virtual_time import CURRENT_NODE, Node, VirtualLoop, fail_quietly

URL: Final = "http://simulated"
CALL_SECONDS: Final = 10.0
UNKNOWN_LEASE: Final = ("unknown", 0)
MAX_SENT_REQUESTS: Final = 20
WAKE_SECONDS: Final = 0.05
KILLED: Final = 9
TERMINATED: Final = 15
START: Final = datetime(2026, 1, 4, 8, tzinfo=UTC).timestamp()


def parse_lease_id(lease_id: str) -> tuple[str, int]:
    """Return the attempt id and the lease number of a lease id."""
    attempt_id, lease_number, _ = lease_id.rsplit(".", 2)
    return attempt_id, int(lease_number)


class SimMachine(Runtime):
    """One machine. Its monotonic clock runs at `clock_rate`; its wall clock is wrong by `clock_offset_seconds`."""

    def __init__(
        self,
        worker_name: str,
        loop: VirtualLoop,
        network: Network,
        servers: Sequence[SimServer],
        random: Random,
        executions: ExecutionChecker,
    ) -> None:
        super().__init__(URL)
        self.name = worker_name
        self.loop = loop
        self.executions = executions
        self._network = network
        self._servers = servers
        self._random = random
        self._count = 0
        self.clock_rate = 1.0
        self.clock_offset_seconds = 0.0
        self.is_frozen = False
        # The last keeper belongs to the running runner; earlier ones may still clean up.
        self.keepers: list[SimKeeper] = []
        self.running: dict[str, SimCell] = {}  # Cells with a running step, by marker.
        self.leases: dict[str, tuple[str, int]] = {}  # The lease of each cell, by marker.
        self.cells_by_fifo: dict[str, SimCell] = {}  # Cells that are bound to a lease, by the path of their FIFO.
        self.lease_ids: dict[str, None] = {}  # All leases that this machine held, in order.
        # Recent messages, for forging others.
        self.recent_requests: deque[SimRequest] = deque(maxlen=MAX_SENT_REQUESTS)

    def clock(self) -> float:
        """Return the machine's monotonic time: it never jumps, but may run slightly fast or slow."""
        return self.loop.now * self.clock_rate

    def now(self) -> datetime:
        """Return the machine's wall-clock time, which may be wrong."""
        return datetime.fromtimestamp(START + self.loop.now + self.clock_offset_seconds, UTC)

    def nonce(self) -> str:
        """Return a name that this machine has not used before."""
        self._count += 1
        return f"{self.name}-{self._count}"

    def sleep(self, seconds: float) -> None:
        """Sleep in a simulated thread."""
        sleep_future: asyncio.Future[None] = self.loop.create_future()
        self.loop.call_outside(seconds, sleep_future.set_result, None)
        self.loop.wait(sleep_future)

    def connect(self, token: str = "") -> RunnerClient:
        """Return a client that talks to the servers over the simulated network."""
        return SimClient(self, token)

    def send_request(self, request: SimRequest, timeout: float) -> asyncio.Future[tuple[int, bytes]]:
        """Send a request to a random server."""
        if request.path.endswith("/messages"):
            self.recent_requests.append(request)
        return self._network.send(self._random.choice(self._servers), request, timeout)

    def executors(self) -> Executors:
        return SimExecutors(self)

    async def start_keeper(self) -> KeeperConnection:
        """Start a lease keeper in a process of its own, and return the runner's connection to it."""
        connection = SimKeeperConnection(self)
        self.keepers = [
            *(earlier_keeper for earlier_keeper in self.keepers if not earlier_keeper.node.is_dead),
            connection.keeper,
        ]
        return connection

    def kill_job(self, handle: JobHandle, _seconds: float) -> None:
        """Kill the job's processes."""
        cell = self.running.get(handle.marker)
        if cell is not None:
            cell.kill(KILLED)

    def freeze(self) -> None:
        """Freeze the lease keepers and jobs, as when a virtual machine is paused."""
        self.is_frozen = True
        for keeper in self.keepers:
            self.loop.freeze(keeper.node)
        for cell in self.running.values():
            cell.freeze()

    def thaw(self) -> None:
        """Continue everything. The supervisors act a moment after their jobs have continued."""
        self.is_frozen = False
        for keeper in self.keepers:
            self.loop.thaw(keeper.node)
        for cell in list(self.running.values()):
            cell.thaw()
        self.loop.call_outside(WAKE_SECONDS, self._wake_supervisors)

    def _wake_supervisors(self) -> None:
        for cell in list(self.cells_by_fifo.values()):
            cell.check_lease()


class SimClient(RunnerClient):
    """The real runner client over the simulated network."""

    def __init__(self, machine: SimMachine, token: str) -> None:
        super().__init__(URL, token)
        self._machine = machine
        self._open_requests: dict[asyncio.Future[tuple[int, bytes]], None] = {}

    def _call(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] = b"",
        headers: dict[str, str] | None = None,
        timeout: float = CALL_SECONDS,
        write: Callable[[bytes], object] | None = None,
    ) -> bytes:
        if self._is_aborted:
            raise Unreachable("connection closed")
        sent_headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        if headers:
            sent_headers.update(headers)
        request_body = body if isinstance(body, bytes) else b"".join(body)
        machine = self._machine
        open_request = machine.send_request(
            SimRequest(machine.name, method, self._root + path, sent_headers, request_body), timeout
        )
        self._open_requests[open_request] = None
        try:
            status, response = machine.loop.wait(open_request)
        except NoResponse as error:
            raise Unreachable(str(error)) from error
        finally:
            del self._open_requests[open_request]
            del open_request  # Break the reference cycle: its exception may refer to this frame.
        return self._check_status(status, response)

    def abort(self) -> None:
        """Fail all open requests, and every later one."""
        self._is_aborted = True
        for open_request in list(self._open_requests):
            if not open_request.done():
                fail_quietly(open_request, NoResponse("connection closed"))


# -- pretended jobs


class SimExecutors(Executors):
    """Offers one executor for every kind."""

    def __init__(self, machine: SimMachine) -> None:
        self._executor = SimExecutor(machine)

    def choose(self, requested: str | None, image: str = "") -> Executor:
        return self._executor

    async def close(self) -> None:
        """Do nothing."""


class SimExecutor:
    """Makes cells that pretend to run jobs."""

    name = "simulated"

    def __init__(self, machine: SimMachine) -> None:
        self._machine = machine

    def unavailable_reason(self) -> str:
        """Return an empty reason: it is always usable."""
        return ""

    def cell(
        self, *, workspace: Path, limits: Limits, network: bool, image: str, bind_mounts: Sequence[BindMount] = ()
    ) -> Cell:
        return SimCell(self._machine)


class SimCell:
    """Pretends to run steps of the form `seconds exit-code [stubborn] [rule]`.

    A stubborn step does not stop when asked to and must be killed; `rule` marks a validation rule.
    """

    description = "simulated"

    def __init__(self, machine: SimMachine) -> None:
        self._machine = machine
        self.handle = JobHandle(marker=machine.nonce())
        self.is_lease_over = False
        self._fifo = ""
        self._deadline = math.inf  # Of the supervisor, by the clock of the machine.
        self._deadline_timer: Any = None
        self._is_over = False
        self._is_stubborn = self._is_rule = False
        self._exit_future: asyncio.Future[tuple[int | None, int | None, bool]] | None = None
        self._is_paused = False
        self._seconds_left = 0.0
        self._step_ends_at = 0.0
        self._exit_code = 0
        self._step_end_timer: Any = None
        self._record_resume_timer: Any = None

    async def open(self) -> None:
        """Do nothing."""

    async def bind_lease(self, deadline: float, renewals_path: Path) -> None:
        """Play the supervisor, which ends the job at this time."""
        self._fifo = str(renewals_path)
        self._machine.cells_by_fifo[self._fifo] = self
        self.set_deadline(deadline)

    def set_deadline(self, deadline: float) -> None:
        """Replace the time at which the supervisor ends the job, a time of the machine's clock."""
        machine = self._machine
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._deadline = deadline
        virtual_seconds = max(0.0, deadline - machine.clock()) / machine.clock_rate
        self._deadline_timer = machine.loop.call_outside(virtual_seconds, self.check_lease)

    def check_lease(self) -> None:
        """End the job if its deadline has passed and the machine is not frozen."""
        if self._machine.clock() >= self._deadline and not self._machine.is_frozen and not self._is_over:
            self.is_lease_over = True
            self.kill(KILLED)

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
        """Pretend to run one step. The supervisor checks the deadline before it starts the step."""
        self.check_lease()
        if self._is_over:
            return Exit(None, KILLED, 0.0)
        seconds_text, code_text, *flags = script.split()
        machine = self._machine
        self._exit_code, self._is_stubborn, self._is_rule = int(code_text), "stubborn" in flags, "rule" in flags
        self._exit_future = machine.loop.create_future()
        started_at = machine.loop.now
        machine.running[self.handle.marker] = self
        machine.executions.record_start(*self._lease, machine.name)
        on_output(b"begins\n")
        self._resume(float(seconds_text))
        timeout_handle = (
            machine.loop.call_outside(timeout_seconds, self._time_out)
            if timeout_seconds < float(seconds_text)
            else None
        )
        exit_code, signal, is_timed_out = await self._exit_future
        if timeout_handle is not None:
            timeout_handle.cancel()
        on_output(b"ends\n")
        return Exit(exit_code, signal, machine.loop.now - started_at, is_timed_out)

    def _resume(self, seconds: float) -> None:
        loop = self._machine.loop
        self._step_ends_at = loop.now + seconds
        self._step_end_timer = loop.call_outside(seconds, lambda: self._end(self._exit_code, None))

    def freeze(self) -> None:
        """Stop the running step's clock."""
        if self._is_paused:
            return
        self._is_paused = True
        self._step_end_timer.cancel()
        if self._record_resume_timer is not None:
            self._record_resume_timer.cancel()
        self._seconds_left = max(0.0, self._step_ends_at - self._machine.loop.now)
        self._machine.executions.record_pause(*self._lease, self._machine.name)

    def thaw(self) -> None:
        """Continue the step, unless its machine is still frozen."""
        if self._is_paused and not self._machine.is_frozen:
            self._is_paused = False
            self._record_resume_timer = self._machine.loop.call_outside(MAX_OVERRUN_SECONDS, self._record_resume)
            self._resume(self._seconds_left)

    @property
    def _lease(self) -> tuple[str, int]:
        return self._machine.leases.get(self.handle.marker, UNKNOWN_LEASE)

    def _record_resume(self) -> None:
        """Record that the step runs again."""
        self._machine.executions.record_start(*self._lease, self._machine.name)

    def _time_out(self) -> None:
        self._end(None, TERMINATED, is_timed_out=True)

    def kill(self, signal_number: int) -> None:
        """Kill the running step; no other step starts after it."""
        self._is_over = True
        self._end(None, signal_number)

    def _end(self, exit_code: int | None, signal_number: int | None, *, is_timed_out: bool = False) -> None:
        machine, marker = self._machine, self.handle.marker
        if machine.running.pop(marker, None) is None or self._exit_future is None:
            return
        self._step_end_timer.cancel()
        if self._record_resume_timer is not None:  # Otherwise it would record the next step of the cell a second time.
            self._record_resume_timer.cancel()
        machine.executions.record_end(*self._lease, machine.name, exit_code, is_rule=self._is_rule)
        if not self._exit_future.done():
            self._exit_future.set_result((exit_code, signal_number, is_timed_out))

    async def stop(self, grace_seconds: float) -> bool:
        """Ask the step to stop, wait, then kill it."""
        self._is_over = True
        if self.handle.marker in self._machine.running and grace_seconds > 0:
            await asyncio.sleep(grace_seconds if self._is_stubborn else grace_seconds / 10)
        self.kill(TERMINATED)
        return True

    async def close(self) -> bool:
        self.kill(KILLED)
        self._machine.cells_by_fifo.pop(self._fifo, None)
        return True


# -- the keeper


class SimKeeperConnection:
    """The runner's end of the connection to its lease keeper."""

    def __init__(self, machine: SimMachine) -> None:
        self._events: list[KeeperEvent | None] = []
        self._has_event = asyncio.Event()
        self.keeper = SimKeeper(machine, self._add_event)

    def _add_event(self, event: KeeperEvent | None) -> None:
        self._events.append(event)
        self._has_event.set()

    def send(self, command: KeeperCommand) -> None:
        self.keeper.deliver(command)

    async def receive(self) -> KeeperEvent | None:
        """Return the keeper's next event; None when the keeper has died."""
        while not self._events:
            self._has_event.clear()
            await self._has_event.wait()
        return self._events.pop(0)

    async def close(self) -> None:
        self.keeper.hang_up()


class SimKeeper:
    """The real lease keeper in a node of its own: it can die alone, and it outlives its runner."""

    def __init__(self, machine: SimMachine, send_to_runner: Callable[[KeeperEvent | None], None]) -> None:
        self._machine = machine
        self._send_to_runner = send_to_runner
        self.node = Node(f"{machine.name}.keeper")
        self._context = copy_context()
        self._context.run(CURRENT_NODE.set, self.node)
        self._advance_timer: Any = None
        self._keeper = LeaseKeeper(
            machine.connect,
            send_to_runner,
            machine.clock,
            start_sender=lambda client: SimHeartbeatSender(machine, client, self._advance),
            kill=machine.kill_job,
            send=self._send,
            now=machine.now,
            open_renewals=self._open_renewals,
        )
        self._renewals: list[SimRenewals] = []
        self._soon(send_to_runner, Ready())

    def deliver(self, command: KeeperCommand) -> None:
        """Deliver a command of the runner to the keeper."""
        if isinstance(command, Hold):
            parsed_lease = self._machine.leases[command.handle.marker] = parse_lease_id(command.lease_id)
            self._machine.executions.set_log_file(*parsed_lease, command.log_path)
            self._machine.lease_ids[command.lease_id] = None
        self._soon(self._execute, command)

    def hang_up(self) -> None:
        """Tell the keeper that its runner has closed the connection or died."""
        self._soon(self._leave)

    def kill(self) -> None:
        """Kill the keeper, as by SIGKILL; its runner and the supervisors of its jobs notice."""
        self._machine.loop.kill(self.node)
        for renewals in self._renewals:
            renewals.close()
        self._send_to_runner(None)

    def _open_renewals(self, fifo_path: str) -> SimRenewals:
        self._renewals.append(SimRenewals(self._machine.cells_by_fifo.get(fifo_path)))
        return self._renewals[-1]

    def _soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._machine.loop.call_soon(callback, *args, context=self._context)

    def _execute(self, command: KeeperCommand) -> None:
        self._keeper.execute(command)
        self._advance()

    def _advance(self) -> None:
        self._keeper.advance()
        if self._advance_timer is not None:
            self._advance_timer.cancel()
        machine = self._machine
        virtual_seconds = self._keeper.wait_seconds() / machine.clock_rate
        self._advance_timer = machine.loop.call_later(virtual_seconds, self._advance, context=self._context)

    def _leave(self) -> None:
        if self._advance_timer is not None:
            self._advance_timer.cancel()
        stop_future = self._machine.loop.run_in_executor(None, self._keeper.stop_all)
        stop_future.add_done_callback(lambda _: self._machine.loop.kill(self.node))

    def _send(self, client: RunnerClient, unsent_logs: Sequence[UnsentLog], clock: Callable[[], float]) -> None:
        send_logs(client, [unsent_log for unsent_log in unsent_logs if unsent_log.fd >= 0], clock, self._machine.sleep)


class SimRenewals:
    """The keeper's end of the FIFO to the supervisor of a simulated cell."""

    def __init__(self, cell: SimCell | None) -> None:
        self._cell = cell

    def write(self, deadline: float) -> None:
        """Replace the deadline of the supervisor, a time of the machine's clock."""
        if self._cell is not None:
            self._cell.set_deadline(deadline)

    def close(self) -> None:
        """Make the supervisor end the job."""
        if self._cell is not None:
            self._cell.set_deadline(0.0)
            self._cell.check_lease()
            self._cell = None


class SimHeartbeatSender:
    """Sends the heartbeats of a lease keeper over the simulated network."""

    def __init__(self, machine: SimMachine, client: RunnerClient, on_answers: Callable[[], None]) -> None:
        self.client = client
        self._machine = machine
        self._on_answers = on_answers
        self._untaken_answers: Answers | None = None
        self._is_closed = False

    def fileno(self) -> int:
        """Raise `AssertionError`: the sender has no file descriptor."""
        raise AssertionError("a simulated sender has no file descriptor")

    def send(self, heartbeats: Sequence[Heartbeat], timeout: float) -> None:
        """Send heartbeats; `take_answers` returns the responses later."""
        self._untaken_answers = None
        send_future = self._machine.loop.run_in_executor(None, partial(self._send, heartbeats, timeout))
        send_future.add_done_callback(lambda _: None if self._is_closed else self._on_answers())

    def _send(self, heartbeats: Sequence[Heartbeat], timeout: float) -> None:
        try:
            answers = self.client.send_batch(heartbeats, timeout)
        except (Unreachable, Refused):
            answers = []
        self._untaken_answers = answers if len(answers) == len(heartbeats) else []

    def take_answers(self) -> Answers | None:
        """Return the responses, or None if they have not arrived."""
        answers, self._untaken_answers = self._untaken_answers, None
        return answers

    def close(self) -> None:
        self._is_closed = True
        self.client.abort()
