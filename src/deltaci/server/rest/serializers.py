"""Convert records to the types of the API. `status` is always derived from the record, never stored."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, cast

from deltaci.api.schemas import records as api
from deltaci.api.schemas.inputs import GateInput, RetryInput
from deltaci.core import job as jobs
from deltaci.core.attempt import CANCEL_REQUESTED, Attempt
from deltaci.core.failures import Failure
from deltaci.core.ids import worker_name
from deltaci.core.job import Job, JobSpec
from deltaci.core.run import CANCELED, Run, Tally, is_canceling, is_over
from deltaci.core.status.queue import job_status
from deltaci.core.status.steps import run_status, step_attempts, step_status
from deltaci.core.status.workstreams import worker_state
from deltaci.core.timers import ready_at
from deltaci.core.worker import Worker, condition, required_labels
from deltaci.server.auth.callers import KeyRecord

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def to_datetime(instant: int) -> datetime:
    """Convert an instant of the core (microseconds since 1970) to a datetime."""
    return _EPOCH + timedelta(microseconds=instant)


def to_optional_datetime(instant: int | None) -> datetime | None:
    """Convert an instant to a datetime. Return None for an unset one, which is 0 or None."""
    return to_datetime(instant) if instant else None


def run(run_record: Run) -> api.Run:
    return api.Run(**_run_fields(run_record))


def run_with_jobs(run_record: Run, jobs: list[api.Job], job_count: int) -> api.RunWithJobs:
    return api.RunWithJobs(**_run_fields(run_record), jobs=jobs, job_count=job_count)


def _run_fields(run_record: Run) -> dict[str, Any]:
    origin = run_record.origin
    # The tally of a finished run is not updated: its open jobs are only being stopped.
    tally = Tally(doomed=run_record.tally.doomed) if is_over(run_record) else run_record.tally
    return {
        "id": run_record.id,
        "tenant": run_record.tenant,
        "state": run_record.state,
        "status": run_status(run_record),
        "rev": run_record.rev,
        "conclusion": run_record.conclusion,
        "reason": run_record.reason,
        "project": origin.project,
        "branch": origin.branch,
        "repository": origin.repository,
        "commit": origin.commit,
        "title": origin.title,
        "labels": list(origin.labels),
        "template": origin.template,
        "template_version": origin.template_version,
        "inputs": origin.inputs,
        "event": origin.event,
        "file": origin.file,
        "ref": origin.ref,
        "number": origin.number,
        "change": origin.change,
        "is_fork": origin.is_fork,
        "workstream": origin.workstream,
        "plan_hash": run_record.plan_hash,
        "started_by": run_record.started_by,
        "rerun_of": run_record.rerun_of,
        "fail_fast": run_record.is_fail_fast,
        "timeout_seconds": run_record.timeout_seconds,
        "optional_wait_seconds": run_record.optional_wait_seconds,
        "optional_until": to_optional_datetime(run_record.optional_until),
        "start_by": to_optional_datetime(run_record.start_by),
        "tally": api.JobCounts(open=tally.open, active=tally.active, waiting=tally.waiting, lost=tally.doomed),
        "created_at": to_datetime(run_record.created_at),
        "started_at": to_optional_datetime(run_record.started_at),
        "updated_at": to_datetime(run_record.updated_at),
        "canceling": is_canceling(run_record),
        "stop_unconfirmed_until": to_optional_datetime(run_record.stop_unconfirmed_until)
        if run_record.conclusion == CANCELED
        else None,
    }


def failure(error: Failure | None) -> api.Failure | None:
    if error is None:
        return None
    return api.Failure(
        code=error.code,
        failure_class=error.failure_class,
        is_retryable=error.is_retryable,
        rule=error.rule,
        line=error.line,
        message=error.message,
    )


def attempt(attempt_record: Attempt) -> api.Attempt:
    """Return an attempt as the API shows it, without its specification and outputs."""
    lease = attempt_record.lease or attempt_record.ended_lease
    ready_at_time = ready_at(attempt_record)
    return api.Attempt(
        id=attempt_record.id,
        index=attempt_record.index,
        state=attempt_record.state,
        status=job_status(attempt_record),
        rev=attempt_record.rev,
        claims=attempt_record.claims,
        lost_leases=attempt_record.lost_leases,
        worker_id=lease.worker_id if lease is not None else "",
        lease=lease.number if lease is not None else 0,
        created_at=to_datetime(attempt_record.created_at),
        started_at=to_optional_datetime(attempt_record.started_at),
        updated_at=to_datetime(attempt_record.updated_at),
        times_out_at=to_optional_datetime(attempt_record.times_out_at),
        run_at=to_datetime(ready_at_time)
        if ready_at_time is not None and ready_at_time > attempt_record.created_at
        else None,
        cancel_by=to_optional_datetime(attempt_record.cancel_by),
        cancel_reason=attempt_record.cancel_reason,
        error=failure(attempt_record.error),
        progress=attempt_record.progress,
        report=attempt_record.report,
        reassign_at=to_optional_datetime(attempt_record.reassign_at),
        stop_unconfirmed_until=to_optional_datetime(attempt_record.stop_unconfirmed_until),
        claimable_at=to_datetime(ready_at_time) if ready_at_time is not None else None,
    )


def job(job_record: Job, attempts: Iterable[Attempt]) -> api.Job:
    spec = job_record.spec
    serialized_attempts = [attempt(attempt_record) for attempt_record in attempts]
    return api.Job(
        id=job_record.id,
        run_id=job_record.run_id,
        name=spec.name,
        kind=spec.kind,
        state=job_record.state,
        status=step_status(job_record),
        rev=job_record.rev,
        reason=job_record.reason,
        needs=list(spec.needs),
        after=list(spec.after),
        group=spec.group,
        runs_on=sorted(required_labels(spec.queue_key)),
        allow_failure=not spec.is_required,
        attempts=step_attempts(job_record),
        max_attempts=spec.max_attempts,
        next_run_at=to_optional_datetime(job_record.next_run_at)
        if jobs.MACHINE.changes(job_record.state, jobs.RetryDue)
        else None,
        worker_id=job_record.worker_id,
        created_at=to_datetime(job_record.created_at),
        started_at=to_optional_datetime(job_record.started_at),
        completed_at=to_optional_datetime(job_record.completed_at),
        is_reclaimed=any(serialized_attempt.claims > 1 for serialized_attempt in serialized_attempts),
        last_error=failure(job_record.last_error),
        approval=_approval_gate(job_record),
        tries=serialized_attempts,
        family=spec.family,
        canceling=any(serialized_attempt.state == CANCEL_REQUESTED for serialized_attempt in serialized_attempts[-1:]),
        stop_unconfirmed_until=serialized_attempts[-1].stop_unconfirmed_until if serialized_attempts else None,
    )


def retry_at(job_record: Job) -> datetime | None:
    """Return when the next attempt of a job starts, or None if the job does not wait for a retry."""
    return (
        to_optional_datetime(job_record.next_run_at) if jobs.MACHINE.changes(job_record.state, jobs.RetryDue) else None
    )


def _approval_gate(job_record: Job) -> api.ApprovalGate | None:
    if job_record.spec.kind != jobs.APPROVAL:
        return None
    gate_requirements = job_record.spec.gate
    return api.ApprovalGate(
        role=gate_requirements.role,
        approvers=gate_requirements.approvers,
        not_by_starter=gate_requirements.not_by_starter,
        approve_by=to_optional_datetime(job_record.approve_by),
        approvals=[
            api.Approval(person=approval.person, at=to_datetime(approval.at), comment=approval.comment)
            for approval in job_record.approvals
        ],
    )


def planned_job(spec: JobSpec) -> api.PlannedJob:
    gate = spec.gate
    return api.PlannedJob(
        name=spec.name,
        kind=spec.kind,
        needs=list(spec.needs),
        after=list(spec.after),
        group=spec.group,
        runs_on=sorted(required_labels(spec.queue_key)),
        allow_failure=not spec.is_required,
        timeout_seconds=spec.timeout_seconds,
        priority=spec.priority,
        retry=RetryInput(
            max_attempts=spec.max_attempts,
            base_delay_seconds=spec.base_delay_seconds,
            max_delay_seconds=spec.max_delay_seconds,
            jitter=spec.jitter,
            on=cast(list[Literal["INFRA", "TOOLING", "FLAKY"]], list(spec.retry_on)),
        ),
        approval=GateInput(
            role=gate.role,
            approvers=gate.approvers,
            not_by_starter=gate.not_by_starter,
            expires_seconds=spec.approval_seconds,
        )
        if spec.kind == jobs.APPROVAL
        else None,
        work=spec.work,
    )


def worker(worker_record: Worker, last_seen_at: int, reassign_at: int, *, is_missed: bool) -> api.Worker:
    """Return a worker with the time of its last message. `is_missed`: it has missed its health checks.

    `reassign_at` is when the last of its leases ends if it is unresponsive, else 0.
    """
    return api.Worker(
        id=worker_record.id,
        name=worker_name(worker_record.id),
        state=worker_record.state,
        status=worker_state(worker_record),
        condition=condition(worker_record, is_missed=is_missed),
        rev=worker_record.rev,
        labels=list(worker_record.labels),
        slots=worker_record.max_concurrent_tasks,
        tasks=list(worker_record.tasks),
        hold=worker_record.hold,
        hold_reason=worker_record.hold_reason,
        hold_started_at=to_optional_datetime(worker_record.held_at),
        infra_failures=worker_record.infra_failures,
        shutdown_reason=worker_record.shutdown_reason,
        last_seen_at=to_datetime(last_seen_at),
        created_at=to_datetime(worker_record.created_at),
        updated_at=to_datetime(worker_record.updated_at),
        reassign_at=to_optional_datetime(reassign_at),
    )


def key(record: KeyRecord) -> dict[str, Any]:
    """Return the fields of an API key, without its secret."""
    return {
        "id": record.id,
        "person": record.person,
        "scopes": list(record.scopes),
        "roles": list(record.roles),
        "description": record.description,
        "created_at": to_datetime(record.created_at),
        "created_by": record.created_by,
        "expires_at": to_optional_datetime(record.expires_at),
        "revoked_at": to_optional_datetime(record.revoked_at),
        "revoked_by": record.revoked_by,
    }
