"""Mistakes in the core: in the machines, in what follows from what, and in the deadlines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from deltaci.core import attempt, failures, ids, job, lease, machine, reactions, run, timers, worker
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused
from deltaci.core.events import ATTEMPT, JOB, RUN, Event
from deltaci.core.lease import Lease
from deltaci.core.machine import Command
from deltaci.core.world import World
from tests.simulation.planting import fault, instead, new_rule, reaction, rule, set_field

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

    def failed(world: World, event: Event) -> Iterable[Command]:
        ended = world.attempt(event.entity_id)
        if ended.job_id and ended.error is not None:
            yield job.AttemptFailed(id=ended.job_id, failure=ended.error)

    with reaction(ATTEMPT, ("FAILED", "TIMED_OUT"), reactions._attempt_failed, failed):
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
    from deltaci.engine import lane

    return instead((lane, "next_due", _due(change)), *more)


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
        return attempt._force(record, lease.Revoke, at)

    with (
        deadlines(early(30, attempt.ForceCancel)),
        rule(attempt.MACHINE, ("CANCEL_REQUESTED",), attempt.ForceCancel, force),
    ):
        yield


# -- lost leases and retries


@fault
def lost_lease_is_not_requeued() -> Iterator[None]:
    """An attempt whose lease expired stays where it is."""
    with reaction(ATTEMPT, ("STALE",), reactions._requeue):
        yield


@fault
def lost_leases_are_not_counted() -> Iterator[None]:
    """An attempt may lose its lease as often as it likes."""
    with instead((attempt, "_STALLS", dict.fromkeys(attempt._STALLS, False))):
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
    with instead((failures, "may_retry", lambda failure, attempts, most: failure.is_retryable)):
        yield


@fault
def every_failure_is_retried() -> Iterator[None]:
    """A failure of the user's own is retried as well."""
    with instead((failures, "may_retry", lambda failure, attempts, most: attempts < most)):
        yield


@fault
def nothing_is_retried() -> Iterator[None]:
    """A failure of the infrastructure fails the job."""
    with instead((failures, "may_retry", lambda failure, attempts, most: False)):
        yield


@fault
def no_backoff() -> Iterator[None]:
    """A retry does not wait."""
    with instead((failures, "next_run_at", lambda at, attempts, base, most, jitter=0.0, salt="": at)):
        yield


@fault
def retry_before_its_time() -> Iterator[None]:
    """The timer of a retry does not look at the clock."""
    with (
        deadlines(early(5, job.RetryDue)),
        rule(job.MACHINE, ("RETRYING",), job.RetryDue, lambda record, command, at: job._next_attempt(record)),
    ):
        yield


# -- cancels and approvals


@fault
def complete_after_cancel_counts() -> Iterator[None]:
    """A result that comes after the cancel makes the attempt succeed."""

    def complete(record: Attempt, command: attempt.Complete, at: int) -> Any:
        return attempt._finish(record, command, at)

    ends = {"SUCCEEDED": "succeeded", "FAILED": "failed"}
    with rule(attempt.MACHINE, ("CANCEL_REQUESTED",), attempt.Complete, complete, **ends):
        yield


@fault
def cancel_is_ignored_while_starting() -> Iterator[None]:
    """A cancel does not reach an attempt that was just acknowledged."""
    with rule(attempt.MACHINE, ("LEASED", "STARTING"), attempt.Cancel, machine.nothing):
        yield


@fault
def cancel_forgets_what_is_stale() -> Iterator[None]:
    """A cancel does not reach an attempt that rests without a lease."""
    with rule(attempt.MACHINE, ("QUEUED", "STALE"), attempt.Cancel, machine.nothing):
        yield


@fault
def early_cancel_is_forgotten() -> Iterator[None]:
    """A cancel that comes while a run is planned is acknowledged and forgotten."""

    def start(world: World, event: Event) -> Iterable[Command]:
        planned = world.run(event.run_id)
        ready = [each for each in world.live_jobs(planned.id) if not each.unmet]
        world.need(ids.attempt_id(each.id, 1) for each in ready)
        return [reactions.open_job(each) for each in ready]

    with reaction(RUN, ("QUEUED",), reactions._start_jobs, start):
        yield


@fault
def jobs_outlive_their_run() -> Iterator[None]:
    """What still runs when a run ends goes on."""
    with reaction(RUN, ("CANCEL_REQUESTED", "FAILED", "TIMEOUT"), reactions._cancel_rest):
        yield


@fault
def superseded_run_goes_on() -> Iterator[None]:
    """Only people can cancel a run: a newer run asks in vain."""
    real = run._cancel

    def cancel(record: run.Run, command: run.Cancel, at: int) -> Any:
        return None if command.reason == "SUPERSEDED" else real(record, command, at)

    with rule(run.MACHINE, ("QUEUED", "RUNNING", "WAITING_APPROVAL", "VALIDATING"), run.Cancel, cancel):
        yield


@fault
def workers_may_approve() -> Iterator[None]:
    """Nobody looks at who approves."""
    with instead((job.Approve, "by", frozenset({"user", "worker"}))):
        yield


@fault
def anybody_may_report() -> Iterator[None]:
    """Nobody looks at who reports."""
    with instead((run.Report, "by", frozenset({"user", "reporter"}))):
        yield


@fault
def approve_what_is_canceled() -> Iterator[None]:
    """An approval that comes after the cancel makes the job succeed."""
    with new_rule(job.MACHINE, "CANCELED", job.Approve, like="WAITING_APPROVAL"):
        yield


@fault
def approvals_are_work() -> Iterator[None]:
    """An approval is handed to workers like any other job."""

    def next_attempt(record: job.Job, command: job.OpenApproval, at: int) -> Any:
        return job._next_attempt(record)

    with rule(job.MACHINE, ("PENDING",), job.OpenApproval, next_attempt, QUEUED="scheduler_assigned"):
        yield


# -- jobs and runs


@fault
def jobs_do_not_wait_for_their_needs() -> Iterator[None]:
    """All jobs of a plan begin at once."""

    def start(world: World, event: Event) -> Iterable[Command]:
        planned = world.run(event.run_id)
        if planned.cancel_reason:
            return [run.Cancel(id=planned.id, reason=planned.cancel_reason)]
        live = world.live_jobs(planned.id)
        world.need(ids.attempt_id(each.id, 1) for each in live)
        return [reactions.open_job(each) for each in live]

    with (
        instead((job, "_check_ready", lambda record, kind: None)),
        reaction(RUN, ("QUEUED",), reactions._start_jobs, start),
    ):
        yield


@fault
def a_canceled_need_is_met() -> Iterator[None]:
    """Whoever waits for a job that was cancelled goes on."""
    with instead((job, "satisfies", lambda record: True)):
        yield


@fault
def dependents_are_not_told() -> Iterator[None]:
    """Whoever waits for a job never hears of its end."""
    with reaction(JOB, ("SUCCEEDED", "FAILED", "CANCELED"), reactions._tell_dependents):
        yield


@fault
def optional_failure_fails_the_run() -> Iterator[None]:
    """A job that may fail fails its run."""
    with instead((job, "dooms", lambda record: record.state in ("FAILED", "CANCELED"))):
        yield


@fault
def required_failure_is_ignored() -> Iterator[None]:
    """A run succeeds although a required job failed."""
    with instead((job, "dooms", lambda record: False)):
        yield


@fault
def fail_fast_is_forgotten() -> Iterator[None]:
    """A run that should fail fast waits for the rest."""
    real = run.next_command
    with instead((run, "next_command", lambda record: real(set_field(record, is_fail_fast=False)))):
        yield


@fault
def every_run_fails_fast() -> Iterator[None]:
    """A run does not wait for the rest of its jobs."""
    real = run.next_command
    with instead((run, "next_command", lambda record: real(set_field(record, is_fail_fast=True)))):
        yield


@fault
def run_ends_with_a_job_open() -> Iterator[None]:
    """A run is counted as done while one of its jobs still runs."""
    real = run.next_command

    def next_command(record: run.Run) -> Command | None:
        tally = record.tally
        if tally.open == 1 and not tally.doomed and record.state == "RUNNING":
            return run.AllDone(id=record.id)
        return real(record)

    done = ("VALIDATING", dict[str, Any](), dict[str, Any]())
    with (
        instead((run, "next_command", next_command)),
        rule(run.MACHINE, ("RUNNING",), run.AllDone, lambda record, command, at: done),
    ):
        yield


@fault
def waiting_run_looks_busy() -> Iterator[None]:
    """A run that can only wait for people is not shown as waiting."""
    real = run.next_command

    def next_command(record: run.Run) -> Command | None:
        found = real(record)
        return None if isinstance(found, run.AwaitApproval) else found

    with instead((run, "next_command", next_command)):
        yield


@fault
def rules_are_not_run() -> Iterator[None]:
    """A job with rules is valid without them."""

    def passed(world: World, event: Event) -> Iterable[Command]:
        yield job.Validate(id=event.entity_id, is_passed=True)

    with reaction(JOB, ("VALIDATING",), reactions._pass_trivial_job_validation, passed):
        yield


@fault
def failure_counts_as_success() -> Iterator[None]:
    """Nobody looks at the exit code."""

    def finish(record: Attempt, command: attempt.Outcome, at: int) -> Any:
        return attempt._finish(record, set_field(command, is_success=True, exit_code=0), at)

    with (
        rule(attempt.MACHINE, ("UPLOADING",), attempt.Complete, finish),
        rule(attempt.MACHINE, ("UPLOADING",), attempt.Finish, finish),
    ):
        yield


@fault
def wrong_conclusion() -> Iterator[None]:
    """Every run is reported as a success."""
    told = ("REPORTED", dict[str, Any](), {"conclusion": "SUCCESS"})
    with rule(run.MACHINE, run.OVER, run.Report, lambda record, command, at: told):
        yield


@fault
def late_plans_count() -> Iterator[None]:
    """A plan counts although the time for it is over."""
    real = run._plan_ready

    def ready(record: run.Run, command: run.PlanReady, at: int) -> Any:
        return real(set_field(record, plan_by=at + 1), command, at)

    with without(run.TimeOutPlanning), rule(run.MACHINE, ("PLANNING",), run.PlanReady, ready):
        yield


# -- workers


@fault
def lease_takes_no_place() -> Iterator[None]:
    """A worker does not know of what it was granted."""
    with reaction(ATTEMPT, ("LEASED",), reactions._assign_worker):
        yield


@fault
def place_is_not_freed() -> Iterator[None]:
    """A worker stays busy with what is over."""
    with reaction(ATTEMPT, reactions._LEASE_ENDS, reactions._release_worker):
        yield


@fault
def place_leaks_with_a_lost_lease() -> Iterator[None]:
    """Only what ends well frees its place."""
    with reaction(ATTEMPT, ("STALE",), reactions._release_worker):
        yield


@fault
def no_limit_of_places() -> Iterator[None]:
    """A worker gets as much as it asks for."""

    def assign(record: worker.Worker, command: worker.Assign, at: int) -> Any:
        return worker._assign(set_field(record, max_concurrent_tasks=1000), command, at)

    with rule(worker.MACHINE, ("IDLE", "BUSY"), worker.Assign, assign):
        yield


@fault
def coming_in_again_frees_all_places() -> Iterator[None]:
    """Who registers again is taken for empty."""

    def offer(record: worker.Worker, command: worker.Offer, at: int) -> Any:
        move = worker._offer(record, command, at)
        return move if move is None else (move[0], {**move[1], "tasks": ()}, move[2])

    with rule(worker.MACHINE, ("IDLE", "BUSY"), worker.Offer, offer):
        yield


@fault
def who_leaves_gets_more() -> Iterator[None]:
    """A worker that was asked to go gets new work."""

    def assign(record: worker.Worker, command: worker.Assign, at: int) -> Any:
        return worker._assign(set_field(record, shutdown_reason=""), command, at)

    with rule(worker.MACHINE, ("IDLE", "BUSY"), worker.Assign, assign):
        yield


@fault
def silent_worker_keeps_its_leases() -> Iterator[None]:
    """What a worker has that does not answer is left with it."""
    with reaction("worker", ("UNRESPONSIVE",), reactions._stall_tasks):
        yield


# -- requests


@fault
def requests_are_not_remembered() -> Iterator[None]:
    """No record knows what was asked of it."""
    from deltaci.core import decide

    with (
        instead((machine, "remembering", lambda record, command: record)),
        instead((decide, "remembering", lambda record, command: record)),
    ):
        yield


@fault
def request_id_fits_everything() -> Iterator[None]:
    """What comes under a known request id is taken for a repetition, whatever it says."""

    def request(command: Command) -> str:
        return f"{command.request_id} same"

    with instead((machine, "_request", request)):
        yield


@fault
def expected_rev_is_ignored() -> Iterator[None]:
    """Who decided by an old state is not told."""
    real = machine.Machine.decide

    def decide(self: Any, record: Any, command: Command, at: int, events: list[Event]) -> Any:
        return real(self, record, set_field(command, expected_rev=None), at, events)

    with instead((machine.Machine, "decide", decide)):
        yield


@fault
def old_tokens_are_good() -> Iterator[None]:
    """A registration token lets somebody in as often as it is shown."""
    from deltaci.server.registry import Registry

    real = Registry._admit

    async def admit(self: Any, who: Any, asked: Any, claims: Any) -> None:
        try:
            await real(self, who, asked, claims)
        except Refused as refused:
            if refused.code != "bad_credential":
                raise

    with instead((Registry, "_admit", admit)):
        yield
