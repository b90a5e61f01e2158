"""The attempt: one execution of a job, and the record of the queue.

It is owned, changed and finished only under its live lease. Whatever arrives under another lease is
stale and changes nothing. When the orchestrator itself must end an attempt it takes over: the runner's
lease is revoked in the same step, so the runner's late result is stale too.
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
from deltaci.core.machine import Command, Implies, Machine, Record, Rule, Target, Transition, is_repeat, no_change
from deltaci.core.worker import required_labels

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

ACTIVE_STATES: Final = (LEASED, STARTING, RUNNING, UPLOADING)  # A runner has it and nobody asked it to stop.

MAX_LOST_LEASES: Final = 3
TIMEOUT_SECONDS: Final = 3600
MAX_AVOIDED: Final = 8  # The last of them; what happened longer ago says little about a worker.

# Why an attempt went STALE. The first three are the orchestrator's own findings.
LEASE_EXPIRED: Final = "LEASE_EXPIRED"
NOT_ACCEPTED: Final = "NOT_ACCEPTED"
WORKER_LOST: Final = "WORKER_LOST"
STALLED: Final = "STALLED"
HANDED_BACK: Final = "HANDED_BACK"
# What a stall may be called, and whether it counts against the attempt: a worker that hands back lost nothing.
STALL_REASONS: Final = {STALLED: True, WORKER_LOST: True, HANDED_BACK: False}
DETECTED_LOST: Final = frozenset({LEASE_EXPIRED, NOT_ACCEPTED, WORKER_LOST})
# In the same decision: nothing else would ever look at it again, should whoever asked be gone after the first half.
REQUEUED_IMMEDIATELY: Final = DETECTED_LOST | {HANDED_BACK}


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the rules that were looked at after the execution say together: all hold, or which do not, and why."""

    is_passed: bool
    details: str = ""


class Attempt(Record, frozen=True, kw_only=True):
    """One execution. `claims` counts how often it was claimed; `lease` is the live one, `ended_lease` the last."""

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
    group: str = ""  # Of all attempts of the tenant with the same one, one has a live lease.
    verdict: Verdict | None = None  # Of a success: what its runner found when it looked at the rules.
    progress: Any = None  # What the runner said last of how far it is, under the lease that it has or had.
    avoid: tuple[str, ...] = ()  # Workers that lost it, or on which the job came to grief before: rather others.

    @property
    def times_out_at(self) -> int:
        """When the job's time is over: it runs from RUNNING, not from the claim."""
        return self.started_at + self.timeout_seconds * SECOND if self.started_at else 0


class Publish(Command, frozen=True, kw_only=True):
    """Make the attempt claimable. This is its birth."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})


class Grant(Command, frozen=True, kw_only=True):
    """Give the attempt to the worker that asks, under a new lease."""

    by: ClassVar[frozenset[str]] = frozenset({RUNNER})

    fingerprint: str
    labels: tuple[str, ...] = ()
    ttl_seconds: int = lease.TTL_SECONDS
    accept_seconds: int = lease.ACCEPT_SECONDS
    salt: str = ""


class LeasedCommand(Command, frozen=True, kw_only=True):
    """Whatever a runner says about its attempt: it must prove which lease it speaks for.

    With a `tenant`, another tenant's attempts do not exist for it.
    """

    stored_name: ClassVar[str] = "Leased"
    by: ClassVar[frozenset[str]] = frozenset({RUNNER})

    lease: LeaseRef
    tenant: str = ""


class Ack(LeasedCommand, frozen=True, kw_only=True):
    """The runner took the job."""


class Start(LeasedCommand, frozen=True, kw_only=True):
    """The steps execute now."""


class Extend(LeasedCommand, frozen=True, kw_only=True):
    """Document 004's heartbeat: keep the lease, whether or not execution began."""


class Heartbeat(LeasedCommand, frozen=True, kw_only=True):
    """Document 001's heartbeat: alive and executing. Progress is the runner's best guess; nothing follows from it."""

    progress: Any = None


class BeginUpload(LeasedCommand, frozen=True, kw_only=True):
    """The steps are over; logs and artifacts are on their way."""


class Outcome(LeasedCommand, frozen=True, kw_only=True):
    """What the runner saw: its exit code, its result, its report of artifacts, timings and the like.

    A `verdict` belongs to a success: the execution was one, whether or not its result is valid.
    `facts` and `rules`, what is known of a failure and the project's own ways to classify it, come from the
    orchestrator: the runner does not decide whether it is worth a retry.
    """

    is_success: bool
    exit_code: int | None = None
    result: Any = None
    report: Any = None
    facts: Facts = Facts()
    rules: tuple[FailureRule, ...] = ()
    verdict: Verdict | None = None

    def succeeds(self, job_id: str) -> bool:
        """A result that is not valid fails the job; without a job, the attempt: nobody else would hear of it."""
        return self.is_success and (bool(job_id) or self.verdict is None or self.verdict.is_passed)


class Finish(Outcome, frozen=True, kw_only=True):
    """Document 004's complete and fail: only a running attempt can be finished."""


class Complete(Outcome, frozen=True, kw_only=True):
    """Document 001's Complete: it implies every earlier step that the runner did not report."""


class CancelAck(LeasedCommand, frozen=True, kw_only=True):
    """The runner proves that it stopped."""

    report: Any = None


class Cancel(Command, frozen=True, kw_only=True):
    """Ask for a stop. With a live lease the runner has until the deadline to acknowledge."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})

    reason: str
    deadline_seconds: int = lease.CANCEL_SECONDS


class Expire(Command, frozen=True, kw_only=True):
    """The lease ran out."""


class RevokeUnaccepted(Command, frozen=True, kw_only=True):
    """Nobody acknowledged the lease within the accept window."""


class Stall(Command, frozen=True, kw_only=True):
    """Its worker is no longer trusted, or hands the work back."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})

    reason: str = STALLED


class Requeue(Command, frozen=True, kw_only=True):
    """Make a stale attempt claimable again, or give it up when its lease was lost too often."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})


class TimeOut(Command, frozen=True, kw_only=True):
    """The job's time is over."""


class ForceCancel(Command, frozen=True, kw_only=True):
    """Finish a cancellation that nobody will acknowledge any more."""


def _with_lease(attempt: Attempt, order: type[Command], at: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Change the live lease; what the record and the event then say about it."""
    before = attempt.lease
    if before is None:
        raise Refused("wrong_state", f"attempt {attempt.id} has no live lease; there is nothing to change")
    after = lease.change(before, order, at)
    told = {"number": after.number, "worker_id": after.worker_id, "from": before.state, "to": after.state}
    if after.state in lease.LIVE:
        told["expires_at"] = after.expires_at
        return {"lease": after}, {"lease": told}
    return {"lease": None, "ended_lease": after}, {"lease": told}


def _publish(attempt: Attempt, _command: Publish, at: int) -> Transition:
    told: dict[str, Any] = {
        "index": attempt.index,
        "job_id": attempt.job_id,
        "queue_key": attempt.queue_key,
        "run_at": attempt.run_at,
        "timeout_seconds": attempt.timeout_seconds,
        "max_lost_leases": attempt.max_lost_leases,
    }
    return QUEUED, {"created_at": at}, told


def _grant(attempt: Attempt, command: Grant, at: int) -> Transition:
    due = max(attempt.run_at, attempt.fence_until)
    if at < due:
        raise Refused("not_due", f"attempt {attempt.id} may be claimed in {(due - at) / SECOND:.3f} s; wait for it")
    if attempt.state == STALE and attempt.lost_leases > attempt.max_lost_leases:
        raise Refused(
            "not_eligible",
            f"attempt {attempt.id} lost its lease {attempt.lost_leases} times; requeue it to have it failed",
        )
    if attempt.state == STALE and attempt.group:
        # Whether somebody else has the group by now is looked at when its turn comes.
        raise Refused(
            "not_eligible", f"attempt {attempt.id} is of the group {attempt.group}; requeue it, so that it has its turn"
        )
    if attempt.queue_key and (missing := required_labels(attempt.queue_key) - set(command.labels)):
        raise Refused(
            "not_eligible", f"attempt {attempt.id} needs {', '.join(sorted(missing))}; give it to a worker that has it"
        )
    number, worker_id = attempt.claims + 1, command.actor.partition(":")[2]
    given = lease.change(
        Lease(
            id=ids.lease_name(attempt.id, number),
            number=number,
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
    told = {
        "claims": number,
        "lease": {
            "number": number,
            "worker_id": worker_id,
            "from": None,
            "to": given.state,
            "accept_by": given.accept_by,
            "expires_at": given.expires_at,
        },
    }
    return LEASED, {"lease": given, "claims": number, "started_at": 0, "progress": None}, told


def _ack(attempt: Attempt, command: Ack, at: int) -> Transition:
    return STARTING, *_with_lease(attempt, lease.Ack, at)


def _ack_while_canceling(attempt: Attempt, command: Ack, at: int) -> Transition | None:
    changes, told = _with_lease(attempt, lease.Ack, at)
    return None if changes["lease"] is attempt.lease else (CANCEL_REQUESTED, changes, told)


def _start(attempt: Attempt, command: Start, at: int) -> Transition:
    changes, told = _with_lease(attempt, lease.Renew, at)
    changes["started_at"] = at
    return RUNNING, changes, told


def _renew(attempt: Attempt, command: LeasedCommand, at: int) -> Transition:
    return attempt.state, *_with_lease(attempt, lease.Renew, at)


def _heartbeat(attempt: Attempt, command: Heartbeat, at: int) -> Transition:
    state, changes, told = _renew(attempt, command, at)
    return state, changes if command.progress is None else {**changes, "progress": command.progress}, told


def _begin_upload(attempt: Attempt, command: BeginUpload, at: int) -> Transition:
    return UPLOADING, *_with_lease(attempt, lease.Renew, at)


def _finish(attempt: Attempt, command: Outcome, at: int) -> Transition:
    changes, told = _with_lease(attempt, lease.Finish, at)
    told["exit_code"] = effective_exit_code(command)
    if command.succeeds(attempt.job_id):
        result = {} if command.result is None else command.result
        changes.update(result=result, report=command.report, verdict=command.verdict)
        if command.verdict is not None:
            told["verdict"] = msgspec.to_builtins(command.verdict)
        return SUCCEEDED, changes, told
    failure = failure_from(command)
    changes.update(error=failure, report=command.report, **_avoid_changes(attempt, changes, failure))
    return FAILED, changes, {**told, "error": _failure_metadata(failure)}


def _finish_cancel(attempt: Attempt, command: Outcome | CancelAck, at: int) -> Transition:
    changes, told = _with_lease(attempt, lease.Cancel, at)
    # A late result does not count, but what it brings along is kept.
    changes.update(error=_CANCELED_FAILURE, report=command.report)
    return CANCELED, changes, {**told, "reason": attempt.cancel_reason}


def _avoid_changes(attempt: Attempt, changes: dict[str, Any], failure: Failure | None = None) -> dict[str, Any]:
    """Whose lease ended by infrastructure is rather not given the job again. A plain queue knows no other worker."""
    if not attempt.job_id or (failure is not None and failure.failure_class != failures.INFRA):
        return {}
    return {"avoid": with_avoided(attempt.avoid, changes["ended_lease"].worker_id)}


_CANCELED_FAILURE: Final = Failure(code="CANCELED", failure_class=failures.USER, is_retryable=False, rule="canceled")


def _failure_metadata(failure: Failure) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(failure)
    return told


def _stale(attempt: Attempt, order: type[Command], at: int, reason: str, *, is_lost: bool = True) -> Transition:
    changes, told = _with_lease(attempt, order, at)
    ended: Lease = changes["ended_lease"]
    lost = attempt.lost_leases + (1 if is_lost else 0)
    # A runner that took the job may still be at work until its own lease ends: nobody else may start before that.
    fence = ended.expires_at if is_lost and reason != NOT_ACCEPTED else at
    changes.update(lost_leases=lost, fence_until=fence, started_at=0)
    if reason in DETECTED_LOST:
        changes.update(_avoid_changes(attempt, changes))
    return STALE, changes, {**told, "reason": reason, "lost_leases": lost}


def _expire(attempt: Attempt, _command: Expire, at: int) -> Transition:
    return _stale(attempt, lease.Expire, at, LEASE_EXPIRED)


def _check_unaccepted(attempt: Attempt, at: int) -> None:
    held = attempt.lease
    if held is None or held.state != lease.GRANTED:
        raise Refused("wrong_state", f"the lease of attempt {attempt.id} was acknowledged; let it run")
    if at < held.accept_by:
        raise Refused(
            "not_due",
            f"the accept window of attempt {attempt.id} is open for another {(held.accept_by - at) / SECOND:.3f} s",
        )


def _revoke_unaccepted(attempt: Attempt, _command: RevokeUnaccepted, at: int) -> Transition:
    _check_unaccepted(attempt, at)
    return _stale(attempt, lease.Revoke, at, NOT_ACCEPTED)


def _stall(attempt: Attempt, command: Stall, at: int) -> Transition:
    is_lost = STALL_REASONS.get(command.reason)
    if is_lost is None or (command.reason == WORKER_LOST and command.actor != ORCHESTRATOR):
        raise Refused("bad_request", f"an attempt is stalled as {STALLED} or {HANDED_BACK}, not as {command.reason}")
    return _stale(attempt, lease.Revoke, at, command.reason, is_lost=is_lost)


def _requeue(attempt: Attempt, _command: Requeue, at: int) -> Transition:
    if attempt.lost_leases <= attempt.max_lost_leases:
        run_at = max(attempt.run_at, attempt.fence_until)
        return QUEUED, {"run_at": run_at}, {"run_at": run_at}
    failure = failures.classify(Facts(error_code="LEASE_LOST"))
    claims = attempt.claims + 1
    return FAILED, {"error": failure, "claims": claims}, {"error": _failure_metadata(failure), "claims": claims}


def _take_over(attempt: Attempt, order: type[Command], at: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The orchestrator claims what it must end itself: one claim more, the runner's lease gone."""
    held = attempt.lease
    if held is None:  # Taken over already, when the cancellation was requested.
        return {}, {}
    changes, told = _with_lease(attempt, order, at)
    claims = attempt.claims + 1
    return {**changes, "claims": claims, "fence_until": held.expires_at}, {**told, "claims": claims}


def _time_out(attempt: Attempt, _command: TimeOut, at: int) -> Transition:
    if at < attempt.times_out_at:
        raise Refused(
            "not_due", f"attempt {attempt.id} has another {(attempt.times_out_at - at) / SECOND:.3f} s; wait for it"
        )
    changes, told = _take_over(attempt, lease.Revoke, at)
    failure = failures.classify(Facts(error_code="TIMED_OUT"))
    changes.update(error=failure, **_avoid_changes(attempt, changes, failure))
    return TIMED_OUT, changes, {**told, "error": _failure_metadata(failure)}


def _cancel(attempt: Attempt, command: Cancel, at: int) -> Transition:
    by = at + command.deadline_seconds * SECOND
    changes: dict[str, Any] = {"cancel_reason": command.reason, "cancel_by": by}
    told: dict[str, Any] = {"reason": command.reason, "cancel_by": by}
    if attempt.lease is None:
        changes["claims"] = told["claims"] = attempt.claims + 1
    return CANCEL_REQUESTED, changes, told


def _force_canceled(attempt: Attempt, order: type[Command], at: int) -> Transition:
    changes, told = _take_over(attempt, order, at)
    return (
        CANCELED,
        {**changes, "error": _CANCELED_FAILURE},
        {**told, "reason": attempt.cancel_reason, "is_forced": True},
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
    _check_unaccepted(attempt, at)
    return _force_canceled(attempt, lease.Revoke, at)


def effective_exit_code(outcome: Outcome) -> int | None:
    """The exit code that counts; a success that has another than 0 is refused."""
    # Document 004 knows no exit codes: who completes a job through the queue says that it ended well.
    is_plain = outcome.is_success and outcome.exit_code is None and isinstance(outcome, Finish)
    exit_code = 0 if is_plain else outcome.exit_code
    if outcome.is_success and exit_code != 0:
        raise Refused("bad_request", f"a success has exit code 0, not {exit_code}; report anything else as a failure")
    return exit_code


def failure_from(outcome: Outcome) -> Failure:
    """Why it counts as a failure: because of what its rules found, or as it is classified."""
    if outcome.is_success and outcome.verdict is not None:
        return failures.validation_failure(outcome.verdict.details)
    facts = outcome.facts
    if facts.exit_code is None and outcome.exit_code is not None:
        facts = msgspec.structs.replace(facts, exit_code=outcome.exit_code)
    return failures.classify(facts, (*outcome.rules, *failures.RULES))


def _not_requested(attempt: Attempt, _command: CancelAck, _at: int) -> None:
    raise Refused("cancel_not_requested", f"nobody asked attempt {attempt.id} to stop; go on, or report a result")


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
         ORCHESTRATOR, "reclaimed without going back to the queue", ("QUE-T3",)),
    Rule(LEASED, Ack, (Target(STARTING, "heartbeat"),), _ack,
         ORCHESTRATOR, "AckLease: the runner took the job", ("ORC-A3", "PRO-Q3")),
    *(Rule(s, Ack, (), no_change,
           ORCHESTRATOR, "our first answer was lost; a repeat is no error", ("ORC-I2",)) for s in ACTIVE_STATES[1:]),
    Rule(CANCEL_REQUESTED, Ack, (Target(CANCEL_REQUESTED, "heartbeat"),), _ack_while_canceling, ORCHESTRATOR,
         "the runner took the job and will hear of the cancel", ("MOD-3",)),
    Rule(STARTING, Start, (Target(RUNNING, "started"),), _start,
         ORCHESTRATOR, "the first heartbeat, or a report that it runs", ("ORC-A4", "QUE-T4")),
    *(Rule(s, Start, (), no_change,
           ORCHESTRATOR, "it runs already; a repeat is no error", ("ORC-I2",)) for s in ACTIVE_STATES[2:]),
    Implies(LEASED, Start, Ack, "who runs the job has taken it"),
    *(Rule(s, Extend, (Target(s, "heartbeat"),), _renew,
           ORCHESTRATOR, "a heartbeat; the lease is renewed", ("QUE-T5", "QUE-T6"))
      for s in (*ACTIVE_STATES[1:], CANCEL_REQUESTED)),
    Implies(LEASED, Extend, Ack, "who keeps the lease has taken the job"),
    Implies(CANCEL_REQUESTED, Extend, Ack, "who keeps the lease has taken the job", when=_is_unacknowledged),
    *(Rule(s, Heartbeat, (Target(s, "heartbeat"),), _heartbeat, ORCHESTRATOR, "alive; the lease runs anew", ("PRO-Q5",))
      for s in (*ACTIVE_STATES[2:], CANCEL_REQUESTED)),
    Implies(LEASED, Heartbeat, Ack, "who reports progress has taken the job"),
    Implies(STARTING, Heartbeat, Start, "the first heartbeat means that it runs"),
    Implies(CANCEL_REQUESTED, Heartbeat, Ack, "who reports progress has taken the job", when=_is_unacknowledged),
    Rule(RUNNING, BeginUpload, (Target(UPLOADING, "heartbeat"),), _begin_upload,
         RUNNER, "the steps are over, uploads began", ("ORC-A5",)),
    Rule(UPLOADING, BeginUpload, (), no_change, RUNNER, "a repeat is no error", ("ORC-I2",)),
    Implies(LEASED, BeginUpload, Ack, "who uploads has taken the job"),
    Implies(STARTING, BeginUpload, Start, "who uploads has run the job"),
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
          (CancelAck, "the runner proved that it stopped", ("ORC-A10", "PRO-Q11")),
          (Complete, "cancel wins: the late result counts as the acknowledgement", ("MOD-3",)),
          (Finish, "cancel wins: the late result counts as the acknowledgement", ("MOD-3",)))),
    *(Rule(s, CancelAck, (), _not_requested, ORCHESTRATOR, "refused: a cancel must be requested first", ("PRO-Q11",))
      for s in ACTIVE_STATES),
    *(Implies(CANCEL_REQUESTED, command, Ack, "who stopped the job had taken it", when=_is_unacknowledged)
      for command in (CancelAck, Complete, Finish)),
    *(Rule(s, Expire, (Target(STALE, "stalled", WARNING),), _expire,
           ORCHESTRATOR, "no heartbeat within the TTL", ("ORC-A7", "QUE-T9", "QUE-T10"))
      for s in ACTIVE_STATES),
    Rule(CANCEL_REQUESTED, Expire, (Target(CANCELED, "failed", WARNING),), _force_expired, ORCHESTRATOR,
         "the runner that should stop is gone", ("ORC-A10", "MOD-3")),
    Rule(LEASED, RevokeUnaccepted, (Target(STALE, "stalled", WARNING),), _revoke_unaccepted, ORCHESTRATOR,
         "nobody acknowledged it within the accept window", ("PRO-Q4", "MOD-L4")),
    Rule(CANCEL_REQUESTED, RevokeUnaccepted, (Target(CANCELED, "failed", WARNING),), _force_unaccepted, ORCHESTRATOR,
         "the runner that should stop never took it", ("MOD-3",)),
    *(Rule(s, Stall, (Target(STALE, "stalled", WARNING),), _stall,
           ORCHESTRATOR, "its worker is no longer trusted", ("QUE-T9", "QUE-T10", "WST-KA4"))
      for s in ACTIVE_STATES),
    Rule(STALE, Requeue, (Target(QUEUED, "requeued"), Target(FAILED, "failed", WARNING)), _requeue, ORCHESTRATOR,
         "claimable again, or given up after too many lost leases", ("ORC-A7", "QUE-T11", "MOD-5")),
    *(Rule(s, TimeOut, (Target(TIMED_OUT, "failed", WARNING),), _time_out,
           ORCHESTRATOR, "the job's time is over", ("ORC-A8", "MOD-2"))
      for s in ACTIVE_STATES[2:]),
    *(Rule(s, Cancel, (Target(CANCEL_REQUESTED, "cancel_requested"),), _cancel,
           ORCHESTRATOR, "its run or its job is cancelled", ("ORC-A9",))
      for s in (QUEUED, *ACTIVE_STATES, STALE)),
    Rule(CANCEL_REQUESTED, Cancel, (), no_change,
         ORCHESTRATOR, "requested already; a repeat is no error", ("ORC-I2",)),
    Rule(CANCEL_REQUESTED, ForceCancel, (Target(CANCELED, "failed", WARNING),), _force_cancel, ORCHESTRATOR,
         "no runner has it, or it did not stop in time", ("ORC-A10", "ORC-C2", "ORC-C3")),
    initial=CREATED,
)
# fmt: on

TERMINAL: Final = MACHINE.terminal

# Which ended lease shows that this very message was already applied: its answer was lost, the repeat is no error.
_APPLIED_LEASE_STATES: Final = {
    Complete: (lease.COMPLETED, lease.CANCELED),
    Finish: (lease.COMPLETED, lease.CANCELED),
    CancelAck: (lease.CANCELED,),
}


def decide(attempt: Attempt, command: Command, at: int, events: list[Event]) -> Attempt:
    """Apply one command. A message under any lease but the live one is refused as stale, or recognised as a repeat."""
    if isinstance(command, LeasedCommand):
        if command.tenant and command.tenant != attempt.tenant:
            raise lease.unknown_attempt(command.id)
        worker_id = command.actor.partition(":")[2]
        if command.request_id and is_repeat(attempt, command):
            return attempt
        if attempt.ended_lease is not None and _was_applied(attempt, command, worker_id):
            return attempt
        at = at if at > attempt.updated_at else attempt.updated_at
        lease.check_fence(attempt.lease, attempt.ended_lease, command.lease, worker_id, at)
    return MACHINE.decide(attempt, command, at, events)


def _was_applied(attempt: Attempt, command: LeasedCommand, worker_id: str) -> bool:
    ended = attempt.ended_lease
    if ended is None or ended.state not in _APPLIED_LEASE_STATES.get(type(command), ()):
        return False
    if (
        isinstance(command, Outcome)
        and attempt.state != CANCELED
        and command.succeeds(attempt.job_id) != (attempt.state == SUCCEEDED)
    ):
        return False
    return lease.is_held_by(ended, command.lease, worker_id)


def complete_answer(attempt: Attempt) -> tuple[bool, str]:
    """How a Complete that was not stale is answered: accepted, or the reason why its result does not count."""
    return (False, CANCEL_REQUESTED) if attempt.state == CANCELED else (True, "")


def stop_request(attempt: Attempt, at: int) -> tuple[str, int] | None:
    """Why the runner has to stop, and how many seconds it has left for that; None while it may go on."""
    if attempt.state != CANCEL_REQUESTED:
        return None
    return attempt.cancel_reason, max(0, -(-(attempt.cancel_by - at) // SECOND))


def with_avoided(avoid: tuple[str, ...], worker_id: str) -> tuple[str, ...]:
    """The same, with this worker as the last of them: in all of its lives, for it is the same machine."""
    worker_id = first_incarnation_id(worker_id)
    return (*(each for each in avoid if each != worker_id), worker_id)[-MAX_AVOIDED:]


def avoids(attempt: Attempt, worker_id: str) -> bool:
    """Whether this worker, in whatever life, is one that the attempt is rather not given to."""
    return first_incarnation_id(worker_id) in attempt.avoid


def should_yield(
    attempt: Attempt, worker_id: str, rivals: Sequence[Sequence[str]], rival_ids: Sequence[str] = ()
) -> bool:
    """Whether this worker should leave the attempt to a rival: it lost it before, and some rival that did not fits.

    `rivals` are the labels of other workers that could take work now, `rival_ids` who they are, in the same order.
    Where that is not known, all the others that lost it are believed to be among them: nobody may wait for somebody
    who waits for him.
    """
    if not avoids(attempt, worker_id):
        return False
    required = required_labels(attempt.queue_key)
    fitting = [number for number, labels in enumerate(rivals) if required <= set(labels)]
    if rival_ids:
        return any(not avoids(attempt, rival_ids[number]) for number in fitting)
    return len(fitting) >= len(attempt.avoid)
