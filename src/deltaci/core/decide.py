"""One command in; the records that change and the events that say so out. The whole system's only logic of state.

Pure, so it may be repeated: a caller that gets `NotLoaded` loads what is missing and decides again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from deltaci.core import approvals, attempt, job, lease, plan, run, worker
from deltaci.core.cascade import CASCADE, CancelLiveJob, CreateRecords, FollowUp, NewRecord, cancel_job
from deltaci.core.errors import InvariantBroken, Refused
from deltaci.core.events import JOB, ORCHESTRATOR, RUN, USER, Event, actor_kind
from deltaci.core.ids import attempt_id
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
    """The planner's answer: every job of the run. Refused as a whole when the dependencies make no sense."""

    jobs: tuple[JobSpec, ...]
    plan_hash: str = ""
    is_fail_fast: bool | None = None  # None: as the run was born
    timeout_seconds: int | None = None


class StartRun(Command, frozen=True, kw_only=True):
    """A run with its plan: born, planned and set going in one decision. `record` is the run as it is to be born.

    Refused as a whole when the plan makes no sense. With a request_id it may be repeated for ever. An id that was drawn
    by lot just now is nobody else's: there is no need to look for it first.
    """

    by = frozenset({ORCHESTRATOR, USER})
    is_unordered = True

    record: run.Run
    jobs: tuple[JobSpec, ...]
    plan_hash: str
    has_random_id: bool = msgspec.field(default=False, name="is_drawn")


class CancelJob(Command, frozen=True, kw_only=True):
    """A person cancels one job."""

    by = frozenset({ORCHESTRATOR, USER})

    reason: str = job.JOB_CANCELED


class Decision(msgspec.Struct, frozen=True):
    """`record` is the one addressed, as it is now; `changed` and `events` are empty for a repeat."""

    record: Record
    changed: dict[str, Record]
    events: list[Event]


class _LaterTime(Exception):
    """A record was already written at a later time than this decision assumed."""

    def __init__(self, at: int) -> None:
        self.at = at


MACHINES: Final[dict[type[Record], Machine[Any]]] = {
    run.Run: run.MACHINE,
    job.Job: job.MACHINE,
    attempt.Attempt: attempt.MACHINE,
    worker.Worker: worker.MACHINE,
}
_RECORD_TYPE: Final = {command: kind for kind, machine in MACHINES.items() for command in machine.commands}
_CREATE_COMMANDS: Final[dict[type[Record], type[Command]]] = {
    run.Run: run.Create,
    job.Job: job.Create,
    attempt.Attempt: attempt.Publish,
    worker.Worker: worker.Register,
}
_FOLLOW_UPS: Final[dict[tuple[str, str], list[tuple[FollowUp, bool]]]] = {}
for _row in CASCADE:
    for _state in _row.states:
        _FOLLOW_UPS.setdefault((_row.entity, _state), []).append((_row.follow, _row.may_refuse))


def decide(world: UnitOfWork, command: Command, at: int) -> Decision:
    """Apply a command and all that follows from it, or refuse it and change nothing."""
    at = world.latest_at = at if at > world.latest_at else world.latest_at
    known = world.records.get(command.id)
    if type(known) is attempt.Attempt and not known.job_id and type(command) in _STANDALONE_COMMANDS:
        return _decide_standalone_attempt(world, known, command, at)
    if known is None and type(command) is NewRecord and command.id in world.records and not command.record.run_id:
        return _create_standalone_attempt(world, command, at)
    return _decide_fully(world, command, at)


def _decide_fully(world: UnitOfWork, command: Command, at: int) -> Decision:
    """The command and all that follows from it, over as many records as it takes."""
    try:
        while True:
            try:
                record = _apply(world, command, at)
            except _LaterTime as later:
                # One decision, one time: start again at the latest time that any of its records has seen.
                world.roll_back()
                at = later.at
                continue
            changed, events = world.commit()
            return Decision(record, changed, events)
    finally:
        world.roll_back()


# Nothing follows from these on an attempt that belongs to no job: the queue's hot path takes the short way.
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


def _decide_standalone_attempt(world: UnitOfWork, known: attempt.Attempt, command: Command, at: int) -> Decision:
    events: list[Event] = []
    changed = attempt.decide(known, command, at if at > known.updated_at else known.updated_at, events)
    if changed is known:
        return Decision(known, {}, events)
    world.records[known.id] = changed
    world.latest_at = changed.updated_at
    return Decision(changed, {known.id: changed}, events)


def _create_standalone_attempt(world: UnitOfWork, birth: NewRecord, at: int) -> Decision:
    """Nothing follows from the birth of an attempt without a run; other records take the long way."""
    record = birth.record
    if not isinstance(record, attempt.Attempt):
        return _decide_fully(world, birth, at)
    events: list[Event] = []
    first = attempt.Publish(id=record.id, actor=birth.actor, request_id=birth.request_id)
    born = attempt.MACHINE.step(record, first, at, events)
    if birth.request_id:
        born = remember_request(born, birth)
    world.records[born.id] = born
    return Decision(born, {born.id: born}, events)


def _apply(world: UnitOfWork, command: Command, at: int) -> Record:
    # An order that was asked for may be refused; one that follows may not, unless its reaction says so.
    # What a start is made of is not asked for one by one: the request is the whole, and is remembered once.
    is_whole = type(command) is StartRun
    orders: deque[tuple[Command, bool, bool]] = deque((each, not is_whole, True) for each in _expand(world, command))
    touched: dict[str, None] = {}
    for _ in range(MAX_FOLLOWUPS):
        while orders:
            order, is_asked, may_refuse = orders.popleft()
            if command.request_id and not order.request_id:
                order = msgspec.structs.replace(order, request_id=command.request_id)
            if type(order) is CancelLiveJob:
                live = world.job(order.id)
                if live.state in job.TERMINAL:
                    continue
                order = cancel_job(live, order.reason, order.actor, order.request_id)
            seen = len(world.events)
            _apply_one(world, order, at, is_asked=is_asked, may_refuse=may_refuse)
            for event in world.events[seen:]:
                _update_tally(world, event, touched)
            # What follows comes first: a later order finds the world as this one leaves it.
            orders.extendleft(reversed(_follow_ups(world, world.events[seen:])))
        for id in list(touched):
            del touched[id]
            following = run.next_command(world.run(id))
            if following is not None:
                orders.append((following, False, False))
        if not orders:
            return _result_record(world, command)
    raise InvariantBroken(f"{type(command).__name__} on {command.id} never settles")


def _follow_ups(world: UnitOfWork, events: list[Event]) -> list[tuple[Command, bool, bool]]:
    found: list[tuple[Command, bool, bool]] = []
    for event in events:
        if event.from_ != event.to:
            for follow, may_refuse in _FOLLOW_UPS.get((event.entity, event.to), ()):
                found += [(each, False, may_refuse) for each in follow(world, event)]
    return found


def _apply_one(world: UnitOfWork, order: Command, at: int, *, is_asked: bool, may_refuse: bool) -> None:
    if isinstance(order, NewRecord):
        _create(world, order, at)
        return
    kind = _RECORD_TYPE.get(type(order))
    if kind is None:
        raise InvariantBroken(f"no machine takes {type(order).__name__}")
    record = world.get(order.id, kind)
    if record.updated_at > at:
        raise _LaterTime(record.updated_at)
    try:
        if not is_asked:
            changed = MACHINES[kind].step(record, order, at, world.events)
        elif isinstance(record, attempt.Attempt):
            changed = attempt.decide(record, order, at, world.events)
        else:
            changed = MACHINES[kind].decide(record, order, at, world.events)
    except Refused as refused:
        if may_refuse:
            raise
        raise InvariantBroken(f"{type(order).__name__} must follow, but: {refused}") from refused
    if changed is not record:
        world.put(changed)


def _create(world: UnitOfWork, birth: NewRecord, at: int) -> None:
    record = birth.record
    first = _CREATE_COMMANDS[type(record)](id=record.id, actor=birth.actor, request_id=birth.request_id)
    born = MACHINES[type(record)].step(record, first, at, world.events)
    world.add(born)


def _update_tally(world: UnitOfWork, event: Event, touched: dict[str, None]) -> None:
    """Keep the run's tally when one of its jobs moved, and remember to look at the run."""
    if event.entity == RUN:
        touched[event.run_id] = None
    if event.entity != JOB or event.from_ == event.to:
        return
    owner = world.run(event.run_id)
    if run.is_over(owner):
        return
    world.put(
        msgspec.structs.replace(
            owner, tally=run.updated_tally(owner.tally, event.from_ or "", world.job(event.entity_id))
        )
    )
    touched[event.run_id] = None


def _result_record(world: UnitOfWork, command: Command) -> Record:
    record = world.find(command.id)
    if record is None:
        raise InvariantBroken(f"{command.id} vanished while it was decided")
    if command.request_id and type(command) in _EXPANSIONS and world.events:
        record = remember_request(record, command)
        world.put(record)
    return record


def _expand(world: UnitOfWork, command: Command) -> Iterable[Command]:
    """An order about many records, as orders about one each."""
    expand = _EXPANSIONS.get(type(command))
    if expand is not None:
        known = world.find(command.id) if command.request_id else None
        return () if known is not None and is_repeat(known, command) else expand(world, command)
    if isinstance(command, attempt.LeasedCommand):
        return _expand_message(world, command)
    return (command,)


def _expand_message(world: UnitOfWork, command: attempt.LeasedCommand) -> Iterable[Command]:
    """A runner that was given up for silent and still has to stop an attempt has, by speaking, recovered."""
    known = world.find(command.id)
    if not isinstance(known, attempt.Attempt):
        raise lease.unknown_attempt(command.id)
    if known.state == attempt.CANCEL_REQUESTED and not is_repeat(known, command):
        sender = world.worker(command.actor.partition(":")[2])
        if sender is not None and worker.MACHINE.rule(sender.state, worker.Recover):
            return worker.Recover(id=sender.id), command
    return (command,)


def _expand_new_record(world: UnitOfWork, birth: NewRecord) -> Iterable[Command]:
    known = world.find(birth.id)
    if known is not None:
        if birth.or_existing:
            return ()
        if birth.request_id:
            check_request_id_unused(known, birth)
        raise Refused("bad_request", f"{birth.id!r} exists already; choose another id")
    if isinstance(birth.record, worker.Worker):
        return birth, worker.CompleteRegistration(id=birth.id, actor=birth.actor)
    return (birth,)


def _expand_create_records(world: UnitOfWork, command: CreateRecords) -> Iterable[Command]:
    """Each as it would be on its own; one that is refused keeps out all."""
    world.require(birth.id for birth in command.records)
    found: list[Command] = []
    born: dict[str, Record] = {}
    for birth in command.records:
        known = born.get(birth.id) or world.find(birth.id)
        if known is not None and is_repeat(known, birth):
            continue
        if birth.id in born and birth.or_existing:
            continue
        if birth.id in born:
            check_request_id_unused(born[birth.id], birth)
        # Each record remembers the request that it was made by, not the one for all of them.
        record = remember_request(birth.record, birth) if birth.request_id else birth.record
        born[birth.id] = record
        found += _expand_new_record(world, msgspec.structs.replace(birth, record=record))
    return found


def _expand_plan(world: UnitOfWork, planned: Plan) -> Iterable[Command]:
    check_actor(planned)
    of = world.run(planned.id)
    if run.MACHINE.rule(of.state, run.PlanReady) is None:
        raise run.MACHINE.refusal(of, run.PlanReady)
    births = _new_jobs(of, planned.jobs, planned.plan_hash, of.started_by)
    world.require([birth.id for birth in births])
    ready = run.PlanReady(
        id=of.id,
        jobs=len(births),
        plan_hash=planned.plan_hash,
        is_fail_fast=planned.is_fail_fast,
        timeout_seconds=planned.timeout_seconds,
    )
    return [*births, ready]


def _expand_start(world: UnitOfWork, start: StartRun) -> Iterable[Command]:
    check_actor(start)
    known, record = world.find(start.id), start.record
    if known is not None:
        if start.request_id:
            check_request_id_unused(known, start)
        raise Refused("bad_request", f"{start.id!r} exists already; choose another id")
    if (record.id, record.run_id, record.state) != (start.id, start.id, ABSENT):
        raise Refused(
            "bad_request",
            f"the record of the run to start is {record.id!r} of run {record.run_id!r}, {record.state or 'new'}; "
            f"send a new one with the id {start.id!r}",
        )
    births = _new_jobs(record, start.jobs, start.plan_hash, record.started_by or approvals.person_name(start.actor))
    # Whatever is named after a run that is not there is not there either.
    world.assume_absent(id for birth in births for id in (birth.id, attempt_id(birth.id, 1)))
    return [
        NewRecord(id=start.id, record=record, actor=start.actor),
        run.BeginPlanning(id=start.id),
        *births,
        run.PlanReady(id=start.id, jobs=len(births), plan_hash=start.plan_hash),
    ]


def _new_jobs(of: run.Run, specs: tuple[JobSpec, ...], plan_hash: str, started_by: str) -> list[NewRecord]:
    """The jobs of a plan that makes sense."""
    dependents, followers = plan.dependents(specs), plan.followers(specs)
    found: list[NewRecord] = []
    for position, spec in enumerate(specs):
        id, is_gate = job_id(of.id, spec.name), spec.kind == job.APPROVAL
        record = Job(
            id=id,
            tenant=of.tenant,
            run_id=of.id,
            spec=spec,
            needs=tuple(job_id(of.id, name) for name in spec.needs),
            after=tuple(job_id(of.id, name) for name in spec.after),
            dependents=tuple(job_id(of.id, name) for name in dependents[spec.name]),
            followers=tuple(job_id(of.id, name) for name in followers.get(spec.name, ())),
            unmet=len(plan.prerequisites(spec)),
            plan_hash=plan_hash if is_gate else "",
            started_by=started_by.removeprefix(f"{USER}:") if is_gate else "",
            position=position,
        )
        found.append(NewRecord(id=id, record=record))
    return found


def _expand_cancel_job(world: UnitOfWork, command: CancelJob) -> Iterable[Command]:
    reason = command.reason or job.JOB_CANCELED
    if reason in job.ORCHESTRATOR_REASONS and actor_kind(command.actor) == USER:
        reason = f"“{reason}”"  # A person's words: what they name was not found.
    return (cancel_job(world.job(command.id), reason, command.actor, command.request_id),)


def job_id(run_id: str, name: str) -> str:
    """A job's id says which run it belongs to and what the plan calls it."""
    return f"{run_id}/{name}"


_EXPANSIONS: Final[dict[type[Command], Callable[[UnitOfWork, Any], Iterable[Command]]]] = {
    NewRecord: _expand_new_record,
    CreateRecords: _expand_create_records,
    Plan: _expand_plan,
    StartRun: _expand_start,
    CancelJob: _expand_cancel_job,
}
