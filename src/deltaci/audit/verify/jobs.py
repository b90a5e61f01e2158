"""Check the events of jobs: dependencies, attempts, retries, validation and cancellation.

`CHECKS` maps an event's target state to the functions that check the event: they report violations and update the
tracked job. `check_transaction` runs after the last event of a transaction.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from deltaci.audit.verify import approvals
from deltaci.audit.verify.attempts import Check
from deltaci.audit.verify.log_lines import EPOCH, EventLine, JobMetadata
from deltaci.audit.verify.not_needed import check_not_needed, ends_family
from deltaci.audit.verify.tracked import TrackedJob
from deltaci.core import attempt as core_attempt
from deltaci.core import job as core_job
from deltaci.core.backoff import backoff_seconds

if TYPE_CHECKING:
    from deltaci.audit.verify.canonical import CanonicalVerifier

_MICROSECOND: Final = timedelta(microseconds=1)


def is_satisfied(job: TrackedJob) -> bool:
    """Return whether the jobs that need this one may start: it succeeded, or it failed and its failure is allowed."""
    return job.state == core_job.SUCCEEDED or (job.state == core_job.FAILED and not job.is_required)


def is_unsatisfiable(job: TrackedJob) -> bool:
    """Return whether the jobs that need this one can never start."""
    return job.state in (core_job.FAILED, core_job.CANCELED) and not is_satisfied(job)


def update_counters(job: TrackedJob, old_state: str | None) -> None:
    """Update the run's counters and the waiting jobs' `unmet_count` after a change of the job from `old_state`."""
    new_state, run = job.state or "", job.run
    if new_state == old_state:
        return
    opened = (old_state is None) - (new_state in core_job.TERMINAL)
    run.open_job_count += opened
    run.open_optional_job_count += opened * (not job.is_required)
    run.active_job_count += (new_state in core_job.ACTIVE) - (old_state in core_job.ACTIVE)
    run.waiting_job_count += (new_state == core_job.WAITING_APPROVAL) - (old_state == core_job.WAITING_APPROVAL)
    run.has_started_job = run.has_started_job or new_state == core_job.RUNNING
    run.lost_required_job_count += job.is_required and new_state in (core_job.FAILED, core_job.CANCELED)
    if is_satisfied(job):
        for dependent in run.dependents.get(job.id, ()):
            dependent.unmet_count -= 1
    if new_state in core_job.TERMINAL:
        for follower in run.followers.get(job.id, ()):
            follower.unmet_count -= 1


def check_created(verifier: CanonicalVerifier, job: TrackedJob, event: EventLine, metadata: JobMetadata) -> None:
    """Report a new job that lacks a required field, is created outside the planning of its run, or is a gate with
    attempts.

    Check the settings of a gate, and add the job to its run.
    """
    if event.from_ is not None:
        return
    if metadata.kind is None or metadata.needs is None or metadata.is_required is None:
        verifier.flag("MOD-E1", f"job {job.id} is created without kind, needs or is_required", "all of them")
        return
    if job.run.state != "PLANNING":
        verifier.flag("ORC-R2", f"job {job.id} is created while its run is {job.run.state}", "a run in PLANNING")
    job.is_task, job.is_required, job.needs = metadata.kind == core_job.TASK, metadata.is_required, metadata.needs
    job.after = metadata.after or []
    job.unmet_count = len({*metadata.needs, *job.after})
    job.family, job.is_family_fail_fast = metadata.family or "", bool(metadata.is_family_fail_fast)
    job.group, job.retry_on = metadata.group or "", list[str](metadata.retry_on or ())
    if job.is_task:
        if metadata.max_attempts is None or metadata.base_delay_seconds is None or metadata.max_delay_seconds is None:
            verifier.flag("MOD-E1", f"task {job.id} is created without max_attempts or its delays", "all of them")
            return
        job.max_attempts, job.base_delay_seconds, job.max_delay_seconds = (
            metadata.max_attempts,
            metadata.base_delay_seconds,
            metadata.max_delay_seconds,
        )
        job.jitter, job.has_validation = metadata.jitter or 0.0, bool(metadata.has_validation)
    elif metadata.max_attempts is not None:
        verifier.flag(
            "STP-W1",
            f"approval {job.id} is created with max_attempts {metadata.max_attempts}",
            "no max_attempts: an approval is never executed",
        )
    approvals.check_created(verifier, job, metadata)
    job.run.jobs[job.id] = job
    for need in metadata.needs:
        job.run.dependents.setdefault(need, []).append(job)
    for predecessor in dict.fromkeys(job.after):
        if predecessor not in metadata.needs:
            job.run.followers.setdefault(predecessor, []).append(job)
    if job.family:
        job.run.families.setdefault(job.family, []).append(job)


def check_released(verifier: CanonicalVerifier, job: TrackedJob, event: EventLine, metadata: JobMetadata) -> None:
    """Report a job that leaves PENDING and breaks a rule.

    The rules: its needs are satisfied and the jobs in its `after` have ended; a task becomes QUEUED, an approval
    WAITING_APPROVAL; its run is active.
    """
    if event.from_ != core_job.PENDING:
        return
    if job.unmet_count:
        unsatisfied_ids = [
            need for need in job.needs if need not in job.run.jobs or not is_satisfied(job.run.jobs[need])
        ]
        if unsatisfied_ids:
            verifier.flag(
                "WST-TI6",
                f"job {job.id} is {event.to} while it needs {', '.join(unsatisfied_ids)}",
                "every need satisfied",
            )
        else:
            unfinished_ids = [
                predecessor_id
                for predecessor_id in job.after
                if predecessor_id not in job.run.jobs or not _has_ended(job.run.jobs[predecessor_id])
            ]
            verifier.flag(
                "MOD-D1",
                f"job {job.id} is {event.to}, but comes after {', '.join(unfinished_ids)}",
                "all of these ended",
            )
    if job.is_task != (event.to == core_job.QUEUED):
        verifier.flag(
            "STP-W1",
            f"job {job.id} is {'a task' if job.is_task else 'an approval'} and goes to {event.to}",
            "QUEUED for a task, WAITING_APPROVAL for an approval",
        )
    if job.run.state not in ("QUEUED", "RUNNING", "WAITING_APPROVAL"):
        verifier.flag(
            "ORC-C1",
            f"job {job.id} is released while its run is {job.run.state}",
            "no new work in a run that is ending",
        )


def check_attempt_number(verifier: CanonicalVerifier, job: TrackedJob, event: EventLine, metadata: JobMetadata) -> None:
    """Report an attempt with a wrong index or beyond `max_attempts`, and a retry before its backoff has passed."""
    job.attempt_count += 1
    if metadata.attempt_index != job.attempt_count:
        verifier.flag("ORC-Y3", f"job {job.id} starts attempt {metadata.attempt_index}", f"attempt {job.attempt_count}")
    if job.attempt_count > job.max_attempts:
        verifier.flag("WST-TI4", f"job {job.id} starts attempt {job.attempt_count}", f"at most {job.max_attempts}")
    if event.from_ == core_job.RETRYING and event.at < job.next_run_at:
        verifier.flag(
            "STP-E3", f"job {job.id} is retried before {job.next_run_at.isoformat()}", "a retry at that time or later"
        )


def check_started(verifier: CanonicalVerifier, job: TrackedJob, event: EventLine, metadata: JobMetadata) -> None:
    """Report a job that starts to run and breaks a rule.

    The rules: its latest attempt is LEASED to the named worker; `is_reclaim` is set exactly if it was RUNNING already;
    only then it may name the worker that lost it.
    """
    latest_attempt = job.latest_attempt
    if (
        latest_attempt is None
        or latest_attempt.state != core_attempt.LEASED
        or metadata.worker_id != latest_attempt.worker_id
    ):
        attempt_state = latest_attempt.state if latest_attempt else "missing"
        problem = f"job {job.id} is started by {metadata.worker_id} while its attempt is {attempt_state}"
        verifier.flag(
            "STP-S1", problem, f"its attempt LEASED to {latest_attempt.worker_id if latest_attempt else 'a worker'}"
        )
    elif bool(metadata.is_reclaim) != (event.from_ == core_job.RUNNING):
        verifier.flag(
            "STP-S8",
            f"job {job.id}: {event.from_} → RUNNING with is_reclaim={metadata.is_reclaim}",
            "true exactly for RUNNING → RUNNING",
        )
    elif metadata.lost_worker_id is not None and (
        event.from_ != core_job.RUNNING or metadata.lost_worker_id != job.worker_id
    ):
        verifier.flag(
            "STP-S8",
            f"job {job.id} is reclaimed from {metadata.lost_worker_id}",
            f"from {job.worker_id or 'no worker'}, and only if it was RUNNING",
        )
    job.worker_id = metadata.worker_id or ""


def check_validating(verifier: CanonicalVerifier, job: TrackedJob, event: EventLine, metadata: JobMetadata) -> None:
    """Report a job that is validated although its latest attempt has not succeeded, or that names another attempt."""
    if (
        job.latest_attempt is None
        or job.latest_attempt.state != core_attempt.SUCCEEDED
        or metadata.attempt_index != job.attempt_count
    ):
        verifier.flag("WST-TG3", f"job {job.id} is validated without a successful attempt", "its attempt SUCCEEDED")


def check_validated(verifier: CanonicalVerifier, job: TrackedJob, event: EventLine, metadata: JobMetadata) -> None:
    """Report a validation whose result does not follow from the runner's verdict.

    A failed verdict must fail the job, with its details. Without a failed verdict, the job may fail only if it has
    another validation.
    """
    if event.from_ != core_job.VALIDATING:
        return
    failed_verdict = (
        job.latest_attempt.verdict if job.latest_attempt is not None and job.latest_attempt.has_failed_verdict else None
    )
    if failed_verdict is not None and event.to != core_job.FAILED:
        verifier.flag("WST-TG8", f"job {job.id} goes to {event.to} although a validation rule failed", "FAILED")
    elif failed_verdict is not None and metadata.details != (failed_verdict.details or None):
        verifier.flag(
            "WST-TA9", f"job {job.id} fails with {metadata.details!r}", f"the verdict's {failed_verdict.details!r}"
        )
    elif failed_verdict is None and event.to == core_job.FAILED and not job.has_validation:
        verifier.flag("WST-TG9", f"job {job.id} fails its validation, but no validation rule failed", "SUCCEEDED")


def check_attempt_failed(verifier: CanonicalVerifier, job: TrackedJob, event: EventLine, metadata: JobMetadata) -> None:
    """Report a wrong reaction to a failed attempt.

    The job must be retried, after the backoff, if the failure may be retried and attempts remain; otherwise it must
    fail. The event must have the failure of the attempt and the right counts.
    """
    if event.from_ != core_job.RUNNING:
        return
    latest_attempt = job.latest_attempt
    if (
        latest_attempt is None
        or latest_attempt.state not in (core_attempt.FAILED, core_attempt.TIMED_OUT)
        or latest_attempt.error is None
    ):
        verifier.flag(
            "WST-T5", f"job {job.id} goes to {event.to} without a failed attempt", "its attempt FAILED or TIMED_OUT"
        )
        return
    error = latest_attempt.error
    if (metadata.failure_class, metadata.rule, metadata.code) != (
        error.failure_class,
        error.rule,
        error.code,
    ) or metadata.log_line != error.log_line:
        verifier.flag(
            "MOD-F3", f"job {job.id} has another failure than its attempt", f"{error.failure_class} by {error.rule}"
        )
    is_selected = not job.retry_on or error.failure_class in job.retry_on
    is_retried = error.is_retryable and is_selected and job.attempt_count < job.max_attempts
    if is_retried != (event.to == core_job.RETRYING):
        rule = "WST-TG5" if is_retried else "WST-TG4"
        problem = f"job {job.id} goes to {event.to} after {job.attempt_count} of {job.max_attempts} attempts"
        problem += f" with class {error.failure_class}"
        verifier.flag(rule, problem, "RETRYING" if is_retried else "FAILED")
    expected_retry_count = job.attempt_count if event.to == core_job.RETRYING else job.attempt_count - 1
    if (metadata.retry_count, metadata.max_retries, metadata.attempt_index) != (
        expected_retry_count,
        job.max_attempts - 1,
        job.attempt_count,
    ):
        problem = f"job {job.id} counts {metadata.retry_count} of {metadata.max_retries} retries"
        problem += f" at attempt {metadata.attempt_index}"
        verifier.flag(
            "WST-TI4", problem, f"{expected_retry_count} of {job.max_attempts - 1} at attempt {job.attempt_count}"
        )
    if event.to == core_job.RETRYING:
        _check_backoff(verifier, job, event, metadata)


def _check_backoff(verifier: CanonicalVerifier, job: TrackedJob, event: EventLine, metadata: JobMetadata) -> None:
    backoff = timedelta(seconds=backoff_seconds(job.attempt_count, job.base_delay_seconds, job.max_delay_seconds))
    fence_until = job.latest_attempt.fence_until if job.latest_attempt else EPOCH
    earliest_run_at = max(event.at + backoff, fence_until)
    latest_run_at = max(event.at + backoff * (1 + job.jitter) + _MICROSECOND, fence_until)
    job.next_run_at = metadata.next_run_at or EPOCH
    if not earliest_run_at <= job.next_run_at <= latest_run_at:
        verifier.flag(
            "STP-E3",
            f"job {job.id} is retried at {job.next_run_at.isoformat()}",
            f"{earliest_run_at.isoformat()}: now + 2^attempts * base",
        )


# Cancel reason -> states of a run that cancels its jobs for that reason.
_RUN_STATES: Final = {
    core_job.RUN_CANCELED: ("CANCEL_REQUESTED",),
    core_job.RUN_TIMEOUT: ("TIMEOUT", "REPORTED"),
}


def check_canceled(verifier: CanonicalVerifier, job: TrackedJob, event: EventLine, metadata: JobMetadata) -> None:
    """Report a cancelled job without a reason, or whose attempt, needs or run do not fit the reason."""
    latest_attempt = job.latest_attempt
    if not metadata.reason:
        verifier.flag(
            "MOD-6", f"job {job.id} is cancelled without a reason", "BLOCKED, NOT_NEEDED or the reason of the request"
        )
    if event.from_ in (core_job.QUEUED, core_job.RUNNING) and (
        latest_attempt is None or latest_attempt.state != core_attempt.CANCELED
    ):
        problem = (
            f"job {job.id} is cancelled while its attempt is {latest_attempt.state if latest_attempt else 'missing'}"
        )
        verifier.flag("ORC-J3", problem, "its attempt CANCELED first")
    elif (
        event.from_ in (core_job.QUEUED, core_job.RUNNING)
        and latest_attempt is not None
        and latest_attempt.cancel_reason != metadata.reason
    ):
        verifier.flag("ORC-J3", f"job {job.id} is cancelled for {metadata.reason}", latest_attempt.cancel_reason)
    if metadata.reason == core_job.BLOCKED and not any(
        is_unsatisfiable(job.run.jobs[need]) for need in job.needs if need in job.run.jobs
    ):
        verifier.flag(
            "MOD-6", f"job {job.id} is BLOCKED, but all its needs can still be satisfied", "a failed or cancelled need"
        )
    if event.from_ in (core_job.QUEUED, core_job.RUNNING):
        return  # The reason was checked when the cancellation of its attempt was requested.
    if metadata.reason == core_job.NOT_NEEDED:
        check_not_needed(verifier, job, event)
    elif metadata.reason in _RUN_STATES and job.run.state not in _RUN_STATES[metadata.reason]:
        run_states = " or ".join(_RUN_STATES[metadata.reason])
        verifier.flag("MOD-6", f"job {job.id} is {metadata.reason} while its run is {job.run.state}", run_states)


CHECKS: Final[dict[str, tuple[Check, ...]]] = {
    core_job.PENDING: (check_created,),
    core_job.QUEUED: (check_released, check_attempt_number),
    core_job.WAITING_APPROVAL: (check_released, approvals.check_decision),
    core_job.RUNNING: (check_started,),
    core_job.VALIDATING: (check_validating,),
    core_job.RETRYING: (check_attempt_failed,),
    core_job.SUCCEEDED: (check_validated, approvals.check_decision),
    core_job.FAILED: (check_attempt_failed, check_validated, approvals.check_decision),
    core_job.CANCELED: (check_validated, check_canceled),
}

# Job state -> allowed states of its latest attempt at the end of the transaction.
_ATTEMPT_STATES: Final = {
    core_job.QUEUED: (core_attempt.QUEUED,),
    core_job.RUNNING: (
        core_attempt.QUEUED,
        *core_attempt.ACTIVE_STATES,
        core_attempt.STALE,
        core_attempt.CANCEL_REQUESTED,
    ),
    core_job.VALIDATING: (core_attempt.SUCCEEDED,),
    core_job.RETRYING: (core_attempt.FAILED, core_attempt.TIMED_OUT),
    core_job.SUCCEEDED: (core_attempt.SUCCEEDED,),
    core_job.FAILED: (core_attempt.FAILED, core_attempt.TIMED_OUT, core_attempt.SUCCEEDED),
}


def check_transaction(verifier: CanonicalVerifier, job: TrackedJob) -> None:
    """At the end of a transaction, report a job that must not stay in its state.

    The state of its latest attempt must fit; it validates only if it has a validation that has not failed; a PENDING
    job waits for another job; the family of a failed job is stopped if the job requires that.
    """
    job_state = job.state or ""
    if job.is_task and job_state in _ATTEMPT_STATES:
        latest_attempt = job.latest_attempt
        if (
            latest_attempt is None
            or latest_attempt.state not in _ATTEMPT_STATES[job_state]
            or latest_attempt.id != f"{job.id}.{job.attempt_count}"
        ):
            problem = (
                f"job {job.id} is {job_state} and its attempt {latest_attempt.state if latest_attempt else 'missing'}"
            )
            verifier.flag("ORC-J2", problem, f"attempt {job.attempt_count} {' or '.join(_ATTEMPT_STATES[job_state])}")
    if job_state == core_job.VALIDATING and not job.has_validation:
        verifier.flag(
            "WST-T8", f"job {job.id} stays VALIDATING, but has no validation", "SUCCEEDED in the same transaction"
        )
    elif job_state == core_job.VALIDATING and job.latest_attempt is not None and job.latest_attempt.has_failed_verdict:
        verifier.flag(
            "WST-T9", f"job {job.id} stays VALIDATING, but a validation rule failed", "FAILED in the same transaction"
        )
    if job_state == core_job.PENDING:
        _check_pending(verifier, job)
    if job_state in core_job.TERMINAL:
        for dependent in (*job.run.dependents.get(job.id, ()), *job.run.followers.get(job.id, ())):
            _check_pending(verifier, dependent)
    if ends_family(job):
        _check_family_stopped(verifier, job)


def _check_family_stopped(verifier: CanonicalVerifier, job: TrackedJob) -> None:
    for member in job.run.families.get(job.family, ()):
        is_stopping = member.latest_attempt is not None and member.latest_attempt.state == core_attempt.CANCEL_REQUESTED
        if not _has_ended(member) and not is_stopping:
            problem = f"job {member.id} stays {member.state} although {job.id} of its family failed"
            verifier.flag("MOD-D2", problem, "CANCELED, or asked to stop")


def _has_ended(job: TrackedJob) -> bool:
    return job.state in core_job.TERMINAL


def _check_pending(verifier: CanonicalVerifier, job: TrackedJob) -> None:
    if job.state != core_job.PENDING:
        return
    if any(is_unsatisfiable(job.run.jobs[need]) for need in job.needs if need in job.run.jobs):
        verifier.flag(
            "MOD-6", f"job {job.id} stays PENDING although a need failed or was cancelled", "CANCELED as BLOCKED"
        )
    elif job.run.state in ("QUEUED", "RUNNING", "WAITING_APPROVAL") and not job.unmet_count:
        verifier.flag(
            "WST-T1", f"job {job.id} stays PENDING although all its needs are satisfied", "QUEUED or WAITING_APPROVAL"
        )
    elif job.run.state not in ("PLANNING", "QUEUED", "RUNNING", "WAITING_APPROVAL"):
        verifier.flag("ORC-C1", f"job {job.id} stays PENDING in a run that is {job.run.state}", "CANCELED")
