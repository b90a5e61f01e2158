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
from deltaci.server.credentials import Signer
from deltaci.sim.checker import Checker, Deployment, Violation
from deltaci.sim.facts import AttemptFacts, Lease
from deltaci.sim.faults import Faults
from deltaci.sim.law import LIVE, Edge
from deltaci.sim.loop import Stuck, VirtualLoop
from deltaci.sim.machine import SimMachine
from deltaci.sim.mix import HOUR, Fault, Mix
from deltaci.sim.network import Network
from deltaci.sim.orders import Orders
from deltaci.sim.people import People
from deltaci.sim.programs import Programs
from deltaci.sim.promises import Promises
from deltaci.sim.runner import SimRunner
from deltaci.sim.server import KEY, Shelf, SimServer
from deltaci.sim.store import Disk

EPOCH: Final = 1_767_513_600
WORLDS: Final = 32  # So many may come and go before they are cleared up.
LOGGER: Final = logging.getLogger("deltaci")
TELL_SECONDS: Final = 900.0
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
        self._executing: dict[str, set[tuple[int, str]]] = {}
        self._results: dict[tuple[str, int], int | None] = {}
        self._lies: set[tuple[str, int]] = set()
        self._taken: set[tuple[str, int]] = set()  # Leases that were acknowledged.
        self._untold: dict[tuple[str, int], str] = {}  # Jobs that ended, and whose end is not in the log yet.
        self._logs: dict[tuple[str, int], str] = {}
        self._disk = Disk(self._store_clock, self._see)
        self._network = Network(self._loop, self._random)
        self._folder = tempfile.TemporaryDirectory(prefix="deltaci-sim-", dir=_memory(), ignore_cleanup_errors=True)
        shelf = Shelf(Path(self._folder.name), self._compare_log)
        self._servers = [
            SimServer(f"s{n}", self._loop, self._disk, shelf, self._random, self._wall) for n in range(mix.servers)
        ]
        for server in self._servers:
            server.witness = self._hear
        self._runners = [self._made(f"r{n}") for n in range(mix.runners)]
        self._promises = promises
        orders = Orders(self._loop, self._servers, promises, mix.habits, Signer(KEY, self._wall), self._blame)
        programs = Programs(mix, self._loop, orders, self.checker, self)
        self._wrong = Faults(self._loop, self._network, self._servers, self._runners, self._random, self._leap)
        self._people = People(mix, orders, self.checker, programs, self._replace)
        self._troubles = 0
        self._is_healed = False
        self._faults = 0
        self._violation: Violation | None = None

    def _made(self, name: str) -> SimRunner:
        mix = self._mix
        machine = SimMachine(name, self._loop, self._network, self._servers, self._random, self)
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
        """What is written of an attempt, with what really runs."""
        it = self.checker.known[event.entity_id]
        if not isinstance(it, AttemptFacts) or it.lease is None:
            return
        if it.lease.state == "ACTIVE":
            self._taken.add((it.id, it.lease.number))
        if it.lease.state not in LIVE:
            self._untold.pop((it.id, it.lease.number), None)
        is_running = (it.lease.number, it.lease.worker_id) in self._executing.get(it.id, ())
        is_runners = it.lease.worker_id in self.checker.pollers  # Programs promise nothing of that kind.
        if it.lease.state == "EXPIRED" and is_running and is_runners and not self._mix.has_jumps:
            of = f"lease {it.lease.number} of {it.id}"
            raise Violation("self-stop", f"{of} has run out, and its job still runs on {it.lease.worker_id}")
        if not event.actor.startswith("worker:") or event.to not in ("SUCCEEDED", "FAILED", "CANCELED"):
            return
        found = self._results.get((it.id, it.lease.number))
        if (it.id, it.lease.number) in self._lies:
            return
        if event.to == "SUCCEEDED" and found != 0:
            raise Violation("truth", f"{it.id} succeeded, but what ran ended with {found}")
        if is_running:
            raise Violation("stopped", f"{it.id} is {event.to} by the word of {it.lease.worker_id}, and still runs")

    def began(self, attempt_id: str, number: int, who: str) -> None:
        """A job runs on a runner now."""
        here = self._executing.setdefault(attempt_id, set())
        if here and not self._mix.has_jumps and self._violation is None:
            self._violation = Violation(
                "overlap", f"{attempt_id} begins as lease {number} on {who} while it runs as {sorted(here)}"
            )
        held = self._held(attempt_id, number)
        # That a lease was taken away, by a cancel or a timeout, its runner hears a little later.
        is_owned = held is not None and (attempt_id, number) in self._taken and held.state in (*LIVE, "REVOKED")
        if not is_owned and not self._mix.has_jumps and (attempt_id, number) not in self._lies:
            self._blame(
                Violation("unowned", f"{attempt_id} begins on {who} as lease {number}, but its lease is {held}")
            )
        here.add((number, who))
        self._digest.update(f"began {attempt_id} {number} {who} {self._loop.now}".encode())

    def _held(self, attempt_id: str, number: int) -> Lease | None:
        """This lease, if it is the last one of the attempt."""
        it = self.checker.known.get(attempt_id)
        held = it.lease if isinstance(it, AttemptFacts) else None
        return held if held is not None and held.number == number else None

    def ended(self, attempt_id: str, number: int, who: str, exit_code: int | None) -> None:
        """It does not run any more."""
        self._executing.get(attempt_id, set()).discard((number, who))
        if exit_code is not None:
            self._results[attempt_id, number] = exit_code
            held = self._held(attempt_id, number)
            if who in self.checker.pollers and held is not None and held.state in LIVE:  # Programs may take their time.
                self._untold[attempt_id, number] = who
        self._digest.update(f"ended {attempt_id} {number} {exit_code} {self._loop.now}".encode())

    def writes(self, attempt_id: str, number: int, path: str) -> None:
        """What a job says stands in this file."""
        self._logs[attempt_id, number] = path

    def _compare_log(self, attempt_id: str, number: int, offset: int, data: bytes) -> None:
        """What arrives of a log is what the job said, at that place; a file that is gone tells nothing."""
        path = self._logs.get((attempt_id, number), "")
        if path and os.path.exists(path):
            with open(path, "rb") as file:
                file.seek(offset)
                if file.read(len(data)) != data:
                    of = f"the log of {attempt_id} under lease {number}"
                    self._blame(Violation("log-bytes", f"{of} has other bytes at {offset} than the job wrote"))

    def paused(self, attempt_id: str, number: int, who: str, *, is_paused: bool) -> None:
        """What stands still does nothing that another could do too."""
        if is_paused:
            self._executing.get(attempt_id, set()).discard((number, who))
        else:
            self.began(attempt_id, number, who)

    def lied(self, attempt_id: str, number: int) -> None:
        """What is said of this lease from now on need not be true."""
        self._lies.add((attempt_id, number))

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
        return not any(each.held for each in self.checker.workers.values()) and not any(self._executing.values())

    # -- what goes wrong

    def _break(self, fault: Fault) -> None:
        if self._is_healed:
            return
        self._faults += 1
        self._digest.update(f"{fault.kind} {self._loop.now}".encode())
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
        self._loop.outside(TELL_SECONDS + 2 * self._mix.poll_seconds, self._check_told, dict(self._untold))

    def _check_told(self, were: dict[tuple[str, int], str]) -> None:
        """What ended while things went wrong is known by now, in whatever way."""
        for lease, who in were.items():
            if lease in self._untold:
                self._blame(Violation("told", f"{lease[0]} ended on {who} as lease {lease[1]}, and nobody knows it"))


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
