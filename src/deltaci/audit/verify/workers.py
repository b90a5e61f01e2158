"""Check the events of workers: capabilities, leases, holds (drain and quarantine) and shutdown.

`CHECKS` maps an event's target state to the functions that check the event: they report violations and update the
tracked worker. `check_transaction` runs after the last event of a transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltaci.audit.verify.attempts import Check
from deltaci.audit.verify.log_lines import EventLine, WorkerMetadata
from deltaci.audit.verify.tracked import TrackedAttempt, TrackedWorker
from deltaci.core import attempt as core_attempt
from deltaci.core import worker as core_worker

if TYPE_CHECKING:
    from deltaci.audit.verify.canonical import CanonicalVerifier


REGISTERED: Final = "capabilities_registered"
HOLDS: Final = {"drained": core_worker.DRAINED, "quarantined": core_worker.QUARANTINED, "resumed": ""}
STATELESS: Final = frozenset({REGISTERED, *HOLDS})  # Triggers that change neither the state nor the leases.


def check_registered(
    verifier: CanonicalVerifier, worker: TrackedWorker, event: EventLine, metadata: WorkerMetadata
) -> None:
    """Report a registration without labels or slots, or with fewer slots than the worker holds leases."""
    if event.from_ != core_worker.INITIALIZING and event.trigger != REGISTERED:
        return
    if metadata.labels is None or not metadata.max_concurrent_tasks:
        verifier.flag("WST-KG1", f"worker {worker.id} is IDLE without labels or max_concurrent_tasks", "both")
        return
    worker.labels, worker.slots = frozenset(metadata.labels), metadata.max_concurrent_tasks
    worker.registered_at = event.at
    if len(worker.attempt_ids) > worker.slots:
        verifier.flag(
            "WST-KI1",
            f"worker {worker.id} registers {worker.slots} slots",
            f"at least {len(worker.attempt_ids)}, its number of leases",
        )


def check_busy(verifier: CanonicalVerifier, worker: TrackedWorker, event: EventLine, metadata: WorkerMetadata) -> None:
    """Report an event of a busy worker that breaks a rule.

    The rules: it is only assigned attempts that it has leased, and released only from leases that have ended; its
    counts of tasks and failures are right; it is asked to shut down only once, with a reason.
    """
    if event.trigger == "shutdown_requested":
        if worker.is_leaving or not metadata.reason:
            verifier.flag(
                "WST-KI3",
                f"worker {worker.id} is asked to shut down again or without a reason",
                "one request, with a reason",
            )
        worker.is_leaving = True
    elif event.trigger == "task_completed":
        _check_lease_ended(verifier, worker, metadata)
    elif event.trigger not in STATELESS:
        if metadata.attempt_id not in worker.attempt_ids:
            verifier.flag(
                "WST-K2", f"worker {worker.id} is assigned {metadata.attempt_id}", "an attempt that it has leased"
            )
        _check_task_count(verifier, worker, metadata)


def check_released(
    verifier: CanonicalVerifier, worker: TrackedWorker, event: EventLine, metadata: WorkerMetadata
) -> None:
    """Report a worker that becomes IDLE or shuts down while it holds a lease, except by recovering.

    The last release of a BUSY worker must be of a lease that has ended, with the right counts; then the worker must
    shut down if that was requested, else become IDLE.
    """
    if event.from_ == core_worker.BUSY:
        _check_lease_ended(verifier, worker, metadata)
        if worker.is_leaving != (event.to == core_worker.SHUTDOWN):
            verifier.flag(
                "WST-K8", f"worker {worker.id} goes to {event.to}", "SHUTDOWN" if worker.is_leaving else "IDLE"
            )
    if event.trigger != "health_check_recovered" and (worker.attempt_ids or worker.ended_attempts):
        listed_ids = ", ".join(sorted({*worker.attempt_ids, *worker.ended_attempts}))
        verifier.flag("WST-KG3", f"worker {worker.id} is {event.to} while it holds {listed_ids}", "no lease left")


def _check_lease_ended(verifier: CanonicalVerifier, worker: TrackedWorker, metadata: WorkerMetadata) -> None:
    if metadata.attempt_id not in worker.ended_attempts:
        verifier.flag("WST-K3", f"worker {worker.id} is released from {metadata.attempt_id}", "a lease that ended")
    is_infra_failure = worker.ended_attempts.pop(metadata.attempt_id or "", None)
    _check_task_count(verifier, worker, metadata)
    _check_failure_count(verifier, worker, metadata, is_infra_failure)


def _check_failure_count(
    verifier: CanonicalVerifier, worker: TrackedWorker, metadata: WorkerMetadata, is_infra_failure: bool | None
) -> None:
    """Count infrastructure failures in a row, and report an event with another count.

    Failures of leases that the worker held at the same time count once. The event has the count only if it changed. At
    the maximum, the worker must be quarantined in the same transaction.
    """
    attempt_id, count_before = metadata.attempt_id or "", worker.infra_failures
    if is_infra_failure is None and attempt_id == worker.formerly_counted_attempt:
        is_infra_failure = metadata.infra_failures is not None or None
    if is_infra_failure and attempt_id not in worker.already_counted_attempts:
        worker.infra_failures, worker.already_counted_attempts = (
            count_before + 1,
            {*worker.attempt_ids, *worker.ended_attempts},
        )
        worker.is_quarantine_due = (
            worker.infra_failures >= core_worker.MAX_INFRA_FAILURES and not worker.hold and not worker.is_leaving
        )
    elif is_infra_failure is False:
        worker.infra_failures = 0
    worker.already_counted_attempts.discard(attempt_id)
    if metadata.infra_failures != (worker.infra_failures if worker.infra_failures != count_before else None):
        verifier.flag(
            "WST-KH4",
            f"worker {worker.id} counts {metadata.infra_failures} infrastructure failures in a row",
            f"{worker.infra_failures}, and no count if it is unchanged",
        )


def check_hold(verifier: CanonicalVerifier, worker: TrackedWorker, event: EventLine, metadata: WorkerMetadata) -> None:
    """Report a wrong change of the hold.

    A drain, quarantine, resume or registration may change it, but not to the same hold, and to a new one only with a
    reason.
    """
    if event.trigger == REGISTERED:
        if metadata.hold is None and metadata.was is None:
            return
        is_allowed = (metadata.hold, metadata.was) == ("", worker.hold) and worker.hold == core_worker.QUARANTINED
    elif event.trigger in HOLDS:
        is_allowed = metadata.hold == HOLDS[event.trigger] and _is_hold_allowed(worker, metadata)
    else:
        is_allowed = metadata.hold is None and metadata.was is None
    if not is_allowed:
        problem = f"worker {worker.id} is {worker.hold or 'not on hold'} and {event.trigger}"
        problem += f" has hold {metadata.hold!r}, was {metadata.was!r}"
        rule = {"drained": "WST-KH1", "quarantined": "WST-KH3"}.get(event.trigger, "WST-KH2")
        verifier.flag(rule, problem, "a different hold, or the end of the current one")
    if event.trigger in STATELESS and metadata.hold is not None:
        worker.hold, worker.is_quarantine_due = metadata.hold, False
        if not worker.hold:
            worker.infra_failures, worker.already_counted_attempts = 0, set()


def _is_hold_allowed(worker: TrackedWorker, metadata: WorkerMetadata) -> bool:
    if metadata.hold == "":
        return bool(worker.hold) and metadata.was == worker.hold
    if metadata.reason is None:
        return False
    if metadata.hold == core_worker.DRAINED:
        # A drain of a quarantined worker has `was`, except in older logs.
        return worker.hold != core_worker.DRAINED and metadata.was in (None, worker.hold or None)
    is_automatic = metadata.reason == core_worker.REPEATED_INFRA_FAILURES
    return (
        not worker.hold
        and metadata.was is None
        and metadata.infra_failures == worker.infra_failures
        and is_automatic == worker.is_quarantine_due
    )


def _check_task_count(verifier: CanonicalVerifier, worker: TrackedWorker, metadata: WorkerMetadata) -> None:
    lease_count = len(worker.attempt_ids) + len(worker.ended_attempts)
    if metadata.tasks != lease_count:
        verifier.flag(
            "WST-KI1", f"worker {worker.id} has {metadata.tasks} tasks", f"{lease_count}, its number of leases"
        )


def check_unresponsive(
    verifier: CanonicalVerifier, worker: TrackedWorker, event: EventLine, metadata: WorkerMetadata
) -> None:
    """Report an event that makes a worker unresponsive without naming exactly the attempts whose leases it holds.

    While it is unresponsive, report the release of a lease that has not ended, or with wrong counts.
    """
    if event.trigger in STATELESS:
        return
    if event.from_ == core_worker.UNRESPONSIVE:
        _check_lease_ended(verifier, worker, metadata)
    elif set(metadata.attempts or ()) != worker.attempt_ids:
        problem = f"worker {worker.id} is unresponsive with {metadata.attempts}"
        verifier.flag("WST-KA4", problem, f"{sorted(worker.attempt_ids)}, its leases")


def check_shutdown(
    verifier: CanonicalVerifier, worker: TrackedWorker, event: EventLine, metadata: WorkerMetadata
) -> None:
    """Report a shutdown without a reason."""
    if not metadata.reason:
        verifier.flag("WST-K7", f"worker {worker.id} shuts down without a reason", "a reason")


CHECKS: Final[dict[str, tuple[Check, ...]]] = {
    core_worker.IDLE: (check_registered, check_released, check_hold),
    core_worker.BUSY: (check_registered, check_busy, check_hold),
    core_worker.UNRESPONSIVE: (check_registered, check_unresponsive, check_hold),
    core_worker.SHUTDOWN: (check_released, check_shutdown, check_hold),
}


def check_transaction(verifier: CanonicalVerifier, worker: TrackedWorker) -> None:
    """At the end of a transaction, report a worker that breaks a rule.

    The rules: every lease that ended was released; a quarantine that was due has happened; unless unresponsive, the
    worker is BUSY exactly while it holds a lease; each attempt of an unresponsive worker is marked for reassignment or
    being cancelled.
    """
    if worker.ended_attempts:
        verifier.flag(
            "WST-KI4",
            f"worker {worker.id} still has {', '.join(sorted(worker.ended_attempts))}, whose leases ended",
            "released",
        )
        worker.ended_attempts.clear()
    if worker.is_quarantine_due:
        verifier.flag(
            "WST-KH3",
            f"worker {worker.id} is not quarantined after {worker.infra_failures} infrastructure failures in a row",
            "quarantine in the same transaction",
        )
        worker.is_quarantine_due = False
    if (worker.state == core_worker.BUSY) != bool(worker.attempt_ids) and worker.state != core_worker.UNRESPONSIVE:
        verifier.flag(
            "WST-KI1",
            f"worker {worker.id} is {worker.state} with {len(worker.attempt_ids)} leases",
            "BUSY exactly while it holds one",
        )
    if worker.state == core_worker.UNRESPONSIVE:
        unmarked_ids = [
            attempt_id for attempt_id in sorted(worker.attempt_ids) if not _is_marked(verifier.live.get(attempt_id))
        ]
        if unmarked_ids:
            problem = f"worker {worker.id} is UNRESPONSIVE and holds {', '.join(unmarked_ids)}"
            verifier.flag("WST-KA4", problem, "each of them marked for reassignment")


def _is_marked(attempt: object) -> bool:
    """Return whether the attempt is marked for reassignment, or will be cancelled rather than reassigned."""
    return isinstance(attempt, TrackedAttempt) and (attempt.is_marked or attempt.state == core_attempt.CANCEL_REQUESTED)
