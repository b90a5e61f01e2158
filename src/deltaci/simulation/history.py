"""One history: servers, runners, people and everything that goes wrong, from one seed, checked at every step."""

from __future__ import annotations

import gc
import logging
import os
import random as global_random
import tempfile
import time
from collections.abc import Callable
from hashlib import blake2b
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from deltaci.core.events import Event
from deltaci.server.auth.credentials import Signer
from deltaci.simulation.checker.executions import Truth
from deltaci.simulation.checker.history_checker import Checker, Deployment, Violation
from deltaci.simulation.checker.law import Edge
from deltaci.simulation.checker.promises import Promises
from deltaci.simulation.client import Orders
from deltaci.simulation.database import Disk
from deltaci.simulation.faults import Faults
from deltaci.simulation.machine import SimMachine
from deltaci.simulation.network import Network
from deltaci.simulation.people import People
from deltaci.simulation.queue_clients import Programs
from deltaci.simulation.runner import SimRunner
from deltaci.simulation.scenario import HOUR, Fault, Mix
from deltaci.simulation.server import KEY, Shelf, SimServer
from deltaci.simulation.virtual_time import Stuck, VirtualLoop

EPOCH: Final = 1_767_513_600
WORLDS: Final = 32  # So many may come and go before they are cleared up.
LOGGER: Final = logging.getLogger("deltaci")
TELL_SECONDS: Final = 900.0  # Once nothing goes wrong any more, what ended is known within that and two polls.
SETTLE_HOURS: Final = 8.0  # Once nothing goes wrong any more, everything must be over within that.


_worlds = count(1)
_packed = msgspec.msgpack.Encoder().encode


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
        self.checker = Checker(Deployment(mix.ttl_seconds, mix.poll_seconds, mix.wait_seconds, has_jumps=mix.has_jumps))
        self.log: list[Event] = []
        promises = Promises(self.checker)
        self._digest = blake2b(digest_size=16)
        self.truth = Truth(self.checker, self._note, self._blame, has_jumps=mix.has_jumps)
        self._disk = Disk(self._store_clock, self._see)
        self._network = Network(self._loop, self._random)
        self._folder = tempfile.TemporaryDirectory(prefix="deltaci-sim-", dir=_memory(), ignore_cleanup_errors=True)
        shelf = Shelf(Path(self._folder.name), self.truth.see_log)
        self._servers = [
            SimServer(f"s{n}", self._loop, self._disk, shelf, self._random, self._wall) for n in range(mix.servers)
        ]
        for server in self._servers:
            server.witness = self._hear
        self._runners = [self._made(f"r{n}") for n in range(mix.runners)]
        self._promises = promises
        orders = Orders(self._loop, self._servers, promises, mix.habits, Signer(KEY, self._wall), self._blame)
        programs = Programs(mix, self._loop, orders, self.checker, self.truth)
        self._wrong = Faults(self._loop, self._network, self._servers, self._runners, self._random, self._leap)
        self._people = People(mix, orders, self.checker, programs, self._replace)
        self._troubles = 0
        self._is_healed = False
        self._faults = 0
        self._violation: Violation | None = None

    def _made(self, name: str) -> SimRunner:
        mix = self._mix
        machine = SimMachine(name, self._loop, self._network, self._servers, self._random, self.truth)
        machine.pace = 1 + self._random.uniform(-1e-3, 1e-3)
        folder, signer = Path(self._folder.name), Signer(KEY, self._wall)
        runner = SimRunner(machine, self._loop, self._random, signer, folder, mix.slots, mix.wait_seconds)
        self.checker.pollers[name] = None
        return runner

    def _replace(self, name: str) -> None:
        """A runner that was sent away never comes back under its name: another machine takes its place."""
        for place, runner in enumerate(self._runners):
            if runner.name == name:
                runner.retire()
                self.checker.pollers.pop(name, None)
                self._runners[place] = self._made(f"{name}+")
                self._runners[place].start()

    # -- clocks

    def _wall(self) -> float:
        return EPOCH + self._loop.now

    def _store_clock(self) -> int:
        return round((EPOCH + self._loop.now + self._jump) * 1e6)

    def _leap(self, seconds: float) -> None:
        self._jump += seconds

    # -- what is written down

    def _see(self, events: list[Event]) -> None:
        """The first violation is the one that counts; nobody in this world gets to hear of it."""
        now = self._store_clock()
        self.log += events
        try:
            for event in events:
                self._digest.update(_packed(event))
                self.checker.see(event, now)
                if event.entity == "attempt":
                    self.truth.see(event)
            self.checker.settle(now)
        except Violation as violation:
            self._blame(violation)
        else:
            for event in events:
                self._people.see(event)

    def _note(self, what: str) -> None:
        """It is part of the history."""
        self._digest.update(f"{what} {self._loop.now}".encode())

    def _blame(self, violation: Violation) -> None:
        self._violation = self._violation or violation

    def _hear(self, path: str, body: bytes, status: int, answer: bytes) -> None:
        """A server answered a runner."""
        try:
            self._promises.answered(path, body, status, answer)
        except Violation as violation:
            self._blame(violation)

    def _complain(self, what: str) -> None:
        """Something in here met an error that it did not expect."""
        self._blame(Violation("error", what))

    # -- the course of things

    def run(self) -> History:
        """Let it happen. A violation ends it, and is part of the answer."""
        began = time.process_time()
        state = global_random.getstate()
        global_random.seed(self._mix.seed)
        was_collecting = gc.isenabled()
        gc.disable()
        if next(_worlds) % WORLDS == 0:
            gc.collect()  # What is left of the last ones.
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
            gc.unfreeze()
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
            server.credential_seconds = mix.credential_seconds
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
        if not self.truth.is_idle():
            raise Violation("liveness", f"something still runs: {self.truth.executing}")
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
        if self._loop.failures:
            failure = self._loop.failures[0]
            self._complain(f"{failure.get('message')}: {failure.get('exception')!r}")
        if self._violation is not None:
            raise self._violation
        if not self._is_healed or self._loop.now < self._mix.hours * HOUR + 60:
            return False
        wanted = self._people.wanted
        while wanted:
            if not self.checker.is_over(first := next(iter(wanted))):
                return False
            del wanted[first]
        return not any(each.held for each in self.checker.workers.values()) and self.truth.is_idle()

    # -- what goes wrong

    def _break(self, fault: Fault) -> None:
        if self._is_healed:
            return
        self._faults += 1
        self._note(fault.kind)
        undo = self._wrong.make(fault)
        self._troubles += 1
        self.checker.quiet(None)
        self._loop.call_later(fault.seconds, self._undo, undo)

    def _undo(self, undo: Callable[[], None]) -> None:
        undo()
        self._troubles -= 1
        if not self._troubles and not self._is_healed:
            self.checker.quiet(self._store_clock())

    def _heal(self) -> None:
        """From now on nothing goes wrong any more."""
        self._is_healed = True
        self._wrong.heal()
        self.checker.quiet(self._store_clock())
        wait = TELL_SECONDS + 2 * self._mix.poll_seconds
        self._loop.outside(wait, self.truth.check_told, dict(self.truth.untold))


class _Complaints(logging.Handler):
    """Hears of errors that were caught and written to a log."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        """One more."""
        error = f": {record.exc_info[1]!r}" if record.exc_info else ""
        self._tell(f"{record.name}: {record.getMessage()}{error}")


def _memory() -> str | None:
    """A place for files that is quick, where there is one: runners keep a few."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
