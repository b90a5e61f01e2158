"""The next deadline of each record, and the command to apply at that time."""

from __future__ import annotations

from typing import Final

from deltaci.core import attempt, job, lease, resource, run, worker
from deltaci.core.attempt import Attempt
from deltaci.core.job import Job
from deltaci.core.machine import Command, Record
from deltaci.core.resource import Resource
from deltaci.core.run import Run
from deltaci.core.worker import Worker

Due = tuple[int, type[Command]]

_TIMED: Final = (attempt.RUNNING, attempt.UPLOADING)
_UNLEASED: Final = (attempt.QUEUED, attempt.STALE)


def next_due(record: Record) -> Due | None:
    """Return the time of the record's next deadline and the type of the command to apply then, or None."""
    if type(record) is Attempt:
        return _attempt_due(record)
    if isinstance(record, Job):
        return _job_due(record)
    if isinstance(record, Run):
        return _run_due(record)
    return None


def _attempt_due(record: Attempt) -> Due | None:
    live_lease = record.lease
    if live_lease is None:
        return None
    deadline: int = live_lease.expires_at
    command: type[Command] = attempt.Expire
    if live_lease.state == lease.GRANTED and live_lease.accept_by <= deadline:
        deadline, command = live_lease.accept_by, attempt.RevokeUnaccepted
    if record.state in _TIMED and record.times_out_at < deadline:
        deadline, command = record.times_out_at, attempt.TimeOut
    elif record.state == attempt.CANCEL_REQUESTED and record.cancel_by < deadline:
        deadline, command = record.cancel_by, attempt.ForceCancel
    return deadline, command


def _job_due(record: Job) -> Due | None:
    if record.state == job.RETRYING:
        return record.next_run_at, job.RetryDue
    if record.state == job.WAITING_APPROVAL and record.approve_by:
        return record.approve_by, job.ExpireApproval
    return None


def _run_due(record: Run) -> Due | None:
    if record.state == run.PLANNING and record.plan_by:
        return record.plan_by, run.TimeOutPlanning
    timeout_at = record.start_by or (record.times_out_at if record.state in run.TIMED else 0)
    if run.may_start_jobs(record) and record.optional_until and not 0 < timeout_at <= record.optional_until:
        return record.optional_until, run.EndOptionalWait
    return (timeout_at, run.TimeOut) if timeout_at else None


def ready_at(record: Record) -> int | None:
    """Return from when on a queued or stale attempt may be claimed, or None for other records.

    Of attempts with the same priority, the one with the earliest time is claimed first.
    """
    if type(record) is not Attempt or record.state not in _UNLEASED:
        return None
    if record.state == attempt.STALE and record.is_lost_too_often:
        return None
    return max(record.run_at, record.fence_until, record.created_at)


def group_fence(record: Record) -> int | None:
    """Return until when an ended attempt keeps its concurrency group, or None if it freed the group at its end.

    It keeps the group as long as the runner that lost it may still execute it.
    """
    if type(record) is Attempt and record.group and record.fence_until > record.updated_at:
        return record.fence_until
    return None


def is_over(record: Record) -> bool:
    """Return whether the record is in a terminal state, so that it may leave the tables of active records."""
    return record.state in _TERMINAL[type(record)]


_TERMINAL: Final[dict[type[Record], frozenset[str]]] = {
    Attempt: attempt.TERMINAL,
    Job: job.TERMINAL,
    Run: run.TERMINAL,
    Worker: worker.TERMINAL,
    Resource: resource.MACHINE.terminal,
}
