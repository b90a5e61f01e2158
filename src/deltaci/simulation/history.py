"""Plays one history: a deployment, its users and its faults, all determined by one seed and checked at every step."""

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
from deltaci.simulation.checker.acknowledgements import AcknowledgementChecker
from deltaci.simulation.checker.executions import ExecutionChecker
from deltaci.simulation.checker.history_checker import CheckerConfig, HistoryChecker, Violation
from deltaci.simulation.checker.transitions import Edge
from deltaci.simulation.client import CommandClient
from deltaci.simulation.database import SharedDatabase
from deltaci.simulation.faults import FaultInjector
from deltaci.simulation.machine import SimMachine
from deltaci.simulation.network import Network
from deltaci.simulation.people import People
from deltaci.simulation.queue_clients import QueueClients
from deltaci.simulation.runner import SimRunner
from deltaci.simulation.scenario import HOUR, Fault, Scenario
from deltaci.simulation.server import KEY, SharedStorage, SimServer
from deltaci.simulation.virtual_time import SimulationStuck, VirtualLoop

EPOCH: Final = 1_767_513_600
SIMULATIONS_PER_COLLECTION: Final = 32  # Between two full garbage collections.
LOGGER: Final = logging.getLogger("deltaci")
REPORT_SECONDS: Final = 900.0  # Without faults, every end is reported within this time and two polls.
SETTLE_HOURS: Final = 8.0  # Without faults, everything must end within this time.


_simulation_numbers = count(1)
_encode_event = msgspec.msgpack.Encoder().encode


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one simulation. `invariant` names the first invariant that was broken; empty if none was."""

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


class Simulation:
    """One simulated deployment with its users, its faults and its checkers."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._loop = VirtualLoop()  # type: ignore[abstract]  # Only some methods of a loop are needed.
        self._random = Random(scenario.seed * 7919 + 1)
        self._store_clock_offset = 0.0
        self.checker = HistoryChecker(
            CheckerConfig(
                scenario.ttl_seconds,
                scenario.poll_seconds,
                scenario.wait_seconds,
                has_clock_jumps=scenario.has_clock_jumps,
            )
        )
        self.log: list[Event] = []
        acknowledgements = AcknowledgementChecker(self.checker)
        self._digest = blake2b(digest_size=16)
        self.executions = ExecutionChecker(
            self.checker, self._note, self._report, has_clock_jumps=scenario.has_clock_jumps
        )
        self._database = SharedDatabase(self._store_clock, self._on_commit)
        self._network = Network(self._loop, self._random)
        self._folder = tempfile.TemporaryDirectory(
            prefix="deltaci-sim-", dir=_memory_folder(), ignore_cleanup_errors=True
        )
        storage = SharedStorage(Path(self._folder.name), self.executions.check_log)
        self._servers = [
            SimServer(f"s{server_index}", self._loop, self._database, storage, self._random, self._wall_clock)
            for server_index in range(scenario.servers)
        ]
        for server in self._servers:
            server.on_response = self._check_response
        self._runners = [self._create_runner(f"r{server_index}") for server_index in range(scenario.runners)]
        self._acknowledgements = acknowledgements
        client = CommandClient(
            self._loop,
            self._servers,
            acknowledgements,
            scenario.probabilities,
            Signer(KEY, self._wall_clock),
            self._report,
        )
        queue_clients = QueueClients(scenario, self._loop, client, self.checker, self.executions)
        self._fault_injector = FaultInjector(
            self._loop, self._network, self._servers, self._runners, self._random, self._jump_store_clock
        )
        self._people = People(scenario, client, self.checker, queue_clients, self._replace)
        self._active_fault_count = 0
        self._has_ended_faults = False
        self._fault_count = 0
        self._first_violation: Violation | None = None

    def _create_runner(self, name: str) -> SimRunner:
        """Create a runner on its own machine, whose clock is slightly too fast or too slow."""
        scenario = self._scenario
        machine = SimMachine(name, self._loop, self._network, self._servers, self._random, self.executions)
        machine.clock_rate = 1 + self._random.uniform(-1e-3, 1e-3)
        folder, signer = Path(self._folder.name), Signer(KEY, self._wall_clock)
        runner = SimRunner(machine, self._loop, self._random, signer, folder, scenario.slots, scenario.wait_seconds)
        self.checker.polling_worker_ids[name] = None
        return runner

    def _replace(self, worker_name: str) -> None:
        """Retire a runner whose worker was shut down, and start one on another machine under a new name."""
        for runner_index, runner in enumerate(self._runners):
            if runner.name == worker_name:
                runner.retire()
                self.checker.polling_worker_ids.pop(worker_name, None)
                self._runners[runner_index] = self._create_runner(f"{worker_name}+")
                self._runners[runner_index].start()

    # -- clocks

    def _wall_clock(self) -> float:
        return EPOCH + self._loop.now

    def _store_clock(self) -> int:
        return round((EPOCH + self._loop.now + self._store_clock_offset) * 1e6)

    def _jump_store_clock(self, seconds: float) -> None:
        self._store_clock_offset += seconds

    # -- checking

    def _on_commit(self, events: list[Event]) -> None:
        """Check the events of a commit, and let users react to them.

        A violation is kept and not raised, because the simulated code must not see it.
        """
        now = self._store_clock()
        self.log += events
        try:
            for event in events:
                self._digest.update(_encode_event(event))
                self.checker.check_event(event, now)
                if event.entity == "attempt":
                    self.executions.check_event(event)
            self.checker.check_commit(now)
        except Violation as violation:
            self._report(violation)
        else:
            for event in events:
                self._people.on_event(event)

    def _note(self, text: str) -> None:
        """Add a text and the current time to the digest of the history."""
        self._digest.update(f"{text} {self._loop.now}".encode())

    def _report(self, violation: Violation) -> None:
        """Keep the first violation, which ends the history."""
        self._first_violation = self._first_violation or violation

    def _check_response(self, path: str, body: bytes, status: int, response: bytes) -> None:
        """Check against the log what a server acknowledges to a runner."""
        try:
            self._acknowledgements.check_response(path, body, status, response)
        except Violation as violation:
            self._report(violation)

    def _report_error(self, message: str) -> None:
        """Report an unexpected error in the simulated code."""
        self._report(Violation("error", message))

    # -- playing

    def run(self) -> History:
        """Play the history and return its result. It ends early with the first violation, which the result contains."""
        started_at = time.process_time()
        random_state = global_random.getstate()
        global_random.seed(self._scenario.seed)
        was_gc_enabled = gc.isenabled()
        gc.disable()
        if next(_simulation_numbers) % SIMULATIONS_PER_COLLECTION == 0:
            gc.collect()  # Garbage of earlier simulations.
        gc.freeze()  # Later collections then look only at this simulation.
        logging.disable(logging.WARNING)
        error_handler = _ErrorLogHandler(self._report_error)
        LOGGER.addHandler(error_handler)
        LOGGER.propagate = False
        invariant = message = ""
        try:
            self._play()
        except Violation as violation:
            invariant, message = violation.invariant, str(violation)
        finally:
            self._loop.end()
            LOGGER.removeHandler(error_handler)
            LOGGER.propagate = True
            logging.disable(logging.NOTSET)
            self._folder.cleanup()
            gc.unfreeze()
            global_random.setstate(random_state)
            if was_gc_enabled:
                gc.enable()
        return History(
            seed=self._scenario.seed,
            digest=self._digest.hexdigest(),
            hours=self._loop.now / HOUR,
            cpu_seconds=time.process_time() - started_at,
            events=self.checker.event_count,
            steps=self._loop.steps,
            faults=self._fault_count,
            messages=self._network.request_count,
            acknowledged=self._acknowledgements.acknowledged,
            invariant=invariant,
            message=message,
            edges=frozenset(self.checker.edges),
        )

    def _play(self) -> None:
        """Run the scenario until everything has ended. Raise the first `Violation`."""
        scenario, loop = self._scenario, self._loop
        for server in self._servers:
            server.ttl_seconds, server.poll_seconds = scenario.ttl_seconds, scenario.poll_seconds
            server.credential_seconds = scenario.credential_seconds
            server.start()
        for runner in self._runners:
            runner.start()
        self.checker.set_fault_free_since(self._store_clock())
        for action in scenario.actions:
            loop.call_at(action.at, self._people.perform, action)
        for fault in scenario.faults:
            loop.call_at(fault.at, self._inject, fault)
        loop.call_at(scenario.hours * HOUR, self._end_faults)
        try:
            loop.run(self._is_over, until=(scenario.hours + SETTLE_HOURS) * HOUR)
        except SimulationStuck as stuck:
            raise Violation("liveness", str(stuck)) from stuck
        self.checker.check_end()
        if not self.executions.is_idle():
            raise Violation("liveness", f"a process still runs: {self.executions.executing}")
        self._check_database()

    def _check_database(self) -> None:
        """Check that the stored log and records agree with the events that were committed."""
        if self._database.log() != self.log:
            raise Violation("log", "the stored log differs from the committed events")
        for entity_id, entity in self.checker.entities.items():
            stored_record = self._database.record(entity_id)
            if stored_record is None or (stored_record.state, stored_record.rev) != (entity.state, entity.rev):
                actual_text = (
                    f"{stored_record.state} at rev {stored_record.rev}" if stored_record is not None else "missing"
                )
                raise Violation(
                    "record",
                    f"{entity_id} is {entity.state} at rev {entity.rev} by the log, "
                    f"but the stored record is {actual_text}",
                )

    def _is_over(self) -> bool:
        """Return whether faults have ended and all runs, attempts and processes too. Raise the first violation."""
        if self._loop.failures:
            failure = self._loop.failures[0]
            self._report_error(f"{failure.get('message')}: {failure.get('exception')!r}")
        if self._first_violation is not None:
            raise self._first_violation
        if not self._has_ended_faults or self._loop.now < self._scenario.hours * HOUR + 60:
            return False
        unfinished = self._people.unfinished
        while unfinished:
            if not self.checker.is_over(entity_id := next(iter(unfinished))):
                return False
            del unfinished[entity_id]
        return not any(worker.leased_attempts for worker in self.checker.workers.values()) and self.executions.is_idle()

    # -- faults

    def _inject(self, fault: Fault) -> None:
        """Start a fault, and schedule its end."""
        if self._has_ended_faults:
            return
        self._fault_count += 1
        self._note(fault.kind)
        end_fault = self._fault_injector.inject(fault)
        self._active_fault_count += 1
        self.checker.set_fault_free_since(None)
        self._loop.call_later(fault.seconds, self._end_fault, end_fault)

    def _end_fault(self, end_fault: Callable[[], None]) -> None:
        """End one fault. If no other is active, delays are checked from now on."""
        end_fault()
        self._active_fault_count -= 1
        if not self._active_fault_count and not self._has_ended_faults:
            self.checker.set_fault_free_since(self._store_clock())

    def _end_faults(self) -> None:
        """End all faults and allow no new ones. Schedule the check that every end of a process is reported."""
        self._has_ended_faults = True
        self._fault_injector.end_all()
        self.checker.set_fault_free_since(self._store_clock())
        wait_seconds = REPORT_SECONDS + 2 * self._scenario.poll_seconds
        self._loop.call_outside(wait_seconds, self.executions.check_reported, dict(self.executions.unreported_ends))


class _ErrorLogHandler(logging.Handler):
    """Reports errors that the simulated code caught and logged."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        error = f": {record.exc_info[1]!r}" if record.exc_info else ""
        self._report(f"{record.name}: {record.getMessage()}{error}")


def _memory_folder() -> str | None:
    """Return a folder in memory, or None, so that the files of runners are never written to a disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
