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


def to_datetime(at: int) -> datetime:
    """Convert an instant of the core (microseconds since 1970) to a datetime."""
    return _EPOCH + timedelta(microseconds=at)


def to_optional_datetime(at: int | None) -> datetime | None:
    """Convert an instant to a datetime. Return None for an unset one, which is 0 or None."""
    return to_datetime(at) if at else None


def run(record: Run) -> api.Run:
    return api.Run(**_run_fields(record))


def run_with_jobs(record: Run, jobs: list[api.Job], job_count: int) -> api.RunWithJobs:
    return api.RunWithJobs(**_run_fields(record), jobs=jobs, job_count=job_count)


def _run_fields(record: Run) -> dict[str, Any]:
    origin = record.origin
    # The tally of a finished run is not updated: its open jobs are only being stopped.
    tally = Tally(doomed=record.tally.doomed) if is_over(record) else record.tally
    return {
        "id": record.id,
        "tenant": record.tenant,
        "state": record.state,
        "status": run_status(record),
        "rev": record.rev,
        "conclusion": record.conclusion,
        "reason": record.reason,
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
        "plan_hash": record.plan_hash,
        "started_by": record.started_by,
        "rerun_of": record.rerun_of,
        "fail_fast": record.is_fail_fast,
        "timeout_seconds": record.timeout_seconds,
        "optional_wait_seconds": record.optional_wait_seconds,
        "optional_until": to_optional_datetime(record.optional_until),
        "start_by": to_optional_datetime(record.start_by),
        "tally": api.JobCounts(open=tally.open, active=tally.active, waiting=tally.waiting, lost=tally.doomed),
        "created_at": to_datetime(record.created_at),
        "started_at": to_optional_datetime(record.started_at),
        "updated_at": to_datetime(record.updated_at),
        "canceling": is_canceling(record),
        "stop_unconfirmed_until": to_optional_datetime(record.stop_unconfirmed_until)
        if record.conclusion == CANCELED
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


def attempt(record: Attempt) -> api.Attempt:
    """Return an attempt as the API shows it, without its specification and outputs."""
    lease = record.lease or record.ended_lease
    ready_at_time = ready_at(record)
    return api.Attempt(
        id=record.id,
        index=record.index,
        state=record.state,
        status=job_status(record),
        rev=record.rev,
        claims=record.claims,
        lost_leases=record.lost_leases,
        worker_id=lease.worker_id if lease is not None else "",
        lease=lease.number if lease is not None else 0,
        created_at=to_datetime(record.created_at),
        started_at=to_optional_datetime(record.started_at),
        updated_at=to_datetime(record.updated_at),
        times_out_at=to_optional_datetime(record.times_out_at),
        run_at=to_datetime(ready_at_time) if ready_at_time is not None and ready_at_time > record.created_at else None,
        cancel_by=to_optional_datetime(record.cancel_by),
        cancel_reason=record.cancel_reason,
        error=failure(record.error),
        progress=record.progress,
        report=record.report,
        reassign_at=to_optional_datetime(record.reassign_at),
        stop_unconfirmed_until=to_optional_datetime(record.stop_unconfirmed_until),
        claimable_at=to_datetime(ready_at_time) if ready_at_time is not None else None,
    )


def job(record: Job, attempts: Iterable[Attempt]) -> api.Job:
    spec = record.spec
    serialized_attempts = [attempt(attempt_record) for attempt_record in attempts]
    return api.Job(
        id=record.id,
        run_id=record.run_id,
        name=spec.name,
        kind=spec.kind,
        state=record.state,
        status=step_status(record),
        rev=record.rev,
        reason=record.reason,
        needs=list(spec.needs),
        after=list(spec.after),
        group=spec.group,
        runs_on=sorted(required_labels(spec.queue_key)),
        allow_failure=not spec.is_required,
        attempts=step_attempts(record),
        max_attempts=spec.max_attempts,
        next_run_at=to_optional_datetime(record.next_run_at)
        if jobs.MACHINE.changes(record.state, jobs.RetryDue)
        else None,
        worker_id=record.worker_id,
        created_at=to_datetime(record.created_at),
        started_at=to_optional_datetime(record.started_at),
        completed_at=to_optional_datetime(record.completed_at),
        is_reclaimed=any(serialized_attempt.claims > 1 for serialized_attempt in serialized_attempts),
        last_error=failure(record.last_error),
        approval=_approval_gate(record),
        tries=serialized_attempts,
        family=spec.family,
        canceling=any(serialized_attempt.state == CANCEL_REQUESTED for serialized_attempt in serialized_attempts[-1:]),
        stop_unconfirmed_until=serialized_attempts[-1].stop_unconfirmed_until if serialized_attempts else None,
    )


def retry_at(record: Job) -> datetime | None:
    """Return when the next attempt of a job starts, or None if the job does not wait for a retry."""
    return to_optional_datetime(record.next_run_at) if jobs.MACHINE.changes(record.state, jobs.RetryDue) else None


def _approval_gate(record: Job) -> api.ApprovalGate | None:
    if record.spec.kind != jobs.APPROVAL:
        return None
    gate_requirements = record.spec.gate
    return api.ApprovalGate(
        role=gate_requirements.role,
        approvers=gate_requirements.approvers,
        not_by_starter=gate_requirements.not_by_starter,
        approve_by=to_optional_datetime(record.approve_by),
        approvals=[
            api.Approval(person=approval.person, at=to_datetime(approval.at), comment=approval.comment)
            for approval in record.approvals
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


def worker(record: Worker, last_seen_at: int, reassign_at: int, *, is_missed: bool) -> api.Worker:
    """Return a worker with the time of its last message. `is_missed`: it has missed its health checks.

    `reassign_at` is when the last of its leases ends if it is unresponsive, else 0.
    """
    return api.Worker(
        id=record.id,
        name=worker_name(record.id),
        state=record.state,
        status=worker_state(record),
        condition=condition(record, is_missed=is_missed),
        rev=record.rev,
        labels=list(record.labels),
        slots=record.max_concurrent_tasks,
        tasks=list(record.tasks),
        hold=record.hold,
        hold_reason=record.hold_reason,
        hold_started_at=to_optional_datetime(record.held_at),
        infra_failures=record.infra_failures,
        shutdown_reason=record.shutdown_reason,
        last_seen_at=to_datetime(last_seen_at),
        created_at=to_datetime(record.created_at),
        updated_at=to_datetime(record.updated_at),
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
