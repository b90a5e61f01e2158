"""One history: servers, runners, people and everything that goes wrong, from one seed, checked at every step."""

from __future__ import annotations

import gc
import logging
import random as global_random
import time
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import Final

import msgspec

from deltaci.core.events import Event, to_line
from deltaci.server.credentials import Signer
from deltaci.sim.checker import Checker, Deployment, Violation
from deltaci.sim.facts import AttemptFacts
from deltaci.sim.law import Edge
from deltaci.sim.loop import Stuck, VirtualLoop
from deltaci.sim.mix import HOUR, Fault, Mix
from deltaci.sim.network import Network
from deltaci.sim.orders import Orders
from deltaci.sim.people import People
from deltaci.sim.programs import Programs
from deltaci.sim.promises import Promises
from deltaci.sim.runner import SimRunner
from deltaci.sim.server import KEY, MemoryLogs, SimServer
from deltaci.sim.store import Disk, Troubles

EPOCH: Final = 1_767_513_600
SETTLE_HOURS: Final = 8.0  # Once nothing goes wrong any more, everything must be over within that.


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a seed."""

    seed: int
    digest: str
    hours: float
    cpu_seconds: float
    events: int
    steps: int
    faults: int
    messages: int
    invariant: str = ""
    message: str = ""
    acknowledged: int = 0
    edges: frozenset[Edge] = frozenset()


class World:
    """All of it."""

    def __init__(self, mix: Mix) -> None:
        self._mix = mix
        self._loop = VirtualLoop()  # type: ignore[abstract]  # Of what a loop can do, this world needs little.
        self._random = Random(mix.seed * 7919 + 1)
        self._jump = 0.0
        self.checker = Checker(Deployment(mix.ttl_seconds, mix.poll_seconds, has_jumps=mix.has_jumps))
        self.log: list[Event] = []
        promises = Promises(self.checker)
        self._digest = blake2b(digest_size=16)
        self._executing: dict[str, set[tuple[int, str]]] = {}
        self._results: dict[tuple[str, int], int | None] = {}
        self._disk = Disk(self._store_clock, self._see)
        self._network = Network(self._loop, self._random)
        logs = MemoryLogs()
        self._servers = [
            SimServer(f"s{n}", self._loop, self._disk, logs, self._random, self._wall) for n in range(mix.servers)
        ]
        for server in self._servers:
            server.witness = self._hear
        self._runners = [self._made(f"r{n}") for n in range(mix.runners)]
        self._promises = promises
        orders = Orders(self._loop, self._servers, promises, mix.habits, Signer(KEY, self._wall), self._blame)
        programs = Programs(mix, self._loop, orders, self.checker, self)
        self._people = People(mix, orders, self.checker, programs, self._replace)
        self._troubles = 0
        self._is_healed = False
        self._faults = 0
        self._violation: Violation | None = None

    def _made(self, name: str) -> SimRunner:
        signer = Signer(KEY, self._wall)
        runner = SimRunner(name, self._loop, self._network, self._servers, self._random, signer, self, self._mix.slots)
        runner.pace = 1 + self._random.uniform(-1e-3, 1e-3)
        self.checker.pollers[name] = None
        return runner

    def _replace(self, name: str) -> None:
        """A runner that was sent away never comes back under its name: another machine takes its place."""
        for place, runner in enumerate(self._runners):
            if runner.name == name:
                if not runner.node.is_dead:
                    runner.kill()
                self.checker.pollers.pop(name, None)
                self._runners[place] = self._made(f"{name}+")
                self._runners[place].start()

    # -- clocks

    def _wall(self) -> float:
        return EPOCH + self._loop.now

    def _store_clock(self) -> int:
        return round((EPOCH + self._loop.now + self._jump) * 1e6)

    # -- what is written down

    def _see(self, events: list[Event]) -> None:
        """The first violation is the one that counts; nobody in this world gets to hear of it."""
        now = self._store_clock()
        self.log += events
        try:
            for event in events:
                self._digest.update(to_line(event))
                self.checker.see(event, now)
                if event.entity == "attempt" and event.actor.startswith("worker:"):
                    self._compare(event)
            self.checker.settle(now)
        except Violation as violation:
            self._blame(violation)
        else:
            for event in events:
                self._people.see(event)

    def _blame(self, violation: Violation) -> None:
        self._violation = self._violation or violation

    def _hear(self, path: str, body: bytes, status: int, answer: bytes) -> None:
        """A server answered a runner."""
        try:
            self._promises.answered(path, body, status, answer)
        except Violation as violation:
            self._blame(violation)

    def _compare(self, event: Event) -> None:
        """What a runner says of an end, with what really ran."""
        it = self.checker.known[event.entity_id]
        if not isinstance(it, AttemptFacts) or it.lease is None or event.to not in ("SUCCEEDED", "FAILED", "CANCELED"):
            return
        found = self._results.get((it.id, it.lease.number))
        if event.to == "SUCCEEDED" and found != 0:
            raise Violation("truth", f"{it.id} succeeded, but what ran ended with {found}")
        if (it.lease.number, it.lease.worker_id) in self._executing.get(it.id, ()):
            raise Violation("stopped", f"{it.id} is {event.to} by the word of {it.lease.worker_id}, and still runs")

    def began(self, attempt_id: str, number: int, who: str) -> None:
        """A job runs on a runner now."""
        here = self._executing.setdefault(attempt_id, set())
        if here and not self._mix.has_jumps and self._violation is None:
            self._violation = Violation(
                "overlap", f"{attempt_id} begins as lease {number} on {who} while it runs as {sorted(here)}"
            )
        here.add((number, who))
        self._digest.update(f"began {attempt_id} {number} {who} {self._loop.now}".encode())

    def ended(self, attempt_id: str, number: int, who: str, exit_code: int | None) -> None:
        """It does not run any more."""
        self._executing.get(attempt_id, set()).discard((number, who))
        if exit_code is not None:
            self._results[attempt_id, number] = exit_code
        self._digest.update(f"ended {attempt_id} {number} {exit_code} {self._loop.now}".encode())

    # -- the course of things

    def run(self) -> History:
        """Let it happen. A violation ends it, and is part of the answer."""
        began = time.process_time()
        state = global_random.getstate()
        global_random.seed(self._mix.seed)
        was_collecting = gc.isenabled()
        gc.disable()
        logging.disable(logging.CRITICAL)
        invariant = message = ""
        try:
            self._happen()
        except Violation as violation:
            invariant, message = violation.invariant, str(violation)
        finally:
            self._loop.end()
            logging.disable(logging.NOTSET)
            global_random.setstate(state)
            if was_collecting:
                gc.enable()
        return History(
            seed=self._mix.seed,
            digest=self._digest.hexdigest(),
            hours=self._loop.now / HOUR,
            cpu_seconds=time.process_time() - began,
            events=self.checker.seen,
            steps=self._loop.steps,
            faults=self._faults,
            messages=self._network.said,
            acknowledged=self._promises.acknowledged,
            invariant=invariant,
            message=message,
            edges=frozenset(self.checker.edges),
        )

    def _happen(self) -> None:
        mix, loop = self._mix, self._loop
        for server in self._servers:
            server.ttl_seconds, server.poll_seconds = mix.ttl_seconds, mix.poll_seconds
            server.start()
        for runner in self._runners:
            runner.start()
        self.checker.quiet(self._store_clock())
        for wish in mix.wishes:
            loop.call_at(wish.at, self._people.want, wish)
        for fault in mix.faults:
            loop.call_at(fault.at, self._break, fault)
        loop.call_at(mix.hours * HOUR, self._heal)
        try:
            loop.run(self._is_over, until=(mix.hours + SETTLE_HOURS) * HOUR)
        except Stuck as stuck:
            raise Violation("liveness", str(stuck)) from stuck
        self.checker.check_end()
        if any(self._executing.values()):
            raise Violation("liveness", f"something still runs: {self._executing}")
        self._check_disk()

    def _check_disk(self) -> None:
        """What is stored in the end is what was seen when it was committed."""
        if self._disk.log() != self.log:
            raise Violation("log", "the log is not what was committed")
        for id, it in self.checker.known.items():
            stored = self._disk.record(id)
            if stored is None or (stored.state, stored.rev) != (it.state, it.rev):
                found = f"{stored.state} at rev {stored.rev}" if stored is not None else "not there"
                raise Violation("record", f"{id} is {it.state} at rev {it.rev} by the log, but stored it is {found}")

    def _is_over(self) -> bool:
        if self._violation is not None:
            raise self._violation
        if not self._is_healed or self._loop.now < self._mix.hours * HOUR + 60:
            return False
        wanted = self._people.wanted
        while wanted:
            if not self.checker.is_over(first := next(iter(wanted))):
                return False
            del wanted[first]
        return not any(each.held for each in self.checker.workers.values()) and not any(self._executing.values())

    # -- what goes wrong

    def _break(self, fault: Fault) -> None:
        if self._is_healed:
            return
        self._faults += 1
        server = self._servers[fault.which % len(self._servers)]
        runner = self._runners[fault.which % len(self._runners)]
        self._digest.update(f"{fault.kind} {self._loop.now}".encode())
        undo = self._server_fault(fault, server) or self._runner_fault(fault, runner) or self._other_fault(fault)
        self._troubles += 1
        self.checker.quiet(None)
        self._loop.call_later(fault.seconds, self._undo, undo)

    def _undo(self, undo: Callable[[], None]) -> None:
        undo()
        self._troubles -= 1
        if not self._troubles and not self._is_healed:
            self.checker.quiet(self._store_clock())

    def _server_fault(self, fault: Fault, server: SimServer) -> Callable[[], None] | None:
        kind = fault.kind
        if kind == "kill server":
            server.kill()
            return lambda: self._revive(server)
        if kind == "freeze server":
            node = server.node
            self._loop.freeze(node)
            return lambda: self._loop.thaw(node)
        troubles = server.connection.troubles if server.connection is not None else None
        if troubles is None:
            return None
        if kind in ("kill server before commit", "kill server after commit"):
            troubles.die_next = kind.split()[2]

            def revive() -> None:
                troubles.die_next = ""
                self._revive(server)

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

    def _runner_fault(self, fault: Fault, runner: SimRunner) -> Callable[[], None] | None:
        kind, network = fault.kind, self._network
        if kind == "kill runner":
            runner.kill()
            return lambda: runner.start() if runner.node.is_dead else None
        if kind == "liar":
            runner.lies = 0.5
            return lambda: setattr(runner, "lies", 0.0)
        cuts = {"cut requests": (network.cut_to,), "cut answers": (network.cut_from,)}
        sets = cuts.get(kind, (network.cut_to, network.cut_from) if kind == "cut both" else ())
        for each in sets:
            each.add(runner.name)

        def undo() -> None:
            for each in sets:
                each.discard(runner.name)

        return undo if sets else None

    def _other_fault(self, fault: Fault) -> Callable[[], None]:
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
        if fault.kind == "store clock back":
            self._jump -= fault.seconds
        elif fault.kind == "store clock forward":
            self._jump += fault.seconds
        return lambda: None

    def _revive(self, server: SimServer) -> None:
        if not server.is_up:
            server.start()

    def _heal(self) -> None:
        """From now on nothing goes wrong any more."""
        self._is_healed = True
        network = self._network
        network.loss = network.doubling = network.delay_seconds = 0.0
        network.cut_to.clear()
        network.cut_from.clear()
        for server in self._servers:
            if server.node.is_frozen:
                self._loop.thaw(server.node)
            if server.connection is not None and server.is_up:
                server.connection.troubles = Troubles()
            self._revive(server)
        for runner in self._runners:
            runner.lies = 0.0
            if runner.node.is_dead:
                runner.start()
        self.checker.quiet(self._store_clock())
