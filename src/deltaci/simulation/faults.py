"""What goes wrong in the simulated world, and how each of it is undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from deltaci.simulation.database import Troubles
from deltaci.simulation.network import Network
from deltaci.simulation.runner import SimRunner
from deltaci.simulation.scenario import Fault
from deltaci.simulation.server import SimServer
from deltaci.simulation.virtual_time import VirtualLoop

LIES: Final = 4
WRONG_BY: Final = (-10, 10)  # How much more than its length a clock for people is wrong after a fault.

Undo = Callable[[], None]


class Faults:
    """Makes them. `jump` moves the store's clock."""

    def __init__(
        self,
        loop: VirtualLoop,
        network: Network,
        servers: Sequence[SimServer],
        runners: Sequence[SimRunner],
        random: Random,
        jump: Callable[[float], None],
    ) -> None:
        self._loop = loop
        self._network = network
        self._servers = servers
        self._runners = runners
        self._random = random
        self._jump = jump

    def make(self, fault: Fault) -> Undo:
        """It happens now. Returns what makes it good again."""
        server = self._servers[fault.which % len(self._servers)]
        busy = [each for each in self._runners if each.machine.running]
        among = busy if busy and fault.which % 2 else self._runners  # Rather one that has something to lose.
        runner = among[fault.which // 2 % len(among)]
        return (
            self._of_server(fault, server)
            or self._of_runner(fault, runner)
            or self._of_clocks(fault, runner)
            or self._of_network(fault, runner)
        )

    def heal(self) -> None:
        """From now on nothing goes wrong any more."""
        network = self._network
        network.loss = network.doubling = network.delay_seconds = 0.0
        network.cut_to.clear()
        network.cut_from.clear()
        for server in self._servers:
            if server.node.is_frozen:
                self._loop.thaw(server.node)
            if server.connection is not None and server.is_up:
                server.connection.troubles = Troubles()
            server.revive()
        for runner in self._runners:
            runner.thaw()
            runner.start()

    def _of_server(self, fault: Fault, server: SimServer) -> Undo | None:
        kind = fault.kind
        if kind == "kill server":
            server.kill()
            return server.revive
        if kind == "freeze server":
            node = server.node
            self._loop.freeze(node)
            return lambda: self._loop.thaw(node)
        troubles = server.connection.troubles if server.connection is not None else Troubles()
        if kind in ("kill server before commit", "kill server after commit"):
            troubles.die_next = kind.split()[2]

            def revive() -> None:
                troubles.die_next = ""
                server.revive()

            return revive
        if kind in ("connection breaks before commit", "connection breaks after commit"):
            troubles.break_next = kind.split()[2]
            return lambda: setattr(troubles, "break_next", "")
        if kind == "database away":
            troubles.is_away = True
            return lambda: setattr(troubles, "is_away", False)
        if kind == "database slow":
            troubles.slow_seconds = 1.0
            return lambda: setattr(troubles, "slow_seconds", 0.0)
        if kind == "hints lost":
            troubles.deaf = True
            return lambda: setattr(troubles, "deaf", False)
        return None

    def _of_runner(self, fault: Fault, runner: SimRunner) -> Undo | None:
        deeds: dict[str, tuple[Callable[[], None], Undo]] = {
            "kill runner": (runner.kill, runner.start),
            "crash machine": (runner.crash, runner.start),
            "kill keeper": (runner.kill_keeper, runner.start),
            "hang runner": (runner.hang, runner.thaw),
            "freeze machine": (runner.freeze, runner.thaw),
            "runner leaves": (runner.leave, runner.start),
        }
        if fault.kind == "liar":
            machines = [each.machine for each in self._runners]
            for n in range(LIES):
                self._loop.outside(fault.seconds * n / LIES, runner.lie, machines)
            return _nothing
        if fault.kind not in deeds:
            return None
        do, undo = deeds[fault.kind]
        do()
        return undo

    def _of_clocks(self, fault: Fault, runner: SimRunner) -> Undo | None:
        if fault.kind == "runner clock":
            runner.machine.shift += fault.seconds * self._random.choice(WRONG_BY)
        elif fault.kind == "store clock back":
            self._jump(-fault.seconds)
        elif fault.kind == "store clock forward":
            self._jump(fault.seconds)
        else:
            return None
        return _nothing

    def _of_network(self, fault: Fault, runner: SimRunner) -> Undo:
        network = self._network
        if fault.kind == "loss":
            network.loss = 0.3
            return lambda: setattr(network, "loss", 0.0)
        if fault.kind == "doubling":
            network.doubling = 0.5
            return lambda: setattr(network, "doubling", 0.0)
        if fault.kind == "delay":
            network.delay_seconds = 20.0
            return lambda: setattr(network, "delay_seconds", 0.0)
        cut = {"cut requests": (network.cut_to,), "cut answers": (network.cut_from,)}
        sets = cut.get(fault.kind, (network.cut_to, network.cut_from))
        for each in sets:
            each.add(runner.name)

        def undo() -> None:
            for each in sets:
                each.discard(runner.name)

        return undo


def _nothing() -> None:
    """Nothing has to be undone."""
