"""The decision function: one command in, changed records and events out.

All changes of state are made here. A command about several records is expanded into commands about one each. Each goes
through the machine of its record, its events look up their follow-up commands in the cascade, and the tallies of the
touched runs are updated; this repeats until nothing follows. The function is pure, so that a caller that gets
`NotLoaded` loads the missing records and decides again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from deltaci.core import approvals, attempt, job, lease, plan, resource, run, worker
from deltaci.core.cascade import (
    CASCADE,
    CancelLiveJob,
    CreateRecords,
    FollowUp,
    NewRecord,
    cancel_job,
    resolve,
)
from deltaci.core.errors import InvariantBroken, Refused
from deltaci.core.events import ATTEMPT, JOB, ORCHESTRATOR, RESOURCE, RUN, USER, Event, actor_kind
from deltaci.core.ids import administration_id, attempt_id, job_id
from deltaci.core.job import Job, JobSpec
from deltaci.core.machine import (
    ABSENT,
    Command,
    Machine,
    Record,
    check_actor,
    check_request_id_unused,
    is_repeat,
    remember_request,
)
from deltaci.core.unit_of_work import UnitOfWork

MAX_FOLLOWUPS: Final = 100 * run.MAX_JOBS


class Plan(Command, frozen=True, kw_only=True):
    """Create all jobs of the run and queue it. Refused as a whole if the plan is invalid."""

    jobs: tuple[JobSpec, ...]
    plan_hash: str = ""
    is_fail_fast: bool | None = None  # None keeps the run's setting.
    timeout_seconds: int | None = None
    optional_wait_seconds: int | None = None


class StartRun(Command, frozen=True, kw_only=True):
    """Create a run, create the jobs of its plan and start it, in one decision. `record` is the new run.

    Refused as a whole if the plan is invalid. A repeat with the same `request_id` changes nothing, however late it
    comes. With `has_random_id` the id was just generated at random, so that the store need not be asked whether it
    exists.
    """

    by = frozenset({ORCHESTRATOR, USER})
    is_unordered = True

    record: run.Run
    jobs: tuple[JobSpec, ...]
    plan_hash: str
    has_random_id: bool = msgspec.field(default=False, name="is_drawn")


class CancelJob(Command, frozen=True, kw_only=True):
    """Cancel one job on request, through its attempt if it has a live one."""

    by = frozenset({ORCHESTRATOR, USER})

    reason: str = job.JOB_CANCELED


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The result of `decide`: the addressed record afterwards, all changed records by id, and the events in order.

    For a repeated request, `changed` and `events` are empty.
    """

    record: Record
    changed: dict[str, Record]
    events: list[Event]


class _LaterTime(Exception):
    """Raised if a record of a decision was last written at a later time (`at`) than the decision's."""

    def __init__(self, at: int) -> None:
        self.at = at


MACHINES: Final[dict[type[Record], Machine[Any]]] = {
    run.Run: run.MACHINE,
    job.Job: job.MACHINE,
    attempt.Attempt: attempt.MACHINE,
    worker.Worker: worker.MACHINE,
    resource.Resource: resource.MACHINE,
}
_RECORD_TYPE: Final = {command: kind for kind, machine in MACHINES.items() for command in machine.commands}
_CREATE_COMMANDS: Final[dict[type[Record], type[Command]]] = {
    run.Run: run.Create,
    job.Job: job.Create,
    attempt.Attempt: attempt.Publish,
    worker.Worker: worker.Register,
}
_FOLLOW_UPS: Final[dict[tuple[str, str], list[tuple[FollowUp, bool]]]] = {}
for _rule in CASCADE:
    for _key in (*_rule.states, *_rule.triggers):
        _FOLLOW_UPS.setdefault((_rule.entity, _key), []).append((_rule.follow_up, _rule.may_refuse))


def decide(unit: UnitOfWork, command: Command, at: int) -> Decision:
    """Apply a command and its follow-up commands; return the changed records and the events.

    A refused command raises `Refused` and changes nothing.
    """
    at = unit.latest_at = at if at > unit.latest_at else unit.latest_at
    loaded_record = unit.records.get(command.id)
    if type(loaded_record) is attempt.Attempt and not loaded_record.job_id and type(command) in _STANDALONE_COMMANDS:
        return _decide_standalone_attempt(unit, loaded_record, command, at)
    if (
        loaded_record is None
        and type(command) is NewRecord
        and command.id in unit.records
        and not command.record.run_id
    ):
        return _create_standalone_attempt(unit, command, at)
    return _decide_fully(unit, command, at)


def _decide_fully(unit: UnitOfWork, command: Command, at: int) -> Decision:
    """Decide a command that may change several records: apply it and its follow-up commands, and commit the result."""
    try:
        while True:
            try:
                record = _apply_with_follow_ups(unit, command, at)
            except _LaterTime as later:
                # All events of a decision have one time: start again at the latest `updated_at` of its records.
                unit.roll_back()
                at = later.at
                continue
            changed, events = unit.commit()
            return Decision(record, changed, events)
    finally:
        unit.roll_back()


# On an attempt without a job these commands have no follow-ups, so that the hot path of the queue can skip the loop.
_STANDALONE_COMMANDS: Final = frozenset(
    {
        attempt.Grant,
        attempt.Ack,
        attempt.Start,
        attempt.Extend,
        attempt.Heartbeat,
        attempt.BeginUpload,
        attempt.Finish,
        attempt.Complete,
        attempt.CancelAck,
    }
)


def _decide_standalone_attempt(unit: UnitOfWork, before: attempt.Attempt, command: Command, at: int) -> Decision:
    events: list[Event] = []
    changed = attempt.decide(before, command, at, events)
    if changed is before:
        return Decision(before, {}, events)
    if type(command) is attempt.Grant and command.starts:
        changed = attempt.MACHINE.step(changed, attempt.start_of(command, changed), changed.updated_at, events)
    unit.records[before.id] = changed
    unit.latest_at = changed.updated_at
    return Decision(changed, {before.id: changed}, events)


def _create_standalone_attempt(unit: UnitOfWork, command: NewRecord, at: int) -> Decision:
    """Create an attempt of the plain queue, which has no follow-up commands.

    Pass other records on to `_decide_fully`.
    """
    record = command.record
    if not isinstance(record, attempt.Attempt):
        return _decide_fully(unit, command, at)
    events: list[Event] = []
    publish_command = attempt.Publish(id=record.id, actor=command.actor, request_id=command.request_id)
    created = attempt.MACHINE.step(record, publish_command, at, events)
    if command.request_id:
        created = remember_request(created, command)
    unit.records[created.id] = created
    return Decision(created, {created.id: created}, events)


class _PendingCommand(msgspec.Struct, frozen=True, gc=False):
    command: Command
    is_submitted: bool  # checked for repeats and against `expected_rev`
    may_refuse: bool


def _apply_with_follow_ups(unit: UnitOfWork, command: Command, at: int) -> Record:
    """Apply the submitted command and all commands that follow from it. Return the record of the submitted one."""
    # The submitted command may be refused; a follow-up command may not, unless its cascade rule allows it.
    # The parts of a StartRun are not submitted themselves: the request is remembered once, for the whole.
    is_start = type(command) is StartRun
    pending_commands = deque(
        _PendingCommand(part, is_submitted=not is_start, may_refuse=True) for part in _expand(unit, command)
    )
    touched_run_ids: dict[str, None] = {}
    for _ in range(MAX_FOLLOWUPS):
        while pending_commands:
            pending = pending_commands.popleft()
            part = pending.command
            if command.request_id and not part.request_id:
                part = msgspec.structs.replace(part, request_id=command.request_id)
            if isinstance(part, CancelLiveJob):
                resolved = resolve(unit, part)
                if resolved is None:
                    continue
                part = resolved
            event_count = len(unit.events)
            _apply_one(unit, part, at, is_submitted=pending.is_submitted, may_refuse=pending.may_refuse)
            new_events = unit.events[event_count:]
            for event in new_events:
                if event.entity == ATTEMPT:
                    _note_unconfirmed_stop(unit, event)
                elif event.entity == RESOURCE:
                    _number(unit, event)
                else:
                    _update_tally(unit, event, touched_run_ids)
            if type(part) is attempt.Grant and part.starts and new_events:
                start = attempt.start_of(part, unit.attempt(part.id))
                pending_commands.appendleft(_PendingCommand(start, is_submitted=False, may_refuse=False))
            # Follow-ups go first, so that the next command reads the records that they leave behind.
            pending_commands.extendleft(reversed(_follow_ups(unit, new_events)))
        for id in list(touched_run_ids):
            del touched_run_ids[id]
            next_command = run.next_command(unit.run(id))
            if next_command is not None:
                pending_commands.append(_PendingCommand(next_command, is_submitted=False, may_refuse=False))
        if not pending_commands:
            return _result_record(unit, command)
    raise InvariantBroken(f"{type(command).__name__} on {command.id} never settles")


def _follow_ups(unit: UnitOfWork, events: list[Event]) -> list[_PendingCommand]:
    """Return the follow-up commands of these events. The cascade rule says which of them may be refused."""
    commands: list[_PendingCommand] = []
    for event in events:
        key = event.to if event.from_ != event.to else event.trigger
        for follow_up, may_refuse in _FOLLOW_UPS.get((event.entity, key), ()):
            for command in follow_up(unit, event):
                commands.append(_PendingCommand(command, is_submitted=False, may_refuse=may_refuse))
    return commands


def _apply_one(unit: UnitOfWork, command: Command, at: int, *, is_submitted: bool, may_refuse: bool) -> None:
    """Apply a command about one record. Only a submitted one is checked for repeats and against `expected_rev`."""
    if isinstance(command, NewRecord):
        _create(unit, command, at)
        return
    record_type = _RECORD_TYPE.get(type(command))
    if record_type is None:
        raise InvariantBroken(f"no machine takes {type(command).__name__}")
    record = _find_resource(unit, command) if record_type is resource.Resource else unit.get(command.id, record_type)
    if record.updated_at > at:
        raise _LaterTime(record.updated_at)
    try:
        if not is_submitted:
            changed = MACHINES[record_type].step(record, command, at, unit.events)
        elif isinstance(record, attempt.Attempt):
            changed = attempt.decide(record, command, at, unit.events)
        else:
            changed = MACHINES[record_type].decide(record, command, at, unit.events)
    except Refused as refused:
        if may_refuse:
            raise
        raise InvariantBroken(f"the follow-up {type(command).__name__} was refused: {refused}") from refused
    if changed is not record:
        unit.put(changed)


def _find_resource(unit: UnitOfWork, command: Any) -> resource.Resource:
    """Return the resource of a command. Refuse to delete a resource that was never created."""
    if unit.find(command.id) is not None:
        return unit.get(command.id, resource.Resource)
    if isinstance(command, resource.DeleteResource):
        raise Refused("not_found", f"there is no {command.kind} {command.name!r}; check the name")
    return resource.absent(command)


def _number(unit: UnitOfWork, event: Event) -> None:
    """Give the event of a resource the next number among those of its tenant.

    The record with the latest number is written with the event, so that no two events have the same number.
    """
    id = administration_id(event.tenant)
    is_first = unit.find(id) is None
    administration = resource.Resource(id=id, tenant=event.tenant) if is_first else unit.get(id, resource.Resource)
    number = event.metadata["number"] = administration.number + 1
    unit.put(msgspec.structs.replace(administration, number=number))


def _create(unit: UnitOfWork, command: NewRecord, at: int) -> None:
    record = command.record
    create = _CREATE_COMMANDS[type(record)](id=record.id, actor=command.actor, request_id=command.request_id)
    unit.add(MACHINES[type(record)].step(record, create, at, unit.events))


def _update_tally(unit: UnitOfWork, event: Event, touched_run_ids: dict[str, None]) -> None:
    """Update the run's tally after a transition of one of its jobs.

    Add the run to `touched_run_ids` if its tally or state changed, because its next command may have changed.
    """
    if event.entity == RUN:
        touched_run_ids[event.run_id] = None
    if event.entity != JOB or event.from_ == event.to:
        return
    run_record = unit.run(event.run_id)
    if run.is_over(run_record):
        return
    tally = run.updated_tally(run_record.tally, event.from_ or "", unit.job(event.entity_id))
    unit.put(msgspec.structs.replace(run_record, tally=tally))
    touched_run_ids[event.run_id] = None


def _note_unconfirmed_stop(unit: UnitOfWork, event: Event) -> None:
    """Record in the run until when the process of an attempt that has just ended may run, unless the run is over."""
    if not event.run_id or event.to not in attempt.TERMINAL:
        return
    until = unit.attempt(event.entity_id).stop_unconfirmed_until
    if until and (run_record := unit.run(event.run_id)).stop_unconfirmed_until < until and not run.is_over(run_record):
        unit.put(msgspec.structs.replace(run_record, stop_unconfirmed_until=until))


def _result_record(unit: UnitOfWork, command: Command) -> Record:
    """Return the addressed record after the decision.

    If the command was expanded into others, remember its request id on that record, so that a repeat is recognized.
    """
    record = unit.find(command.id)
    if record is None:
        raise InvariantBroken(f"{command.id} vanished during the decision")
    if command.request_id and type(command) in _EXPANSIONS and unit.events:
        record = remember_request(record, command)
        unit.put(record)
    return record


def _expand(unit: UnitOfWork, command: Command) -> Iterable[Command]:
    """Return the commands to apply for a submitted command, each about one record.

    A repeat of a command that has an expansion returns none. Most other commands are returned unchanged.
    """
    expand = _EXPANSIONS.get(type(command))
    if expand is not None:
        existing = unit.find(command.id) if command.request_id else None
        return () if existing is not None and is_repeat(existing, command) else expand(unit, command)
    if isinstance(command, attempt.LeasedCommand):
        return _expand_message(unit, command)
    return (command,)


def _expand_message(unit: UnitOfWork, command: attempt.LeasedCommand) -> Iterable[Command]:
    """Return the message, after a command that recovers its worker if that is unresponsive.

    The worker is loaded only if it may be unresponsive: when it became so, its leases were marked for reassignment,
    except those of attempts with a requested cancel. A loaded worker is written even if the message does not change it,
    so that the message is decided again if another server finds the worker unresponsive meanwhile.
    """
    existing = unit.find(command.id)
    if not isinstance(existing, attempt.Attempt):
        raise lease.unknown_attempt(command.id)
    live_lease = existing.lease
    if live_lease is None or not (live_lease.reassign_at or existing.state == attempt.CANCEL_REQUESTED):
        return (command,)
    is_late = type(command) is attempt.Heartbeat and attempt.is_late(existing, command)
    if is_late or is_repeat(existing, command):
        return (command,)
    sender = unit.worker(command.actor.partition(":")[2])
    if sender is None:
        return (command,)
    if not worker.is_unresponsive(sender):
        unit.put(sender)
        return (command,)
    return worker.Recover(id=sender.id, actor=command.actor), command


def _expand_new_record(unit: UnitOfWork, command: NewRecord) -> Iterable[Command]:
    existing = unit.find(command.id)
    if existing is not None:
        if command.or_existing:
            return ()
        if command.request_id:
            check_request_id_unused(existing, command)
        raise Refused("bad_request", f"{command.id!r} exists already; choose another id")
    if isinstance(command.record, worker.Worker):
        return command, worker.CompleteRegistration(id=command.id, actor=command.actor)
    return (command,)


def _expand_create_records(unit: UnitOfWork, command: CreateRecords) -> Iterable[Command]:
    """Return the commands that create each record as if it were created on its own; refuse all if one is refused."""
    unit.require(creation.id for creation in command.records)
    commands: list[Command] = []
    created: dict[str, Record] = {}
    for creation in command.records:
        existing = created.get(creation.id) or unit.find(creation.id)
        if existing is not None and is_repeat(existing, creation):
            continue
        if creation.id in created and creation.or_existing:
            continue
        if creation.id in created:
            check_request_id_unused(created[creation.id], creation)
        # Each record remembers the request that created it, not the request of the whole command.
        record = remember_request(creation.record, creation) if creation.request_id else creation.record
        created[creation.id] = record
        commands += _expand_new_record(unit, msgspec.structs.replace(creation, record=record))
    return commands


def _expand_plan(unit: UnitOfWork, command: Plan) -> Iterable[Command]:
    check_actor(command)
    run_record = unit.run(command.id)
    if run.MACHINE.rule(run_record.state, run.PlanReady) is None:
        raise run.MACHINE.refusal(run_record, run.PlanReady)
    job_creations = _job_creations(run_record, command.jobs, command.plan_hash, run_record.started_by)
    unit.require([creation.id for creation in job_creations])
    plan_ready_command = run.PlanReady(
        id=run_record.id,
        jobs=len(job_creations),
        plan_hash=command.plan_hash,
        is_fail_fast=command.is_fail_fast,
        timeout_seconds=command.timeout_seconds,
        optional_wait_seconds=command.optional_wait_seconds,
    )
    return [*job_creations, plan_ready_command]


def _expand_start_run(unit: UnitOfWork, command: StartRun) -> Iterable[Command]:
    check_actor(command)
    existing, record = unit.find(command.id), command.record
    if existing is not None:
        if command.request_id:
            check_request_id_unused(existing, command)
        raise Refused("bad_request", f"{command.id!r} exists already; choose another id")
    if (record.id, record.run_id, record.state) != (command.id, command.id, ABSENT):
        raise Refused(
            "bad_request",
            f"the record of the run to start is {record.id!r} of run {record.run_id!r}, {record.state or 'new'}; "
            f"send a new one with the id {command.id!r}",
        )
    started_by = record.started_by or approvals.person_name(command.actor)
    job_creations = _job_creations(record, command.jobs, command.plan_hash, started_by)
    # The run does not exist, so that no record with an id derived from its id exists either.
    unit.assume_absent(id for creation in job_creations for id in (creation.id, attempt_id(creation.id, 1)))
    return [
        NewRecord(id=command.id, record=record, actor=command.actor),
        run.BeginPlanning(id=command.id),
        *job_creations,
        run.PlanReady(id=command.id, jobs=len(job_creations), plan_hash=command.plan_hash),
    ]


def _job_creations(record: run.Run, specs: tuple[JobSpec, ...], plan_hash: str, started_by: str) -> list[NewRecord]:
    """Return a command for each job of a plan that creates its record; refuse an invalid plan."""
    dependents, followers = plan.dependents(specs), plan.followers(specs)
    commands: list[NewRecord] = []
    for position, spec in enumerate(specs):
        id, is_approval = job_id(record.id, spec.name), spec.kind == job.APPROVAL
        new_job = Job(
            id=id,
            tenant=record.tenant,
            run_id=record.id,
            spec=spec,
            needs=tuple(job_id(record.id, name) for name in spec.needs),
            after=tuple(job_id(record.id, name) for name in spec.after),
            dependents=tuple(job_id(record.id, name) for name in dependents[spec.name]),
            followers=tuple(job_id(record.id, name) for name in followers.get(spec.name, ())),
            unmet=len(plan.prerequisites(spec)),
            plan_hash=plan_hash if is_approval else "",
            started_by=started_by.removeprefix(f"{USER}:") if is_approval else "",
            position=position,
        )
        commands.append(NewRecord(id=id, record=new_job))
    return commands


def _expand_cancel_job(unit: UnitOfWork, command: CancelJob) -> Iterable[Command]:
    reason = command.reason or job.JOB_CANCELED
    if reason in job.ORCHESTRATOR_REASONS and actor_kind(command.actor) == USER:
        reason = f"“{reason}”"  # Quoted, so that it is not taken for a reason that the orchestrator found.
    return (cancel_job(unit.job(command.id), reason, command.actor, command.request_id),)


def _expand_put_resources(_unit: UnitOfWork, command: resource.PutResources) -> Iterable[Command]:
    return command.puts


_EXPANSIONS: Final[dict[type[Command], Callable[[UnitOfWork, Any], Iterable[Command]]]] = {
    NewRecord: _expand_new_record,
    CreateRecords: _expand_create_records,
    Plan: _expand_plan,
    StartRun: _expand_start_run,
    CancelJob: _expand_cancel_job,
    resource.PutResources: _expand_put_resources,
}
