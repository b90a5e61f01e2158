"""What follows from what. One table: when this happens to this kind of record, these commands follow.

The commands of a table row are carried out in the same decision, so that whoever reads the store sees
either none of it or all of it.
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
    """Bring a record into being. With `or_existing`, one that has this id already is just as good.

    An id that was drawn by lot just now is nobody else's: there is no need to look for it first.
    """

    stored_name: ClassVar[str] = "Birth"

    record: Record
    or_existing: bool = False
    has_random_id: bool = msgspec.field(default=False, name="is_drawn")


class CreateRecords(Command, frozen=True, kw_only=True):
    """Bring many records into being: all of them, or none. `id` is the first one's."""

    stored_name: ClassVar[str] = "BearAll"

    records: tuple[NewRecord, ...] = msgspec.field(name="births")


class CancelLiveJob(Command, frozen=True, kw_only=True):
    """Cancel a job as it stands when its turn comes: what was stopped before may have opened it, or ended it."""

    stored_name: ClassVar[str] = "Stop"

    reason: str


FollowUp = Callable[[UnitOfWork, Event], Iterable[Command]]


class CascadeRule(msgspec.Struct, frozen=True):
    """When a record of this kind enters one of these states, this follows."""

    entity: str
    states: tuple[str, ...]
    follow: FollowUp
    why: str
    may_refuse: bool = False


def _begin_job(world: UnitOfWork, event: Event) -> Iterable[Command]:
    claimed = world.attempt(event.entity_id)
    if claimed.job_id and claimed.lease:
        yield job.Begin(id=claimed.job_id, worker_id=claimed.lease.worker_id)


def _assign_worker(world: UnitOfWork, event: Event) -> Iterable[Command]:
    claimed = world.attempt(event.entity_id)
    if claimed.job_id and claimed.lease and world.worker(claimed.lease.worker_id):
        yield worker.Assign(id=claimed.lease.worker_id, attempt_id=claimed.id, queue_key=claimed.queue_key)


def _release_worker(world: UnitOfWork, event: Event) -> Iterable[Command]:
    told = event.metadata.get("lease")
    holder = world.worker(told["worker_id"]) if told and event.run_id else None
    if holder is not None:
        release = worker.Release(id=holder.id, attempt_id=event.entity_id, is_infra_failure=_is_infra_failure(event))
        yield release
        if worker.should_quarantine(holder, release):
            yield worker.Quarantine(id=holder.id, reason=worker.REPEATED_INFRA_FAILURES)


def _is_infra_failure(event: Event) -> bool | None:
    """Whether a lease ended by its worker's infrastructure; None: nobody can tell, or it was asked to stop."""
    if event.to == attempt.STALE:
        return True if event.metadata["reason"] in attempt.DETECTED_LOST else None
    if event.to == attempt.SUCCEEDED:
        return False
    if event.to == attempt.FAILED:
        return failures.is_worker_fault(event.metadata["error"]["failure_class"], event.metadata["error"]["code"])
    return None


def _requeue_attempt(_world: UnitOfWork, event: Event) -> Iterable[Command]:
    if event.metadata["reason"] in attempt.REQUEUED_IMMEDIATELY:
        yield attempt.Requeue(id=event.entity_id)


def _finish_unleased_cancel(world: UnitOfWork, event: Event) -> Iterable[Command]:
    if world.attempt(event.entity_id).lease is None:
        yield attempt.ForceCancel(id=event.entity_id)


def _attempt_succeeded(world: UnitOfWork, event: Event) -> Iterable[Command]:
    ended = world.attempt(event.entity_id)
    if ended.job_id:
        yield job.AttemptSucceeded(id=ended.job_id, exit_code=event.metadata.get("exit_code"))


def _attempt_failed(world: UnitOfWork, event: Event) -> Iterable[Command]:
    ended = world.attempt(event.entity_id)
    if ended.job_id:
        if ended.error is None:
            raise InvariantBroken(f"attempt {ended.id} failed without an error")
        yield job.AttemptFailed(id=ended.job_id, failure=ended.error, not_before=ended.fence_until, avoid=ended.avoid)


def _attempt_canceled(world: UnitOfWork, event: Event) -> Iterable[Command]:
    ended = world.attempt(event.entity_id)
    if ended.job_id:
        yield job.Cancel(id=ended.job_id, reason=ended.cancel_reason)


def _publish_attempt(world: UnitOfWork, event: Event) -> Iterable[Command]:
    queued = world.job(event.entity_id)
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


def _activate_run(_world: UnitOfWork, event: Event) -> Iterable[Command]:
    yield run.FirstActive(id=event.run_id, job_id=event.entity_id)


def _validate_job(world: UnitOfWork, event: Event) -> Iterable[Command]:
    """What its runner found is enough to fail it, never to pass what somebody else looks at too."""
    executed = world.job(event.entity_id)
    verdict = world.attempt(executed.attempt_id).verdict
    if verdict is not None and not verdict.is_passed:
        yield job.Validate(id=executed.id, is_passed=False, details=verdict.details)
    elif not executed.spec.has_validation:
        yield job.Validate(id=executed.id, is_passed=True)


def _release_dependents(world: UnitOfWork, event: Event) -> Iterable[Command]:
    """Count down for everyone who waits for this job, or tell them that it will never be met."""
    ended = world.job(event.entity_id)
    is_met = job.satisfies(ended)
    blocked, waiting = ((), ended.dependents) if is_met else (ended.dependents, ())
    if ended.followers:
        waiting += ended.followers
    # Who will be opened gets an attempt, which must not exist yet; who is blocked gets none.
    world.require((*blocked, *waiting, *(attempt_id(id, 1) for id in waiting)))
    for id in blocked:
        if world.job(id).state == job.PENDING:
            yield job.Cancel(id=id, reason=job.BLOCKED)
    # A run that ends begins nothing more: whoever waits is cancelled with the rest, and so is the rest of a family.
    opens = bool(waiting) and run.may_start_jobs(world.run(ended.run_id))
    stopped = {each.id for each in _unfinished_family(world, ended)} if waiting else ()
    for id in waiting:
        each = world.job(id)
        if each.state != job.PENDING or id in stopped:
            continue
        each = msgspec.structs.replace(each, unmet=each.unmet - 1)
        world.put(each)
        if opens and not each.unmet:
            yield open_job(each)


def _unfinished_family(world: UnitOfWork, ended: job.Job) -> list[job.Job]:
    """Whoever is cancelled because this job failed, the last of the plan first: so hardly one is opened on the way."""
    if not job.fails_family(ended):
        return []
    rest = [each for each in world.live_jobs(ended.run_id) if each.spec.family == ended.spec.family]
    return sorted(rest, key=lambda each: -each.position)


def _cancel_family(world: UnitOfWork, event: Event) -> Iterable[Command]:
    rest = _unfinished_family(world, world.job(event.entity_id))
    world.require(each.attempt_id for each in rest if each.attempt_id)
    for each in rest:
        yield CancelLiveJob(id=each.id, reason=job.NOT_NEEDED)


def open_job(ready: job.Job) -> Command:
    """The command that sets a job going whose dependencies are met."""
    return job.OpenApproval(id=ready.id) if ready.spec.kind == job.APPROVAL else job.Schedule(id=ready.id)


def cancel_job(live: job.Job, reason: str, actor: str, request_id: str = "") -> Command:
    """The command that cancels a job: through its attempt while that is alive, at once otherwise."""
    if live.state in (job.QUEUED, job.RUNNING):
        return attempt.Cancel(id=live.attempt_id, reason=reason, actor=actor, request_id=request_id)
    return job.Cancel(id=live.id, reason=reason, actor=actor, request_id=request_id)


def _cancel_open_jobs(world: UnitOfWork, event: Event) -> Iterable[Command]:
    ending = world.run(event.run_id)
    if ending.tally.open:
        reason = run.job_cancel_reason(ending)
        live = world.live_jobs(ending.id)
        world.require(each.attempt_id for each in live if each.attempt_id)
        for each in live:
            yield CancelLiveJob(id=each.id, reason=reason, actor=event.actor)


def _start_jobs(world: UnitOfWork, event: Event) -> Iterable[Command]:
    planned = world.run(event.run_id)
    if planned.cancel_reason:
        yield run.Cancel(id=planned.id, reason=planned.cancel_reason)
        return
    ready = [each for each in world.live_jobs(planned.id) if not each.unmet]
    world.require(attempt_id(each.id, 1) for each in ready)
    for each in ready:
        yield open_job(each)


def _fail_run_without_plan(_world: UnitOfWork, event: Event) -> Iterable[Command]:
    yield run.Fail(id=event.run_id)


def _pass_run_without_validation(world: UnitOfWork, event: Event) -> Iterable[Command]:
    if not world.run(event.run_id).has_validation:
        yield run.Validate(id=event.run_id, is_passed=True)


def _stall_tasks(world: UnitOfWork, event: Event) -> Iterable[Command]:
    world.require(event.metadata["attempts"])
    for id in event.metadata["attempts"]:
        # An attempt that was asked to stop keeps its lease: its deadline, or its end, finishes it.
        if world.attempt(id).state in attempt.ACTIVE_STATES:
            yield attempt.Stall(id=id, reason=attempt.WORKER_LOST)


def _settle_recovered_worker(world: UnitOfWork, event: Event) -> Iterable[Command]:
    back = world.worker(event.entity_id)
    if back is not None and back.tasks:
        yield worker.ResumeTasks(id=back.id)
    elif back is not None and back.shutdown_reason:
        yield worker.Shutdown(id=back.id, reason=back.shutdown_reason)


_LEASE_ENDS: Final = (attempt.STALE, attempt.SUCCEEDED, attempt.FAILED, attempt.TIMED_OUT, attempt.CANCELED)

CASCADE: Final[tuple[CascadeRule, ...]] = (
    CascadeRule(ATTEMPT, (attempt.LEASED,), _begin_job, "the claim of its attempt starts the job, or goes on with it"),
    CascadeRule(
        ATTEMPT, (attempt.LEASED,), _assign_worker, "a granted lease takes one of the worker's places", may_refuse=True
    ),
    CascadeRule(ATTEMPT, _LEASE_ENDS, _release_worker, "an ended lease frees the worker's place"),
    CascadeRule(
        ATTEMPT, (attempt.STALE,), _requeue_attempt, "what is found lost or handed back is queued again, or given up"
    ),
    CascadeRule(
        ATTEMPT,
        (attempt.CANCEL_REQUESTED,),
        _finish_unleased_cancel,
        "nobody has it: the cancellation is finished at once",
    ),
    CascadeRule(ATTEMPT, (attempt.SUCCEEDED,), _attempt_succeeded, "the job is validated"),
    CascadeRule(ATTEMPT, (attempt.FAILED, attempt.TIMED_OUT), _attempt_failed, "the job is retried or fails"),
    CascadeRule(ATTEMPT, (attempt.CANCELED,), _attempt_canceled, "the job is cancelled"),
    CascadeRule(JOB, (job.QUEUED,), _publish_attempt, "a queued job has an attempt to claim"),
    CascadeRule(JOB, (job.RUNNING,), _activate_run, "the first job under way starts the run"),
    CascadeRule(
        JOB, (job.VALIDATING,), _validate_job, "a failed rule fails it; one that nobody else looks at is valid"
    ),
    CascadeRule(JOB, (job.FAILED,), _cancel_family, "the rest of a family that fails fast is cancelled"),
    CascadeRule(
        JOB,
        (job.SUCCEEDED, job.FAILED, job.CANCELED),
        _release_dependents,
        "who needs it is unblocked, or blocked for good; who only comes after it goes on",
    ),
    CascadeRule(RUN, (run.QUEUED,), _start_jobs, "a remembered cancel is applied; otherwise jobs without needs start"),
    CascadeRule(RUN, (run.PLAN_FAILED,), _fail_run_without_plan, "a run without a plan fails"),
    CascadeRule(RUN, (run.VALIDATING,), _pass_run_without_validation, "a run without a final validation is valid"),
    CascadeRule(
        RUN, (run.CANCEL_REQUESTED, run.FAILED, run.TIMEOUT), _cancel_open_jobs, "the rest of the jobs is cancelled"
    ),
    CascadeRule(WORKER, (worker.UNRESPONSIVE,), _stall_tasks, "a lost worker loses its leases"),
    CascadeRule(
        WORKER,
        (worker.IDLE,),
        _settle_recovered_worker,
        "a worker that comes back goes on stopping, or goes as it was asked to",
    ),
)
