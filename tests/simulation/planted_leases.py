"""Mistakes in the core: about leases and their fence, about time, about what is lost and tried again."""

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
from tests.simulation.planting import fault, instead, reaction, rule, set_field

SECOND = 1_000_000

# -- the fence


@fault
def no_fence() -> Iterator[None]:
    """Whoever speaks for an attempt is taken for the holder of its live lease."""
    real = lease.check_fence

    def check(held: Lease | None, ended: Lease | None, ref: ids.LeaseRef, worker_id: str, at: int) -> Lease:
        return held if held is not None else real(held, ended, ref, worker_id, at)

    with instead((lease, "check_fence", check)):
        yield


@fault
def fence_without_a_clock() -> Iterator[None]:
    """A lease that has ended counts until the timers have seen it: it can be renewed."""
    real = lease.check_fence

    def check(held: Lease | None, ended: Lease | None, ref: ids.LeaseRef, worker_id: str, at: int) -> Lease:
        return real(held, ended, ref, worker_id, 0)

    with instead((lease, "check_fence", check)):
        yield


@fault
def fence_by_name_only() -> Iterator[None]:
    """A lease is known by its worker alone: its zombie of before counts as well."""

    def is_held_by(held: Lease, ref: ids.LeaseRef, worker_id: str) -> bool:
        return held.worker_id == worker_id

    with instead((lease, "is_held_by", is_held_by)):
        yield


@fault
def token_used_again() -> Iterator[None]:
    """The second lease of an attempt has the number of the first."""

    def grant(record: Attempt, command: attempt.Grant, at: int) -> Any:
        return attempt._grant(set_field(record, claims=max(0, record.claims - 1)), command, at)

    with rule(attempt.MACHINE, ("QUEUED", "STALE"), attempt.Grant, grant):
        yield


@fault
def renewals_add_up() -> Iterator[None]:
    """A heartbeat adds a TTL to the end of the lease, as if no time had passed since the last one."""
    with instead((lease, "_renewed", lambda held, at: held.expires_at + held.ttl_seconds * SECOND)):
        yield


@fault
def renewal_shortens() -> Iterator[None]:
    """A renewed lease ends a TTL after the last event, though the runner was promised more."""
    with instead((lease, "_renewed", lambda held, at: at + held.ttl_seconds * SECOND // 2)):
        yield


@fault
def fence_ends_at_once() -> Iterator[None]:
    """Who lost its worker may be claimed at once, while that worker is still at work."""
    real = attempt._stale

    def stale(record: Attempt, order: type[Command], at: int, reason: str, *, is_lost: bool = True) -> Any:
        state, changes, told = real(record, order, at, reason, is_lost=is_lost)
        return state, {**changes, "fence_until": at}, told

    with instead((attempt, "_stale", stale)):
        yield


@fault
def retry_does_not_wait_for_the_fence() -> Iterator[None]:
    """The retry after a timeout begins while the runner that was timed out may still be at work."""

    def failed(world: UnitOfWork, event: Event) -> Iterable[Command]:
        ended = world.attempt(event.entity_id)
        if ended.job_id and ended.error is not None:
            yield job.AttemptFailed(id=ended.job_id, failure=ended.error)

    with reaction(ATTEMPT, ("FAILED", "TIMED_OUT"), cascade._attempt_failed, failed):
        yield


# -- time


def _due(change: Any) -> Any:
    """Every deadline, changed."""
    real = timers.next_due

    def next_due(record: Any) -> Any:
        due = real(record)
        return due if due is None else change(record, *due)

    return next_due


def deadlines(change: Any, *more: tuple[Any, str, Any]) -> Any:
    """Let the write path find other deadlines."""
    return instead((shard, "next_due", _due(change)), *more)


def without(*orders: type[Command]) -> Any:
    """Forget the timers of these kinds."""
    return deadlines(lambda record, at, order: None if order in orders else (at, order))


def early(seconds: int, *orders: type[Command]) -> Any:
    """Look too early at these."""
    return lambda record, at, order: (at - seconds * SECOND if order in orders else at, order)


@fault
def leases_expire_early() -> Iterator[None]:
    """The timers take a lease for expired ten seconds before it is."""
    real = lease.change

    def change(held: Lease, order: type[Command], at: int) -> Lease:
        return real(held, order, at + 10 * SECOND if order is lease.Expire else at)

    with deadlines(early(10, attempt.Expire), (lease, "change", change)):
        yield


@fault
def accept_window_is_short() -> Iterator[None]:
    """A lease is taken back after half of its accept window."""
    with deadlines(early(15, attempt.RevokeUnaccepted), (attempt, "_check_unaccepted", lambda record, at: None)):
        yield


@fault
def accept_window_is_forgotten() -> Iterator[None]:
    """A lease that nobody takes is kept until it ends."""

    def change(record: Any, at: int, order: type[Command]) -> Any:
        if order is attempt.RevokeUnaccepted:
            return record.lease.expires_at, attempt.Expire
        return at, order

    with deadlines(change):
        yield


@fault
def no_expiry() -> Iterator[None]:
    """Leases never expire."""
    with without(attempt.Expire):
        yield


@fault
def job_timeouts_are_early() -> Iterator[None]:
    """The time of a job is over after half of it."""
    real = attempt._time_out

    def time_out(record: Attempt, command: attempt.TimeOut, at: int) -> Any:
        return real(set_field(record, timeout_seconds=0), command, at)

    with (
        deadlines(lambda r, at, o: (at - r.timeout_seconds * SECOND // 2 if o is attempt.TimeOut else at, o)),
        rule(attempt.MACHINE, ("RUNNING", "UPLOADING"), attempt.TimeOut, time_out),
    ):
        yield


@fault
def no_job_timeouts() -> Iterator[None]:
    """Nobody ends a job whose time is over."""
    with instead((timers, "_TIMED", ())):
        yield


@fault
def no_run_timeouts() -> Iterator[None]:
    """Nobody ends a run whose time is over."""
    with without(run.TimeOut):
        yield


@fault
def no_planning_timeouts() -> Iterator[None]:
    """Nobody ends a run whose planner never answers."""
    with without(run.TimeOutPlanning):
        yield


@fault
def no_retry_timer() -> Iterator[None]:
    """A job that waits for its retry waits forever."""
    with without(job.RetryDue):
        yield


@fault
def approvals_do_not_expire() -> Iterator[None]:
    """An approval that nobody gives in time stays open."""
    with without(job.ExpireApproval):
        yield


@fault
def approvals_expire_early() -> Iterator[None]:
    """An approval is closed thirty seconds before its time."""

    def expire(record: job.Job, command: job.ExpireApproval, at: int) -> Any:
        return job._expire_approval(record, command, at + 30 * SECOND)

    with deadlines(early(30, job.ExpireApproval)), rule(job.MACHINE, ("WAITING_APPROVAL",), job.ExpireApproval, expire):
        yield


@fault
def no_cancel_deadline() -> Iterator[None]:
    """A runner that does not stop has time until its lease ends."""

    def change(record: Any, at: int, order: type[Command]) -> Any:
        return (record.lease.expires_at, attempt.Expire) if order is attempt.ForceCancel else (at, order)

    with deadlines(change):
        yield


@fault
def cancel_is_forced_at_once() -> Iterator[None]:
    """A runner gets no time to stop."""

    def force(record: Attempt, command: attempt.ForceCancel, at: int) -> Any:
        return attempt._force_canceled(record, lease.Revoke, at)

    with (
        deadlines(early(30, attempt.ForceCancel)),
        rule(attempt.MACHINE, ("CANCEL_REQUESTED",), attempt.ForceCancel, force),
    ):
        yield


# -- lost leases and retries


@fault
def lost_lease_is_not_requeued() -> Iterator[None]:
    """An attempt whose lease expired stays where it is."""
    with reaction(ATTEMPT, ("STALE",), cascade._requeue_attempt):
        yield


@fault
def lost_leases_are_not_counted() -> Iterator[None]:
    """An attempt may lose its lease as often as it likes."""
    with instead((attempt, "STALL_REASONS", dict.fromkeys(STALL_REASONS, False))):
        yield


@fault
def lost_leases_without_limit() -> Iterator[None]:
    """An attempt that lost its lease too often is queued again."""

    def requeue(record: Attempt, command: attempt.Requeue, at: int) -> Any:
        return attempt._requeue(set_field(record, max_lost_leases=1000), command, at)

    with rule(attempt.MACHINE, ("STALE",), attempt.Requeue, requeue):
        yield


@fault
def first_lost_lease_is_the_last() -> Iterator[None]:
    """An attempt is given up with its first lost lease."""

    def requeue(record: Attempt, command: attempt.Requeue, at: int) -> Any:
        return attempt._requeue(set_field(record, max_lost_leases=-1), command, at)

    with rule(attempt.MACHINE, ("STALE",), attempt.Requeue, requeue):
        yield


@fault
def max_attempts_is_ignored() -> Iterator[None]:
    """A job is retried as long as its failures are worth it."""
    with instead((failures, "may_retry", lambda failure, attempts, most, on=(): failure.is_retryable)):
        yield


@fault
def every_failure_is_retried() -> Iterator[None]:
    """A failure of the user's own is retried as well."""
    with instead((failures, "may_retry", lambda failure, attempts, most, on=(): attempts < most)):
        yield


@fault
def nothing_is_retried() -> Iterator[None]:
    """A failure of the infrastructure fails the job."""
    with instead((failures, "may_retry", lambda *_: False)):
        yield


@fault
def no_backoff() -> Iterator[None]:
    """A retry does not wait."""
    with instead((backoff, "next_run_at", lambda at, attempts, base, most, jitter=0.0, salt="": at)):
        yield


@fault
def retry_before_its_time() -> Iterator[None]:
    """The timer of a retry does not look at the clock."""
    with (
        deadlines(early(5, job.RetryDue)),
        rule(job.MACHINE, ("RETRYING",), job.RetryDue, lambda record, command, at: job._next_attempt(record)),
    ):
        yield
