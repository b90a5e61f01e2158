"""The job: a unit of work in a run, executed by one attempt after another, or an approval by people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

import msgspec

from deltaci.core import approvals, backoff, failures
from deltaci.core.approvals import PLAIN_GATE, Approval, Gate
from deltaci.core.attempt import MAX_LOST_LEASES, TIMEOUT_SECONDS
from deltaci.core.errors import Refused
from deltaci.core.events import ERROR, JOB, ORCHESTRATOR, USER, WARNING
from deltaci.core.failures import Failure
from deltaci.core.ids import attempt_id
from deltaci.core.instants import SECOND
from deltaci.core.machine import ABSENT, Command, Machine, Record, Rule, Target, Transition, no_change

PENDING: Final = "PENDING"
QUEUED: Final = "QUEUED"
RUNNING: Final = "RUNNING"
VALIDATING: Final = "VALIDATING"
RETRYING: Final = "RETRYING"
WAITING_APPROVAL: Final = "WAITING_APPROVAL"
SUCCEEDED: Final = "SUCCEEDED"
FAILED: Final = "FAILED"
CANCELED: Final = "CANCELED"

TASK: Final = "task"
APPROVAL: Final = "approval"

# Why a job is CANCELED.
BLOCKED: Final = "BLOCKED"
NOT_NEEDED: Final = "NOT_NEEDED"
RUN_CANCELED: Final = "RUN_CANCELED"
RUN_TIMEOUT: Final = "RUN_TIMEOUT"
JOB_CANCELED: Final = "JOB_CANCELED"
# Only the orchestrator sets these reasons, which say what happened to the run or to a needed job.
ORCHESTRATOR_REASONS: Final = frozenset({BLOCKED, NOT_NEEDED, RUN_CANCELED, RUN_TIMEOUT})

# Why an approval is FAILED.
REJECTED: Final = "REJECTED"
APPROVAL_EXPIRED: Final = "APPROVAL_EXPIRED"


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the plan defines it. It does not change after the job is created."""

    name: str
    kind: str = TASK
    needs: tuple[str, ...] = ()
    is_required: bool = True
    has_validation: bool = False
    max_attempts: int = 1
    base_delay_seconds: int = backoff.BASE_DELAY_SECONDS
    max_delay_seconds: int = backoff.MAX_DELAY_SECONDS
    jitter: float = 0.0
    timeout_seconds: int = TIMEOUT_SECONDS
    max_lost_leases: int = MAX_LOST_LEASES
    approval_seconds: int = 0  # 0 means `approvals.EXPIRY_SECONDS`.
    queue_key: str = ""
    priority: int = 0
    work: Any = None
    gate: Gate = PLAIN_GATE
    after: tuple[str, ...] = ()  # Jobs that must have ended before, with any result.
    family: str = ""  # Shared by the jobs of one matrix.
    is_family_fail_fast: bool = False  # Its failure cancels the rest of its family.
    retry_on: tuple[str, ...] = ()  # Failure classes to retry; empty means all retryable ones.
    group: str = ""  # Of a tenant's jobs in one group, at most one runs at a time.
    inputs: str = ""  # The hash of its inputs, under which its result is stored; empty: it is not stored.


class Job(Record, frozen=True, kw_only=True):
    """A job of a run.

    `unmet` counts the jobs that it still waits for, `attempts` its attempts, and `claimed` its claimed attempts.
    `dependents` need its success, `followers` only its end. An approval also has the hash of its plan, because it is
    given for one plan, and who started its run, because that person may be excluded.
    """

    spec: JobSpec
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    dependents: tuple[str, ...] = ()
    followers: tuple[str, ...] = ()
    unmet: int = 0
    attempts: int = 0
    claimed: int = 0
    attempt_id: str = ""
    worker_id: str = ""
    next_run_at: int = 0
    approve_by: int = 0
    started_at: int = 0
    completed_at: int = 0
    reason: str = ""
    last_error: Failure | None = None
    plan_hash: str = ""
    started_by: str = ""
    approvals: tuple[Approval, ...] = ()
    position: int = 0  # The index in the plan, from 0.
    avoid: tuple[str, ...] = ()  # Workers that its next attempt avoids.


class Create(Command, frozen=True, kw_only=True):
    """Create the record of a job of the plan."""


class Schedule(Command, frozen=True, kw_only=True):
    """Queue the first attempt of a job whose dependencies are met."""


class OpenApproval(Command, frozen=True, kw_only=True):
    """Begin to wait for the approval of a gate whose dependencies are met."""


class Begin(Command, frozen=True, kw_only=True):
    """Record that a worker claimed the job's attempt: the job is running."""

    worker_id: str


class AttemptSucceeded(Command, frozen=True, kw_only=True):
    """Record that the attempt succeeded: the job is validated next."""

    exit_code: int | None = 0


class AttemptFailed(Command, frozen=True, kw_only=True):
    """Schedule a retry after a failed attempt, or fail the job if it may not be retried.

    The retry starts at `not_before` at the earliest, when the runner has certainly stopped. `avoid` are the workers
    that the next attempt avoids.
    """

    failure: Failure
    not_before: int = 0
    avoid: tuple[str, ...] = ()


class RetryDue(Command, frozen=True, kw_only=True):
    """Queue the next attempt after the delay of the retry."""


class Validate(Command, frozen=True, kw_only=True):
    """Record the result of the validation: the job succeeds or fails."""

    is_passed: bool
    details: str = ""


class Approve(Command, frozen=True, kw_only=True):
    """Approve a gate as a person with these roles. `plan_hash`, if not empty, is the plan that the person saw."""

    by: ClassVar[frozenset[str]] = frozenset({USER})

    comment: str = ""
    roles: tuple[str, ...] = ()
    plan_hash: str = ""


class Reject(Command, frozen=True, kw_only=True):
    """Reject a gate as a person with these roles; the job fails.

    `plan_hash`, if not empty, is the plan that the person saw.
    """

    by: ClassVar[frozenset[str]] = frozenset({USER})

    comment: str = ""
    roles: tuple[str, ...] = ()
    plan_hash: str = ""


class ExpireApproval(Command, frozen=True, kw_only=True):
    """Fail an approval that was not decided in time."""


class Cancel(Command, frozen=True, kw_only=True):
    """Cancel the job. If it had an attempt, that has ended already."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})

    reason: str


def _create(job: Job, _command: Create, at: int) -> Transition:
    spec = job.spec
    event_metadata: dict[str, Any] = {
        "name": spec.name,
        "kind": spec.kind,
        "needs": list(job.needs),
        "is_required": spec.is_required,
    }
    if job.after:
        event_metadata["after"] = list(job.after)
    if spec.family:
        event_metadata.update(family=spec.family, is_family_fail_fast=spec.is_family_fail_fast)
    if spec.group:
        event_metadata["group"] = spec.group
    if spec.retry_on:
        event_metadata["retry_on"] = list(spec.retry_on)
    if spec.kind == TASK:
        event_metadata.update(
            max_attempts=spec.max_attempts,
            base_delay_seconds=spec.base_delay_seconds,
            max_delay_seconds=spec.max_delay_seconds,
            jitter=spec.jitter,
            has_validation=spec.has_validation,
        )
    else:
        event_metadata.update(approvals.creation_metadata(spec.gate, job.started_by))
    return PENDING, {"created_at": at}, event_metadata


def _check_eligible(job: Job, kind: str) -> None:
    """Refuse a job that has unmet dependencies or is not of this kind."""
    if job.unmet:
        raise Refused("not_eligible", f"job {job.id} waits for {job.unmet} of its dependencies; let them finish")
    if job.spec.kind != kind:
        raise Refused(
            "not_eligible", f"job {job.id} is of kind {job.spec.kind}, not {kind}; a worker never gets an approval"
        )


def _next_attempt(job: Job) -> Transition:
    attempt_index = job.attempts + 1
    return (
        QUEUED,
        {"attempts": attempt_index, "attempt_id": attempt_id(job.id, attempt_index)},
        {"attempt_index": attempt_index},
    )


def _schedule(job: Job, _command: Schedule, _at: int) -> Transition:
    _check_eligible(job, TASK)
    return _next_attempt(job)


def _open_approval(job: Job, _command: OpenApproval, at: int) -> Transition:
    _check_eligible(job, APPROVAL)
    approve_by = at + (job.spec.approval_seconds or approvals.EXPIRY_SECONDS) * SECOND
    return WAITING_APPROVAL, {"approve_by": approve_by}, {"approve_by": approve_by}


def _begin(job: Job, command: Begin, at: int) -> Transition:
    changes = {"worker_id": command.worker_id, "started_at": job.started_at or at, "claimed": job.attempts}
    return RUNNING, changes, {"worker_id": command.worker_id}


def _reclaim(job: Job, command: Begin, _at: int) -> Transition:
    metadata = {"worker_id": command.worker_id, "is_reclaim": True, "lost_worker_id": job.worker_id}
    return RUNNING, {"worker_id": command.worker_id}, metadata


def _attempt_succeeded(job: Job, command: AttemptSucceeded, _at: int) -> Transition:
    if command.exit_code:
        raise Refused(
            "bad_request", f"job {job.id} cannot succeed with exit code {command.exit_code}; report a failure"
        )
    return VALIDATING, {"worker_id": ""}, {"attempt_index": job.attempts}


def _attempt_failed(job: Job, command: AttemptFailed, at: int) -> Transition:
    failure, spec = command.failure, job.spec
    event_metadata: dict[str, Any] = {
        "attempt_index": job.attempts,
        "retry_count": job.attempts - 1,
        "max_retries": spec.max_attempts - 1,
        "failure_class": failure.failure_class,
        "rule": failure.rule,
        "line": failure.line,
        "code": failure.code,
    }
    if not failures.may_retry(failure, job.attempts, spec.max_attempts, spec.retry_on):
        return (
            FAILED,
            {"worker_id": "", "last_error": failure, "reason": failure.code, "completed_at": at},
            event_metadata,
        )
    retry_at = backoff.next_run_at(
        at, job.attempts, spec.base_delay_seconds, spec.max_delay_seconds, jitter=spec.jitter, salt=job.attempt_id
    )
    # A runner that lost its lease may execute the job until the lease would have ended.
    retry_at = max(retry_at, command.not_before)
    event_metadata["retry_count"] = job.attempts
    event_metadata["next_run_at"] = retry_at
    return (
        RETRYING,
        {"worker_id": "", "last_error": failure, "next_run_at": retry_at, "avoid": command.avoid},
        event_metadata,
    )


def _retry_due(job: Job, _command: RetryDue, at: int) -> Transition:
    if at < job.next_run_at:
        raise Refused("not_due", f"job {job.id} is retried in {(job.next_run_at - at) / SECOND:.3f} s; wait for it")
    return _next_attempt(job)


def _validate(job: Job, command: Validate, at: int) -> Transition:
    metadata = {"details": command.details} if command.details else {}
    if command.is_passed:
        return SUCCEEDED, {"completed_at": at}, metadata
    error = failures.validation_failure(command.details)
    return FAILED, {"completed_at": at, "reason": error.code, "last_error": error}, metadata


def _approve(job: Job, command: Approve, at: int) -> Transition | None:
    approvals.check_decider(job, command, approves=True)
    gate, person = job.spec.gate, approvals.person_name(command.actor)
    if any(approval.person == person for approval in job.approvals):
        return None
    all_approvals = (*job.approvals, Approval(person, at, command.comment))
    metadata = approvals.decision_metadata(job, command, all_approvals)
    if len(all_approvals) < gate.approvers:
        metadata.update(approvals=len(all_approvals), needed=gate.approvers)
        return WAITING_APPROVAL, {"approvals": all_approvals}, metadata
    return SUCCEEDED, {"completed_at": at, "approvals": all_approvals}, metadata


def _approve_again(job: Job, command: Approve, _at: int) -> None:
    if job.spec.kind != APPROVAL:
        raise Refused("wrong_state", f"job {job.id} is a {job.spec.kind}, not an approval; there is nothing to approve")
    approvals.check_same_plan(job, command.plan_hash)


def _reject(job: Job, command: Reject, at: int) -> Transition:
    approvals.check_decider(job, command)
    metadata = {"reason": REJECTED, **approvals.decision_metadata(job, command, job.approvals)}
    return FAILED, {"completed_at": at, "reason": REJECTED}, metadata


def _expire_approval(job: Job, _command: ExpireApproval, at: int) -> Transition:
    if not job.approve_by or at < job.approve_by:
        raise Refused("not_due", f"the approval of job {job.id} is still open; wait for a decision")
    return (
        FAILED,
        {"completed_at": at, "reason": APPROVAL_EXPIRED},
        {
            "reason": APPROVAL_EXPIRED,
            "approve_by": job.approve_by,
        },
    )


def _cancel(_job: Job, command: Cancel, at: int) -> Transition:
    return CANCELED, {"completed_at": at, "reason": command.reason, "worker_id": ""}, {"reason": command.reason}


# fmt: off
MACHINE: Final[Machine[Job]] = Machine(
    JOB,
    Rule(ABSENT, Create, (Target(PENDING, "created"),), _create, ORCHESTRATOR, "the plan has this job", ("STP-O1",)),
    Rule(PENDING, Schedule, (Target(QUEUED, "scheduler_assigned"),), _schedule, ORCHESTRATOR,
         "every dependency is met", ("WST-T1", "WST-TG1")),
    Rule(PENDING, OpenApproval, (Target(WAITING_APPROVAL, "approval_opened"),), _open_approval, ORCHESTRATOR,
         "an approval gate is reached", ("STP-S5",)),
    Rule(QUEUED, Begin, (Target(RUNNING, "worker_started"),), _begin, ORCHESTRATOR,
         "a worker claimed its attempt", ("WST-T2", "STP-S1")),
    Rule(RUNNING, Begin, (Target(RUNNING, "worker_started"),), _reclaim, ORCHESTRATOR,
         "its attempt was lost and claimed again", ("STP-S8", "MOD-5")),
    Rule(RUNNING, AttemptSucceeded, (Target(VALIDATING, "execution_completed"),), _attempt_succeeded, ORCHESTRATOR,
         "an attempt ended with exit code 0", ("WST-T3", "WST-TG3")),
    Rule(RUNNING, AttemptFailed,
         (Target(RETRYING, "execution_failed", WARNING), Target(FAILED, "execution_failed", ERROR)),
         _attempt_failed, ORCHESTRATOR, "retried if the failure is retryable and attempts remain, else failed",
         ("WST-T4", "WST-T5", "STP-S3", "STP-S4")),
    Rule(RETRYING, RetryDue, (Target(QUEUED, "retry_delay_elapsed"),), _retry_due, ORCHESTRATOR,
         "the backoff is over", ("WST-T7", "ORC-A11")),
    Rule(VALIDATING, Validate, (Target(SUCCEEDED, "validation_passed"), Target(FAILED, "validation_failed", ERROR)),
         _validate, ORCHESTRATOR, "the execution was validated", ("WST-T8", "WST-T9", "STP-S2")),
    Rule(WAITING_APPROVAL, Approve, (Target(SUCCEEDED, "approved"), Target(WAITING_APPROVAL, "approval_given")),
         _approve, USER, "a person approved; enough approvals complete the gate", ("STP-S6", "STP-P1", "MOD-G2")),
    Rule(SUCCEEDED, Approve, (), _approve_again,
         USER, "approved already; a repeat is no error", ("STP-P2",)),
    Rule(WAITING_APPROVAL, Reject, (Target(FAILED, "rejected", ERROR),), _reject,
         USER, "a person rejected it", ("MOD-8",)),
    Rule(WAITING_APPROVAL, ExpireApproval, (Target(FAILED, "approval_expired", ERROR),), _expire_approval, ORCHESTRATOR,
         "not decided in time", ("MOD-8",)),
    *(Rule(state, Cancel, (Target(CANCELED, "user_cancelled"),), _cancel,
           ORCHESTRATOR, "cancelled, blocked or no longer needed",
           ("WST-T6", "STP-S7", "ORC-J3", "MOD-6"))
      for state in (PENDING, QUEUED, RUNNING, VALIDATING, RETRYING, WAITING_APPROVAL)),
    *(Rule(state, Cancel, (), no_change,
           ORCHESTRATOR, "already ended; there is nothing to cancel", ("MOD-9",))
      for state in (SUCCEEDED, FAILED, CANCELED)),
    initial=PENDING,
)
# fmt: on

TERMINAL: Final = MACHINE.terminal

# States of jobs that progress without people: a run with such a job is not waiting for approval.
ACTIVE: Final = frozenset({QUEUED, RUNNING, VALIDATING, RETRYING})


def satisfies(job: Job) -> bool:
    """Return whether the job's dependents may start: it succeeded, or it failed and its failure is allowed."""
    return job.state == SUCCEEDED or (job.state == FAILED and not job.spec.is_required)


def fails_family(job: Job) -> bool:
    """Return whether the job failed in a way that cancels the other jobs of its family."""
    spec = job.spec
    return bool(spec.family) and spec.is_family_fail_fast and spec.is_required and job.state == FAILED


def dooms_run(job: Job) -> bool:
    """Return whether the job is required and failed or was cancelled, so that its run cannot succeed."""
    return job.spec.is_required and job.state in {FAILED, CANCELED}


def select_gates(
    jobs: Iterable[Job], command_type: type[Approve] | type[Reject], person: str, gate_name: str | None = None
) -> list[Job]:
    """Return the approval gates of a run that an approval or rejection applies to. Raise `Refused` if there is none.

    With a name, that is the gate of this name; without, every gate that waits for approval. If none waits and the
    command is a repeated `Approve`, return the gates that this person approved before.
    """
    all_gates = [job for job in jobs if job.spec.kind == APPROVAL]
    if gate_name is not None:
        named_gates = [gate for gate in all_gates if gate.spec.name == gate_name]
        if not named_gates:
            raise Refused("not_found", f"there is no approval {gate_name!r}")
        return named_gates
    waiting_gates = [gate for gate in all_gates if MACHINE.changes(gate.state, command_type)]
    if waiting_gates:
        return waiting_gates
    approved_gates = [gate for gate in all_gates if any(approval.person == person for approval in gate.approvals)]
    if command_type is Approve and approved_gates:
        return approved_gates
    raise Refused("wrong_state", "nothing in this run waits for approval")
