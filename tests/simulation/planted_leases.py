"""Mistakes in the core: leases and their fence, deadlines, lost leases and retries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from deltaci.core import attempt, backoff, cascade, failures, ids, job, lease, run, timers
from deltaci.core.attempt import STALL_REASONS, Attempt
from deltaci.core.events import ATTEMPT, Event
from deltaci.core.lease import Lease
from deltaci.core.machine import Command
from deltaci.core.unit_of_work import UnitOfWork
from deltaci.engine import shard
from tests.simulation.planting import fault, patched, replaced_follow_up, replaced_handler, set_field

SECOND = 1_000_000

# -- the fence


@fault
def lease_token_is_not_checked() -> Iterator[None]:
    """Any message for an attempt counts as one of the holder of its live lease."""
    real = lease.check_fence

    def check(live_lease: Lease | None, ended: Lease | None, ref: ids.LeaseRef, worker_id: str, at: int) -> Lease:
        return live_lease if live_lease is not None else real(live_lease, ended, ref, worker_id, at)

    with patched((lease, "check_fence", check)):
        yield


@fault
def expired_lease_can_be_renewed() -> Iterator[None]:
    """An expired lease can be renewed until a timer has expired it."""
    real = lease.check_fence

    def check(live_lease: Lease | None, ended: Lease | None, ref: ids.LeaseRef, worker_id: str, at: int) -> Lease:
        return real(live_lease, ended, ref, worker_id, 0)

    with patched((lease, "check_fence", check)):
        yield


@fault
def fence_checks_only_the_worker() -> Iterator[None]:
    """The fence checks only the worker, so an earlier lease of the same worker counts as well."""

    def is_held_by(live_lease: Lease, ref: ids.LeaseRef, worker_id: str) -> bool:
        return live_lease.worker_id == worker_id

    with patched((lease, "is_held_by", is_held_by)):
        yield


@fault
def lease_number_is_reused() -> Iterator[None]:
    """The second lease of an attempt has the number of the first."""

    def grant(record: Attempt, command: attempt.Grant, at: int) -> Any:
        return attempt._grant(set_field(record, claims=max(0, record.claims - 1)), command, at)

    with replaced_handler(attempt.MACHINE, ("QUEUED", "STALE"), attempt.Grant, grant):
        yield


@fault
def renewal_adds_a_ttl() -> Iterator[None]:
    """A heartbeat adds a TTL to the end of the lease, instead of starting a new one now."""
    with patched(
        (lease, "_renewed_expiry", lambda live_lease, at: live_lease.expires_at + live_lease.ttl_seconds * SECOND)
    ):
        yield


@fault
def renewal_shortens_the_lease() -> Iterator[None]:
    """A renewal ends the lease earlier than promised before."""
    with patched((lease, "_renewed_expiry", lambda live_lease, at: at + live_lease.ttl_seconds * SECOND // 2)):
        yield


@fault
def lost_lease_has_no_fence() -> Iterator[None]:
    """An attempt with a lost lease may be claimed while its last worker may still run it."""
    real = attempt._stale

    def stale(
        record: Attempt, command_type: type[Command], at: int, reason: str, *, counts_as_lost_lease: bool = True
    ) -> Any:
        state, changes, metadata = real(record, command_type, at, reason, counts_as_lost_lease=counts_as_lost_lease)
        return state, {**changes, "fence_until": at}, metadata

    with patched((attempt, "_stale", stale)):
        yield


@fault
def retry_ignores_the_fence() -> Iterator[None]:
    """The retry after a timeout starts while the last runner may still run."""

    def failed(unit: UnitOfWork, event: Event) -> Iterable[Command]:
        ended = unit.attempt(event.entity_id)
        if ended.job_id and ended.error is not None:
            yield job.AttemptFailed(id=ended.job_id, failure=ended.error)

    with replaced_follow_up(ATTEMPT, ("FAILED", "TIMED_OUT"), cascade._attempt_failed, failed):
        yield


# -- time


def _changed_deadlines(change: Any) -> Any:
    """Return a `next_due` whose deadlines are changed by `change`."""
    real = timers.next_due

    def next_due(record: Any) -> Any:
        due = real(record)
        return due if due is None else change(record, *due)

    return next_due


def patched_deadlines(change: Any, *other_patches: tuple[Any, str, Any]) -> Any:
    """Patch the deadlines that the engine finds."""
    return patched((shard, "next_due", _changed_deadlines(change)), *other_patches)


def without_timers(*commands: type[Command]) -> Any:
    """Remove the timers of these commands."""
    return patched_deadlines(lambda record, at, command_type: None if command_type in commands else (at, command_type))


def earlier(seconds: int, *commands: type[Command]) -> Any:
    """Move the deadlines of these commands forward."""
    return lambda record, at, command_type: (at - seconds * SECOND if command_type in commands else at, command_type)


@fault
def leases_expire_early() -> Iterator[None]:
    """The timers expire a lease ten seconds early."""
    real = lease.change

    def change(live_lease: Lease, command_type: type[Command], at: int) -> Lease:
        return real(live_lease, command_type, at + 10 * SECOND if command_type is lease.Expire else at)

    with patched_deadlines(earlier(10, attempt.Expire), (lease, "change", change)):
        yield


@fault
def accept_window_is_short() -> Iterator[None]:
    """A lease is revoked after half of its accept window."""
    with patched_deadlines(
        earlier(15, attempt.RevokeUnaccepted), (attempt, "_check_accept_window_over", lambda record, at: None)
    ):
        yield


@fault
def accept_window_is_ignored() -> Iterator[None]:
    """A lease that no runner accepts is kept until it expires."""

    def change(record: Any, at: int, command_type: type[Command]) -> Any:
        if command_type is attempt.RevokeUnaccepted:
            return record.lease.expires_at, attempt.Expire
        return at, command_type

    with patched_deadlines(change):
        yield


@fault
def leases_never_expire() -> Iterator[None]:
    """Leases never expire."""
    with without_timers(attempt.Expire):
        yield


@fault
def job_timeouts_are_early() -> Iterator[None]:
    """A job times out after half of its time."""
    real = attempt._time_out

    def time_out(record: Attempt, command: attempt.TimeOut, at: int) -> Any:
        return real(set_field(record, timeout_seconds=0), command, at)

    with (
        patched_deadlines(lambda r, at, o: (at - r.timeout_seconds * SECOND // 2 if o is attempt.TimeOut else at, o)),
        replaced_handler(attempt.MACHINE, ("RUNNING", "UPLOADING"), attempt.TimeOut, time_out),
    ):
        yield


@fault
def no_job_timeouts() -> Iterator[None]:
    """Jobs never time out."""
    with patched((timers, "_TIMED", ())):
        yield


@fault
def no_run_timeouts() -> Iterator[None]:
    """Runs never time out."""
    with without_timers(run.TimeOut):
        yield


@fault
def no_planning_timeouts() -> Iterator[None]:
    """A run whose planner never answers never fails."""
    with without_timers(run.TimeOutPlanning):
        yield


@fault
def no_retry_timer() -> Iterator[None]:
    """A job that waits for its retry waits forever."""
    with without_timers(job.RetryDue):
        yield


@fault
def approvals_do_not_expire() -> Iterator[None]:
    """An approval never expires."""
    with without_timers(job.ExpireApproval):
        yield


@fault
def approvals_expire_early() -> Iterator[None]:
    """An approval expires thirty seconds early."""

    def expire(record: job.Job, command: job.ExpireApproval, at: int) -> Any:
        return job._expire_approval(record, command, at + 30 * SECOND)

    with (
        patched_deadlines(earlier(30, job.ExpireApproval)),
        replaced_handler(job.MACHINE, ("WAITING_APPROVAL",), job.ExpireApproval, expire),
    ):
        yield


@fault
def no_cancel_deadline() -> Iterator[None]:
    """A runner that does not stop may run until its lease ends."""

    def change(record: Any, at: int, command_type: type[Command]) -> Any:
        return (record.lease.expires_at, attempt.Expire) if command_type is attempt.ForceCancel else (at, command_type)

    with patched_deadlines(change):
        yield


@fault
def cancel_is_forced_at_once() -> Iterator[None]:
    """A runner gets no time to stop after a cancel."""

    def force(record: Attempt, command: attempt.ForceCancel, at: int) -> Any:
        return attempt._force_canceled(record, lease.Revoke, at)

    with (
        patched_deadlines(earlier(30, attempt.ForceCancel)),
        replaced_handler(attempt.MACHINE, ("CANCEL_REQUESTED",), attempt.ForceCancel, force),
    ):
        yield


# -- lost leases and retries


@fault
def lost_lease_is_not_requeued() -> Iterator[None]:
    """An attempt whose lease expired stays STALE."""
    with replaced_follow_up(ATTEMPT, ("STALE",), cascade._requeue_attempt):
        yield


@fault
def lost_leases_are_not_counted() -> Iterator[None]:
    """Lost leases are not counted."""
    with patched((attempt, "STALL_REASONS", dict.fromkeys(STALL_REASONS, False))):
        yield


@fault
def lost_lease_limit_is_ignored() -> Iterator[None]:
    """An attempt that lost too many leases is queued again."""

    def requeue(record: Attempt, command: attempt.Requeue, at: int) -> Any:
        return attempt._requeue(set_field(record, max_lost_leases=1000), command, at)

    with replaced_handler(attempt.MACHINE, ("STALE",), attempt.Requeue, requeue):
        yield


@fault
def first_lost_lease_fails_the_attempt() -> Iterator[None]:
    """An attempt fails with its first lost lease."""

    def requeue(record: Attempt, command: attempt.Requeue, at: int) -> Any:
        return attempt._requeue(set_field(record, max_lost_leases=-1), command, at)

    with replaced_handler(attempt.MACHINE, ("STALE",), attempt.Requeue, requeue):
        yield


@fault
def max_attempts_is_ignored() -> Iterator[None]:
    """A job is retried as long as its failures are retryable."""
    with patched((failures, "may_retry", lambda failure, attempts, max_attempts, on=(): failure.is_retryable)):
        yield


@fault
def every_failure_is_retried() -> Iterator[None]:
    """A failure of class USER is retried as well."""
    with patched((failures, "may_retry", lambda failure, attempts, max_attempts, on=(): attempts < max_attempts)):
        yield


@fault
def no_failure_is_retried() -> Iterator[None]:
    """An infrastructure failure fails the job."""
    with patched((failures, "may_retry", lambda *_: False)):
        yield


@fault
def retry_has_no_backoff() -> Iterator[None]:
    """A retry does not wait."""
    with patched((backoff, "next_run_at", lambda at, attempts, base, max_attempts, jitter=0.0, salt="": at)):
        yield


@fault
def retry_timer_is_early() -> Iterator[None]:
    """The timer of a retry does not check the clock."""
    with (
        patched_deadlines(earlier(5, job.RetryDue)),
        replaced_handler(
            job.MACHINE, ("RETRYING",), job.RetryDue, lambda record, command, at: job._next_attempt(record)
        ),
    ):
        yield
