"""Which commands follow from which transition, as one table.

`decide` looks up each new event in `CASCADE` and applies the follow-up commands in the same decision, so that a reader
of the store sees either none or all of the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, Final

import msgspec

from deltaci.core import attempt, failures, job, run, worker
from deltaci.core.errors import InvariantBroken
from deltaci.core.events import ATTEMPT, JOB, RUN, WORKER, Event
from deltaci.core.ids import attempt_id
from deltaci.core.machine import Command, Record
from deltaci.core.unit_of_work import UnitOfWork


class NewRecord(Command, frozen=True, kw_only=True):
    """Create `record`. Refused if its id exists, unless `or_existing` is set: then nothing changes.

    With `has_random_id` the id was just generated at random, so that the store need not be asked whether it exists.
    """

    stored_name: ClassVar[str] = "Birth"

    record: Record
    or_existing: bool = False
    has_random_id: bool = msgspec.field(default=False, name="is_drawn")


class CreateRecords(Command, frozen=True, kw_only=True):
    """Create all of `records` or, if one is refused, none. `id` is that of the first record."""

    stored_name: ClassVar[str] = "BearAll"

    records: tuple[NewRecord, ...] = msgspec.field(name="births")


class CancelLiveJob(Command, frozen=True, kw_only=True):
    """Cancel a job, through its attempt if it has a live one; do nothing if the job has ended.

    The state is read when this command is applied: of many cancellations, one may open or end another job.
    """

    stored_name: ClassVar[str] = "Stop"

    reason: str


class StallLiveAttempt(Command, frozen=True, kw_only=True):
    """Stall an attempt if it is active when this command is applied; otherwise do nothing.

    When a worker loses several leases at once, losing one may fail its job, which may cancel the others.
    """

    reason: str


FollowUp = Callable[[UnitOfWork, Event], Iterable[Command]]


class CascadeRule(msgspec.Struct, frozen=True):
    """When a record of this entity enters one of `states`, apply the commands that `follow_up` returns.

    A refused follow-up command breaks an invariant, unless `may_refuse`: then the whole decision is refused.
    """

    entity: str
    states: tuple[str, ...]
    follow_up: FollowUp
    why: str
    may_refuse: bool = False


def _begin_job(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    claimed = unit.attempt(event.entity_id)
    if claimed.job_id and claimed.lease:
        yield job.Begin(id=claimed.job_id, worker_id=claimed.lease.worker_id)


def _assign_worker(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    claimed = unit.attempt(event.entity_id)
    if claimed.job_id and claimed.lease and unit.worker(claimed.lease.worker_id):
        yield worker.Assign(id=claimed.lease.worker_id, attempt_id=claimed.id, queue_key=claimed.queue_key)


def _release_worker(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    ended_lease = event.metadata.get("lease")
    leased_worker = unit.worker(ended_lease["worker_id"]) if ended_lease and event.run_id else None
    if leased_worker is not None:
        release = worker.Release(
            id=leased_worker.id, attempt_id=event.entity_id, is_infra_failure=_is_infra_failure(event)
        )
        yield release
        if worker.should_quarantine(leased_worker, release):
            yield worker.Quarantine(id=leased_worker.id, reason=worker.REPEATED_INFRA_FAILURES)


def _is_infra_failure(event: Event) -> bool | None:
    """Return whether an event that ended a lease was caused by the worker's infrastructure; None if unknown.

    An attempt that was cancelled, or taken back on request, says nothing about the worker: that is None as well.
    """
    if event.to == attempt.STALE:
        return True if event.metadata["reason"] in attempt.DETECTED_LOST else None
    if event.to == attempt.SUCCEEDED:
        return False
    if event.to == attempt.FAILED:
        return failures.is_worker_fault(event.metadata["error"]["failure_class"], event.metadata["error"]["code"])
    return None


def _requeue_attempt(_unit: UnitOfWork, event: Event) -> Iterable[Command]:
    if event.metadata["reason"] in attempt.REQUEUED_IMMEDIATELY:
        yield attempt.Requeue(id=event.entity_id)


def _finish_unleased_cancel(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    if unit.attempt(event.entity_id).lease is None:
        yield attempt.ForceCancel(id=event.entity_id)


def _attempt_succeeded(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    ended = unit.attempt(event.entity_id)
    if ended.job_id:
        yield job.AttemptSucceeded(id=ended.job_id, exit_code=event.metadata.get("exit_code"))


def _attempt_failed(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    ended = unit.attempt(event.entity_id)
    if ended.job_id:
        if ended.error is None:
            raise InvariantBroken(f"attempt {ended.id} failed without an error")
        yield job.AttemptFailed(id=ended.job_id, failure=ended.error, not_before=ended.fence_until, avoid=ended.avoid)


def _attempt_canceled(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    ended = unit.attempt(event.entity_id)
    if ended.job_id:
        yield job.Cancel(id=ended.job_id, reason=ended.cancel_reason)


def _publish_attempt(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    queued = unit.job(event.entity_id)
    spec = queued.spec
    yield NewRecord(
        id=queued.attempt_id,
        record=attempt.Attempt(
            id=queued.attempt_id,
            tenant=queued.tenant,
            run_id=queued.run_id,
            job_id=queued.id,
            index=queued.attempts,
            queue_key=spec.queue_key,
            priority=spec.priority,
            timeout_seconds=spec.timeout_seconds,
            max_lost_leases=spec.max_lost_leases,
            spec=spec.work,
            group=spec.group,
            avoid=queued.avoid,
        ),
    )


def _activate_run(_unit: UnitOfWork, event: Event) -> Iterable[Command]:
    yield run.FirstActive(id=event.run_id, job_id=event.entity_id)


def _validate_job(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    """Fail the job if its runner's validation rules failed; pass it if the job has no other validation.

    Otherwise yield no command: the job stays in VALIDATING until the other validation ends.
    """
    executed = unit.job(event.entity_id)
    verdict = unit.attempt(executed.attempt_id).verdict
    if verdict is not None and not verdict.is_passed:
        yield job.Validate(id=executed.id, is_passed=False, details=verdict.details)
    elif not executed.spec.has_validation:
        yield job.Validate(id=executed.id, is_passed=True)


def _release_dependents(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    """Decrement `unmet` of each job that waits for the ended one, and start the jobs in which it reaches zero.

    If the ended job failed or was cancelled, cancel its dependents as blocked instead; its followers are started.
    """
    ended = unit.job(event.entity_id)
    is_satisfied = job.satisfies(ended)
    blocked_ids, waiting_ids = ((), ended.dependents) if is_satisfied else (ended.dependents, ())
    if ended.followers:
        waiting_ids += ended.followers
    # Load the first attempts too: opening a job creates one, which must not exist yet. A blocked job gets none.
    unit.require((*blocked_ids, *waiting_ids, *(attempt_id(id, 1) for id in waiting_ids)))
    for id in blocked_ids:
        if unit.job(id).state == job.PENDING:
            yield job.Cancel(id=id, reason=job.BLOCKED)
    # A run that ends opens no more jobs: those that wait are cancelled with the rest. The same holds for a family.
    may_open = bool(waiting_ids) and run.may_start_jobs(unit.run(ended.run_id))
    family_ids = {member.id for member in _unfinished_family(unit, ended)} if waiting_ids else ()
    for id in waiting_ids:
        waiting = unit.job(id)
        if waiting.state != job.PENDING or id in family_ids:
            continue
        waiting = msgspec.structs.replace(waiting, unmet=waiting.unmet - 1)
        unit.put(waiting)
        if may_open and not waiting.unmet:
            yield open_job(waiting)


def _unfinished_family(unit: UnitOfWork, ended: job.Job) -> list[job.Job]:
    """Return the jobs to cancel because `ended` failed: the live ones of its fail-fast family, last of the plan first.

    In this order few of them are opened while the others are cancelled. Empty if its failure cancels no family.
    """
    if not job.fails_family(ended):
        return []
    family = [member for member in unit.live_jobs(ended.run_id) if member.spec.family == ended.spec.family]
    return sorted(family, key=lambda member: -member.position)


def _cancel_family(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    family = _unfinished_family(unit, unit.job(event.entity_id))
    unit.require(member.attempt_id for member in family if member.attempt_id)
    for member in family:
        yield CancelLiveJob(id=member.id, reason=job.NOT_NEEDED)


def open_job(ready: job.Job) -> Command:
    """Return the command that queues a job whose dependencies are met, or opens it if it is an approval."""
    return job.OpenApproval(id=ready.id) if ready.spec.kind == job.APPROVAL else job.Schedule(id=ready.id)


def resolve(unit: UnitOfWork, command: CancelLiveJob | StallLiveAttempt) -> Command | None:
    """Return the command that this one stands for in the current state of its record, or None if it has no effect."""
    if isinstance(command, StallLiveAttempt):
        is_active = unit.attempt(command.id).state in attempt.ACTIVE_STATES
        return attempt.Stall(id=command.id, reason=command.reason, request_id=command.request_id) if is_active else None
    live = unit.job(command.id)
    if live.state in job.TERMINAL:
        return None
    return cancel_job(live, command.reason, command.actor, command.request_id)


def cancel_job(live: job.Job, reason: str, actor: str, request_id: str = "") -> Command:
    """Return the command that cancels a job. A queued or running job is cancelled through its attempt."""
    if live.state in (job.QUEUED, job.RUNNING):
        return attempt.Cancel(id=live.attempt_id, reason=reason, actor=actor, request_id=request_id)
    return job.Cancel(id=live.id, reason=reason, actor=actor, request_id=request_id)


def _cancel_open_jobs(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    ending = unit.run(event.run_id)
    if ending.tally.open:
        reason = run.job_cancel_reason(ending)
        live_jobs = unit.live_jobs(ending.id)
        unit.require(live.attempt_id for live in live_jobs if live.attempt_id)
        for live in live_jobs:
            yield CancelLiveJob(id=live.id, reason=reason, actor=event.actor)


def _start_jobs(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    planned = unit.run(event.run_id)
    if planned.cancel_reason:
        yield run.Cancel(id=planned.id, reason=planned.cancel_reason)
        return
    ready_jobs = [live for live in unit.live_jobs(planned.id) if not live.unmet]
    unit.require(attempt_id(ready.id, 1) for ready in ready_jobs)
    for ready in ready_jobs:
        yield open_job(ready)


def _fail_run_without_plan(_unit: UnitOfWork, event: Event) -> Iterable[Command]:
    yield run.Fail(id=event.run_id)


def _pass_run_without_validation(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    if not unit.run(event.run_id).has_validation:
        yield run.Validate(id=event.run_id, is_passed=True)


def _stall_tasks(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    unit.require(event.metadata["attempts"])
    for id in event.metadata["attempts"]:
        # An attempt whose cancel was requested keeps its lease: the deadline or the end of the lease finishes it.
        yield StallLiveAttempt(id=id, reason=attempt.WORKER_LOST)


def _settle_recovered_worker(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    recovered = unit.worker(event.entity_id)
    if recovered is not None and recovered.tasks:
        yield worker.ResumeTasks(id=recovered.id)
    elif recovered is not None and recovered.shutdown_reason:
        yield worker.Shutdown(id=recovered.id, reason=recovered.shutdown_reason)


_LEASE_ENDS: Final = (attempt.STALE, attempt.SUCCEEDED, attempt.FAILED, attempt.TIMED_OUT, attempt.CANCELED)

# fmt: off
CASCADE: Final[tuple[CascadeRule, ...]] = (
    CascadeRule(ATTEMPT, (attempt.LEASED,), _begin_job,
                "the job starts, or continues after a lost lease"),
    CascadeRule(ATTEMPT, (attempt.LEASED,), _assign_worker,
                "the lease takes one of the worker's slots", may_refuse=True),
    CascadeRule(ATTEMPT, _LEASE_ENDS, _release_worker,
                "the ended lease frees the worker's slot"),
    CascadeRule(ATTEMPT, (attempt.STALE,), _requeue_attempt,
                "a lost or handed-back attempt is queued again, or failed after too many lost leases"),
    CascadeRule(ATTEMPT, (attempt.CANCEL_REQUESTED,), _finish_unleased_cancel,
                "without a live lease the cancellation is finished at once"),
    CascadeRule(ATTEMPT, (attempt.SUCCEEDED,), _attempt_succeeded,
                "the job is validated"),
    CascadeRule(ATTEMPT, (attempt.FAILED, attempt.TIMED_OUT), _attempt_failed,
                "the job is retried or fails"),
    CascadeRule(ATTEMPT, (attempt.CANCELED,), _attempt_canceled,
                "the job is cancelled"),
    CascadeRule(JOB, (job.QUEUED,), _publish_attempt,
                "an attempt is created for workers to claim"),
    CascadeRule(JOB, (job.RUNNING,), _activate_run,
                "the first running job starts the run"),
    CascadeRule(JOB, (job.VALIDATING,), _validate_job,
                "a failed validation rule fails the job; without further validation it passes"),
    CascadeRule(JOB, (job.FAILED,), _cancel_family,
                "the rest of a fail-fast family is cancelled"),
    CascadeRule(JOB, (job.SUCCEEDED, job.FAILED, job.CANCELED), _release_dependents,
                "jobs that need it are released or cancelled as blocked; jobs that come after it are released"),
    CascadeRule(RUN, (run.QUEUED,), _start_jobs,
                "a remembered cancel is applied; otherwise jobs without needs start"),
    CascadeRule(RUN, (run.PLAN_FAILED,), _fail_run_without_plan,
                "a run without a plan fails"),
    CascadeRule(RUN, (run.VALIDATING,), _pass_run_without_validation,
                "a run without a final validation passes it"),
    CascadeRule(RUN, (run.CANCEL_REQUESTED, run.FAILED, run.TIMEOUT), _cancel_open_jobs,
                "the remaining jobs are cancelled"),
    CascadeRule(WORKER, (worker.UNRESPONSIVE,), _stall_tasks,
                "an unresponsive worker loses its leases"),
    CascadeRule(WORKER, (worker.IDLE,), _settle_recovered_worker,
                "a recovered worker resumes its tasks, or shuts down if that was requested"),
)
# fmt: on
