"""The attempt: one execution of a job, and the record that the queue hands out.

Only the holder of its live lease owns, changes and finishes an attempt. A message under any other lease is stale and
changes nothing. When the orchestrator itself has to end an attempt, it takes over: the same transition revokes the
lease, so that a late result of the runner is stale as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from deltaci.core import failures, ids, lease
from deltaci.core.errors import Refused
from deltaci.core.events import ATTEMPT, INFO, ORCHESTRATOR, RUNNER, USER, WARNING, Event
from deltaci.core.failures import Facts, Failure, FailureRule
from deltaci.core.ids import LeaseRef, first_incarnation_id
from deltaci.core.instants import SECOND
from deltaci.core.lease import Lease
from deltaci.core.machine import (
    Command,
    Implies,
    Machine,
    Record,
    Rule,
    Target,
    Transition,
    is_repeat,
    no_change,
    stored_name,
)
from deltaci.core.worker import required_labels, with_avoided

CREATED: Final = "CREATED"
QUEUED: Final = "QUEUED"
LEASED: Final = "LEASED"
STARTING: Final = "STARTING"
RUNNING: Final = "RUNNING"
UPLOADING: Final = "UPLOADING"
STALE: Final = "STALE"
SUCCEEDED: Final = "SUCCEEDED"
FAILED: Final = "FAILED"
TIMED_OUT: Final = "TIMED_OUT"
CANCEL_REQUESTED: Final = "CANCEL_REQUESTED"
CANCELED: Final = "CANCELED"

ACTIVE_STATES: Final = (LEASED, STARTING, RUNNING, UPLOADING)  # The attempt is leased, and no cancel was requested.

# The triggers of transitions for which document 004 has no event type.
ACKNOWLEDGED: Final = "acknowledged"
UPLOAD_BEGAN: Final = "upload_began"
MARKED_FOR_REASSIGNMENT: Final = "marked_for_reassignment"

MAX_LOST_LEASES: Final = 3
TIMEOUT_SECONDS: Final = 3600

# Why an attempt became STALE. The orchestrator detects the first three itself.
LEASE_EXPIRED: Final = "LEASE_EXPIRED"
NOT_ACCEPTED: Final = "NOT_ACCEPTED"
WORKER_LOST: Final = "WORKER_LOST"  # Only in older logs, in which missed health checks ended leases.
STALLED: Final = "STALLED"
HANDED_BACK: Final = "HANDED_BACK"
# The reasons of `Stall`, and whether each counts as a lost lease.
STALL_REASONS: Final = {STALLED: True, HANDED_BACK: False}
DETECTED_LOST: Final = frozenset({LEASE_EXPIRED, NOT_ACCEPTED, WORKER_LOST})


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of the validation rules that the runner checks after the execution.

    `details` names the failed rules.
    """

    is_passed: bool
    details: str = ""


class Attempt(Record, frozen=True, kw_only=True):
    """One execution of a job, or one job of the plain queue, which has no `job_id`.

    `claims` counts how often it was claimed. `lease` is the live lease, `ended_lease` the latest ended lease. Before
    `fence_until`, the runner that lost the attempt may still execute it.
    """

    state: str = CREATED
    job_id: str = ""
    index: int = 1
    queue_key: str = ""
    priority: int = 0
    run_at: int = 0
    timeout_seconds: int = TIMEOUT_SECONDS
    max_lost_leases: int = MAX_LOST_LEASES
    claims: int = 0
    lost_leases: int = 0
    started_at: int = 0
    fence_until: int = 0
    cancel_by: int = 0
    cancel_reason: str = ""
    lease: Lease | None = None
    ended_lease: Lease | None = None
    result: Any = None
    report: Any = None
    error: Failure | None = None
    spec: Any = None
    group: str = ""  # Of a tenant's attempts in one group, at most one has a live lease or a fence.
    verdict: Verdict | None = None  # The result of the runner's validation rules, if the attempt succeeded.
    progress: Any = None  # The runner's latest report under the live or ended lease.
    avoid: tuple[str, ...] = ()  # Workers on which the job failed or was lost: others are preferred.
    exit_code: int | None = None  # Of the accepted result, to recognise a repeat of that result.
    progress_at: int = 0  # When the progress was reported, by the runner's clock.
    canceled_by: str = ""  # The actor that requested the cancellation.
    dedupe_key: str = ""  # Of a job of the plain queue, from which its id is derived.

    @property
    def times_out_at(self) -> int:
        """When the job timeout ends: `timeout_seconds` after the attempt entered RUNNING, 0 before that."""
        return self.started_at + self.timeout_seconds * SECOND if self.started_at else 0

    @property
    def reassign_at(self) -> int:
        """When the lease ends without a heartbeat, if the attempt is marked for reassignment; otherwise 0."""
        return self.lease.reassign_at if self.lease is not None and self.state in ACTIVE_STATES else 0

    @property
    def stop_unconfirmed_until(self) -> int:
        """Until when the process of an ended attempt may run, because its runner did not confirm the stop; else 0."""
        return self.fence_until if self.state in TERMINAL and self.fence_until > self.updated_at else 0

    @property
    def is_lost_too_often(self) -> bool:
        """Whether it has lost more leases than allowed, so that it fails instead of being claimed again."""
        return self.lost_leases > self.max_lost_leases


class Publish(Command, frozen=True, kw_only=True):
    """Queue a new attempt, so that workers can claim it."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})


class Grant(Command, frozen=True, kw_only=True):
    """Lease the attempt to the worker that claims it.

    With `starts`, the attempt is also started, in the same decision. The request id is that of the worker's claim,
    which named no attempt.
    """

    by: ClassVar[frozenset[str]] = frozenset({RUNNER})
    has_request_ids_per_actor: ClassVar[bool] = True

    fingerprint: str
    labels: tuple[str, ...] = ()
    ttl_seconds: int = lease.TTL_SECONDS
    accept_seconds: int = lease.ACCEPT_SECONDS
    salt: str = ""
    starts: bool = False


class LeasedCommand(Command, frozen=True, kw_only=True):
    """A runner's message about its attempt, which names the lease that it is sent under.

    With a `tenant`, an attempt of another tenant is treated as unknown.
    """

    stored_name: ClassVar[str] = "Leased"
    by: ClassVar[frozenset[str]] = frozenset({RUNNER})

    lease: LeaseRef
    tenant: str = ""


class Ack(LeasedCommand, frozen=True, kw_only=True):
    """Record that the runner accepted the job, and renew the lease."""


class Start(LeasedCommand, frozen=True, kw_only=True):
    """Record that the runner has begun to execute the steps, and renew the lease."""


class Extend(LeasedCommand, frozen=True, kw_only=True):
    """Renew the lease, whether or not execution has begun: the heartbeat of document 004."""


class Heartbeat(LeasedCommand, frozen=True, kw_only=True):
    """Renew the lease of a running attempt: the heartbeat of document 001. `progress` is stored only for display.

    A heartbeat whose `sequence_no` is not above those before it under its lease changes nothing. Without a number, it
    always renews the lease, and `sent_at`, a time of the runner's clock, orders only the progress.
    """

    sequence_no: int | None = None
    sent_at: int = 0
    progress: Any = None


class BeginUpload(LeasedCommand, frozen=True, kw_only=True):
    """Record that the steps have ended and the runner uploads logs and artifacts; renew the lease."""


class Outcome(LeasedCommand, frozen=True, kw_only=True):
    """The result of an execution as the runner reports it; `report` lists artifacts, timings and the like.

    Only a success has a `verdict`, which says whether the result is valid. The orchestrator adds `facts` about a
    failure and the project's `rules` to classify it, because it decides about retries.
    """

    is_success: bool
    exit_code: int | None = None
    result: Any = None
    report: Any = None
    facts: Facts = Facts()
    rules: tuple[FailureRule, ...] = ()
    verdict: Verdict | None = None

    def succeeds(self, job_id: str) -> bool:
        """Return whether the attempt succeeds with this outcome.

        An invalid result fails an attempt without a job. With a job, the attempt succeeds and the job's validation
        fails.
        """
        return self.is_success and (bool(job_id) or self.verdict is None or self.verdict.is_passed)


class Finish(Outcome, frozen=True, kw_only=True):
    """Finish a running attempt with its result: `complete` and `fail` of document 004."""


class Complete(Outcome, frozen=True, kw_only=True):
    """Finish the attempt with its result, after the earlier steps that the runner did not report. Document 001."""


class CancelAck(LeasedCommand, frozen=True, kw_only=True):
    """Finish a requested cancellation: the runner has stopped the attempt."""

    report: Any = None


class Cancel(Command, frozen=True, kw_only=True):
    """Request the cancellation. A runner with a live lease has `deadline_seconds` to acknowledge it."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})

    reason: str
    deadline_seconds: int = lease.CANCEL_SECONDS


class Expire(Command, frozen=True, kw_only=True):
    """End the lease because it was not renewed in time."""


class RevokeUnaccepted(Command, frozen=True, kw_only=True):
    """Revoke a lease that the runner did not acknowledge within the accept window."""


class Stall(Command, frozen=True, kw_only=True):
    """Make the attempt stale, because its worker is presumed lost, is no longer trusted, or hands the attempt back."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})

    reason: str = STALLED


class MarkForReassignment(Command, frozen=True, kw_only=True):
    """Record when the lease ends if its worker, which is unresponsive, sends no more message under it."""


class Requeue(Command, frozen=True, kw_only=True):
    """Queue a stale attempt whose fence has ended, or fail it if its lease was lost too often."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})


class TimeOut(Command, frozen=True, kw_only=True):
    """End the attempt because its job timeout has passed."""


class ForceCancel(Command, frozen=True, kw_only=True):
    """Finish a requested cancellation without the runner: there is none, or its deadline has passed."""


def _with_lease(attempt: Attempt, command_type: type[Command], at: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Apply a command to the live lease; return the changed fields of the attempt and the metadata of its event."""
    before = attempt.lease
    if before is None:
        raise Refused("wrong_state", f"attempt {attempt.id} has no live lease; there is nothing to change")
    after = lease.change(before, command_type, at)
    metadata = {"number": after.number, "worker_id": after.worker_id, "from": before.state, "to": after.state}
    if after.state in lease.LIVE:
        metadata["expires_at"] = after.expires_at
        return {"lease": after}, {"lease": metadata}
    return {"lease": None, "ended_lease": after}, {"lease": metadata}


def _publish(attempt: Attempt, _command: Publish, at: int) -> Transition:
    metadata: dict[str, Any] = {
        "index": attempt.index,
        "job_id": attempt.job_id,
        "queue_key": attempt.queue_key,
        "run_at": attempt.run_at,
        "timeout_seconds": attempt.timeout_seconds,
        "max_lost_leases": attempt.max_lost_leases,
    }
    return QUEUED, {"created_at": at}, metadata


def _grant(attempt: Attempt, command: Grant, at: int) -> Transition:
    claimable_at = max(attempt.run_at, attempt.fence_until)
    if at < claimable_at:
        raise Refused(
            "not_due", f"attempt {attempt.id} may be claimed in {(claimable_at - at) / SECOND:.3f} s; wait for it"
        )
    if attempt.state == STALE and attempt.is_lost_too_often:
        raise Refused(
            "not_eligible",
            f"attempt {attempt.id} lost its lease {attempt.lost_leases} times; requeue it to have it failed",
        )
    if attempt.queue_key and (missing_labels := required_labels(attempt.queue_key) - set(command.labels)):
        raise Refused(
            "not_eligible",
            f"attempt {attempt.id} needs {', '.join(sorted(missing_labels))}; give it to a worker that has it",
        )
    lease_number, worker_id = attempt.claims + 1, command.actor.partition(":")[2]
    granted_lease = lease.change(
        Lease(
            id=ids.lease_name(attempt.id, lease_number),
            number=lease_number,
            worker_id=worker_id,
            fingerprint=command.fingerprint,
            ttl_seconds=command.ttl_seconds,
            accept_by=at + command.accept_seconds * SECOND,
            expires_at=at + command.ttl_seconds * SECOND,
            salt=command.salt,
        ),
        lease.Grant,
        at,
    )
    metadata = {
        "claims": lease_number,
        "lease": {
            "number": lease_number,
            "worker_id": worker_id,
            "from": None,
            "to": granted_lease.state,
            "accept_by": granted_lease.accept_by,
            "expires_at": granted_lease.expires_at,
        },
    }
    changes = {"lease": granted_lease, "claims": lease_number, "started_at": 0, "progress": None, "progress_at": 0}
    return LEASED, changes, metadata


def _ack(attempt: Attempt, command: Ack, at: int) -> Transition:
    changes, metadata = _with_lease(attempt, lease.Ack, at)
    return STARTING, changes, {**metadata, "message": "AckLease"} if type(command) is Ack else metadata


def _ack_while_canceling(attempt: Attempt, command: Ack, at: int) -> Transition | None:
    changes, metadata = _with_lease(attempt, lease.Ack, at)
    return None if changes["lease"] is attempt.lease else (CANCEL_REQUESTED, changes, metadata)


def _start(attempt: Attempt, command: Start, at: int) -> Transition:
    changes, metadata = _with_lease(attempt, lease.Renew, at)
    changes["started_at"] = at
    return RUNNING, changes, metadata


def _renew(attempt: Attempt, command: LeasedCommand, at: int) -> Transition:
    return attempt.state, *_with_lease(attempt, lease.Renew, at)


def _heartbeat(attempt: Attempt, command: Heartbeat, at: int) -> Transition:
    state, changes, metadata = _renew(attempt, command, at)
    is_latest = attempt.progress is None or command.sent_at >= attempt.progress_at
    if command.sequence_no is not None:
        is_latest = True
        changes["lease"] = msgspec.structs.replace(changes["lease"], last_heartbeat_no=command.sequence_no)
        metadata["sequence_no"] = command.sequence_no
    if command.progress is not None and is_latest:
        changes.update(progress=command.progress, progress_at=command.sent_at)
    return state, changes, metadata


def _begin_upload(attempt: Attempt, command: BeginUpload, at: int) -> Transition:
    changes, metadata = _with_lease(attempt, lease.Renew, at)
    return UPLOADING, changes, {**metadata, "message": "BeginUpload"} if type(command) is BeginUpload else metadata


def _finish(attempt: Attempt, command: Outcome, at: int) -> Transition:
    changes, metadata = _with_lease(attempt, lease.Finish, at)
    changes["exit_code"] = metadata["exit_code"] = effective_exit_code(command)
    if command.succeeds(attempt.job_id):
        changes.update(result=_stored_result(command), report=command.report, verdict=command.verdict)
        if command.verdict is not None:
            metadata["verdict"] = msgspec.to_builtins(command.verdict)
        return SUCCEEDED, changes, metadata
    failure = failure_from(command)
    changes.update(error=failure, report=command.report, **_avoid_changes(attempt, changes, failure))
    return FAILED, changes, {**metadata, "error": _failure_metadata(failure)}


def _stored_result(outcome: Outcome) -> Any:
    return {} if outcome.result is None else outcome.result


def _finish_cancel(attempt: Attempt, command: Outcome | CancelAck, at: int) -> Transition:
    changes, metadata = _with_lease(attempt, lease.Cancel, at)
    # A late result does not count, but its report is kept.
    changes.update(error=_CANCELED_FAILURE, report=command.report)
    return CANCELED, changes, {**metadata, **_cancellation_metadata(attempt), "message": stored_name(type(command))}


def _avoid_changes(attempt: Attempt, changes: dict[str, Any], failure: Failure | None = None) -> dict[str, Any]:
    """Return the changed field `avoid`, to which the worker is added whose infrastructure ended the lease.

    Empty if something else ended it, and for an attempt of the plain queue, because the fleet of such clients is
    unknown.
    """
    if not attempt.job_id or (failure is not None and failure.failure_class != failures.INFRA):
        return {}
    return {"avoid": with_avoided(attempt.avoid, changes["ended_lease"].worker_id)}


_CANCELED_FAILURE: Final = Failure(code="CANCELED", failure_class=failures.USER, is_retryable=False, rule="canceled")


def _failure_metadata(failure: Failure) -> dict[str, Any]:
    metadata: dict[str, Any] = msgspec.to_builtins(failure)
    return metadata


def _stale(
    attempt: Attempt, command_type: type[Command], at: int, reason: str, *, counts_as_lost_lease: bool = True
) -> Transition:
    changes, metadata = _with_lease(attempt, command_type, at)
    ended_lease: Lease = changes["ended_lease"]
    lost_leases = attempt.lost_leases + (1 if counts_as_lost_lease else 0)
    # A runner that accepted the job may execute it until its lease would have ended: no other may start before.
    fence_until = ended_lease.expires_at if counts_as_lost_lease and reason != NOT_ACCEPTED else at
    changes.update(lost_leases=lost_leases, fence_until=fence_until, started_at=0)
    if reason in DETECTED_LOST:
        changes.update(_avoid_changes(attempt, changes))
    metadata |= {"reason": reason, "lost_leases": lost_leases, **_fence_metadata(fence_until, at)}
    return STALE, changes, metadata


def _fence_metadata(fence_until: int, at: int) -> dict[str, Any]:
    """Return the metadata about a fence that goes on after the event at this time; empty if there is none."""
    return {"fence_until": fence_until} if fence_until > at else {}


def _expire(attempt: Attempt, _command: Expire, at: int) -> Transition:
    return _stale(attempt, lease.Expire, at, LEASE_EXPIRED)


def _check_accept_window_over(attempt: Attempt, at: int) -> None:
    """Refuse to revoke a lease that was acknowledged or can still be acknowledged."""
    live_lease = attempt.lease
    if live_lease is None or live_lease.state != lease.GRANTED:
        raise Refused("wrong_state", f"the lease of attempt {attempt.id} was acknowledged; let it run")
    if at < live_lease.accept_by:
        remaining_seconds = (live_lease.accept_by - at) / SECOND
        raise Refused(
            "not_due",
            f"the accept window of attempt {attempt.id} is open for another {remaining_seconds:.3f} s",
        )


def _revoke_unaccepted(attempt: Attempt, _command: RevokeUnaccepted, at: int) -> Transition:
    _check_accept_window_over(attempt, at)
    return _stale(attempt, lease.Revoke, at, NOT_ACCEPTED)


def _stall(attempt: Attempt, command: Stall, at: int) -> Transition:
    counts_as_lost_lease = STALL_REASONS.get(command.reason)
    if counts_as_lost_lease is None:
        raise Refused("bad_request", f"an attempt is stalled as {STALLED} or {HANDED_BACK}, not as {command.reason}")
    return _stale(attempt, lease.Revoke, at, command.reason, counts_as_lost_lease=counts_as_lost_lease)


def _mark_for_reassignment(attempt: Attempt, _command: MarkForReassignment, _at: int) -> Transition:
    live_lease = attempt.lease
    if live_lease is None:
        raise Refused("wrong_state", f"attempt {attempt.id} has no live lease; there is nothing to reassign")
    reassign_at = live_lease.expires_at
    if live_lease.state == lease.GRANTED:
        reassign_at = min(reassign_at, live_lease.accept_by)
    marked_lease = msgspec.structs.replace(live_lease, reassign_at=reassign_at)
    return attempt.state, {"lease": marked_lease}, {"reassign_at": reassign_at, "worker_id": live_lease.worker_id}


def _requeue(attempt: Attempt, _command: Requeue, at: int) -> Transition | None:
    if not attempt.is_lost_too_often:  # A fenced attempt becomes claimable without a requeue.
        return (QUEUED, {}, {"run_at": attempt.run_at}) if at >= attempt.fence_until else None
    failure = failures.classify(Facts(error_code="LEASE_LOST"))
    claims = attempt.claims + 1
    return FAILED, {"error": failure, "claims": claims}, {"error": _failure_metadata(failure), "claims": claims}


def _take_over(attempt: Attempt, command_type: type[Command], at: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """End the live lease on behalf of the orchestrator; return the changed fields and the event metadata.

    The takeover counts as another claim. A runner that accepted the job may execute it until its lease would have
    ended. Without a live lease nothing changes.
    """
    live_lease = attempt.lease
    if live_lease is None:  # The takeover was counted when the cancellation was requested.
        return {}, {}
    changes, metadata = _with_lease(attempt, command_type, at)
    claims, fence_until = attempt.claims + 1, live_lease.expires_at if live_lease.state == lease.ACTIVE else at
    changes.update(claims=claims, fence_until=fence_until)
    return changes, {**metadata, "claims": claims, **_fence_metadata(fence_until, at)}


def _time_out(attempt: Attempt, _command: TimeOut, at: int) -> Transition:
    if at < attempt.times_out_at:
        raise Refused(
            "not_due", f"attempt {attempt.id} has another {(attempt.times_out_at - at) / SECOND:.3f} s; wait for it"
        )
    changes, metadata = _take_over(attempt, lease.Revoke, at)
    failure = failures.classify(Facts(error_code="TIMED_OUT"))
    changes.update(error=failure, **_avoid_changes(attempt, changes, failure))
    return TIMED_OUT, changes, {**metadata, "error": _failure_metadata(failure)}


def _cancel(attempt: Attempt, command: Cancel, at: int) -> Transition:
    deadline = at + command.deadline_seconds * SECOND
    changes: dict[str, Any] = {
        "cancel_reason": command.reason,
        "cancel_by": deadline,
        "canceled_by": command.actor,
    }
    metadata: dict[str, Any] = {"reason": command.reason, "cancel_by": deadline}
    if attempt.lease is None:
        changes["claims"] = metadata["claims"] = attempt.claims + 1
    return CANCEL_REQUESTED, changes, metadata


def _cancellation_metadata(attempt: Attempt) -> dict[str, Any]:
    metadata = {"reason": attempt.cancel_reason}
    return {**metadata, "canceled_by": attempt.canceled_by} if attempt.canceled_by else metadata


def _force_canceled(attempt: Attempt, command_type: type[Command], at: int) -> Transition:
    changes, metadata = _take_over(attempt, command_type, at)
    return (
        CANCELED,
        {**changes, "error": _CANCELED_FAILURE},
        {**metadata, **_cancellation_metadata(attempt), "is_forced": True},
    )


def _force_cancel(attempt: Attempt, _command: ForceCancel, at: int) -> Transition:
    if attempt.lease is not None and at < attempt.cancel_by:
        raise Refused(
            "not_due",
            f"the runner of attempt {attempt.id} has another {(attempt.cancel_by - at) / SECOND:.3f} s to stop",
        )
    return _force_canceled(attempt, lease.Revoke, at)


def _force_expired(attempt: Attempt, _command: Expire, at: int) -> Transition:
    return _force_canceled(attempt, lease.Expire, at)


def _force_unaccepted(attempt: Attempt, _command: RevokeUnaccepted, at: int) -> Transition:
    _check_accept_window_over(attempt, at)
    return _force_canceled(attempt, lease.Revoke, at)


def effective_exit_code(outcome: Outcome) -> int | None:
    """Return the exit code to record; refuse an exit code that contradicts the outcome."""
    exit_code = _reported_exit_code(outcome)
    if outcome.is_success and exit_code != 0:
        raise Refused("bad_request", f"a success has exit code 0, not {exit_code}; report anything else as a failure")
    if not outcome.is_success and exit_code == 0:
        raise Refused(
            "bad_request", "exit code 0 is a success, not a failure; omit it if something else than the process failed"
        )
    return exit_code


def _reported_exit_code(outcome: Outcome) -> int | None:
    """Return the exit code that the runner reported, or 0 for a successful `Finish` without one."""
    # Document 004 has no exit codes: completing a job through the queue means exit code 0.
    is_zero_implied = outcome.is_success and outcome.exit_code is None and isinstance(outcome, Finish)
    return 0 if is_zero_implied else outcome.exit_code


def failure_from(outcome: Outcome) -> Failure:
    """Return the failure that a failed outcome stands for.

    That is a failed validation if the execution succeeded; otherwise the rules classify the facts.
    """
    if outcome.is_success and outcome.verdict is not None:
        return failures.validation_failure(outcome.verdict.details)
    facts = outcome.facts
    if facts.exit_code is None and outcome.exit_code is not None:
        facts = msgspec.structs.replace(facts, exit_code=outcome.exit_code)
    return failures.classify(facts, (*outcome.rules, *failures.RULES))


def _refuse_unrequested(attempt: Attempt, _command: CancelAck, _at: int) -> None:
    raise Refused(
        "cancel_not_requested", f"no cancel of attempt {attempt.id} was requested; continue, or report a result"
    )


def _is_unacknowledged(attempt: Attempt) -> bool:
    return attempt.lease is not None and attempt.lease.state == lease.GRANTED


# fmt: off
MACHINE: Final[Machine[Attempt]] = Machine(
    ATTEMPT,
    Rule(CREATED, Publish, (Target(QUEUED, "enqueued"),), _publish,
         ORCHESTRATOR, "created and published for dispatch", ("ORC-A1", "QUE-T1")),
    Rule(QUEUED, Grant, (Target(LEASED, "claimed"),), _grant,
         ORCHESTRATOR, "a worker asked for work", ("ORC-A2", "QUE-T2")),
    Rule(STALE, Grant, (Target(LEASED, "claimed"),), _grant,
         ORCHESTRATOR, "reclaimed after the end of its fence", ("QUE-T3",)),
    Rule(LEASED, Ack, (Target(STARTING, ACKNOWLEDGED),), _ack,
         ORCHESTRATOR, "AckLease: the runner accepted the job", ("ORC-A3", "PRO-Q3")),
    *(Rule(s, Ack, (), no_change,
           ORCHESTRATOR, "a repeat after a lost answer is no error", ("ORC-I2",)) for s in ACTIVE_STATES[1:]),
    Rule(CANCEL_REQUESTED, Ack, (Target(CANCEL_REQUESTED, ACKNOWLEDGED),), _ack_while_canceling, ORCHESTRATOR,
         "the runner accepted the job before it learns of the cancel", ("MOD-3",)),
    Rule(STARTING, Start, (Target(RUNNING, "started"),), _start,
         ORCHESTRATOR, "the first heartbeat, or a report that it runs", ("ORC-A4", "QUE-T4")),
    *(Rule(s, Start, (), no_change,
           ORCHESTRATOR, "running already; a repeat is no error", ("ORC-I2",)) for s in ACTIVE_STATES[2:]),
    Implies(LEASED, Start, Ack, "a runner that runs the job has accepted it"),
    *(Rule(s, Extend, (Target(s, "heartbeat"),), _renew,
           ORCHESTRATOR, "a heartbeat; the lease is renewed", ("QUE-T5", "QUE-T6"))
      for s in (*ACTIVE_STATES[1:], CANCEL_REQUESTED)),
    Implies(LEASED, Extend, Ack, "a runner that renews the lease has accepted the job"),
    Implies(CANCEL_REQUESTED, Extend, Ack, "a runner that renews the lease has accepted the job",
            when=_is_unacknowledged),
    *(Rule(s, Heartbeat, (Target(s, "heartbeat"),), _heartbeat,
           ORCHESTRATOR, "a heartbeat; the lease is renewed", ("PRO-Q5",))
      for s in (*ACTIVE_STATES[2:], CANCEL_REQUESTED)),
    Implies(LEASED, Heartbeat, Ack, "a runner that reports progress has accepted the job"),
    Implies(STARTING, Heartbeat, Start, "the first heartbeat means that it runs"),
    Implies(CANCEL_REQUESTED, Heartbeat, Ack, "a runner that reports progress has accepted the job",
            when=_is_unacknowledged),
    Rule(RUNNING, BeginUpload, (Target(UPLOADING, UPLOAD_BEGAN),), _begin_upload,
         RUNNER, "the steps are over, uploads began", ("ORC-A5",)),
    Rule(UPLOADING, BeginUpload, (), no_change, RUNNER, "a repeat is no error", ("ORC-I2",)),
    Implies(LEASED, BeginUpload, Ack, "a runner that uploads has accepted the job"),
    Implies(STARTING, BeginUpload, Start, "a runner that uploads has run the job"),
    Rule(UPLOADING, Finish, (Target(SUCCEEDED, "succeeded"), Target(FAILED, "failed", WARNING)), _finish, ORCHESTRATOR,
         "the owner finished it", ("QUE-T7", "QUE-T8")),
    Implies(RUNNING, Finish, BeginUpload, "no state is skipped"),
    Rule(UPLOADING, Complete, (Target(SUCCEEDED, "succeeded"), Target(FAILED, "failed", WARNING)), _finish,
         ORCHESTRATOR, "an accepted Complete", ("ORC-A6", "PRO-Q7")),
    Implies(LEASED, Complete, Ack, "no state is skipped"),
    Implies(STARTING, Complete, Start, "no state is skipped"),
    Implies(RUNNING, Complete, BeginUpload, "no state is skipped"),
    *(Rule(CANCEL_REQUESTED, command, (Target(CANCELED, "failed", INFO),), _finish_cancel, ORCHESTRATOR, why, cites)
      for command, why, cites in (
          (CancelAck, "the runner reported that it stopped", ("ORC-A10", "PRO-Q11")),
          (Complete, "cancel wins: the late result counts as the acknowledgement", ("MOD-3",)),
          (Finish, "cancel wins: the late result counts as the acknowledgement", ("MOD-3",)))),
    *(Rule(s, CancelAck, (), _refuse_unrequested,
           ORCHESTRATOR, "refused: a cancel must be requested first", ("PRO-Q11",))
      for s in ACTIVE_STATES),
    *(Implies(CANCEL_REQUESTED, command, Ack, "a runner that stopped the job had accepted it", when=_is_unacknowledged)
      for command in (CancelAck, Complete, Finish)),
    *(Rule(s, Expire, (Target(STALE, "stalled", WARNING),), _expire,
           ORCHESTRATOR, "no heartbeat within the TTL", ("ORC-A7", "QUE-T9", "QUE-T10"))
      for s in ACTIVE_STATES),
    Rule(CANCEL_REQUESTED, Expire, (Target(CANCELED, "failed", WARNING),), _force_expired, ORCHESTRATOR,
         "the runner that was to stop lost its lease", ("ORC-A10", "MOD-3")),
    Rule(LEASED, RevokeUnaccepted, (Target(STALE, "stalled", WARNING),), _revoke_unaccepted, ORCHESTRATOR,
         "not acknowledged within the accept window", ("PRO-Q4", "MOD-L4")),
    Rule(CANCEL_REQUESTED, RevokeUnaccepted, (Target(CANCELED, "failed", WARNING),), _force_unaccepted, ORCHESTRATOR,
         "the runner that was to stop never accepted the job", ("MOD-3",)),
    *(Rule(s, Stall, (Target(STALE, "stalled", WARNING),), _stall,
           ORCHESTRATOR, "its worker is lost or not trusted, or handed it back", ("QUE-T9", "QUE-T10"))
      for s in ACTIVE_STATES),
    *(Rule(s, MarkForReassignment, (Target(s, MARKED_FOR_REASSIGNMENT, WARNING),), _mark_for_reassignment,
           ORCHESTRATOR, "its worker is unresponsive; without a message its lease ends then", ("WST-KA4", "MOD-12"))
      for s in ACTIVE_STATES),
    Rule(STALE, Requeue, (Target(QUEUED, "requeued"), Target(FAILED, "failed", WARNING)), _requeue, ORCHESTRATOR,
         "claimable again, or failed after too many lost leases", ("ORC-A7", "QUE-T11", "MOD-5")),
    *(Rule(s, TimeOut, (Target(TIMED_OUT, "failed", WARNING),), _time_out,
           ORCHESTRATOR, "the job timeout has passed", ("ORC-A8", "MOD-2"))
      for s in ACTIVE_STATES[2:]),
    *(Rule(s, Cancel, (Target(CANCEL_REQUESTED, "cancel_requested"),), _cancel,
           ORCHESTRATOR, "its run or its job is cancelled", ("ORC-A9",))
      for s in (QUEUED, *ACTIVE_STATES, STALE)),
    Rule(CANCEL_REQUESTED, Cancel, (), no_change,
         ORCHESTRATOR, "requested already; a repeat is no error", ("ORC-I2",)),
    Rule(CANCEL_REQUESTED, ForceCancel, (Target(CANCELED, "failed", WARNING),), _force_cancel, ORCHESTRATOR,
         "no runner holds it, or its runner did not stop in time", ("ORC-A10", "ORC-C2", "ORC-C3")),
    initial=CREATED,
)
# fmt: on

TERMINAL: Final = MACHINE.terminal

# The states of the ended lease that show that a repeated message without request id was applied before.
_APPLIED_LEASE_STATES: Final = {
    Complete: (lease.COMPLETED, lease.CANCELED),
    Finish: (lease.COMPLETED, lease.CANCELED),
    CancelAck: (lease.CANCELED,),
}


def decide(attempt: Attempt, command: Command, at: int, events: list[Event]) -> Attempt:
    """Apply a submitted command and return the changed attempt, or the same attempt for a repeated message.

    Refuse any other message that was not sent under the live lease with `StaleLease`.
    """
    if isinstance(command, LeasedCommand):
        if command.tenant and command.tenant != attempt.tenant:
            raise lease.unknown_attempt(command.id)
        worker_id = command.actor.partition(":")[2]
        if command.request_id and is_repeat(attempt, command):
            return attempt
        if attempt.ended_lease is not None and _was_result_applied(attempt, command, worker_id):
            return attempt
        at = at if at > attempt.updated_at else attempt.updated_at
        lease.check_fence(attempt.lease, attempt.ended_lease, command.lease, worker_id, at)
        if type(command) is Heartbeat and is_late(attempt, command):
            return attempt
    return MACHINE.decide(attempt, command, at, events)


def start_of(grant: Grant, granted: Attempt) -> Start:
    """Return the command that starts the attempt as part of the grant."""
    ref = LeaseRef(granted.id, granted.claims, grant.fingerprint)
    return Start(id=granted.id, actor=grant.actor, request_id=grant.request_id, lease=ref)


def is_late(attempt: Attempt, heartbeat: Heartbeat) -> bool:
    """Return whether this heartbeat, or a later one, was applied under the live lease."""
    heartbeat_number, live_lease = heartbeat.sequence_no, attempt.lease
    return heartbeat_number is not None and live_lease is not None and heartbeat_number <= live_lease.last_heartbeat_no


def _was_result_applied(attempt: Attempt, command: LeasedCommand, worker_id: str) -> bool:
    """Return whether the attempt was ended by this message, which is then a repeat without a request id."""
    ended_lease = attempt.ended_lease
    if ended_lease is None or ended_lease.state not in _APPLIED_LEASE_STATES.get(type(command), ()):
        return False
    if isinstance(command, Outcome) and attempt.state != CANCELED and not _is_same_outcome(attempt, command):
        return False
    return lease.is_held_by(ended_lease, command.lease, worker_id)


def _is_same_outcome(attempt: Attempt, outcome: Outcome) -> bool:
    """Return whether the attempt ended with this outcome, so that the message is a repeat."""
    is_success = attempt.state == SUCCEEDED
    return (
        outcome.succeeds(attempt.job_id) == is_success
        and _reported_exit_code(outcome) == attempt.exit_code
        and (not is_success or _stored_result(outcome) == attempt.result)
    )


def complete_answer(attempt: Attempt) -> tuple[bool, str]:
    """Return whether the server answers a Complete with "accepted", and the reason if not: the job was cancelled.

    `attempt` is the attempt after the Complete was applied.
    """
    return (False, CANCEL_REQUESTED) if attempt.state == CANCELED else (True, "")


def stop_request(attempt: Attempt, at: int) -> tuple[str, int] | None:
    """Return the cancel reason and the seconds that the runner has left to stop, or None if no cancel was requested."""
    if attempt.state != CANCEL_REQUESTED:
        return None
    return attempt.cancel_reason, max(0, -(-(attempt.cancel_by - at) // SECOND))


def avoids(attempt: Attempt, worker_id: str) -> bool:
    """Return whether the attempt prefers other workers to this one, in any of its incarnations. See `should_yield`."""
    return first_incarnation_id(worker_id) in attempt.avoid


def should_yield(
    attempt: Attempt, worker_id: str, eligible_labels: Sequence[Sequence[str]], eligible_ids: Sequence[str] = ()
) -> bool:
    """Return whether an avoided worker should leave the attempt to another eligible worker.

    `eligible_labels` are the labels of the other workers that could take work now, `eligible_ids` their ids in the same
    order. If the ids are unknown, assume that all other avoided workers are among them: otherwise two avoided workers
    could wait for each other.
    """
    if not avoids(attempt, worker_id):
        return False
    required_label_set = required_labels(attempt.queue_key)
    matching_indexes = [index for index, labels in enumerate(eligible_labels) if required_label_set <= set(labels)]
    if eligible_ids:
        return any(not avoids(attempt, eligible_ids[index]) for index in matching_indexes)
    return len(matching_indexes) >= len(attempt.avoid)
