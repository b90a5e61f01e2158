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
from deltaci.core.instants import SECOND
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


FollowUp = Callable[[UnitOfWork, Event], Iterable[Command]]


class CascadeRule(msgspec.Struct, frozen=True):
    """When a record of this entity enters one of `states`, apply the commands that `follow_up` returns.

    The same holds for an event with one of `triggers` that leaves the record in its state.
    A refused follow-up command breaks an invariant, unless `may_refuse`: then the whole decision is refused.
    """

    entity: str
    states: tuple[str, ...]
    follow_up: FollowUp
    why: str
    may_refuse: bool = False
    triggers: tuple[str, ...] = ()


def _begin_job(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    claimed_attempt = unit.attempt(event.entity_id)
    if claimed_attempt.job_id and claimed_attempt.lease:
        yield job.Begin(id=claimed_attempt.job_id, worker_id=claimed_attempt.lease.worker_id)


def _assign_worker(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    claimed_attempt = unit.attempt(event.entity_id)
    if claimed_attempt.job_id and claimed_attempt.lease and unit.worker(claimed_attempt.lease.worker_id):
        yield worker.Assign(
            id=claimed_attempt.lease.worker_id, attempt_id=claimed_attempt.id, queue_key=claimed_attempt.queue_key
        )


def _release_worker(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    ended_lease = event.metadata.get("lease")
    leased_worker = unit.worker(ended_lease["worker_id"]) if ended_lease and event.run_id else None
    if leased_worker is not None:
        release_command = worker.Release(
            id=leased_worker.id, attempt_id=event.entity_id, is_infra_failure=_is_infra_failure(event)
        )
        yield release_command
        if worker.should_quarantine(leased_worker, release_command):
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


def _requeue_attempt(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    if _is_requeued_at_once(unit, event):
        yield attempt.Requeue(id=event.entity_id)


def _is_requeued_at_once(unit: UnitOfWork, event: Event) -> bool:
    """Return whether the attempt that became stale is queued, or fails, in the same decision."""
    lost_attempt = unit.attempt(event.entity_id)
    # An attempt that an operator stalled stays stale without a fence, too, so that `stall` returns a stalled job.
    is_unfenced = lost_attempt.fence_until <= event.at and event.metadata["reason"] != attempt.STALLED
    return lost_attempt.is_lost_too_often or is_unfenced


def _finish_unleased_cancel(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    if unit.attempt(event.entity_id).lease is None:
        yield attempt.ForceCancel(id=event.entity_id)


def _attempt_succeeded(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    ended_attempt = unit.attempt(event.entity_id)
    if ended_attempt.job_id:
        yield job.AttemptSucceeded(id=ended_attempt.job_id, exit_code=event.metadata.get("exit_code"))


def _attempt_failed(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    ended_attempt = unit.attempt(event.entity_id)
    if ended_attempt.job_id:
        if ended_attempt.error is None:
            raise InvariantBroken(f"attempt {ended_attempt.id} failed without an error")
        yield job.AttemptFailed(
            id=ended_attempt.job_id,
            failure=ended_attempt.error,
            not_before=ended_attempt.fence_until,
            avoid=ended_attempt.avoid,
        )


def _attempt_canceled(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    ended_attempt = unit.attempt(event.entity_id)
    if ended_attempt.job_id:
        yield job.Cancel(id=ended_attempt.job_id, reason=ended_attempt.cancel_reason)


def _create_attempt(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    """Create the next attempt of a job that was queued."""
    queued_job = unit.job(event.entity_id)
    spec = queued_job.spec
    yield NewRecord(
        id=queued_job.attempt_id,
        record=attempt.Attempt(
            id=queued_job.attempt_id,
            tenant=queued_job.tenant,
            run_id=queued_job.run_id,
            job_id=queued_job.id,
            index=queued_job.attempts,
            queue_key=spec.queue_key,
            priority=spec.priority,
            timeout_seconds=spec.timeout_seconds,
            max_lost_leases=spec.max_lost_leases,
            spec=spec.work,
            group=spec.group,
            avoid=queued_job.avoid,
        ),
    )


def _activate_run(_unit: UnitOfWork, event: Event) -> Iterable[Command]:
    yield run.FirstActive(id=event.run_id, job_id=event.entity_id)


def _validate_job(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    """Fail the job if its runner's validation rules failed; pass it if the job has no other validation.

    Otherwise yield no command: the job stays in VALIDATING until the other validation ends.
    """
    executed_job = unit.job(event.entity_id)
    if not _waits_for_validation(unit, executed_job):
        verdict = unit.attempt(executed_job.attempt_id).verdict
        is_passed = verdict is None or verdict.is_passed
        details = verdict.details if verdict is not None and not is_passed else ""
        yield job.Validate(id=executed_job.id, is_passed=is_passed, details=details)


def _waits_for_validation(unit: UnitOfWork, executed_job: job.Job) -> bool:
    """Return whether the job has another validation than its runner's rules, and none of its runner's rules failed."""
    verdict = unit.attempt(executed_job.attempt_id).verdict
    return executed_job.spec.has_validation and (verdict is None or verdict.is_passed)


def _release_dependents(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    """Decrement `unmet` of each job that waits for the ended one, and start those in which it reaches zero.

    None is started if the run ends. Other jobs of its matrix, if its failure cancels them, are left alone. If the ended
    job does not satisfy its dependents (it was cancelled, or its failure is not allowed), cancel them as blocked
    instead; its followers, which wait only for its end, are decremented in any case.
    """
    ended_job = unit.job(event.entity_id)
    is_satisfied = job.satisfies(ended_job)
    blocked_ids, waiting_ids = ((), ended_job.dependents) if is_satisfied else (ended_job.dependents, ())
    if ended_job.followers:
        waiting_ids += ended_job.followers
    # Load the first attempts too: opening a job creates one, which must not exist yet. A blocked job gets none.
    unit.require((*blocked_ids, *waiting_ids, *(attempt_id(id, 1) for id in waiting_ids)))
    for id in blocked_ids:
        if unit.job(id).state == job.PENDING:
            yield job.Cancel(id=id, reason=job.BLOCKED)
    # A run that ends opens no more jobs: those that wait are cancelled with the rest. The same holds for a family.
    may_open = bool(waiting_ids) and run.may_start_jobs(unit.run(ended_job.run_id))
    family_ids = {member.id for member in _unfinished_family(unit, ended_job)} if waiting_ids else ()
    for id in waiting_ids:
        waiting_job = unit.job(id)
        if waiting_job.state != job.PENDING or id in family_ids:
            continue
        waiting_job = msgspec.structs.replace(waiting_job, unmet=waiting_job.unmet - 1)
        unit.put(waiting_job)
        if may_open and not waiting_job.unmet:
            yield open_job(waiting_job)


def _unfinished_family(unit: UnitOfWork, failed_job: job.Job) -> list[job.Job]:
    """Return the jobs to cancel because `failed_job` failed: the live jobs of its fail-fast family.

    The last of the plan comes first, so that few are opened while others are cancelled. Empty if its failure cancels no
    family.
    """
    if not job.fails_family(failed_job):
        return []
    family = [member for member in unit.live_jobs(failed_job.run_id) if member.spec.family == failed_job.spec.family]
    return sorted(family, key=lambda member: -member.position)


def _cancel_family(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    family = _unfinished_family(unit, unit.job(event.entity_id))
    unit.require(member.attempt_id for member in family if member.attempt_id)
    for member in family:
        yield CancelLiveJob(id=member.id, reason=job.NOT_NEEDED)


def open_job(ready_job: job.Job) -> Command:
    """Return the command that queues a job whose dependencies are met, or opens it if it is an approval."""
    return job.OpenApproval(id=ready_job.id) if ready_job.spec.kind == job.APPROVAL else job.Schedule(id=ready_job.id)


def resolve(unit: UnitOfWork, command: CancelLiveJob) -> Command | None:
    """Return the command to apply instead, by the current state of the job, or None if the job has ended."""
    live_job = unit.job(command.id)
    if live_job.state in job.TERMINAL:
        return None
    return cancel_job(live_job, command.reason, command.actor, command.request_id)


def cancel_job(live_job: job.Job, reason: str, actor: str, request_id: str = "") -> Command:
    """Return the command that cancels a job. A queued or running job is cancelled through its attempt."""
    if live_job.state in (job.QUEUED, job.RUNNING):
        return attempt.Cancel(id=live_job.attempt_id, reason=reason, actor=actor, request_id=request_id)
    return job.Cancel(id=live_job.id, reason=reason, actor=actor, request_id=request_id)


def _cancel_open_jobs(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    ending_run = unit.run(event.run_id)
    if ending_run.tally.open:
        reason = run.job_cancel_reason(ending_run)
        live_jobs = unit.live_jobs(ending_run.id)
        unit.require(live_job.attempt_id for live_job in live_jobs if live_job.attempt_id)
        for live_job in live_jobs:
            yield CancelLiveJob(id=live_job.id, reason=reason, actor=event.actor)


def _begin_wait(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    """Begin the wait for optional jobs anew for a job that begins to wait in a run whose required jobs have ended.

    The event is the job's or its attempt's. An attempt that is requeued in the same decision begins it then.
    """
    if not event.run_id or (event.to == attempt.STALE and _is_requeued_at_once(unit, event)):
        return
    decided_run = unit.run(event.run_id)
    if not decided_run.decided_at or not run.may_start_jobs(decided_run):
        return
    waiting_job = unit.job(unit.attempt(event.entity_id).job_id if event.entity == ATTEMPT else event.entity_id)
    if waiting_job.state == job.VALIDATING and not _waits_for_validation(unit, waiting_job):
        return
    if decided_run.optional_until != event.at + decided_run.optional_wait_seconds * SECOND:
        yield run.BeginOptionalWait(id=decided_run.id, job_id=waiting_job.id)
    yield from _cancel_unserved(unit, decided_run, [waiting_job])


def _begin_wait_of_all(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    if "job_id" not in event.metadata:
        yield from _cancel_unserved(unit, unit.run(event.run_id), _waiting_jobs(unit, event.run_id))


def _cancel_unserved(unit: UnitOfWork, decided_run: run.Run, waiting_jobs: list[job.Job]) -> Iterable[Command]:
    """Cancel the tasks that wait for a worker while no registered worker has their labels."""
    tasks = [task for task in waiting_jobs if task.spec.kind == job.TASK and task.state != job.VALIDATING]
    if not tasks:
        return
    labels = [frozenset(registered.labels) for registered in unit.registered_workers(decided_run.tenant)]
    queue_keys = {task.spec.queue_key for task in tasks}
    unserved_keys = {key for key in queue_keys if not any(worker.required_labels(key) <= having for having in labels)}
    if unserved_keys:
        yield run.EndOptionalWait(id=decided_run.id, queue_keys=tuple(sorted(unserved_keys)))
        for task in tasks:
            if task.spec.queue_key in unserved_keys:
                yield CancelLiveJob(id=task.id, reason=job.NOT_NEEDED)


def _waiting_jobs(unit: UnitOfWork, run_id: str) -> list[job.Job]:
    """Return the open jobs of a run whose required jobs have ended that wait neither for other jobs nor for a runner.

    A runner has a job while its attempt is leased.
    """
    jobs = [live_job for live_job in unit.live_jobs(run_id) if live_job.state != job.PENDING]
    unit.require(live_job.attempt_id for live_job in jobs if live_job.attempt_id)
    return [live_job for live_job in jobs if not live_job.attempt_id or unit.attempt(live_job.attempt_id).lease is None]


def _cancel_waiting(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    if event.metadata["cause"] == run.WAIT_OVER:
        for waiting_job in _waiting_jobs(unit, event.run_id):
            yield CancelLiveJob(id=waiting_job.id, reason=job.NOT_NEEDED)


def _start_jobs(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    planned_run = unit.run(event.run_id)
    if planned_run.cancel_reason:
        yield run.Cancel(id=planned_run.id, reason=planned_run.cancel_reason)
        return
    ready_jobs = [live_job for live_job in unit.live_jobs(planned_run.id) if not live_job.unmet]
    unit.require(attempt_id(ready_job.id, 1) for ready_job in ready_jobs)
    for ready_job in ready_jobs:
        yield open_job(ready_job)


def _fail_run_without_plan(_unit: UnitOfWork, event: Event) -> Iterable[Command]:
    yield run.Fail(id=event.run_id)


def _pass_run_without_validation(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    if not unit.run(event.run_id).has_validation:
        yield run.Validate(id=event.run_id, is_passed=True)


def _mark_tasks(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    unit.require(event.metadata["attempts"])
    for id in event.metadata["attempts"]:
        # An attempt whose cancel was requested goes to no other worker.
        if unit.attempt(id).state in attempt.ACTIVE_STATES:
            yield attempt.MarkForReassignment(id=id)


def _settle_recovered_worker(unit: UnitOfWork, event: Event) -> Iterable[Command]:
    recovered_worker = unit.worker(event.entity_id)
    if recovered_worker is not None and recovered_worker.tasks:
        yield worker.ResumeTasks(id=recovered_worker.id)
    elif recovered_worker is not None and recovered_worker.shutdown_reason:
        yield worker.Shutdown(id=recovered_worker.id, reason=recovered_worker.shutdown_reason)


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
                "an attempt is queued again unless a fence protects it, or failed after too many lost leases"),
    CascadeRule(ATTEMPT, (attempt.CANCEL_REQUESTED,), _finish_unleased_cancel,
                "without a live lease the cancellation is finished at once"),
    CascadeRule(ATTEMPT, (attempt.SUCCEEDED,), _attempt_succeeded,
                "the job is validated"),
    CascadeRule(ATTEMPT, (attempt.FAILED, attempt.TIMED_OUT), _attempt_failed,
                "the job is retried or fails"),
    CascadeRule(ATTEMPT, (attempt.CANCELED,), _attempt_canceled,
                "the job is cancelled"),
    CascadeRule(JOB, (job.QUEUED,), _create_attempt,
                "an attempt is created for workers to claim"),
    CascadeRule(JOB, (job.RUNNING,), _activate_run,
                "the first running job starts the run"),
    CascadeRule(JOB, (job.VALIDATING,), _validate_job,
                "a failed validation rule fails the job; without further validation it passes"),
    CascadeRule(JOB, (job.FAILED,), _cancel_family,
                "the rest of a fail-fast family is cancelled"),
    CascadeRule(JOB, (job.SUCCEEDED, job.FAILED, job.CANCELED), _release_dependents,
                "jobs that need it are released or cancelled as blocked; jobs that come after it are released"),
    CascadeRule(ATTEMPT, (attempt.QUEUED, attempt.STALE), _begin_wait,
                "after the last required job, a job waits for a worker only for a limited time"),
    CascadeRule(JOB, (job.WAITING_APPROVAL, job.RETRYING, job.VALIDATING), _begin_wait,
                "after the last required job, a job waits only for a limited time"),
    CascadeRule(RUN, (), _begin_wait_of_all,
                "jobs that are not required are cancelled at once if no registered worker has their labels",
                triggers=(run.OPTIONAL_WAIT_BEGAN,)),
    CascadeRule(RUN, (), _cancel_waiting,
                "jobs that are not required and not leased are cancelled",
                triggers=(run.OPTIONAL_WAIT_ENDED,)),
    CascadeRule(RUN, (run.QUEUED,), _start_jobs,
                "a remembered cancel is applied; otherwise jobs without needs start"),
    CascadeRule(RUN, (run.PLAN_FAILED,), _fail_run_without_plan,
                "a run without a plan fails"),
    CascadeRule(RUN, (run.VALIDATING,), _pass_run_without_validation,
                "a run without a final validation passes it"),
    CascadeRule(RUN, (run.CANCEL_REQUESTED, run.FAILED, run.TIMEOUT), _cancel_open_jobs,
                "the remaining jobs are cancelled"),
    CascadeRule(WORKER, (worker.UNRESPONSIVE,), _mark_tasks,
                "the attempts of an unresponsive worker are reassigned when their leases end"),
    CascadeRule(WORKER, (worker.IDLE,), _settle_recovered_worker,
                "a recovered worker resumes its tasks, or shuts down if that was requested"),
)
# fmt: on
