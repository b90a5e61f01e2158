"""One history: servers, runners, people and everything that goes wrong, from one seed, checked at every step."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random as global_random
import tempfile
import time
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from deltaci.core import job, run
from deltaci.core.decide import Plan
from deltaci.core.errors import Refused
from deltaci.core.events import Event
from deltaci.core.job import APPROVAL, JobSpec
from deltaci.core.reactions import Birth
from deltaci.core.run import Run
from deltaci.engine.applier import Applier
from deltaci.server.credentials import Signer
from deltaci.sim.checker import ENDS, Checker, Violation
from deltaci.sim.loop import Node, Stuck, VirtualLoop
from deltaci.sim.machine import SimMachine
from deltaci.sim.mix import HOUR, Fault, Mix
from deltaci.sim.network import Network
from deltaci.sim.runner import TENANT, SimRunner
from deltaci.sim.server import KEY, Shelf, SimServer
from deltaci.sim.store import Disk, Troubles
from deltaci.store.port import Conflict, Unavailable

EPOCH: Final = 1_767_513_600
SETTLE_HOURS: Final = 12.0  # Once nothing goes wrong any more, everything must be over within that.
LOOK_SECONDS: Final = 30.0
DO_SECONDS: Final = 20.0
LIES: Final = 10

_packed = msgspec.msgpack.Encoder().encode

LOGGER: Final = logging.getLogger("deltaci")


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
    edges: frozenset[tuple[str, str | None, str]] = frozenset()


class World:
    """All of it."""

    def __init__(self, mix: Mix) -> None:
        self._mix = mix
        self._loop = VirtualLoop()  # type: ignore[abstract]  # Of what a loop can do, this world needs little.
        self._random = Random(mix.seed * 7919 + 1)
        self._jump = 0.0
        self.checker = Checker()
        self._digest = blake2b(digest_size=16)
        self._executing: dict[str, set[tuple[int, str]]] = {}
        self._results: dict[tuple[str, int], int | None] = {}
        self._lies: set[tuple[str, int]] = set()
        self._disk = Disk(self._store_clock, self._see)
        self._network = Network(self._loop, self._random)
        self._folder = tempfile.TemporaryDirectory(prefix="deltaci-sim-", dir=_memory(), ignore_cleanup_errors=True)
        self._shelf = Shelf(Path(self._folder.name))
        self._servers = [
            SimServer(f"s{n}", self._loop, self._disk, self._shelf, self._random, self._wall)
            for n in range(mix.servers)
        ]
        signer = Signer(KEY, self._wall)
        self._machines = [
            SimMachine(f"r{n}", self._loop, self._network, self._servers, self._random, self)
            for n in range(mix.runners)
        ]
        self._runners = [
            SimRunner(machine, self._loop, self._random, signer, Path(self._folder.name), mix.slots, mix.wait_seconds)
            for machine in self._machines
        ]
        self._people = Node("people")
        self._wanted: set[str] = set()
        self._is_healed = False
        self._faults = 0
        self._violation: Violation | None = None

    # -- clocks

    def _wall(self) -> float:
        return EPOCH + self._loop.now

    def _store_clock(self) -> int:
        return round((EPOCH + self._loop.now + self._jump) * 1e6)

    # -- what is written down

    def _see(self, events: list[Event]) -> None:
        """The first violation is the one that counts; nobody in this world gets to hear of it."""
        try:
            for event in events:
                self._digest.update(_packed(event))
                self._judge(event)
            self.checker.settle()
        except Violation as violation:
            self._violation = self._violation or violation

    def _judge(self, event: Event) -> None:
        self.checker.see(event)
        if event.entity == "attempt" and event.to == "SUCCEEDED":
            number = self.checker.known[event.entity_id].lease
            lease = event.entity_id, number.number if number is not None else 0
            found = self._results.get(lease)
            if found != 0 and lease not in self._lies:
                raise Violation("truth", f"{event.entity_id} succeeded, but what ran ended with {found}")

    def began(self, lease_id: str, who: str) -> None:
        """A job runs on a runner now."""
        attempt_id, number = _named(lease_id)
        here = self._executing.setdefault(attempt_id, set())
        if here and not self._mix.has_jumps and self._violation is None:
            self._violation = Violation(
                "overlap", f"{attempt_id} begins as lease {number} on {who} while it runs as {sorted(here)}"
            )
        here.add((number, who))
        self._digest.update(f"began {attempt_id} {number} {who} {self._loop.now}".encode())

    def ended(self, lease_id: str, who: str, exit_code: int | None) -> None:
        """It does not run any more."""
        attempt_id, number = _named(lease_id)
        self._executing.get(attempt_id, set()).discard((number, who))
        if exit_code is not None:
            self._results[attempt_id, number] = exit_code
        self._digest.update(f"ended {attempt_id} {number} {exit_code} {self._loop.now}".encode())

    def paused(self, lease_id: str, who: str, *, is_paused: bool) -> None:
        """What stands still does nothing that another could do too."""
        if is_paused:
            attempt_id, number = _named(lease_id)
            self._executing.get(attempt_id, set()).discard((number, who))
        else:
            self.began(lease_id, who)

    def lied(self, lease_id: str) -> None:
        """What is said of this lease from now on need not be true."""
        self._lies.add(_named(lease_id))

    def _complain(self, what: str) -> None:
        """Something in here met an error that it did not expect."""
        self._violation = self._violation or Violation("error", what)

    # -- the course of things

    def run(self) -> History:
        """Let it happen. A violation ends it, and is part of the answer."""
        began = time.process_time()
        state = global_random.getstate()
        global_random.seed(self._mix.seed)
        was_collecting = gc.isenabled()
        gc.disable()
        gc.freeze()  # So that only this world is looked through in its end.
        logging.disable(logging.WARNING)
        complaints = _Complaints(self._complain)
        LOGGER.addHandler(complaints)
        LOGGER.propagate = False
        invariant = message = ""
        try:
            self._happen()
        except Violation as violation:
            invariant, message = violation.invariant, str(violation)
        finally:
            self._loop.end()
            LOGGER.removeHandler(complaints)
            LOGGER.propagate = True
            logging.disable(logging.NOTSET)
            self._folder.cleanup()
            global_random.setstate(state)
            gc.unfreeze()
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
            invariant=invariant,
            message=message,
            edges=frozenset(self.checker.edges),
        )

    def _happen(self) -> None:
        mix, loop = self._mix, self._loop
        for server in self._servers:
            server.ttl_seconds, server.poll_seconds = mix.ttl_seconds, mix.poll_seconds
            server.credential_seconds = mix.credential_seconds
            server.start()
        for runner in self._runners:
            runner.machine.pace = 1 + self._random.uniform(-1e-3, 1e-3)
            runner.start()
        loop.spawn(self._people, self._look_after(), "people")
        for number, at in enumerate(mix.runs):
            loop.call_at(at, self._want, f"run-{number}")
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

    def _is_over(self) -> bool:
        if self._loop.failures:
            failure = self._loop.failures[0]
            self._complain(f"{failure.get('message')}: {failure.get('exception')!r}")
        if self._violation is not None:
            raise self._violation
        if not self._is_healed or self._loop.now < self._mix.hours * HOUR + 60:
            return False
        known = self.checker.known
        is_reported = all(id in known and known[id].state == "REPORTED" for id in self._wanted)
        return is_reported and not any(self.checker.live.values()) and not any(self._executing.values())

    # -- people

    def _want(self, id: str) -> None:
        self._wanted.add(id)
        self._loop.spawn(self._people, self._create(id))

    async def _create(self, id: str) -> None:
        random = Random(f"{self._mix.seed} {id}")
        record = Run(
            id=id,
            run_id=id,
            tenant=TENANT,
            is_fail_fast=random.random() < 0.2,
            timeout_seconds=random.choice((600, 7200, 21600)),
        )
        await self._insist(lambda applier: applier.do(Birth(id=id, record=record)))
        await self._insist(lambda applier: applier.do(run.BeginPlanning(id=id)))
        jobs = tuple(self._job(random, n) for n in range(random.randint(1, 5)))
        await self._insist(lambda applier: applier.do(Plan(id=id, jobs=jobs, plan_hash="h")))
        if random.random() < 0.2:
            await asyncio.sleep(random.random() * 600)
            await self._insist(lambda applier: applier.do(run.Cancel(id=id, actor="user:u", reason="CANCELED")))

    @staticmethod
    def _job(random: Random, n: int) -> JobSpec:
        needs = tuple(f"j{k}" for k in range(n) if random.random() < 0.4)
        if random.random() < 0.1:
            return JobSpec(name=f"j{n}", kind=APPROVAL, needs=needs)
        seconds = random.choice((1.0, 20.0, 100.0, 400.0)) * random.random()
        code = 0 if random.random() < 0.85 else random.choice((1, 2))
        return JobSpec(
            name=f"j{n}",
            needs=needs,
            is_required=random.random() < 0.8,
            max_attempts=random.choice((1, 2, 3)),
            timeout_seconds=random.choice((60, 3600)),
            max_lost_leases=random.choice((1, 3)),
            work={"steps": [f"{seconds:.1f} {code}"]},
        )

    async def _insist(self, do: Callable[[Applier], Awaitable[Any]]) -> None:
        """Ask one server after the other until one of them has done it, or says that it is done or cannot be."""
        while True:
            server = self._random.choice(self._servers)
            if server.is_up and server.applier is not None:
                task = self._loop.spawn(server.node, _attempted(do, server.applier))
                done, _ = await asyncio.wait({task}, timeout=DO_SECONDS)
                if done and task.result():
                    return
            await asyncio.sleep(2.0)

    async def _look_after(self) -> None:
        """Approve what waits, and report what is over."""
        while True:
            await asyncio.sleep(LOOK_SECONDS * self._random.uniform(0.5, 1.5))
            for id, known in list(self.checker.known.items()):
                if known.state == "WAITING_APPROVAL" and known.born.get("kind") == "approval":
                    command: Any = job.Approve(id=id, actor="user:u", comment="")
                    if self._random.random() < 0.2:
                        command = job.Reject(id=id, actor="user:u", comment="")
                    await self._insist(lambda applier, it=command: applier.do(it))  # type: ignore[misc]
                elif id in self._wanted and known.state in ENDS["run"] and known.state != "REPORTED":
                    report = run.Report(id=id, actor="reporter")
                    await self._insist(lambda applier, it=report: applier.do(it))  # type: ignore[misc]

    # -- what goes wrong

    def _break(self, fault: Fault) -> None:
        if self._is_healed:
            return
        self._faults += 1
        server = self._servers[fault.which % len(self._servers)]
        runner = self._runners[fault.which % len(self._runners)]
        self._digest.update(f"{fault.kind} {self._loop.now}".encode())
        undo = self._server_fault(fault, server) or self._runner_fault(fault, runner) or self._other_fault(fault)
        self._loop.call_later(fault.seconds, undo)

    def _server_fault(self, fault: Fault, server: SimServer) -> Callable[[], None] | None:
        kind = fault.kind
        if kind == "kill server":
            server.kill()
            return server.revive
        if kind == "freeze server":
            node = server.node
            self._loop.freeze(node)
            return lambda: self._loop.thaw(node)
        troubles = server.connection.troubles if server.connection is not None else None
        if troubles is None:
            return None
        if kind in ("kill server before commit", "kill server after commit"):
            troubles.die_next = kind.split()[2]
            server.down_seconds = fault.seconds
            return _nothing
        if kind in ("connection breaks before commit", "connection breaks after commit"):
            troubles.break_next = kind.split()[2]
            return _nothing
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
        deeds: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
            "kill runner": (runner.kill, runner.start),
            "crash machine": (runner.crash, runner.start),
            "kill keeper": (runner.kill_keeper, _nothing),
            "hang runner": (runner.hang, runner.thaw),
            "freeze machine": (runner.freeze, runner.thaw),
            "runner leaves": (runner.leave, runner.start),
        }
        if kind in deeds:
            do, undo_it = deeds[kind]
            do()
            return undo_it
        if kind == "runner clock":
            runner.machine.shift += fault.seconds * self._random.choice((-10, 10))
            return _nothing
        if kind == "liar":
            for n in range(LIES):
                self._loop.outside(fault.seconds * n / LIES, runner.lie, self._machines)
            return _nothing
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
        return _nothing

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
            server.revive()
        for runner in self._runners:
            runner.thaw()
            runner.start()


class _Complaints(logging.Handler):
    """Hears of errors that were caught and written to a log."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        """One more."""
        self._tell(f"{record.name}: {record.getMessage()} {record.exc_info[1]!r}" if record.exc_info else str(record))


def _memory() -> str | None:
    """A place for files that is quick, where there is one: runners keep a few."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _nothing() -> None:
    """Nothing has to be undone."""


def _named(lease_id: str) -> tuple[str, int]:
    attempt_id, number, _ = lease_id.rsplit(".", 2)
    return attempt_id, int(number)


async def _attempted(do: Callable[[Applier], Awaitable[Any]], applier: Applier) -> bool:
    """Whether nothing is left to do: it was done, or is refused because it was done before or cannot be."""
    try:
        await do(applier)
    except Refused:
        return True
    except (Unavailable, Conflict, asyncio.CancelledError):
        return False
    return True
