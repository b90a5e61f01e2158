"""Checks that unreliable workers get no work: consecutive failures, holds, and jobs that a worker lost."""

from __future__ import annotations

from typing import Final

from deltaci.simulation.checker.tracked import TrackedJob, TrackedWorker
from deltaci.simulation.checker.transitions import LogEvent, Violation

MAX_INFRA_FAILURES: Final = 3
MAX_LOST_BY_WORKERS: Final = 8
RUNNER_FAILURE_CODES: Final = frozenset({"RUNNER_STARTUP", "CHECKOUT", "UPLOAD"})
LOST_LEASE_REASONS: Final = frozenset({"LEASE_EXPIRED", "NOT_ACCEPTED"})
HOLD_BY_TRIGGER: Final = {"drained": "DRAINED", "quarantined": "QUARANTINED", "resumed": ""}


def is_infra_failure(event: LogEvent) -> bool | None:
    """Return whether the lease ended by an infrastructure failure of its worker; None if the event decides neither."""
    if event.to == "STALE":
        return True if event.metadata.get("reason") in LOST_LEASE_REASONS else None
    if event.to == "SUCCEEDED":
        return False
    if event.to != "FAILED":
        return None
    error = event.metadata.get("error", {})
    if error.get("failure_class") != "INFRA":
        return False
    return True if error.get("code") in RUNNER_FAILURE_CODES else None


def count_lease_end(worker: TrackedWorker, attempt_id: str, event: LogEvent) -> None:
    """Update the worker's number of consecutive infrastructure failures after a lease of a job ended.

    The other attempts that the worker held at its last failure are excused: their loss has the same cause.
    """
    is_failure = is_infra_failure(event)
    if is_failure is False:
        worker.infra_failures = 0
    elif is_failure and attempt_id not in worker.already_counted_attempts:
        worker.infra_failures += 1
        worker.already_counted_attempts = worker.leased_attempts - {attempt_id}
        worker.must_be_quarantined = (
            worker.infra_failures >= MAX_INFRA_FAILURES and not worker.hold and not worker.is_leaving
        )
    worker.already_counted_attempts.discard(attempt_id)


def record_lost_job(job: TrackedJob, worker_id: str, event: LogEvent) -> None:
    """Add the worker to `job.lost_by_workers` if the event is an infrastructure failure."""
    error = event.metadata.get("error", {})
    if event.metadata.get("reason") in LOST_LEASE_REASONS or error.get("failure_class") == "INFRA":
        other_worker_ids = [other_worker_id for other_worker_id in job.lost_by_workers if other_worker_id != worker_id]
        job.lost_by_workers = (*other_worker_ids, worker_id)[-MAX_LOST_BY_WORKERS:]


def check_worker_event(worker: TrackedWorker, event: LogEvent) -> None:
    """Check the hold that an event of a worker sets or clears, and apply it.

    A quarantine for repeated failures must come exactly after the third failure in a row.
    """
    subject, metadata = f"worker {worker.id} (seq {event.seq}, {event.trigger})", event.metadata
    if event.trigger in HOLD_BY_TRIGGER or (event.trigger == "capabilities_registered" and "hold" in metadata):
        hold = HOLD_BY_TRIGGER.get(event.trigger, "")
        is_change = worker.hold != hold if hold != "QUARANTINED" else not worker.hold
        if event.trigger == "capabilities_registered":
            is_change = worker.hold == "QUARANTINED"
        if not is_change or metadata.get("hold") != hold:
            raise Violation("hold", f"{subject}, but it is {worker.hold or 'not on hold'}")
        if (
            event.trigger == "quarantined"
            and (metadata.get("reason") == "REPEATED_TROUBLES") != worker.must_be_quarantined
        ):
            raise Violation(
                "troubles", f"{subject} for {metadata.get('reason')} after {worker.infra_failures} consecutive failures"
            )
        worker.hold, worker.must_be_quarantined = hold, False
        if not hold:
            worker.infra_failures, worker.reported_infra_failures, worker.already_counted_attempts = 0, 0, set()
            worker.free_since = event.at
    worker.reported_infra_failures = int(metadata.get("troubles", worker.reported_infra_failures))


def check_worker_commit(worker: TrackedWorker) -> None:
    """Check, after a commit, that the worker is quarantined if it must be and reports the right number of failures."""
    if worker.must_be_quarantined:
        raise Violation(
            "troubles",
            f"worker {worker.id} (rev {worker.rev}) had {worker.infra_failures} failures, but is not quarantined",
        )
    if worker.reported_infra_failures != worker.infra_failures and worker.state != "SHUTDOWN":
        counts = f"reports {worker.reported_infra_failures} failures; there were {worker.infra_failures}"
        raise Violation("troubles", f"worker {worker.id} (rev {worker.rev}) {counts}")
