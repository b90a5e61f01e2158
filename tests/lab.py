"""A small world for tests: the real core, a clock that tests move by hand, and the log that it writes."""

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
from deltaci.core.timers import ready_at
from deltaci.core.unit_of_work import UnitOfWork
from deltaci.core.worker import Worker

START = 1_767_513_600 * SECOND  # 2026-01-04T08:00:00Z
TENANT = "acme"


class Lease:
    """What a runner holds: who it is and the token that it was shown."""

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
    """One deployment in memory. `do` applies a command; everything else is short for common commands."""

    def __init__(self) -> None:
        self.world = UnitOfWork(is_complete=True)
        self.now = START
        self.log: list[Event] = []
        self.grants = 0

    # -- time and commands

    def after(self, seconds: float) -> Lab:
        """Move the clock."""
        self.now += round(seconds * SECOND)
        return self

    def do(self, command: Command) -> Decision:
        """Apply one command now."""
        decision = decide(self.world, command, self.now)
        self.log += [with_seq(event, len(self.log) + 1 + n) for n, event in enumerate(decision.events)]
        return decision

    def refused(self, command: Command) -> Refused:
        """Apply one command that must be refused, and show that nothing changed."""
        records, events = dict(self.world.records), len(self.log)
        try:
            self.do(command)
        except Refused as refusal:
            assert self.world.records == records
            assert len(self.log) == events
            return refusal
        raise AssertionError(f"{command} was not refused")

    def stale(self, command: Command) -> str:
        """The reason with which a message of a dead lease is refused."""
        refusal = self.refused(command)
        assert isinstance(refusal, StaleLease), refusal
        return refusal.reason

    # -- records

    def run(self, id: str = "r1") -> Run:
        return self.world.run(id)

    def job(self, name: str, run_id: str = "r1") -> Job:
        return self.world.job(job_id(run_id, name))

    def attempt(self, name: str, index: int = 0, run_id: str = "r1") -> Attempt:
        """The newest attempt of the job, or the one with this index."""
        of = self.job(name, run_id)
        return self.world.attempt(ids.attempt_id(of.id, index or of.attempts))

    def queued(self, id: str = "q1") -> Attempt:
        """An attempt of the plain queue."""
        return self.world.attempt(id)

    def worker_record(self, id: str) -> Worker:
        found = self.world.worker(id)
        assert found is not None
        return found

    # -- runs and workers

    def create(self, id: str = "r1", tenant: str = TENANT, **fields: Any) -> Run:
        """A run that is CREATED."""
        self.do(NewRecord(id=id, record=Run(id=id, run_id=id, tenant=tenant, **fields)))
        return self.run(id)

    def plan(self, *specs: JobSpec, id: str = "r1", **fields: Any) -> Lab:
        """A run that is planned with these jobs and has begun."""
        self.create(id, **fields)
        self.do(run.BeginPlanning(id=id))
        self.do(Plan(id=id, jobs=specs, plan_hash="hash"))
        return self

    def enqueue(self, id: str = "q1", tenant: str = TENANT, **fields: Any) -> Attempt:
        """An attempt on its own, as the queue library makes it."""
        self.do(NewRecord(id=id, record=Attempt(id=id, tenant=tenant, **fields)))
        return self.queued(id)

    def register(self, id: str, places: int = 1, labels: Iterable[str] = ()) -> Worker:
        """A worker that is IDLE."""
        record = Worker(id=id, tenant=TENANT, labels=tuple(labels), max_concurrent_tasks=places)
        self.do(NewRecord(id=id, record=record))
        return self.worker_record(id)

    # -- what a runner does

    def claim(self, what: Attempt, by: str = "w1", **fields: Any) -> Lease:
        """Grant the attempt to a worker, as the engine does: of a group only while nobody else has it."""
        if what.group and any(self._has_group(each, what) for each in self.world.records.values()):
            raise Refused("not_eligible", f"somebody else of the group {what.group} is under way")
        self.grants += 1
        token = ids.lease_id(what.id, what.claims + 1, f"secret-{self.grants:016d}")
        known = self.world.worker(by)
        fields.setdefault("labels", known.labels if known else ())
        self.do(attempt.Grant(id=what.id, actor=worker_actor(by), fingerprint=ids.lease_fingerprint(token), **fields))
        return Lease(by, token)

    def _has_group(self, record: object, wanted: Attempt) -> bool:
        if not isinstance(record, Attempt) or record.id == wanted.id:
            return False
        is_held = record.lease is not None or (ready_at(record) or 0) > self.now
        return is_held and (record.tenant, record.group) == (wanted.tenant, wanted.group)

    def say(self, message: type[LeasedCommand], lease: Lease, **fields: Any) -> Attempt:
        """Send one of the runner's messages."""
        return self._attempt(self.do(self.message(message, lease, **fields)))

    def message(self, message: type[LeasedCommand], lease: Lease, **fields: Any) -> LeasedCommand:
        """One of the runner's messages, not sent yet."""
        return message(id=lease.ref.attempt_id, actor=lease.actor, lease=lease.ref, **fields)

    def complete(self, lease: Lease, *, ok: bool = True, exit_code: int | None = None, **fields: Any) -> Attempt:
        """The runner reports its result."""
        code = exit_code if exit_code is not None else 0 if ok else 1
        return self.say(attempt.Complete, lease, is_success=ok, exit_code=code, **fields)

    def fail(self, lease: Lease, error_code: str = "RUNNER_STARTUP") -> Attempt:
        """The runner reports a failure that is worth a retry, unless another code is given."""
        return self.complete(lease, ok=False, facts=Facts(error_code=error_code))

    def work(self, name: str, by: str = "w1", *, ok: bool = True, run_id: str = "r1") -> Attempt:
        """A worker takes a job and finishes it."""
        return self.complete(self.claim(self.attempt(name, run_id=run_id), by), ok=ok)

    def approve(self, name: str, by: str = "user:ada", run_id: str = "r1") -> Job:
        """A person approves."""
        self.do(job.Approve(id=job_id(run_id, name), actor=by))
        return self.job(name, run_id)

    def cancel_run(self, id: str = "r1", **fields: Any) -> Run:
        """A person cancels the run."""
        self.do(run.Cancel(id=id, actor="user:ada", **fields))
        return self.run(id)

    def report(self, id: str = "r1") -> Run:
        """The outcome is published."""
        self.do(run.Report(id=id, actor="reporter"))
        return self.run(id)

    @staticmethod
    def _attempt(decision: Decision) -> Attempt:
        assert isinstance(decision.record, Attempt)
        return decision.record

    # -- the log

    def steps(self, entity_id: str) -> list[str]:
        """The states that an entity went through, in order, its repeats left out."""
        of = [event for event in self.log if event.entity_id == entity_id]
        states = [event.from_ for event in of[:1] if event.from_]
        return [*states, *(event.to for event in of if event.from_ != event.to)]

    def last(self, entity_id: str) -> Event:
        """The newest event of an entity."""
        return next(event for event in reversed(self.log) if event.entity_id == entity_id)

    def canonical(self) -> list[bytes]:
        """The log in its canonical form."""
        return list(canonical_lines(self.log))

    def transitions(self) -> list[bytes]:
        """The log as document 003's transitions."""
        return [msgspec.json.encode(line) for line in TransitionsExporter().export(self.log)]

    def job_events(self) -> list[bytes]:
        """The log as document 004's job events."""
        return [msgspec.json.encode(line) for line in job_events(self.log)]

    def verified(self) -> list[Report]:
        """The log verified in all three formats; fails with the violations if one is not legal."""
        forms = {"canonical": self.canonical(), "transitions": self.transitions(), "job-events": self.job_events()}
        reports = [verify(text, name) for name, text in forms.items() if text]
        for each in reports:
            assert each.is_legal, "\n".join(map(str, each.violations[:10]))
        return reports


def task(name: str, *needs: str, **fields: Any) -> JobSpec:
    """A job that a worker executes."""
    return JobSpec(name=name, needs=needs, **fields)


def gate(name: str, *needs: str, **fields: Any) -> JobSpec:
    """A job that a person decides."""
    return JobSpec(name=name, needs=needs, kind=job.APPROVAL, **fields)


__all__ = ["START", "TENANT", "Lab", "Lease", "gate", "task", "worker"]
