"""Builds event logs by hand for tests of the checker: legal ones, and ones with a mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from deltaci.simulation.checker.acknowledgements import AcknowledgementChecker
from deltaci.simulation.checker.history_checker import CheckerConfig, HistoryChecker
from deltaci.simulation.checker.tracked import TrackedAttempt, TrackedWorker

SECOND = 1_000_000
START = 1_000_000 * SECOND
TTL = 120
POLL = 20
LATE = 2.5 * POLL + 21  # More seconds than anything may be late.


class SimRequest(NamedTuple):
    """One event."""

    seq: int
    at: int
    tenant: str
    entity: str
    entity_id: str
    run_id: str
    from_: str | None
    to: str
    trigger: str
    actor: str
    request_id: str
    rev: int
    metadata: dict[str, Any]


class LogBuilder:
    """A log with a run `r`, its jobs, and workers. Every method adds one commit, unless it says otherwise."""

    def __init__(self, poll_seconds: float = POLL) -> None:
        self.checker = HistoryChecker(CheckerConfig(TTL, poll_seconds))
        self.acknowledgements = AcknowledgementChecker(self.checker)
        self.now = START
        self.checker.set_fault_free_since(START)

    def wait(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)

    def add_event(
        self, entity: str, id: str, to: str, trigger: str, actor: str = "orchestrator", **metadata: Any
    ) -> None:
        """Add the entity's next event.

        Arguments with a leading underscore change fields of the event; others are metadata.
        """
        tracked = self.checker.entities.get(id)
        before = tracked.state if tracked is not None else ("CREATED" if entity == "attempt" else None)
        fields = {
            "seq": self.checker.seq + 1,
            "at": self.now,
            "tenant": "t",
            "entity": entity,
            "entity_id": id,
            "run_id": "" if entity == "worker" else id.partition("/")[0],
            "from_": before,
            "to": to,
            "trigger": trigger,
            "actor": actor,
            "request_id": "",
            "rev": (tracked.rev if tracked is not None else 0) + 1,
        }
        fields.update({name[1:]: metadata.pop(name) for name in list(metadata) if name.startswith("_")})
        self.checker.check_event(SimRequest(**fields, metadata=metadata), self.now)  # type: ignore[arg-type]

    def commit(self) -> None:
        """End the commit."""
        self.checker.check_commit(self.now)

    # -- new records

    def worker(self, id: str = "w", slots: int = 1, labels: tuple[str, ...] = ()) -> None:
        """Register a worker."""
        self.add_event("worker", id, "INITIALIZING", "registered")
        self.add_event("worker", id, "IDLE", "registration_complete", labels=list(labels), max_concurrent_tasks=slots)
        self.commit()

    def create(self, *, is_fail_fast: bool = False, has_validation: bool = False) -> None:
        """Create a run and begin its planning, in two commits."""
        metadata = {"is_fail_fast": is_fail_fast, "has_validation": has_validation, "timeout_seconds": 7200}
        metadata["optional_wait_seconds"] = 600
        self.add_event("run", "r", "CREATED", "created", "user:u", **metadata)
        self.commit()
        self.add_event("run", "r", "PLANNING", "run_created", plan_by=self.now + 60 * SECOND)
        self.commit()

    def job(self, name: str = "a", kind: str = "task", needs: tuple[str, ...] = (), **metadata: Any) -> None:
        """Create a job of the plan; part of a commit."""
        metadata = {"is_required": True, "has_validation": False, "max_attempts": 2, **metadata}
        metadata |= {"base_delay_seconds": 10, "max_delay_seconds": 600, "jitter": 0.0}
        self.add_event(
            "job", f"r/{name}", "PENDING", "created", kind=kind, needs=[f"r/{need}" for need in needs], **metadata
        )

    def plan(self, *jobs: dict[str, Any], **run: Any) -> None:
        """Create a run with these jobs; those without needs start."""
        self.create(**run)
        for job in jobs or ({},):
            self.job(**job)
        self.add_event("run", "r", "QUEUED", "plan_returned", jobs=len(jobs) or 1)
        approvals = 0
        for job in jobs or ({},):
            if job.get("kind") == "approval":
                approvals += 1
                self.open_approval(job.get("name", "a"), job.get("seconds", 0))
            elif not job.get("needs") and not job.get("after"):
                self.queue(job.get("name", "a"))
        if approvals == len(jobs) and jobs:
            self.add_event("run", "r", "RUNNING", "first_attempt_active")
            self.add_event("run", "r", "WAITING_APPROVAL", "approval_gate_reached")
        self.commit()

    def plan_optional(self) -> None:
        """Create a run with one job, which is not required, so that the run begins to wait for it."""
        self.create()
        self.job(is_required=False)
        self.add_event("run", "r", "QUEUED", "plan_returned", jobs=1)
        self.queue()
        self.run("QUEUED", "optional_wait_began", optional_until=self.now + 600 * SECOND)
        self.commit()

    def cancel_queued(self, reason: str) -> None:
        """Cancel the queued job; part of a commit."""
        metadata: dict[str, Any] = {"reason": reason, "cancel_by": self.now, "claims": 1}
        self.add_event("attempt", "r/a.1", "CANCEL_REQUESTED", "cancel_requested", **metadata)
        self.add_event("attempt", "r/a.1", "CANCELED", "failed", reason=reason)
        self.add_event("job", "r/a", "CANCELED", "user_cancelled", reason=reason)

    def open_approval(self, name: str, seconds: int = 0) -> None:
        """Open an approval; part of a commit."""
        approve_by = self.now + seconds * SECOND if seconds else 0
        self.add_event("job", f"r/{name}", "WAITING_APPROVAL", "approval_opened", approve_by=approve_by)

    def queue(self, name: str = "a", index: int = 1, **metadata: Any) -> None:
        """Start a job and queue its attempt; part of a commit."""
        trigger = "retry_delay_elapsed" if index > 1 else "scheduler_assigned"
        self.add_event("job", f"r/{name}", "QUEUED", trigger, attempt_index=index)
        metadata = {"index": index, "job_id": f"r/{name}", "queue_key": "", "run_at": 0, **metadata}
        self.add_event(
            "attempt",
            f"r/{name}.{index}",
            "QUEUED",
            "enqueued",
            **{"timeout_seconds": 600, "max_lost_leases": 1} | metadata,
        )

    # -- leases

    def attempt(self, name: str = "a", index: int = 1) -> TrackedAttempt:
        """Return the tracked attempt."""
        tracked = self.checker.entities[f"r/{name}.{index}"]
        assert isinstance(tracked, TrackedAttempt)
        return tracked

    def grant(self, name: str = "a", worker: str = "w", index: int = 1, **lease: Any) -> None:
        """Claim an attempt, without the follow-ups; part of a commit."""
        number = lease.pop("claims", self.attempt(name, index).claims + 1)
        change = {"number": number, "worker_id": worker, "from": None, "to": "GRANTED"}
        change |= {"accept_by": self.now + 30 * SECOND, "expires_at": self.now + TTL * SECOND, **lease}
        self.add_event(
            "attempt", f"r/{name}.{index}", "LEASED", "claimed", f"worker:{worker}", claims=number, lease=change
        )

    def claim(self, name: str = "a", worker: str = "w", **lease: Any) -> None:
        """Claim an attempt, with all follow-ups."""
        self.grant(name, worker, **lease)
        self.add_event("job", f"r/{name}", "RUNNING", "worker_started", worker_id=worker)
        if self.checker.runs["r"].state == "QUEUED":
            self.add_event("run", "r", "RUNNING", "first_attempt_active")
        holder = self.checker.entities.get(worker)
        if isinstance(holder, TrackedWorker):
            self.add_event("worker", worker, "BUSY", "task_assigned", tasks=len(holder.leased_attempts))
        self.commit()

    def renew(
        self, name: str = "a", to: str = "RUNNING", trigger: str = "heartbeat", worker: str = "w", **lease: Any
    ) -> None:
        """Renew the lease by a message of the runner."""
        current = self.attempt(name).lease
        assert current is not None
        change = {"number": current.number, "worker_id": current.worker_id, "from": current.state, "to": "ACTIVE"}
        change |= {"expires_at": self.now + TTL * SECOND, **lease}
        self.add_event("attempt", f"r/{name}.1", to, trigger, f"worker:{worker}", lease=change)
        self.commit()

    def start(self, name: str = "a", worker: str = "w") -> None:
        """Acknowledge the lease and start the attempt."""
        self.renew(name, "STARTING", "acknowledged", worker)
        self.renew(name, "RUNNING", "started", worker)

    def end(self, name: str, to: str, trigger: str, lease: str, actor: str = "worker:w", **metadata: Any) -> None:
        """End the lease with this transition; part of a commit."""
        current = self.attempt(name).lease
        assert current is not None
        change = {"number": current.number, "worker_id": current.worker_id, "from": current.state, "to": lease}
        self.add_event("attempt", f"r/{name}.1", to, trigger, actor, lease=change, **metadata)

    def release_worker(self, worker: str = "w", **metadata: Any) -> None:
        """Free the worker's slot; part of a commit."""
        tracked = self.checker.entities[worker]
        if isinstance(tracked, TrackedWorker) and tracked.infra_failures != tracked.reported_infra_failures:
            metadata = {"troubles": tracked.infra_failures, **metadata}
        self.add_event("worker", worker, "IDLE", "task_completed", **{"tasks": 0, **metadata})

    def add_hold(self, trigger: str = "drained", hold: str = "DRAINED", worker: str = "w", **metadata: Any) -> None:
        """Put the worker on hold, or resume it; part of a commit."""
        state = self.checker.entities[worker].state
        assert state is not None
        self.add_event("worker", worker, state, trigger, **{"hold": hold, **metadata})

    def lose_lease(self, name: str = "a", reason: str = "LEASE_EXPIRED", lost: int = 1, **metadata: Any) -> None:
        """Lose the lease, so that the attempt is stale; part of a commit."""
        lease = "EXPIRED" if reason == "LEASE_EXPIRED" else "REVOKED"
        self.end(name, "STALE", "stalled", lease, "orchestrator", reason=reason, lost_leases=lost)
        self.release_worker(**metadata)

    def finish(self, name: str = "a", to: str = "SUCCEEDED", **metadata: Any) -> None:
        """End the attempt as its runner reports; part of a commit."""
        self.renew(name, "UPLOADING", "upload_began")
        trigger = "succeeded" if to == "SUCCEEDED" else "failed"
        code = 0 if to == "SUCCEEDED" else 1
        self.end(name, to, trigger, "COMPLETED", **{"exit_code": code, **metadata})
        self.release_worker()

    def fail(self, failure_class: str = "INFRA", *, is_retryable: bool = True) -> None:
        """Fail the attempt of `a`; part of a commit."""
        self.finish("a", "FAILED", error={"code": "EXIT", "failure_class": failure_class, "is_retryable": is_retryable})

    def succeed(self, name: str = "a") -> None:
        """Finish the job successfully; part of a commit."""
        self.finish(name)
        self.add_event("job", f"r/{name}", "VALIDATING", "execution_completed", attempt_index=1)
        self.add_event("job", f"r/{name}", "SUCCEEDED", "validation_passed")

    def run(self, to: str, trigger: str, actor: str = "orchestrator", **metadata: Any) -> None:
        """Add an event of the run; part of a commit."""
        self.add_event("run", "r", to, trigger, actor, **metadata)

    def start_run(self) -> None:
        """Create a run with one job that a worker runs."""
        self.worker()
        self.plan()
        self.claim()
        self.start()


Case = Callable[[LogBuilder], None]
CASES: list[tuple[str, Case]] = []


def breaks(invariant: str) -> Callable[[Case], Case]:
    """Register a case: the log that it builds breaks this invariant."""

    def keep(case: Case) -> Case:
        CASES.append((invariant, case))
        return case

    return keep
