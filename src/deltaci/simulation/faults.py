"""Injects the faults of a scenario, and undoes each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from deltaci.simulation.database import ConnectionFaults
from deltaci.simulation.network import Network
from deltaci.simulation.runner import SimRunner
from deltaci.simulation.scenario import Fault
from deltaci.simulation.server import SimServer
from deltaci.simulation.virtual_time import VirtualLoop

FORGED_MESSAGES: Final = 4
CLOCK_ERROR_FACTORS: Final = (-10, 10)  # A runner's wall clock is moved by the fault's length times one of these.

Undo = Callable[[], None]


class FaultInjector:
    """Injects faults. `jump_store_clock` moves the store's clock by some seconds."""

    def __init__(
        self,
        loop: VirtualLoop,
        network: Network,
        servers: Sequence[SimServer],
        runners: Sequence[SimRunner],
        random: Random,
        jump_store_clock: Callable[[float], None],
    ) -> None:
        self._loop = loop
        self._network = network
        self._servers = servers
        self._runners = runners
        self._random = random
        self._jump_store_clock = jump_store_clock

    def inject(self, fault: Fault) -> Undo:
        """Start a fault. Return the function that ends it; it does nothing if the fault ends by itself or lasts."""
        server = self._servers[fault.target % len(self._servers)]
        busy_runners = [runner for runner in self._runners if runner.machine.running]
        prefers_busy = bool(busy_runners) and fault.target % 2
        candidate_runners = busy_runners if prefers_busy else self._runners
        runner = candidate_runners[fault.target // 2 % len(candidate_runners)]
        return (
            self._inject_server_fault(fault, server)
            or self._inject_runner_fault(fault, runner)
            or self._move_clock(fault, runner)
            or self._inject_network_fault(fault, runner)
        )

    def end_all(self) -> None:
        """End all faults; start every server and runner that is down."""
        network = self._network
        network.loss_probability = network.duplication_probability = network.delay_seconds = 0.0
        network.cut_requests.clear()
        network.cut_responses.clear()
        for server in self._servers:
            if server.node.is_frozen:
                self._loop.thaw(server.node)
            if server.connection is not None and server.is_up:
                server.connection.faults = ConnectionFaults()
            server.revive()
        for runner in self._runners:
            runner.thaw()
            runner.start()

    def _inject_server_fault(self, fault: Fault, server: SimServer) -> Undo | None:
        """Start the fault if it is one of a server, and return the function that ends it; otherwise return None."""
        kind = fault.kind
        if kind == "kill server":
            server.kill()
            return server.revive
        if kind == "freeze server":
            node = server.node
            self._loop.freeze(node)
            return lambda: self._loop.thaw(node)
        connection_faults = server.connection.faults if server.connection is not None else ConnectionFaults()
        if kind in ("kill server before commit", "kill server after commit"):
            connection_faults.kill_at_commit = kind.split()[2]

            def revive() -> None:
                connection_faults.kill_at_commit = ""
                server.revive()

            return revive
        if kind in ("connection breaks before commit", "connection breaks after commit"):
            connection_faults.break_at_commit = kind.split()[2]
            return lambda: setattr(connection_faults, "break_at_commit", "")
        if kind == "database away":
            connection_faults.is_unavailable = True
            return lambda: setattr(connection_faults, "is_unavailable", False)
        if kind == "database slow":
            connection_faults.slow_seconds = 1.0
            return lambda: setattr(connection_faults, "slow_seconds", 0.0)
        if kind == "hints lost":
            connection_faults.loses_hints = True
            return lambda: setattr(connection_faults, "loses_hints", False)
        return None

    def _inject_runner_fault(self, fault: Fault, runner: SimRunner) -> Undo | None:
        """Start the fault if it is one of a runner, and return the function that ends it; otherwise return None."""
        begin_and_undo_by_kind: dict[str, tuple[Callable[[], None], Undo]] = {
            "kill runner": (runner.kill, runner.start),
            "crash machine": (runner.crash, runner.start),
            "kill keeper": (runner.kill_keeper, runner.start),
            "hang runner": (runner.hang, runner.thaw),
            "freeze machine": (runner.freeze, runner.thaw),
            "runner leaves": (runner.leave, runner.start),
        }
        if fault.kind == "liar":
            machines = [runner.machine for runner in self._runners]
            for message_index in range(FORGED_MESSAGES):
                self._loop.call_outside(fault.seconds * message_index / FORGED_MESSAGES, runner.send_forged, machines)
            return _do_nothing
        if fault.kind not in begin_and_undo_by_kind:
            return None
        begin, undo = begin_and_undo_by_kind[fault.kind]
        begin()
        return undo

    def _move_clock(self, fault: Fault, runner: SimRunner) -> Undo | None:
        """Move the clock of the runner's machine or of the store if the fault is of that kind.

        Return a function that does nothing, because the clock is not moved back; return None for another fault.
        """
        if fault.kind == "runner clock":
            runner.machine.clock_offset_seconds += fault.seconds * self._random.choice(CLOCK_ERROR_FACTORS)
        elif fault.kind == "store clock back":
            self._jump_store_clock(-fault.seconds)
        elif fault.kind == "store clock forward":
            self._jump_store_clock(fault.seconds)
        else:
            return None
        return _do_nothing

    def _inject_network_fault(self, fault: Fault, runner: SimRunner) -> Undo:
        """Start a fault of the network. Return the function that ends it."""
        network = self._network
        if fault.kind == "loss":
            network.loss_probability = 0.3
            return lambda: setattr(network, "loss_probability", 0.0)
        if fault.kind == "doubling":
            network.duplication_probability = 0.5
            return lambda: setattr(network, "duplication_probability", 0.0)
        if fault.kind == "delay":
            network.delay_seconds = 20.0
            return lambda: setattr(network, "delay_seconds", 0.0)
        sets_by_kind = {"cut requests": (network.cut_requests,), "cut answers": (network.cut_responses,)}
        cut_sets = sets_by_kind.get(fault.kind, (network.cut_requests, network.cut_responses))
        for cut_set in cut_sets:
            cut_set.add(runner.name)

        def undo() -> None:
            for cut_set in cut_sets:
                cut_set.discard(runner.name)

        return undo


def _do_nothing() -> None:
    """Do nothing. Ends a fault that ends by itself or whose effect stays."""
