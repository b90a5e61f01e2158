"""Check the events of runs.

`CHECKS` maps an event's target state to the functions that check the event: they report violations and update the
tracked run. `check_transaction` runs after the last event of a transaction.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from deltaci.audit.verify import not_needed
from deltaci.audit.verify.attempts import Check
from deltaci.audit.verify.log_lines import EPOCH, EventLine, RunMetadata
from deltaci.audit.verify.tracked import TrackedRun
from deltaci.core import attempt as core_attempt
from deltaci.core import job as core_job
from deltaci.core import run as core_run

if TYPE_CHECKING:
    from deltaci.audit.verify.canonical import CanonicalVerifier

NEVER: Final = datetime.max.replace(tzinfo=UTC)


_START: Final = timedelta(seconds=core_run.START_SECONDS)


def check_identity(verifier: CanonicalVerifier, run: TrackedRun, event: EventLine, metadata: RunMetadata) -> None:
    """Report an event of a run whose `run_id` is not the run's id."""
    if event.run_id != run.id:
        verifier.flag("MOD-E1", f"run {run.id} has run_id {event.run_id!r}", repr(run.id))


def check_created(verifier: CanonicalVerifier, run: TrackedRun, event: EventLine, metadata: RunMetadata) -> None:
    """Report a new run without the settings that later checks need, or a wrong cancel request before its planning."""
    if event.from_ is None:
        if metadata.is_fail_fast is None or metadata.has_validation is None or metadata.timeout_seconds is None:
            verifier.flag(
                "MOD-E1",
                f"run {run.id} is created without is_fail_fast, has_validation or timeout_seconds",
                "all of them",
            )
            return
        run.is_fail_fast, run.has_validation = metadata.is_fail_fast, metadata.has_validation
        run.timeout = timedelta(seconds=min(metadata.timeout_seconds, 10**9))
        _set_optional_wait(run, metadata)
    else:
        _check_remembered_cancel(verifier, run, event, metadata)


def _set_optional_wait(run: TrackedRun, metadata: RunMetadata) -> None:
    if metadata.optional_wait_seconds is not None:
        run.optional_wait = timedelta(seconds=min(metadata.optional_wait_seconds, 10**9))


def _check_remembered_cancel(
    verifier: CanonicalVerifier, run: TrackedRun, event: EventLine, metadata: RunMetadata
) -> None:
    """Report a second cancel request before the plan, or one without a reason. The first one is remembered."""
    if event.from_ == event.to:
        if run.cancel_reason or not metadata.reason or not metadata.is_remembered:
            verifier.flag(
                "MOD-3", f"run {run.id} records a pending cancel again or without a reason", "one, with a reason"
            )
        run.cancel_reason = metadata.reason or "?"


def check_planning(verifier: CanonicalVerifier, run: TrackedRun, event: EventLine, metadata: RunMetadata) -> None:
    """Report a planning without a deadline in the future, or a wrong cancel request during it.

    Report also a wait for a concurrency group that begins after the deadline, or that names no group.
    """
    if event.from_ == core_run.CREATED:
        if metadata.plan_by is None or metadata.plan_by <= event.at:
            verifier.flag("ORC-R3", f"run {run.id} starts planning without a deadline in the future", "plan_by")
        run.plan_by = metadata.plan_by or event.at
    elif event.trigger == "group_awaited":
        if event.at >= run.plan_by or not metadata.concurrency_group or not metadata.stops_clock:
            verifier.flag("ORC-R3", f"run {run.id} stops its planning deadline", "before it, for a concurrency group")
        run.plan_by = NEVER
    else:
        _check_remembered_cancel(verifier, run, event, metadata)


def check_planned(verifier: CanonicalVerifier, run: TrackedRun, event: EventLine, metadata: RunMetadata) -> None:
    """Report a plan that came after the deadline or names another number of jobs than were created.

    Report also each job that waits for a job outside the run.
    """
    run.queued_at = event.at
    if event.from_ == event.to:
        return
    run.plan_hash = metadata.plan_hash or ""
    _set_optional_wait(run, metadata)
    if metadata.is_fail_fast is not None:
        run.is_fail_fast = metadata.is_fail_fast
    if metadata.timeout_seconds is not None:
        run.timeout = timedelta(seconds=min(metadata.timeout_seconds, 10**9))
    if event.at >= run.plan_by:
        verifier.flag(
            "ORC-R3",
            f"the plan of run {run.id} arrived after its deadline",
            f"PLAN_FAILED from {run.plan_by.isoformat()} on",
        )
    if metadata.jobs != len(run.jobs):
        verifier.flag(
            "WST-WG1",
            f"run {run.id} is planned with {metadata.jobs} jobs",
            f"{len(run.jobs)}, the number of jobs created",
        )
    for job in run.jobs.values():
        unknown_ids = [predecessor_id for predecessor_id in (*job.needs, *job.after) if predecessor_id not in run.jobs]
        if unknown_ids:
            verifier.flag("WST-TG1", f"job {job.id} waits for {', '.join(unknown_ids)}", "jobs of its run")


def check_running(verifier: CanonicalVerifier, run: TrackedRun, event: EventLine, metadata: RunMetadata) -> None:
    """Report a run that starts or resumes without cause.

    It starts with a started job, an open approval or nothing to run, or to time out. It resumes when a job can
    progress.
    """
    if event.from_ == event.to:
        return
    if event.from_ == core_run.QUEUED:
        run.started_at = event.at if metadata.cause != "timed_out" else EPOCH
        causes = {
            "job_started": run.has_started_job,
            "approval_opened": run.waiting_job_count > 0 and not run.has_started_job,
        }
        causes["nothing_to_run"] = not run.open_job_count or (run.is_fail_fast and run.lost_required_job_count > 0)
        causes["timed_out"] = not run.has_started_job and event.at >= run.queued_at + _START
        if not causes.get(metadata.cause or ""):
            verifier.flag(
                "ORC-R5",
                f"run {run.id} is RUNNING, but none of its jobs has started",
                "a started job or an open approval",
            )
        return
    if run.waiting_since is not None:
        run.waited, run.waiting_since = run.waited + (event.at - run.waiting_since), None
    if run.waiting_job_count and not run.active_job_count:
        verifier.flag("MOD-8", f"run {run.id} resumes while it only waits for approvals", "WAITING_APPROVAL")


def check_waiting(verifier: CanonicalVerifier, run: TrackedRun, event: EventLine, metadata: RunMetadata) -> None:
    """Report a run that waits for approval while no job does or another job can progress.

    Older logs have no `stops_clock`: the wait counted for the run timeout.
    """
    if event.from_ == event.to:
        return
    run.waiting_since = event.at if metadata.stops_clock else None
    if not run.waiting_job_count or run.active_job_count:
        verifier.flag(
            "MOD-8",
            f"run {run.id} waits with {run.waiting_job_count} jobs waiting and {run.active_job_count} active",
            "at least one waiting and none active",
        )


def check_done(verifier: CanonicalVerifier, run: TrackedRun, event: EventLine, metadata: RunMetadata) -> None:
    """Report a run that validates or succeeds with a job that has not ended or a required job that did not succeed."""
    if run.open_job_count or run.lost_required_job_count:
        verifier.flag(
            "ORC-RF1",
            f"run {run.id} is {event.to} with {run.open_job_count} open jobs"
            f" and {run.lost_required_job_count} lost required jobs",
            "all required jobs SUCCEEDED",
        )


def check_failed(verifier: CanonicalVerifier, run: TrackedRun, event: EventLine, metadata: RunMetadata) -> None:
    """Report a failed run that does not name a required job that failed or was cancelled.

    A run that is not fail-fast must also have no open job.
    """
    if event.from_ not in (core_run.RUNNING, core_run.WAITING_APPROVAL):
        return
    if not run.lost_required_job_count or (run.open_job_count and not run.is_fail_fast):
        verifier.flag(
            "MOD-7",
            f"run {run.id} fails with {run.lost_required_job_count} lost required jobs"
            f" and {run.open_job_count} open jobs",
            "a lost required job and no open job",
        )
    cause = run.jobs.get(metadata.job_id or "")
    if cause is None or not cause.is_required or cause.state not in (core_job.FAILED, core_job.CANCELED):
        verifier.flag(
            "ORC-R7", f"run {run.id} fails for job {metadata.job_id!r}", "a required job that is FAILED or CANCELED"
        )


def check_timed_out(verifier: CanonicalVerifier, run: TrackedRun, event: EventLine, metadata: RunMetadata) -> None:
    """Report a run that times out while it waits for approval, or before its timeout.

    For the timeout the time of waiting for approval does not count.
    """
    if event.from_ == core_run.WAITING_APPROVAL and run.waiting_since is not None:
        verifier.flag("MOD-11", f"run {run.id} times out while it waits for approval", "its approval expires instead")
    due_at = run.started_at + run.timeout + run.waited
    if event.at < due_at:
        verifier.flag("ORC-R10", f"run {run.id} times out early", f"not before {due_at.isoformat()}")


def check_cancel_request(verifier: CanonicalVerifier, run: TrackedRun, event: EventLine, metadata: RunMetadata) -> None:
    """Report a cancel request without a reason, or with another reason than the remembered one."""
    if event.from_ != event.to:
        if not metadata.reason or (run.cancel_reason and metadata.reason != run.cancel_reason):
            verifier.flag(
                "ORC-R8", f"run {run.id} is asked to cancel for {metadata.reason!r}", run.cancel_reason or "a reason"
            )
        run.cancel_reason = metadata.reason or "?"


def check_canceled(verifier: CanonicalVerifier, run: TrackedRun, event: EventLine, metadata: RunMetadata) -> None:
    """Report a cancelled run with open jobs, or with another reason than that of the cancel request."""
    if run.open_job_count:
        verifier.flag("ORC-RF3", f"run {run.id} is CANCELED with {run.open_job_count} jobs open", "no open job")
    if metadata.reason != run.cancel_reason:
        verifier.flag("ORC-RF3", f"run {run.id} is CANCELED for {metadata.reason!r}", repr(run.cancel_reason))


def record_ending(verifier: CanonicalVerifier, run: TrackedRun, event: EventLine, metadata: RunMetadata) -> None:
    """Record that the run is ending, so that `check_transaction` checks that its open jobs were stopped."""
    run.is_ending = event.from_ != event.to


def check_reported(verifier: CanonicalVerifier, run: TrackedRun, event: EventLine, metadata: RunMetadata) -> None:
    """Report a conclusion that is not the state in which the run ended."""
    if metadata.conclusion != event.from_:
        verifier.flag("MOD-9", f"run {run.id} is reported as {metadata.conclusion}", str(event.from_))


CHECKS: Final[dict[str, tuple[Check, ...]]] = {
    core_run.CREATED: (check_identity, check_created),
    core_run.PLANNING: (check_identity, check_planning),
    core_run.PLAN_FAILED: (check_identity,),
    core_run.QUEUED: (check_identity, check_planned, not_needed.check_wait),
    core_run.RUNNING: (check_identity, check_running, not_needed.check_wait),
    core_run.WAITING_APPROVAL: (check_identity, check_waiting, not_needed.check_wait),
    core_run.VALIDATING: (check_identity, check_done),
    core_run.SUCCESS: (check_identity, check_done),
    core_run.FAILED: (check_identity, check_failed, record_ending),
    core_run.TIMEOUT: (check_identity, check_timed_out, record_ending),
    core_run.CANCEL_REQUESTED: (check_identity, check_cancel_request, record_ending),
    core_run.CANCELED: (check_identity, check_canceled),
    core_run.REPORTED: (check_identity, check_reported),
}


def check_transaction(verifier: CanonicalVerifier, run: TrackedRun) -> None:
    """At the end of a transaction, report a run whose state does not fit its jobs, its plan or a pending cancel
    request.

    When a run begins to end, each of its open jobs must have been stopped in the same transaction.
    """
    state, expected_text = run.state, ""
    not_needed.check_transaction(verifier, run)
    if run.is_ending:
        run.is_ending = False
        _check_open_jobs_stopped(verifier, run)
    if state == core_run.CANCEL_REQUESTED and not run.open_job_count:
        expected_text = "CANCELED, since every job has ended"
    elif state == core_run.PLAN_FAILED:
        expected_text = "FAILED, since there is no plan"
    elif state == core_run.VALIDATING and not run.has_validation:
        expected_text = "SUCCESS, since there is nothing to validate"
    elif state in (core_run.QUEUED, core_run.RUNNING, core_run.WAITING_APPROVAL):
        if run.cancel_reason:
            expected_text = "CANCEL_REQUESTED, since a cancel is pending"
        elif run.lost_required_job_count and (run.is_fail_fast or not run.open_job_count):
            expected_text = "FAILED, since a required job did not succeed"
        elif not run.open_job_count:
            expected_text = "VALIDATING, since every job has ended"
        elif (run.waiting_job_count > 0 and not run.active_job_count) != (state == core_run.WAITING_APPROVAL):
            expected_text = (
                "RUNNING" if state == core_run.WAITING_APPROVAL else "WAITING_APPROVAL, since only approvals are open"
            )
        elif state == core_run.QUEUED and run.has_started_job:
            expected_text = "RUNNING, since a job has started"
    if expected_text:
        verifier.flag(
            "WST-WI1",
            f"run {run.id} stays {state} with {run.open_job_count} open, {run.active_job_count} active"
            f" and {run.waiting_job_count} waiting jobs",
            expected_text,
        )


def _check_open_jobs_stopped(verifier: CanonicalVerifier, run: TrackedRun) -> None:
    """Report each job that has neither ended nor been asked to stop."""
    for job in run.jobs.values():
        if job.state not in core_job.TERMINAL and (
            job.latest_attempt is None or job.latest_attempt.state != core_attempt.CANCEL_REQUESTED
        ):
            verifier.flag(
                "ORC-C1", f"job {job.id} stays {job.state} when its run is {run.state}", "CANCELED, or asked to stop"
            )
