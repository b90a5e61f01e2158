"""An in-memory deployment for tests: the real core, a clock that the test moves, and the event log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from deltaci.audit.projections.canonical import canonical_lines
from deltaci.audit.projections.job_events import job_events
from deltaci.audit.projections.transitions import TransitionsExporter
from deltaci.audit.verify import Report, verify
from deltaci.core import attempt, ids, job, run, worker
from deltaci.core.attempt import Attempt, LeasedCommand
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Decision, Plan, decide
from deltaci.core.errors import Refused, StaleLease
from deltaci.core.events import Event, with_seq, worker_actor
from deltaci.core.failures import Facts
from deltaci.core.ids import LeaseRef, job_id
from deltaci.core.instants import SECOND
from deltaci.core.job import Job, JobSpec
from deltaci.core.machine import Command
from deltaci.core.run import Run
from deltaci.core.unit_of_work import UnitOfWork
from deltaci.core.worker import Worker

START = 1_767_513_600 * SECOND  # 2026-01-04T08:00:00Z
TENANT = "acme"


class Lease:
    """A runner's lease: the worker's id and the lease id that it received."""

    def __init__(self, worker_id: str, token: str) -> None:
        self.worker_id = worker_id
        self.token = token

    @property
    def ref(self) -> LeaseRef:
        return ids.lease_ref(self.token)

    @property
    def actor(self) -> str:
        return worker_actor(self.worker_id)


class Lab:
    """One deployment in memory. `do` applies a command; the other methods are shortcuts for common commands."""

    def __init__(self) -> None:
        self.unit = UnitOfWork(is_complete=True)
        self.now = START
        self.log: list[Event] = []
        self.grants = 0

    # -- time and commands

    def after(self, seconds: float) -> Lab:
        """Move the clock forward and return the lab."""
        self.now += round(seconds * SECOND)
        return self

    def do(self, command: Command) -> Decision:
        """Apply a command at the current time."""
        decision = decide(self.unit, command, self.now)
        self.log += [with_seq(event, len(self.log) + 1 + n) for n, event in enumerate(decision.events)]
        return decision

    def refused(self, command: Command) -> Refused:
        """Apply a command, assert that it is refused and changes nothing, and return the refusal."""
        records, events = dict(self.unit.records), len(self.log)
        try:
            self.do(command)
        except Refused as refusal:
            assert self.unit.records == records
            assert len(self.log) == events
            return refusal
        raise AssertionError(f"{command} was not refused")

    def stale(self, command: Command) -> str:
        """Apply a message, assert that it is refused as stale, and return the reason."""
        refusal = self.refused(command)
        assert isinstance(refusal, StaleLease), refusal
        return refusal.reason

    # -- records

    def run(self, id: str = "r1") -> Run:
        return self.unit.run(id)

    def job(self, name: str, run_id: str = "r1") -> Job:
        return self.unit.job(job_id(run_id, name))

    def attempt(self, name: str, index: int = 0, run_id: str = "r1") -> Attempt:
        """Return the attempt of the job with this index, or else the latest."""
        record = self.job(name, run_id)
        return self.unit.attempt(ids.attempt_id(record.id, index or record.attempts))

    def queued(self, id: str = "q1") -> Attempt:
        """Return an attempt of the plain queue."""
        return self.unit.attempt(id)

    def worker_record(self, id: str) -> Worker:
        record = self.unit.worker(id)
        assert record is not None
        return record

    # -- runs and workers

    def create(self, id: str = "r1", tenant: str = TENANT, **fields: Any) -> Run:
        """Create a run."""
        self.do(NewRecord(id=id, record=Run(id=id, run_id=id, tenant=tenant, **fields)))
        return self.run(id)

    def plan(self, *specs: JobSpec, id: str = "r1", **fields: Any) -> Lab:
        """Create a run and start it with a plan of these jobs."""
        self.create(id, **fields)
        self.do(run.BeginPlanning(id=id))
        self.do(Plan(id=id, jobs=specs, plan_hash="hash"))
        return self

    def enqueue(self, id: str = "q1", tenant: str = TENANT, **fields: Any) -> Attempt:
        """Create an attempt without a job, as the queue library does."""
        self.do(NewRecord(id=id, record=Attempt(id=id, tenant=tenant, **fields)))
        return self.queued(id)

    def register(self, id: str, slots: int = 1, labels: Iterable[str] = ()) -> Worker:
        """Register a worker."""
        record = Worker(id=id, tenant=TENANT, labels=tuple(labels), max_concurrent_tasks=slots)
        self.do(NewRecord(id=id, record=record))
        return self.worker_record(id)

    # -- messages of runners

    def claim(self, target: Attempt, by: str = "w1", **fields: Any) -> Lease:
        """Lease the attempt to a worker, as the engine does; refuse if another attempt holds its group."""
        if target.group and any(self._has_group(record, target) for record in self.unit.records.values()):
            raise Refused("not_eligible", f"another attempt holds the group {target.group}")
        self.grants += 1
        token = ids.lease_id(target.id, target.claims + 1, f"secret-{self.grants:016d}")
        registered = self.unit.worker(by)
        fields.setdefault("labels", registered.labels if registered else ())
        self.do(attempt.Grant(id=target.id, actor=worker_actor(by), fingerprint=ids.lease_fingerprint(token), **fields))
        return Lease(by, token)

    def _has_group(self, record: object, target: Attempt) -> bool:
        """Return whether the record is another attempt that occupies the group of `target`."""
        if not isinstance(record, Attempt) or record.id == target.id:
            return False
        is_occupying = record.lease is not None or record.fence_until > self.now
        return is_occupying and (record.tenant, record.group) == (target.tenant, target.group)

    def send(self, message: type[LeasedCommand], lease: Lease, **fields: Any) -> Attempt:
        """Send a message of the runner under its lease."""
        return self._attempt(self.do(self.message(message, lease, **fields)))

    def message(self, message: type[LeasedCommand], lease: Lease, **fields: Any) -> LeasedCommand:
        """Return a message of the runner under its lease."""
        return message(id=lease.ref.attempt_id, actor=lease.actor, lease=lease.ref, **fields)

    def complete(self, lease: Lease, *, ok: bool = True, exit_code: int | None = None, **fields: Any) -> Attempt:
        """Report the result of the execution."""
        code = exit_code if exit_code is not None else 0 if ok else 1
        return self.send(attempt.Complete, lease, is_success=ok, exit_code=code, **fields)

    def fail(self, lease: Lease, error_code: str = "RUNNER_STARTUP") -> Attempt:
        """Report a failure, by default a retryable one."""
        return self.complete(lease, ok=False, facts=Facts(error_code=error_code))

    def work(self, name: str, by: str = "w1", *, ok: bool = True, run_id: str = "r1") -> Attempt:
        """Claim a job and finish it."""
        return self.complete(self.claim(self.attempt(name, run_id=run_id), by), ok=ok)

    def approve(self, name: str, by: str = "user:ada", run_id: str = "r1") -> Job:
        """Approve a gate as a person."""
        self.do(job.Approve(id=job_id(run_id, name), actor=by))
        return self.job(name, run_id)

    def cancel_run(self, id: str = "r1", **fields: Any) -> Run:
        """Cancel the run as a person."""
        self.do(run.Cancel(id=id, actor="user:ada", **fields))
        return self.run(id)

    def report(self, id: str = "r1") -> Run:
        """Mark the outcome of the run as published."""
        self.do(run.Report(id=id, actor="reporter"))
        return self.run(id)

    @staticmethod
    def _attempt(decision: Decision) -> Attempt:
        assert isinstance(decision.record, Attempt)
        return decision.record

    # -- the log

    def steps(self, entity_id: str) -> list[str]:
        """Return the states of an entity in order, without repeats."""
        events = [event for event in self.log if event.entity_id == entity_id]
        states = [event.from_ for event in events[:1] if event.from_]
        return [*states, *(event.to for event in events if event.from_ != event.to)]

    def last(self, entity_id: str) -> Event:
        """Return the latest event of an entity."""
        return next(event for event in reversed(self.log) if event.entity_id == entity_id)

    def canonical(self) -> list[bytes]:
        """Return the log in its canonical form."""
        return list(canonical_lines(self.log))

    def transitions(self) -> list[bytes]:
        """Return the log as document 003's transitions."""
        return [msgspec.json.encode(line) for line in TransitionsExporter().export(self.log)]

    def job_events(self) -> list[bytes]:
        """Return the log as document 004's job events."""
        return [msgspec.json.encode(line) for line in job_events(self.log)]

    def verified(self) -> list[Report]:
        """Verify the log in all three formats and return the reports; fail with the violations if one is not legal."""
        forms = {"canonical": self.canonical(), "transitions": self.transitions(), "job-events": self.job_events()}
        reports = [verify(text, name) for name, text in forms.items() if text]
        for report in reports:
            assert report.is_legal, "\n".join(map(str, report.violations[:10]))
        return reports


def task(name: str, *needs: str, **fields: Any) -> JobSpec:
    """Return the spec of a job that a worker executes."""
    return JobSpec(name=name, needs=needs, **fields)


def gate(name: str, *needs: str, **fields: Any) -> JobSpec:
    """Return the spec of an approval gate."""
    return JobSpec(name=name, needs=needs, kind=job.APPROVAL, **fields)


__all__ = ["START", "TENANT", "Lab", "Lease", "gate", "task", "worker"]
