"""Check the events of attempts, and the lease changes that they carry.

`CHECKS` maps an event's target state to the functions that check the event: they report violations and update the
tracked attempt. `check_transaction` runs after the last event of a transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from deltaci.audit.verify.log_lines import EPOCH, AttemptMetadata, EventLine, LeaseChange
from deltaci.audit.verify.not_needed import check_not_needed
from deltaci.audit.verify.tracked import TrackedAttempt, TrackedWorker
from deltaci.core import attempt as core_attempt
from deltaci.core import job as core_job
from deltaci.core import lease
from deltaci.core import worker as core_worker
from deltaci.core.events import ORCHESTRATOR, RUNNER, actor_kind
from deltaci.core.failures import WORKER_FAULT_CODES
from deltaci.core.ids import attempt_id

if TYPE_CHECKING:
    from deltaci.audit.verify.canonical import CanonicalVerifier

Check = Callable[["CanonicalVerifier", Any, EventLine, Any], None]

# Attempt state -> allowed new states of the lease in the same event. Empty: the lease must not change.
_LEASE_STATES: Final = {
    core_attempt.QUEUED: frozenset[str](),
    core_attempt.LEASED: frozenset({lease.GRANTED}),
    core_attempt.STARTING: frozenset({lease.ACTIVE}),
    core_attempt.RUNNING: frozenset({lease.ACTIVE}),
    core_attempt.UPLOADING: frozenset({lease.ACTIVE}),
    core_attempt.STALE: frozenset({lease.EXPIRED, lease.REVOKED}),
    core_attempt.SUCCEEDED: frozenset({lease.COMPLETED}),
    core_attempt.TIMED_OUT: frozenset({lease.REVOKED}),
}
# An attempt that is STALE for one of these reasons stays so only while it is fenced. For other reasons, older versions
# left it STALE until a person queued it again.
_REQUEUED_UNLESS_FENCED: Final = core_attempt.DETECTED_LOST | {core_attempt.HANDED_BACK}
_LEASE_EDGES: Final = {(rule.source or None, to.state) for rule in lease.MACHINE.rules for to in rule.targets}


def _expected_lease_states(attempt: TrackedAttempt, event: EventLine) -> frozenset[str]:
    if event.trigger == core_attempt.MARKED_FOR_REASSIGNMENT:
        return frozenset()
    if event.to == core_attempt.FAILED:
        return frozenset() if event.from_ == core_attempt.STALE else frozenset({lease.COMPLETED})
    if event.to == core_attempt.CANCEL_REQUESTED:
        return frozenset({lease.ACTIVE}) if event.from_ == core_attempt.CANCEL_REQUESTED else frozenset()
    if event.to == core_attempt.CANCELED:
        if attempt.lease_state is None:
            return frozenset()
        is_acknowledged = actor_kind(event.actor) == RUNNER
        return frozenset({lease.CANCELED}) if is_acknowledged else frozenset({lease.EXPIRED, lease.REVOKED})
    return _LEASE_STATES.get(event.to, frozenset())


def check_owner(
    verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, metadata: AttemptMetadata
) -> None:
    """Report an event of a worker that breaks a rule.

    The rules: a claim is for the worker that makes it; any other event is caused by the holder of the live lease,
    before the lease expires; a worker of a run is IDLE or BUSY.
    """
    if actor_kind(event.actor) != RUNNER:
        return
    sender = event.actor.partition(":")[2]
    if event.to == core_attempt.LEASED:
        if metadata.lease is not None and metadata.lease.worker_id != sender:
            verifier.flag(
                "QUE-C2",
                f"{event.actor} claims {attempt.id} for {metadata.lease.worker_id}",
                "a claim for the same worker",
            )
        return
    if attempt.lease_state not in lease.LIVE or sender != attempt.worker_id:
        holder = f"worker:{attempt.worker_id}" if attempt.lease_state in lease.LIVE else "nobody"
        verifier.flag(
            "QUE-C2",
            f"attempt {attempt.id} is changed by {event.actor}, but held by {holder}",
            f"{holder}, or the orchestrator",
        )
        return
    if event.at >= attempt.expires_at:
        verifier.flag(
            "PRO-H2",
            f"attempt {attempt.id} is changed by a lease that ended at {attempt.expires_at.isoformat()}",
            "StaleLease, no event",
        )
    worker = verifier.live.get(sender) if attempt.job is not None else None
    if isinstance(worker, TrackedWorker) and worker.state not in ("IDLE", "BUSY"):
        verifier.flag(
            "WST-KI2",
            f"worker {sender} is {worker.state} and changes attempt {attempt.id}",
            "a worker that is IDLE or BUSY",
        )


def check_created(
    verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, metadata: AttemptMetadata
) -> None:
    """Report a new attempt that breaks a rule, and link it to its job.

    The rules: it has all required fields, and the index and id that its job expects; the job is a task that is QUEUED;
    the attempt before it has ended. An attempt without a job has index 1.
    """
    if event.from_ != core_attempt.CREATED:
        return
    if (
        metadata.index is None
        or metadata.timeout_seconds is None
        or metadata.max_lost_leases is None
        or metadata.job_id is None
    ):
        verifier.flag(
            "MOD-E1",
            f"attempt {attempt.id} is created without index, job_id, timeout_seconds or max_lost_leases",
            "all of them",
        )
        return
    attempt.timeout = timedelta(seconds=min(metadata.timeout_seconds, 10**9))
    attempt.max_lost_leases = metadata.max_lost_leases
    attempt.queue_key = metadata.queue_key or ""
    attempt.run_at = metadata.run_at or EPOCH
    job = attempt.job
    if job is None:
        if metadata.index != 1:
            verifier.flag("ORC-Y3", f"attempt {attempt.id} without a job has index {metadata.index}", "index 1")
        if metadata.job_id:
            verifier.flag(
                "MOD-E1", f"attempt {attempt.id} has job {metadata.job_id} but no run", "the run_id of its job"
            )
        return
    if not job.is_task:
        verifier.flag("STP-W1", f"approval {job.id} has an attempt", "no attempt: an approval is never executed")
    if job.state != "QUEUED":
        verifier.flag("ORC-A1", f"attempt {attempt.id} is created while its job is {job.state}", "a job that is QUEUED")
    if metadata.index != job.attempt_count:
        verifier.flag("ORC-Y3", f"attempt {attempt.id} has index {metadata.index}", f"index {job.attempt_count}")
    if attempt.id != attempt_id(job.id, job.attempt_count):
        verifier.flag(
            "ORC-Y3",
            f"attempt {metadata.index} of {job.id} is called {attempt.id}",
            attempt_id(job.id, job.attempt_count),
        )
    if job.latest_attempt is not None:
        if job.latest_attempt.state not in core_attempt.TERMINAL:
            verifier.flag(
                "ORC-Y5",
                f"attempt {attempt.id} is created while {job.latest_attempt.id} is {job.latest_attempt.state}",
                "the earlier attempt in a terminal state",
            )
        verifier.live.pop(job.latest_attempt.id, None)
    job.latest_attempt = attempt


def check_request_id(
    verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, metadata: AttemptMetadata
) -> None:
    """Report a request that changed the attempt in two decisions: a repeat must not append another event.

    The request id of a claim is unique per worker. An attempt with a job also changes by requests to other records,
    whose ids may be the same; there, only a repeated transition is reported.
    """
    request_id = event.request_id
    stale_reason = metadata.reason if event.to == core_attempt.STALE else attempt.stale_reason
    is_request_to_worker = stale_reason == core_attempt.WORKER_LOST and core_attempt.STALE in (event.from_, event.to)
    if not request_id or is_request_to_worker:
        return
    decision_events = attempt.request_steps
    if decision_events and _is_next_step(decision_events, event):
        decision_events.append(event)
        return
    attempt.request_steps = [event]
    triggers = attempt.request_triggers.setdefault(request_id, set())
    if event.to == core_attempt.LEASED:
        is_repeat = (event.actor, request_id) in attempt.claim_requests
        attempt.claim_requests.add((event.actor, request_id))
    else:
        is_repeat = event.trigger in triggers if attempt.job is not None else bool(triggers)
    triggers.add(event.trigger)
    if is_repeat:
        verifier.flag(
            "QUE-C5",
            f"attempt {attempt.id} applied request {request_id} twice",
            "no second event for the same request",
        )


def _is_next_step(decision_events: list[EventLine], event: EventLine) -> bool:
    """Return whether the event continues the decision whose steps are given."""
    latest = decision_events[-1]
    if (event.request_id, event.at, event.rev) != (latest.request_id, latest.at, latest.rev + 1):
        return False
    return all((event.from_, event.to) != (step.from_, step.to) for step in decision_events)


def check_claim(
    verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, metadata: AttemptMetadata
) -> None:
    """Report an event whose `claims` is not one more than before.

    It must grow by one when a worker claims the attempt or the orchestrator takes it over. Other events must not have
    it.
    """
    is_takeover = (
        (
            event.to == core_attempt.CANCEL_REQUESTED
            and event.from_ != core_attempt.CANCEL_REQUESTED
            and attempt.lease_state is None
        )
        or event.to == core_attempt.TIMED_OUT
        or (event.to == core_attempt.FAILED and event.from_ == core_attempt.STALE)
        or (event.to == core_attempt.CANCELED and attempt.lease_state is not None and actor_kind(event.actor) != RUNNER)
    )
    if event.trigger == "claimed" or is_takeover:
        if metadata.claims != attempt.claims + 1:
            verifier.flag(
                "QUE-A2",
                f"attempt {attempt.id} has claims {metadata.claims} after {attempt.claims}",
                f"claims {attempt.claims + 1}",
            )
        attempt.claims += 1
    else:
        check_no_claim(verifier, attempt, event, metadata)


def check_no_claim(
    verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, metadata: AttemptMetadata
) -> None:
    """Report an event that has `claims`, although it is neither a claim nor a takeover."""
    if metadata.claims is not None:
        verifier.flag(
            "QUE-A3", f"attempt {attempt.id} has claims at {event.from_} → {event.to}", "claims only at a claim"
        )


def check_lease(
    verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, metadata: AttemptMetadata
) -> None:
    """Report a wrong or missing lease change, and update the tracked lease.

    The change must fit the state of the lease, the lease machine and the new state of the attempt. A grant must be for
    a worker that may take the attempt, and times must follow from the lease duration and the accept window.
    """
    expected_states = _expected_lease_states(attempt, event)
    change = metadata.lease
    if change is None:
        if expected_states:
            verifier.flag(
                "MOD-E3",
                f"attempt {attempt.id} goes {event.from_} → {event.to} without a lease change",
                f"lease → {' or '.join(sorted(expected_states))}",
            )
            attempt.lease_state = (
                None
                if event.to != core_attempt.CANCEL_REQUESTED and event.to not in core_attempt.ACTIVE_STATES
                else attempt.lease_state
            )
        return
    if change.to not in expected_states:
        expected_text = f"lease → {' or '.join(sorted(expected_states))}" if expected_states else "no lease change"
        verifier.flag(
            "ORC-LF2",
            f"attempt {attempt.id} goes {event.from_} → {event.to} and its lease {change.from_} → {change.to}",
            expected_text,
        )
    if (change.from_, change.to) not in _LEASE_EDGES:
        verifier.flag(
            "ORC-LF3",
            f"the lease of {attempt.id} goes {change.from_} → {change.to}",
            "a transition of the lease machine",
        )
    if change.from_ != attempt.lease_state:
        verifier.flag(
            "ORC-LF1",
            f"the lease of {attempt.id} is {attempt.lease_state} and changes from {change.from_}",
            f"a change from {attempt.lease_state}",
        )
    if change.to == lease.GRANTED:
        _check_grant(verifier, attempt, event, change)
    else:
        _check_lease_update(verifier, attempt, event, metadata, change)
    attempt.lease_state = change.to if change.to in lease.LIVE else None
    if attempt.lease_state is None:
        _check_fence(verifier, attempt, event, metadata)
        _release_worker(verifier, attempt, event, metadata)


def _check_fence(
    verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, metadata: AttemptMetadata
) -> None:
    """Compute until when the last worker may still be running the attempt; report an event that names another time."""
    attempt.fence_until = attempt.expires_at if _may_still_run(attempt, event, metadata) else EPOCH
    attempt.group_fence_until = metadata.fence_until or EPOCH
    if metadata.fence_until is not None and metadata.fence_until != attempt.fence_until:
        verifier.flag(
            "MOD-5",
            f"attempt {attempt.id} is fenced until {metadata.fence_until.isoformat()}",
            f"the end of its lease at {attempt.expires_at.isoformat()}"
            if attempt.fence_until > EPOCH
            else "no fence: its worker has stopped, or never started it",
        )


def _may_still_run(attempt: TrackedAttempt, event: EventLine, metadata: AttemptMetadata) -> bool:
    """Return whether the worker may be running the job until the lease would have expired.

    It may not have learned that the lease has ended.
    """
    counts_lost_lease = metadata.lost_leases is not None and metadata.lost_leases > attempt.lost_leases
    if event.to == core_attempt.CANCELED:
        change = metadata.lease
        return change is not None and (change.from_, change.to) == (lease.ACTIVE, lease.REVOKED)
    return event.to == core_attempt.TIMED_OUT or (
        counts_lost_lease and metadata.reason not in (core_attempt.NOT_ACCEPTED, core_attempt.LEASE_EXPIRED)
    )


def _check_grant(verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, change: LeaseChange) -> None:
    if change.number != attempt.claims:
        verifier.flag(
            "ORC-LF1",
            f"lease {change.number} of {attempt.id} is granted at claim {attempt.claims}",
            f"lease {attempt.claims}",
        )
    if change.expires_at is None or change.accept_by is None:
        verifier.flag("MOD-E1", f"lease {change.number} of {attempt.id} has no expires_at or no accept_by", "both")
        return
    attempt.lease_number, attempt.worker_id, attempt.is_marked = change.number, change.worker_id, False
    attempt.expires_at, attempt.accept_by, attempt.ttl = (
        change.expires_at,
        change.accept_by,
        change.expires_at - event.at,
    )
    if attempt.ttl <= timedelta() or change.accept_by <= event.at:
        verifier.flag(
            "ORC-T1", f"lease {change.number} of {attempt.id} ends no later than it is granted", "a later time"
        )
    if attempt.job is not None and attempt.job.group:
        _check_group(verifier, attempt, event, attempt.job.group)
    worker = verifier.live.get(attempt.worker_id) if attempt.job is not None else None
    if isinstance(worker, TrackedWorker):
        verifier.touch(worker, event)
        worker.attempt_ids.add(attempt.id)
        if worker.state not in ("IDLE", "BUSY") or worker.is_leaving:
            verifier.flag(
                "WST-K2",
                f"worker {worker.id} is {worker.state} and is granted {attempt.id}",
                "a worker that takes work",
            )
        if worker.hold:
            verifier.flag(
                "WST-KH1",
                f"worker {worker.id} is {worker.hold} and is granted {attempt.id}",
                "a worker that takes work",
            )
        if len(worker.attempt_ids) > worker.slots:
            verifier.flag(
                "WST-KI1", f"worker {worker.id} holds {len(worker.attempt_ids)} leases", f"at most {worker.slots}"
            )
        missing_labels = set(attempt.queue_key.split(",")) - {""} - worker.labels
        if missing_labels:
            verifier.flag(
                "WST-KG2",
                f"worker {worker.id} lacks {', '.join(sorted(missing_labels))} for {attempt.id}",
                "a worker that has them",
            )


def _check_group(verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, group: str) -> None:
    """Report a grant while another attempt of the group has a live lease or may still be running on its last worker."""
    latest_holder = verifier.groups.get((attempt.tenant, group))
    if latest_holder is not None and latest_holder is not attempt:
        is_requeued = latest_holder.state == core_attempt.QUEUED  # Older versions queue a fenced attempt at once.
        is_fenced = event.at < max(latest_holder.group_fence_until, latest_holder.run_at if is_requeued else EPOCH)
        if latest_holder.lease_state in lease.LIVE or is_fenced:
            verifier.flag(
                "MOD-D3",
                f"attempt {attempt.id} is claimed while {latest_holder.id} holds group {group!r}",
                "one attempt of a group at a time",
            )
    verifier.groups[attempt.tenant, group] = attempt


def _check_lease_update(
    verifier: CanonicalVerifier,
    attempt: TrackedAttempt,
    event: EventLine,
    metadata: AttemptMetadata,
    change: LeaseChange,
) -> None:
    if (change.number, change.worker_id) != (attempt.lease_number, attempt.worker_id):
        problem = f"lease {change.number} of {change.worker_id} changes on {attempt.id}"
        verifier.flag("ORC-LF1", problem, f"lease {attempt.lease_number} of {attempt.worker_id}")
    if change.accept_by is not None:
        verifier.flag(
            "MOD-L4",
            f"lease {change.number} of {attempt.id} gets a second accept window",
            "accept_by at the grant only",
        )
    if change.to == lease.ACTIVE:
        new_expiry = max(attempt.expires_at, event.at + attempt.ttl)
        if change.expires_at != new_expiry:
            expiry = change.expires_at.isoformat() if change.expires_at else "nothing"
            verifier.flag(
                "PRO-Q5", f"lease {change.number} of {attempt.id} now ends at {expiry}", new_expiry.isoformat()
            )
        attempt.expires_at, attempt.is_marked = change.expires_at or new_expiry, False
    elif change.expires_at is not None:
        verifier.flag(
            "MOD-E1", f"lease {change.number} of {attempt.id} is {change.to} and has expires_at", "no expires_at"
        )
    if change.to == lease.EXPIRED and event.at < attempt.expires_at:
        verifier.flag(
            "ORC-L2",
            f"lease {change.number} of {attempt.id} expires early",
            f"not before {attempt.expires_at.isoformat()}",
        )
    if metadata.reason == core_attempt.NOT_ACCEPTED and (change.from_ != lease.GRANTED or event.at < attempt.accept_by):
        verifier.flag(
            "PRO-Q4",
            f"lease {change.number} of {attempt.id} is revoked as not accepted",
            "a GRANTED lease after its accept window",
        )


# With the class INFRA, older versions counted these failures of a job itself against its worker.
FORMERLY_COUNTED_CODES: Final = frozenset({"EXIT", "SIGNAL", "FAILED", "IMAGE_PULL"})


def _release_worker(
    verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, metadata: AttemptMetadata
) -> None:
    worker = verifier.live.get(attempt.worker_id) if attempt.job is not None else None
    if isinstance(worker, TrackedWorker):
        verifier.touch(worker, event)
        if attempt.id in worker.attempt_ids:
            worker.attempt_ids.discard(attempt.id)
            worker.ended_attempts[attempt.id] = _is_infra_failure(event, metadata)
            if metadata.error is not None and metadata.error.code in FORMERLY_COUNTED_CODES:
                worker.formerly_counted_attempt = attempt.id


def _is_infra_failure(event: EventLine, metadata: AttemptMetadata) -> bool | None:
    """Return whether the worker's infrastructure caused this end of its lease, or None if that is unknown."""
    if event.to == core_attempt.STALE:
        return True if metadata.reason in core_attempt.DETECTED_LOST else None
    if event.to == core_attempt.SUCCEEDED:
        return False
    if event.to != core_attempt.FAILED or metadata.error is None:
        return None
    if metadata.error.failure_class != "INFRA":
        return False
    return True if metadata.error.code in WORKER_FAULT_CODES else None


def check_claimable(
    verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, metadata: AttemptMetadata
) -> None:
    """Report a claim of an attempt that is not due yet or has lost too many leases."""
    if event.from_ == core_attempt.LEASED:
        return
    due_at = max(attempt.run_at, attempt.fence_until)
    if event.at < due_at:
        verifier.flag(
            "QUE-S1", f"attempt {attempt.id} is claimed before {due_at.isoformat()}", "a claim at that time or later"
        )
    if attempt.lost_leases > attempt.max_lost_leases:
        verifier.flag(
            "MOD-5",
            f"attempt {attempt.id} is claimed after {attempt.lost_leases} lost leases",
            f"at most {attempt.max_lost_leases}, then LEASE_LOST",
        )
    attempt.started_at = EPOCH


def check_heartbeat_order(
    verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, metadata: AttemptMetadata
) -> None:
    """Report a heartbeat whose number is not above that of every earlier heartbeat under the same lease."""
    if event.to == core_attempt.LEASED:
        attempt.heartbeat_no = -1
    heartbeat_number = metadata.sequence_no
    if heartbeat_number is None:
        return
    if heartbeat_number <= attempt.heartbeat_no:
        verifier.flag(
            "ORC-I4",
            f"attempt {attempt.id} has heartbeat {heartbeat_number} after heartbeat {attempt.heartbeat_no} "
            "of the same lease",
            "no event: a late heartbeat changes nothing",
        )
    attempt.heartbeat_no = max(heartbeat_number, attempt.heartbeat_no)


def check_reassignment(
    verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, metadata: AttemptMetadata
) -> None:
    """Report a mark for reassignment with another time than the end of the lease or another worker than its holder.

    The worker must have become unresponsive in the same transaction. Only such an event has `reassign_at`.
    """
    if event.trigger != core_attempt.MARKED_FOR_REASSIGNMENT:
        if metadata.reassign_at is not None or metadata.worker_id is not None:
            verifier.flag("WST-KA4", f"attempt {attempt.id} has reassign_at at {event.trigger}", "only at the mark")
        return
    lease_end = attempt.expires_at
    if attempt.lease_state == lease.GRANTED:
        lease_end = min(lease_end, attempt.accept_by)
    if (metadata.reassign_at, metadata.worker_id) != (lease_end, attempt.worker_id):
        mark_text = metadata.reassign_at.isoformat() if metadata.reassign_at else "no time"
        problem = f"attempt {attempt.id} of {metadata.worker_id} is to be reassigned at {mark_text}"
        verifier.flag("WST-KA4", problem, f"{attempt.worker_id}, {lease_end.isoformat()}: the end of its lease")
    worker = verifier.live.get(attempt.worker_id) if attempt.job is not None else None
    if isinstance(worker, TrackedWorker) and (worker.state, worker.at) != (core_worker.UNRESPONSIVE, event.at):
        verifier.flag(
            "WST-KA4",
            f"attempt {attempt.id} is marked for reassignment while worker {worker.id} is {worker.state}",
            "a worker that became UNRESPONSIVE in the same transaction",
        )
    attempt.is_marked = True


def record_start(
    _verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, metadata: AttemptMetadata
) -> None:
    """Record when the attempt began to run, which starts its timeout."""
    if event.from_ == core_attempt.STARTING:
        attempt.started_at = event.at


def check_stale(
    verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, metadata: AttemptMetadata
) -> None:
    """Report a lost lease that is not counted, or whose reason does not fit the new state of the lease."""
    allowed_counts = {attempt.lost_leases + 1} | (
        {attempt.lost_leases} if metadata.reason not in core_attempt.DETECTED_LOST else set()
    )
    if metadata.lost_leases not in allowed_counts:
        verifier.flag(
            "MOD-5",
            f"attempt {attempt.id} has lost {metadata.lost_leases} leases after {attempt.lost_leases}",
            f"{attempt.lost_leases + 1}",
        )
    if not metadata.reason or (metadata.reason == core_attempt.LEASE_EXPIRED) != (
        metadata.lease is not None and metadata.lease.to == lease.EXPIRED
    ):
        verifier.flag(
            "MOD-5",
            f"attempt {attempt.id} is stale for {metadata.reason!r}",
            "LEASE_EXPIRED exactly if its lease is EXPIRED",
        )
    if metadata.reason == core_attempt.WORKER_LOST and attempt.is_marked:
        verifier.flag(
            "MOD-12",
            f"attempt {attempt.id} loses its lease because its worker is silent",
            f"a lease until {attempt.expires_at.isoformat()}",
        )
    attempt.lost_leases = metadata.lost_leases if metadata.lost_leases is not None else attempt.lost_leases + 1
    attempt.stale_reason = metadata.reason or ""


def check_requeued(
    verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, metadata: AttemptMetadata
) -> None:
    """Report a requeue after too many lost leases, or before the end of the fence."""
    if event.from_ != core_attempt.STALE:
        return
    if attempt.lost_leases > attempt.max_lost_leases:
        verifier.flag(
            "MOD-5",
            f"attempt {attempt.id} is requeued after {attempt.lost_leases} lost leases",
            "STALE → FAILED as LEASE_LOST",
        )
    run_at = metadata.run_at or EPOCH
    claimable_at, due_at = max(event.at, run_at), max(attempt.run_at, attempt.fence_until)
    if run_at < attempt.run_at or claimable_at < due_at:
        verifier.flag(
            "MOD-5", f"attempt {attempt.id} may run at {claimable_at.isoformat()}", f"not before {due_at.isoformat()}"
        )
    attempt.run_at = run_at


def check_finished(
    verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, metadata: AttemptMetadata
) -> None:
    """Report an end of an attempt that breaks a rule.

    The rules: a success has exit code 0 and no error; any other end has an error, with the code for a timeout or for
    lost leases, which is not retryable in the class USER; it fails for lost leases only after too many of them, and
    times out only after its timeout.
    """
    if event.to == core_attempt.SUCCEEDED:
        if metadata.exit_code != 0 or metadata.error is not None:
            verifier.flag(
                "WST-TG3",
                f"attempt {attempt.id} succeeds with exit code {metadata.exit_code}",
                "exit code 0 and no error",
            )
        return
    attempt.error = metadata.error
    if metadata.error is None:
        verifier.flag("QUE-N5", f"attempt {attempt.id} is {event.to} without an error", "an error")
        return
    if metadata.error.failure_class == "USER" and metadata.error.is_retryable:
        verifier.flag(
            "MOD-F2",
            f"attempt {attempt.id} failed with class USER and is retryable",
            "is_retryable=False for class USER",
        )
    expected_codes = {core_attempt.TIMED_OUT: "TIMED_OUT"}
    if event.from_ == core_attempt.STALE:
        expected_codes[core_attempt.FAILED] = "LEASE_LOST"
        if attempt.lost_leases <= attempt.max_lost_leases:
            verifier.flag(
                "MOD-5",
                f"attempt {attempt.id} is given up after {attempt.lost_leases} lost leases",
                f"more than {attempt.max_lost_leases}",
            )
    if event.to in expected_codes and metadata.error.code != expected_codes[event.to]:
        verifier.flag(
            "MOD-F3", f"attempt {attempt.id} is {event.to} for {metadata.error.code}", expected_codes[event.to]
        )
    if event.to == core_attempt.TIMED_OUT and event.at < attempt.started_at + attempt.timeout:
        verifier.flag(
            "ORC-T2",
            f"attempt {attempt.id} times out early",
            f"not before {(attempt.started_at + attempt.timeout).isoformat()}",
        )


def check_verdict(
    verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, metadata: AttemptMetadata
) -> None:
    """Report a verdict of an attempt that did not succeed, and a failed verdict of a success without a job."""
    attempt.verdict = metadata.verdict
    if metadata.verdict is not None and event.to != core_attempt.SUCCEEDED:
        verifier.flag("WST-TA3", f"attempt {attempt.id} is {event.to} with a verdict", "a verdict with SUCCEEDED only")
    elif metadata.verdict is not None and attempt.job is None and not metadata.verdict.is_passed:
        verifier.flag("WST-TG9", f"attempt {attempt.id} succeeds with a failed verdict, and has no job", "FAILED")


def check_cancel_request(
    verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, metadata: AttemptMetadata
) -> None:
    """Report a cancel request without a reason or without a deadline in the future."""
    if event.from_ == core_attempt.CANCEL_REQUESTED:
        return
    if not metadata.reason or metadata.cancel_by is None or metadata.cancel_by < event.at:
        verifier.flag("ORC-C1", f"the cancellation of {attempt.id} has no reason or no deadline in the future", "both")
    if attempt.job is not None and metadata.reason == core_job.NOT_NEEDED and event.actor == ORCHESTRATOR:
        check_not_needed(verifier, attempt.job, event)
    attempt.cancel_reason, attempt.cancel_by = metadata.reason or "", metadata.cancel_by or event.at
    attempt.canceled_by = event.actor


def check_canceled(
    verifier: CanonicalVerifier, attempt: TrackedAttempt, event: EventLine, metadata: AttemptMetadata
) -> None:
    """Report the end of a cancellation that breaks a rule.

    The rules: reason and canceller are those of the request; `is_forced` is true exactly if no runner confirmed it, and
    only a runner adds a message; a live lease is revoked only after the deadline, or if it was not accepted in time.
    """
    if metadata.reason != attempt.cancel_reason:
        verifier.flag(
            "ORC-A10", f"attempt {attempt.id} is cancelled for {metadata.reason!r}", repr(attempt.cancel_reason)
        )
    if metadata.canceled_by not in (None, attempt.canceled_by):
        verifier.flag("MOD-13", f"attempt {attempt.id} was cancelled by {metadata.canceled_by}", attempt.canceled_by)
    is_forced = actor_kind(event.actor) != RUNNER
    if (metadata.message is not None) and is_forced:
        verifier.flag("MOD-13", f"the forced cancellation of {attempt.id} has a message", "no message")
    if bool(metadata.is_forced) != is_forced:
        verifier.flag(
            "ORC-C2",
            f"the cancellation of {attempt.id} by {event.actor} has is_forced={metadata.is_forced}",
            f"is_forced={is_forced}",
        )
    lease_change = metadata.lease
    if is_forced and lease_change is not None and lease_change.to == lease.REVOKED:
        is_unaccepted = lease_change.from_ == lease.GRANTED and event.at >= attempt.accept_by
        if event.at < attempt.cancel_by and not is_unaccepted:
            verifier.flag(
                "ORC-T4",
                f"attempt {attempt.id} is cancelled by force early",
                f"not before {attempt.cancel_by.isoformat()}",
            )


_ANY: Final = (check_lease, check_heartbeat_order, check_request_id, check_verdict, check_reassignment)
_COMMON: Final = (check_owner, check_no_claim, *_ANY)
_CLAIM: Final = (check_owner, check_claim, *_ANY)
CHECKS: Final[dict[str, tuple[Check, ...]]] = {
    core_attempt.QUEUED: (*_COMMON, check_created, check_requeued),
    core_attempt.LEASED: (*_CLAIM, check_claimable),
    core_attempt.STARTING: _COMMON,
    core_attempt.RUNNING: (*_COMMON, record_start),
    core_attempt.UPLOADING: _COMMON,
    core_attempt.STALE: (*_COMMON, check_stale),
    core_attempt.SUCCEEDED: (*_COMMON, check_finished),
    core_attempt.FAILED: (*_CLAIM, check_finished),
    core_attempt.TIMED_OUT: (*_CLAIM, check_finished),
    core_attempt.CANCEL_REQUESTED: (*_CLAIM, check_cancel_request),
    core_attempt.CANCELED: (*_CLAIM, check_canceled),
}

# Attempt state -> allowed states of its job at the end of the transaction.
_JOB_STATES: Final = {
    core_attempt.QUEUED: ("QUEUED", "RUNNING"),
    **dict.fromkeys((*core_attempt.ACTIVE_STATES, core_attempt.STALE, core_attempt.CANCEL_REQUESTED), ("RUNNING",)),
    core_attempt.SUCCEEDED: ("VALIDATING", "SUCCEEDED", "FAILED", "CANCELED"),
    core_attempt.FAILED: ("RETRYING", "FAILED", "CANCELED"),
    core_attempt.TIMED_OUT: ("RETRYING", "FAILED", "CANCELED"),
    core_attempt.CANCELED: ("CANCELED",),
}


def check_transaction(verifier: CanonicalVerifier, attempt: TrackedAttempt) -> None:
    """At the end of a transaction, report an attempt that must not stay in its state.

    A lost attempt must be requeued or failed unless it is fenced, an attempt that is asked to cancel must have a live
    lease, and the state of the job must fit that of its latest attempt.
    """
    may_be_claimed_later = attempt.at < attempt.fence_until and attempt.lost_leases <= attempt.max_lost_leases
    if (
        attempt.state == core_attempt.STALE
        and attempt.stale_reason in _REQUEUED_UNLESS_FENCED
        and not may_be_claimed_later
    ):
        verifier.flag(
            "ORC-A7",
            f"attempt {attempt.id} stays STALE after {attempt.stale_reason}",
            "QUEUED or FAILED in the same transaction",
        )
    if attempt.state == core_attempt.CANCEL_REQUESTED and attempt.lease_state is None:
        verifier.flag(
            "ORC-C3",
            f"attempt {attempt.id} waits for an acknowledgement without a live lease",
            "CANCELED in the same transaction",
        )
    if (
        attempt.job is not None
        and attempt.job.latest_attempt is attempt
        and attempt.job.state not in _JOB_STATES.get(attempt.state or "", ())
    ):
        problem = f"attempt {attempt.id} is {attempt.state} and its job {attempt.job.state}"
        verifier.flag(
            "ORC-J1", problem, f"a job that is {' or '.join(_JOB_STATES.get(attempt.state or '', ('ended',)))}"
        )
