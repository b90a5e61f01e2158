"""Document 003's invariants of tasks, workstreams and workers, checked on records and events after every decision.

They have the document's numbers. The first one, a single state, applies to every event. The checks are written from
the document's text and use neither the verifier nor the views.
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
from tests.support.lab import Lab
from tests.support.workstream_derivation import TASK_STATES, jobs_of, workstream_state_of

OVER: Final = {
    "job": {"SUCCEEDED", "FAILED", "CANCELED"},
    "run": {"SUCCESS", "FAILED", "CANCELED", "TIMEOUT", "REPORTED"},
    "worker": {"SHUTDOWN"},
}
WORKER_STATES: Final = {"INITIALIZING", "IDLE", "BUSY", "UNRESPONSIVE", "SHUTDOWN"}
AWAKE: Final = {"IDLE", "BUSY"}
MAX_INFRA_FAILURES: Final = 3  # In a row; then a worker gets no more work.


class Invariants:
    """Observer of a lab. `counts` says how often each invariant applied."""

    def __init__(self, lab: Lab, counts: Counter[str] | None = None) -> None:
        self._lab = lab
        self.counts = Counter[str]() if counts is None else counts
        self._states: dict[tuple[str, str], str] = {}
        self._retries = Counter[str]()
        self._leaving: dict[str, tuple[str, ...]] = {}  # By worker: its attempts when its shutdown was requested.
        self._on_hold: dict[str, tuple[str, ...]] = {}  # By worker: its attempts when it was put on hold.
        self._outcomes: dict[str, str] = {}

    def __call__(self, _command: Command, decision: Decision) -> None:
        """Check the events and the changed records of a decision."""
        self.check_events(decision.events)
        self.check_records(decision.changed.values())

    def check_events(self, events: Iterable[Event]) -> None:
        """Check events in their order."""
        for event in events:
            self._event(event)

    def check_records(self, changed: Iterable[Record]) -> None:
        """Check the changed records, their workstreams, and every worker."""
        records = [record for record in changed if isinstance(record, Job | Run)]
        for record in records:
            if isinstance(record, Job):
                self._task(record)
        for id in dict.fromkeys(record.run_id for record in records):
            self._workstream(self._lab.run(id))
        self._workers()

    # -- events

    def _event(self, event: Event) -> None:
        if event.entity == "attempt":
            self._heartbeat(event)
            return
        key, metadata = (event.entity, event.entity_id), event.metadata
        before = self._states.get(key)
        assert event.from_ == before, f"task 1: {event} after {before}"
        if before in OVER[event.entity]:
            self.counts["task 2"] += 1
            assert (before, event.to) in {(state, "REPORTED") for state in OVER["run"]}, f"task 2: {event}"
        self._states[key] = event.to
        if event.to == "RETRYING":
            self.counts["task 4"] += 1
            self._retries[event.entity_id] += 1
            assert metadata["retry_count"] == self._retries[event.entity_id] <= metadata["max_retries"], (
                f"task 4: {event}"
            )
        if event.entity == "worker":
            self._worker_event(event)

    def _heartbeat(self, event: Event) -> None:
        kind, _, id = event.actor.partition(":")
        if event.trigger == "heartbeat" and kind == "worker" and event.run_id and self._lab.unit.worker(id):
            self.counts["worker 2"] += 1
            assert self._states["worker", id] in AWAKE, f"worker 2: {event} while {self._states['worker', id]}"

    def _worker_event(self, event: Event) -> None:
        id, metadata = event.entity_id, event.metadata
        if event.trigger == "shutdown_requested" and event.to == "BUSY":
            self._leaving[id] = tuple(self._leased_attempts().get(id, ()))
        if metadata.get("hold"):
            self._on_hold.setdefault(id, tuple(self._leased_attempts().get(id, ())))
        elif "hold" in metadata:
            del self._on_hold[id]
        if event.trigger == "task_assigned":
            for name, attempts in (("worker 3", self._leaving), ("hold", self._on_hold)):
                attempt_id = metadata["attempt_id"]
                assert attempt_id in attempts.get(id, (attempt_id,)), f"{name}: {id} was assigned {metadata}"

    # -- records

    def _task(self, task: Job) -> None:
        spec = task.spec
        assert task.state in TASK_STATES, f"task 1: {task}"
        assert task.state == self._states["job", task.id], f"task 1: {task}"
        if task.worker_id:
            self.counts["task 3"] += 1
            assert task.state == "RUNNING", f"task 3: {task}"
        assert max(0, task.attempts - 1) <= spec.max_attempts - 1, f"task 4: {task}"
        assert self._retries[task.id] <= spec.max_attempts - 1, f"task 4: {task}"
        times = [at for at in (task.created_at, task.started_at, task.completed_at) if at]
        self.counts["task 5"] += len(times) == 3
        assert task.created_at, f"task 5: {task}"
        assert times == sorted(times), f"task 5: {task}"
        assert bool(task.completed_at) == (task.state in OVER["job"]), f"task 5: {task}"
        if task.state in ("VALIDATING", "SUCCEEDED"):
            verdict = self._lab.unit.attempt(task.attempt_id).verdict
            self.counts["verdict"] += verdict is not None
            assert verdict is None or verdict.is_passed, f"verdict: {task} continues after {verdict}"
        if task.state == "QUEUED" or task.started_at:
            needed = [self._lab.unit.job(id) for id in task.needs]
            self.counts["task 6"] += len(needed)
            for need in needed:
                is_allowed_failure = need.state == "FAILED" and not need.spec.is_required
                assert need.state == "SUCCEEDED" or is_allowed_failure, (
                    f"task 6: {task.id} is {task.state}, {need} has not ended"
                )

    def _workstream(self, record: Run) -> None:
        tasks, state = jobs_of(self._lab, record.id), workstream_state_of(record)
        critical = {task.state for task in tasks if task.spec.is_required}
        assert record.state == self._states["run", record.id], f"workstream 1: {record}"
        if state == "completed":
            self.counts["workstream 2"] += 1
            assert critical <= {"SUCCEEDED"}, f"workstream 2: {record}"
        if "FAILED" in critical:
            self.counts["workstream 3"] += 1
            assert state not in ("validating", "completed"), f"workstream 3: {record}"
            is_open = any(task.state not in OVER["job"] for task in tasks)
            assert is_open or state in ("failed", "cancelled"), f"workstream 3: {record}"
        if record.state in OVER["run"]:
            self.counts["workstream 4"] += state == "failed"
            assert self._outcomes.setdefault(record.id, state) == state, f"workstream 4: {record}"
            assert state != "failed" or record.reason, f"workstream 4: {record} has no reason"
            for task in tasks:
                assert task.state != "FAILED" or task.last_error, f"workstream 4: {task} has no reason"

    # -- workers and leases

    def _leased_attempts(self) -> dict[str, list[str]]:
        """Return by worker the attempts of tasks whose live lease it holds."""
        leased = defaultdict[str, list[str]](list)
        for record in self._lab.unit.records.values():
            if isinstance(record, Attempt) and record.lease is not None and record.job_id:
                leased[record.lease.worker_id].append(record.id)
        return leased

    def _workers(self) -> None:
        leased, unit = self._leased_attempts(), self._lab.unit
        for ids in leased.values():
            for id in ids:
                assert unit.job(unit.attempt(id).job_id).state == "RUNNING", f"task 3: {id} is leased"
        for record in unit.records.values():
            if isinstance(record, Worker):
                self._worker(record, leased.get(record.id, []))

    def _worker(self, record: Worker, leased: list[str]) -> None:
        assert record.state in WORKER_STATES, f"worker: {record}"
        assert sorted(record.tasks) == sorted(leased), f"worker 4: {record} and leases {leased}"
        self.counts["hold"] += bool(record.hold)
        if record.infra_failures >= MAX_INFRA_FAILURES:
            self.counts["trust"] += 1
            assert record.hold or record.shutdown_reason, f"trust: {record} still gets work"
        match record.state:
            case "BUSY":
                self.counts["worker 1"] += 1
                assert 1 <= len(leased) <= record.max_concurrent_tasks, f"worker 1: {record} and leases {leased}"
            case "UNRESPONSIVE":
                self.counts["worker 4"] += 1
                # The ends of their leases release them; a requested cancel is ended by its deadline, too.
                attempts = [self._lab.unit.attempt(id) for id in leased]
                ends = [
                    a.cancel_by if a.state == "CANCEL_REQUESTED" else a.lease and a.lease.reassign_at for a in attempts
                ]
                assert all(ends), f"worker 4: {record} has leases without an end: {attempts}"
            case "SHUTDOWN":
                self.counts["worker 3"] += record.id in self._leaving
                assert not leased, f"worker 3: {record} has leases {leased}"
            case _:
                assert not leased, f"worker 1: {record} has leases {leased}"


INVARIANTS: Final = (
    *(f"task {n}" for n in range(2, 7)),
    *(f"workstream {n}" for n in range(2, 5)),
    *(f"worker {n}" for n in range(1, 5)),
    *("verdict", "hold", "trust"),  # Of Delta CI: verdicts count, and a worker on hold gets no new work.
)
