"""A runner's machine in the simulated world: its clock, its connections, its keeper, and jobs that only pretend to run.

What really executes is told to the world, so that everybody's word can be compared with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from deltaci.core.errors import Refused
from deltaci.protocol.messages import Heartbeat, Limits
from deltaci.runner.client import RunnerClient, Unreachable
from deltaci.runner.lease.heartbeat import Answers
from deltaci.runner.lease.keeper import Hold, KeeperCommand, KeeperEvent, LeaseKeeper, Ready
from deltaci.runner.lease.log_recovery import UnsentLog, send_logs
from deltaci.runner.runtime import KeeperConnection, Runtime
from deltaci.runner.sandbox import SHELL, BindMount, Cell, Executor, Executors, Exit
from deltaci.runner.sandbox.process_tree import JobHandle
from deltaci.simulation.checker.executions import Truth
from deltaci.simulation.network import Network, Said, Unreached
from deltaci.simulation.server import SimServer
from deltaci.simulation.virtual_time import HERE, Node, VirtualLoop, failed

URL: Final = "http://simulated"
CALL_SECONDS: Final = 10.0
NOBODYS: Final = ("nobody knows which", 0)
MAX_HEARD: Final = 20
WAKE_SECONDS: Final = 0.05
KILLED: Final = 9
TERMINATED: Final = 15
START: Final = datetime(2026, 1, 4, 8, tzinfo=UTC).timestamp()


def named(lease_id: str) -> tuple[str, int]:
    """Whose lease it is, and which."""
    attempt_id, number, _ = lease_id.rsplit(".", 2)
    return attempt_id, int(number)


class SimMachine(Runtime):
    """One machine. `pace` is how fast its clock runs, `shift` by how much its time for people is wrong."""

    def __init__(
        self, name: str, loop: VirtualLoop, network: Network, servers: Sequence[SimServer], random: Random, truth: Truth
    ) -> None:
        super().__init__(URL)
        self.name = name
        self.loop = loop
        self.truth = truth
        self._network = network
        self._servers = servers
        self._random = random
        self._count = 0
        self.pace = 1.0
        self.shift = 0.0
        self.is_frozen = False
        self.keepers: list[SimKeeper] = []  # The last one is that of the runner that lives; others may still clear up.
        self.running: dict[str, SimCell] = {}  # What executes now, by its marker.
        self.leases: dict[str, tuple[str, int]] = {}  # Which lease a cell runs under, as the keeper was told.
        self.given: dict[str, None] = {}  # Every lease that it worked under.
        self.heard: deque[Said] = deque(maxlen=MAX_HEARD)  # What was said from here; a liar says it again.

    def clock(self) -> float:
        """Its own, which does not jump but may be a little fast or slow."""
        return self.loop.now * self.pace

    def now(self) -> datetime:
        """For people; it may be wrong."""
        return datetime.fromtimestamp(START + self.loop.now + self.shift, UTC)

    def nonce(self) -> str:
        """Not one that was used before."""
        self._count += 1
        return f"{self.name}-{self._count}"

    def sleep(self, seconds: float) -> None:
        """Let so much time pass."""
        over: asyncio.Future[None] = self.loop.create_future()
        self.loop.outside(seconds, over.set_result, None)
        self.loop.wait(over)

    def connect(self, token: str = "") -> RunnerClient:
        """A line to the servers."""
        return SimClient(self, token)

    def ask(self, said: Said, timeout: float) -> asyncio.Future[tuple[int, bytes]]:
        """Say something to one of the servers."""
        if said.path.endswith("/messages"):
            self.heard.append(said)
        return self._network.ask(self._random.choice(self._servers), said, timeout)

    def executors(self) -> Executors:
        """What pretends to execute jobs."""
        return SimExecutors(self)

    async def start_keeper(self) -> KeeperConnection:
        """A keeper in a process of its own."""
        keeping = SimKeeping(self)
        self.keepers = [*(each for each in self.keepers if not each.node.is_dead), keeping.keeper]
        return keeping

    def kill_job(self, handle: JobHandle, _seconds: float) -> None:
        """Nothing of it runs any more."""
        cell = self.running.get(handle.marker)
        if cell is not None:
            cell.strike(KILLED)

    def freeze(self) -> None:
        """Everything on it stands still, as on a virtual machine that is paused."""
        self.is_frozen = True
        for keeper in self.keepers:
            self.loop.freeze(keeper.node)
        for cell in self.running.values():
            cell.freeze()

    def thaw(self) -> None:
        """It goes on."""
        self.is_frozen = False
        # The keepers wake with it, and are quicker than a job.
        for keeper in self.keepers:
            self.loop.thaw(keeper.node)
        self.loop.outside(WAKE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        for cell in list(self.running.values()):
            cell.thaw()


class SimClient(RunnerClient):
    """The real client, but for the wire."""

    def __init__(self, machine: SimMachine, token: str) -> None:
        super().__init__(URL, token)
        self._machine = machine
        self._under_way: dict[asyncio.Future[tuple[int, bytes]], None] = {}

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
            raise Unreachable("hung up")
        sent = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        if headers:
            sent.update(headers)
        whole = body if isinstance(body, bytes) else b"".join(body)
        machine = self._machine
        asked = machine.ask(Said(machine.name, method, self._root + path, sent, whole), timeout)
        self._under_way[asked] = None
        try:
            status, found = machine.loop.wait(asked)
        except Unreached as error:
            raise Unreachable(str(error)) from error
        finally:
            del self._under_way[asked]
            del asked  # It may hold an error that holds on to this frame.
        return self._accepted(status, found)

    def abort(self) -> None:
        """Hang up for good."""
        self._is_aborted = True
        for asked in list(self._under_way):
            if not asked.done():
                failed(asked, Unreached("hung up"))


# -- jobs that only pretend


class SimExecutors(Executors):
    """One executor that can everything."""

    def __init__(self, machine: SimMachine) -> None:
        self._executor = SimExecutor(machine)

    def choose(self, wanted: str | None, image: str = "") -> Executor:
        """That one."""
        return self._executor

    async def close(self) -> None:
        """There is nothing to end."""


class SimExecutor:
    """Makes cells of a machine."""

    name = "simulated"

    def __init__(self, machine: SimMachine) -> None:
        self._machine = machine

    def unavailable_reason(self) -> str:
        """It always can."""
        return ""

    def cell(
        self, *, workspace: Path, limits: Limits, network: bool, image: str, bind_mounts: Sequence[BindMount] = ()
    ) -> Cell:
        """A new cell for one job."""
        return SimCell(self._machine)


class SimCell:
    """Runs steps of the form `seconds exit-code [stubborn] [rule]`; a stubborn one has to be killed."""

    description = "simulated"

    def __init__(self, machine: SimMachine) -> None:
        self._machine = machine
        self.handle = JobHandle(marker=machine.nonce())
        self._is_over = False
        self._is_stubborn = self._is_rule = False
        self._exit: asyncio.Future[tuple[int | None, int | None, bool]] | None = None
        self._is_paused = False
        self._left = 0.0
        self._ends_at = 0.0
        self._code = 0
        self._timer: Any = None

    async def open(self) -> None:
        """It is ready."""

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
        """Pretend to run one step."""
        if self._is_over:
            return Exit(None, KILLED, 0.0)
        seconds, code, *more = script.split()
        machine = self._machine
        self._code, self._is_stubborn, self._is_rule = int(code), "stubborn" in more, "rule" in more
        self._exit = machine.loop.create_future()
        began = machine.loop.now
        machine.running[self.handle.marker] = self
        machine.truth.began(*machine.leases.get(self.handle.marker, NOBODYS), machine.name)
        on_output(b"begins\n")
        self._go_on(float(seconds))
        over = machine.loop.outside(timeout_seconds, self._time_out) if timeout_seconds < float(seconds) else None
        found, signal, is_timed_out = await self._exit
        if over is not None:
            over.cancel()
        on_output(b"ends\n")
        return Exit(found, signal, machine.loop.now - began, is_timed_out)

    def _go_on(self, seconds: float) -> None:
        loop = self._machine.loop
        self._ends_at = loop.now + seconds
        self._timer = loop.outside(seconds, lambda: self._end(self._code, None))

    def freeze(self) -> None:
        """Its machine stands still."""
        if self._is_paused:
            return
        self._is_paused = True
        self._timer.cancel()
        self._left = max(0.0, self._ends_at - self._machine.loop.now)
        self._tell_paused()

    def thaw(self) -> None:
        """Its machine goes on."""
        if self._is_paused and not self._machine.is_frozen:
            self._is_paused = False
            self._tell_paused()
            self._go_on(self._left)

    def _tell_paused(self) -> None:
        machine = self._machine
        lease = machine.leases.get(self.handle.marker, NOBODYS)
        machine.truth.paused(*lease, machine.name, is_paused=self._is_paused)

    def _time_out(self) -> None:
        self._end(None, TERMINATED, is_timed_out=True)

    def strike(self, signal: int) -> None:
        """Kill whoever runs; nothing more is started."""
        self._is_over = True
        self._end(None, signal)

    def _end(self, code: int | None, signal: int | None, *, is_timed_out: bool = False) -> None:
        machine, marker = self._machine, self.handle.marker
        if machine.running.pop(marker, None) is None or self._exit is None:
            return
        self._timer.cancel()
        machine.truth.ended(*machine.leases.get(marker, NOBODYS), machine.name, code, is_rule=self._is_rule)
        if not self._exit.done():
            self._exit.set_result((code, signal, is_timed_out))

    async def stop(self, grace_seconds: float) -> bool:
        """Ask, wait, kill."""
        self._is_over = True
        if self.handle.marker in self._machine.running and grace_seconds > 0:
            await asyncio.sleep(grace_seconds if self._is_stubborn else grace_seconds / 10)
        self.strike(TERMINATED)
        return True

    async def close(self) -> bool:
        """End of the job."""
        self.strike(KILLED)
        return True


# -- the keeper


class SimKeeping:
    """The runner's end of the line to its keeper."""

    def __init__(self, machine: SimMachine) -> None:
        self._news: list[KeeperEvent | None] = []
        self._is_there = asyncio.Event()
        self.keeper = SimKeeper(machine, self._say)

    def _say(self, news: KeeperEvent | None) -> None:
        self._news.append(news)
        self._is_there.set()

    def send(self, order: KeeperCommand) -> None:
        """Give an order."""
        self.keeper.order(order)

    async def receive(self) -> KeeperEvent | None:
        """The next that it says; None when it is gone."""
        while not self._news:
            self._is_there.clear()
            await self._is_there.wait()
        return self._news.pop(0)

    async def close(self) -> None:
        """Hang up."""
        self.keeper.hang_up()


class SimKeeper:
    """The real keeper, in a node of its own: it can die alone, and outlives its runner."""

    def __init__(self, machine: SimMachine, tell: Callable[[KeeperEvent | None], None]) -> None:
        self._machine = machine
        self._tell = tell
        self.node = Node(f"{machine.name}.keeper")
        self._context = copy_context()
        self._context.run(HERE.set, self.node)
        self._timer: Any = None
        self._keeper = LeaseKeeper(
            machine.connect,
            tell,
            machine.clock,
            start_sender=lambda client: SimLine(machine, client, self._turn),
            kill=machine.kill_job,
            send=self._send,
            now=machine.now,
        )
        self._soon(tell, Ready())

    def order(self, order: KeeperCommand) -> None:
        """An order arrives, whenever the keeper reads it."""
        if isinstance(order, Hold):
            lease = self._machine.leases[order.handle.marker] = named(order.lease_id)
            self._machine.truth.writes(*lease, order.log_path)
            self._machine.given[order.lease_id] = None
        self._soon(self._take, order)

    def hang_up(self) -> None:
        """The runner is gone, or leaves."""
        self._soon(self._leave)

    def kill(self) -> None:
        """SIGKILL: the runner sees it."""
        self._machine.loop.kill(self.node)
        self._tell(None)

    def _soon(self, callback: Callable[..., object], *words: Any) -> None:
        self._machine.loop.call_soon(callback, *words, context=self._context)

    def _take(self, order: KeeperCommand) -> None:
        self._keeper.execute(order)
        self._turn()

    def _turn(self) -> None:
        self._keeper.advance()
        if self._timer is not None:
            self._timer.cancel()
        machine = self._machine
        seconds = self._keeper.wait_seconds() / machine.pace
        self._timer = machine.loop.call_later(seconds, self._turn, context=self._context)

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        gone = self._machine.loop.run_in_executor(None, self._keeper.stop_all)
        gone.add_done_callback(lambda _: self._machine.loop.kill(self.node))

    def _send(self, client: RunnerClient, rests: Sequence[UnsentLog], clock: Callable[[], float]) -> None:
        send_logs(client, [rest for rest in rests if rest.fd >= 0], clock, self._machine.sleep)


class SimLine:
    """On which beats are said."""

    def __init__(self, machine: SimMachine, client: RunnerClient, stir: Callable[[], None]) -> None:
        self.client = client
        self._machine = machine
        self._stir = stir
        self._heard: Answers | None = None
        self._is_closed = False

    def fileno(self) -> int:
        """Nobody selects here."""
        raise AssertionError("there is no file behind a simulated line")

    def send(self, beats: Sequence[Heartbeat], timeout: float) -> None:
        """Say these; the answers come later."""
        self._heard = None
        said = self._machine.loop.run_in_executor(None, partial(self._said, beats, timeout))
        said.add_done_callback(lambda _: None if self._is_closed else self._stir())

    def _said(self, beats: Sequence[Heartbeat], timeout: float) -> None:
        try:
            heard = self.client.send_batch(beats, timeout)
        except (Unreachable, Refused):
            heard = []
        self._heard = heard if len(heard) == len(beats) else []

    def take_answers(self) -> Answers | None:
        """The answers, or None: not yet."""
        heard, self._heard = self._heard, None
        return heard

    def close(self) -> None:
        """Hang up."""
        self._is_closed = True
        self.client.abort()
