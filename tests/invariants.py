"""Document 003's invariants of tasks, workstreams and workers, looked up in records and events after every decision.

They have the document's numbers. Its first one, a single state, has something to say about every event.

Nothing here knows the verifier or the views: what is told apart, is told apart by the document's own sentences.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

from deltaci.core.attempt import Attempt
from deltaci.core.decide import Decision
from deltaci.core.events import Event
from deltaci.core.job import Job
from deltaci.core.machine import Command, Record
from deltaci.core.run import Run
from deltaci.core.worker import Worker
from tests.derivation import TASK_WORDS, jobs_of, shown_as
from tests.lab import Lab

OVER: Final = {
    "job": {"SUCCEEDED", "FAILED", "CANCELED"},
    "run": {"SUCCESS", "FAILED", "CANCELED", "TIMEOUT", "REPORTED"},
    "worker": {"SHUTDOWN"},
}
WORKER_STATES: Final = {"INITIALIZING", "IDLE", "BUSY", "UNRESPONSIVE", "SHUTDOWN"}
AWAKE: Final = {"IDLE", "BUSY"}
TROUBLES: Final = 3  # So many in a row, and a worker takes no more work.


class Invariants:
    """Watches a lab. `seen` counts how often each invariant had something to say."""

    def __init__(self, lab: Lab, seen: Counter[str] | None = None) -> None:
        self._lab = lab
        self.seen = Counter[str]() if seen is None else seen
        self._states: dict[tuple[str, str], str] = {}
        self._retries = Counter[str]()
        self._leaving: dict[str, tuple[str, ...]] = {}  # Who was asked to go, and what it had in hand then.
        self._on_hold: dict[str, tuple[str, ...]] = {}  # The same of who is drained or in quarantine.
        self._outcomes: dict[str, str] = {}

    def __call__(self, _command: Command, decision: Decision) -> None:
        """Look at all that this decision said and changed."""
        self.hear(decision.events)
        self.look(decision.changed.values())

    def hear(self, events: Iterable[Event]) -> None:
        """What was said, in its order."""
        for event in events:
            self._hear(event)

    def look(self, changed: Iterable[Record]) -> None:
        """The records that changed, the workstreams that they belong to, and every worker."""
        found = [record for record in changed if isinstance(record, Job | Run)]
        for record in found:
            if isinstance(record, Job):
                self._task(record)
        for id in dict.fromkeys(record.run_id for record in found):
            self._workstream(self._lab.run(id))
        self._workers()

    # -- what is said

    def _hear(self, event: Event) -> None:
        if event.entity == "attempt":
            self._heartbeat(event)
            return
        key, told = (event.entity, event.entity_id), event.metadata
        before = self._states.get(key)
        assert event.from_ == before, f"task 1: {event} after {before}"
        if before in OVER[event.entity]:
            self.seen["task 2"] += 1
            assert (before, event.to) in {(each, "REPORTED") for each in OVER["run"]}, f"task 2: {event}"
        self._states[key] = event.to
        if event.to == "RETRYING":
            self.seen["task 4"] += 1
            self._retries[event.entity_id] += 1
            assert told["retry_count"] == self._retries[event.entity_id] <= told["max_retries"], f"task 4: {event}"
        if event.entity == "worker":
            self._worker_says(event)

    def _heartbeat(self, event: Event) -> None:
        kind, _, id = event.actor.partition(":")
        if event.trigger == "heartbeat" and kind == "worker" and event.run_id and self._lab.unit.worker(id):
            self.seen["worker 2"] += 1
            assert self._states["worker", id] in AWAKE, f"worker 2: {event} while {self._states['worker', id]}"

    def _worker_says(self, event: Event) -> None:
        id, told = event.entity_id, event.metadata
        if event.trigger == "shutdown_requested" and event.to == "BUSY":
            self._leaving[id] = tuple(self._held().get(id, ()))
        if told.get("hold"):
            self._on_hold.setdefault(id, tuple(self._held().get(id, ())))
        elif "hold" in told:
            del self._on_hold[id]
        if event.trigger == "task_assigned":
            for name, asked in (("worker 3", self._leaving), ("hold", self._on_hold)):
                assert told["attempt_id"] in asked.get(id, (told["attempt_id"],)), f"{name}: {id} was given {told}"

    # -- what is recorded

    def _task(self, task: Job) -> None:
        spec = task.spec
        assert task.state in TASK_WORDS, f"task 1: {task}"
        assert task.state == self._states["job", task.id], f"task 1: {task}"
        if task.worker_id:
            self.seen["task 3"] += 1
            assert task.state == "RUNNING", f"task 3: {task}"
        assert max(0, task.attempts - 1) <= spec.max_attempts - 1, f"task 4: {task}"
        assert self._retries[task.id] <= spec.max_attempts - 1, f"task 4: {task}"
        times = [at for at in (task.created_at, task.started_at, task.completed_at) if at]
        self.seen["task 5"] += len(times) == 3
        assert task.created_at, f"task 5: {task}"
        assert times == sorted(times), f"task 5: {task}"
        assert bool(task.completed_at) == (task.state in OVER["job"]), f"task 5: {task}"
        if task.state in ("VALIDATING", "SUCCEEDED"):
            verdict = self._lab.unit.attempt(task.attempt_id).verdict
            self.seen["verdict"] += verdict is not None
            assert verdict is None or verdict.is_passed, f"verdict: {task} goes on, although its rules found {verdict}"
        if task.state == "QUEUED" or task.started_at:
            needed = [self._lab.unit.job(id) for id in task.needs]
            self.seen["task 6"] += len(needed)
            for need in needed:
                is_excused = need.state == "FAILED" and not need.spec.is_required
                assert need.state == "SUCCEEDED" or is_excused, f"task 6: {task.id} is {task.state}, {need} is not over"

    def _workstream(self, record: Run) -> None:
        tasks, shown = jobs_of(self._lab, record.id), shown_as(record)
        critical = {task.state for task in tasks if task.spec.is_required}
        assert record.state == self._states["run", record.id], f"workstream 1: {record}"
        if shown == "completed":
            self.seen["workstream 2"] += 1
            assert critical <= {"SUCCEEDED"}, f"workstream 2: {record}"
        if "FAILED" in critical:
            self.seen["workstream 3"] += 1
            assert shown not in ("validating", "completed"), f"workstream 3: {record}"
            is_open = any(task.state not in OVER["job"] for task in tasks)
            assert is_open or shown in ("failed", "cancelled"), f"workstream 3: {record}"
        if record.state in OVER["run"]:
            self.seen["workstream 4"] += shown == "failed"
            assert self._outcomes.setdefault(record.id, shown) == shown, f"workstream 4: {record}"
            assert shown != "failed" or record.reason, f"workstream 4: {record} does not say why"
            for task in tasks:
                assert task.state != "FAILED" or task.last_error, f"workstream 4: {task} does not say why"

    # -- who holds what

    def _held(self) -> dict[str, list[str]]:
        """By worker: the tasks' attempts of which it has the live lease."""
        found = defaultdict[str, list[str]](list)
        for record in self._lab.unit.records.values():
            if isinstance(record, Attempt) and record.lease is not None and record.job_id:
                found[record.lease.worker_id].append(record.id)
        return found

    def _workers(self) -> None:
        held, world = self._held(), self._lab.unit
        for ids in held.values():
            for id in ids:
                assert world.job(world.attempt(id).job_id).state == "RUNNING", f"task 3: {id} is leased"
        for record in world.records.values():
            if isinstance(record, Worker):
                self._worker(record, held.get(record.id, []))

    def _worker(self, record: Worker, held: list[str]) -> None:
        assert record.state in WORKER_STATES, f"worker: {record}"
        assert sorted(record.tasks) == sorted(held), f"worker 4: {record} and leases {held}"
        self.seen["hold"] += bool(record.hold)
        if record.infra_failures >= TROUBLES:
            self.seen["trust"] += 1
            assert record.hold or record.shutdown_reason, f"trust: {record} still takes work"
        match record.state:
            case "BUSY":
                self.seen["worker 1"] += 1
                assert 1 <= len(held) <= record.max_concurrent_tasks, f"worker 1: {record} and leases {held}"
            case "UNRESPONSIVE":
                self.seen["worker 4"] += 1
                # It was asked to stop these and may still do so: they have a deadline, after which they are over too.
                kept = [self._lab.unit.attempt(id) for id in held]
                assert all(each.state == "CANCEL_REQUESTED" and each.cancel_by for each in kept), f"worker 4: {record}"
            case "SHUTDOWN":
                self.seen["worker 3"] += record.id in self._leaving
                assert not held, f"worker 3: {record} has leases {held}"
            case _:
                assert not held, f"worker 1: {record} has leases {held}"


INVARIANTS: Final = (
    *(f"task {n}" for n in range(2, 7)),
    *(f"workstream {n}" for n in range(2, 5)),
    *(f"worker {n}" for n in range(1, 5)),
    *("verdict", "hold", "trust"),  # What Delta CI adds: the rules' word counts, and who is held gets nothing new.
)
