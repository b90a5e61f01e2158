"""One command in; the records that change and the events that say so out. The whole system's only logic of state.

Pure, so it may be repeated: a caller that gets `NotLoaded` loads what is missing and decides again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from deltaci.core import approvals, attempt, job, lease, plan, run, worker
from deltaci.core.cascade import REACTIONS, BearAll, Birth, Follow, Stop, cancel_job
from deltaci.core.errors import InvariantBroken, Refused
from deltaci.core.events import JOB, ORCHESTRATOR, RUN, USER, Event, actor_kind
from deltaci.core.ids import attempt_id
from deltaci.core.job import Job, JobSpec
from deltaci.core.machine import BIRTH, Command, Machine, Record, check_actor, check_unused, is_repeat, remembering
from deltaci.core.unit_of_work import World

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
    is_drawn: bool = False


class CancelJob(Command, frozen=True, kw_only=True):
    """A person cancels one job."""

    by = frozenset({ORCHESTRATOR, USER})

    reason: str = job.JOB_CANCELED


class Decision(msgspec.Struct, frozen=True):
    """`record` is the one addressed, as it is now; `changed` and `events` are empty for a repeat."""

    record: Record
    changed: dict[str, Record]
    events: list[Event]


class _Later(Exception):
    """A record was already written at a later time than this decision assumed."""

    def __init__(self, at: int) -> None:
        self.at = at


MACHINES: Final[dict[type[Record], Machine[Any]]] = {
    run.Run: run.MACHINE,
    job.Job: job.MACHINE,
    attempt.Attempt: attempt.MACHINE,
    worker.Worker: worker.MACHINE,
}
_KIND: Final = {command: kind for kind, machine in MACHINES.items() for command in machine.commands}
_FIRST: Final[dict[type[Record], type[Command]]] = {
    run.Run: run.Create,
    job.Job: job.Create,
    attempt.Attempt: attempt.Publish,
    worker.Worker: worker.Register,
}
_FOLLOWS: Final[dict[tuple[str, str], list[tuple[Follow, bool]]]] = {}
for _row in REACTIONS:
    for _state in _row.states:
        _FOLLOWS.setdefault((_row.entity, _state), []).append((_row.follow, _row.may_refuse))


def decide(world: World, command: Command, at: int) -> Decision:
    """Apply a command and all that follows from it, or refuse it and change nothing."""
    at = world.latest = at if at > world.latest else world.latest
    known = world.records.get(command.id)
    if type(known) is attempt.Attempt and not known.job_id and type(command) in _ALONE:
        return _decide_alone(world, known, command, at)
    if known is None and type(command) is Birth and command.id in world.records and not command.record.run_id:
        return _bear_alone(world, command, at)
    return _decide_fully(world, command, at)


def _decide_fully(world: World, command: Command, at: int) -> Decision:
    """The command and all that follows from it, over as many records as it takes."""
    try:
        while True:
            try:
                record = _carry_out(world, command, at)
            except _Later as later:
                # One decision, one time: start again at the latest time that any of its records has seen.
                world.drop()
                at = later.at
                continue
            changed, events = world.keep()
            return Decision(record, changed, events)
    finally:
        world.drop()


# Nothing follows from these on an attempt that belongs to no job: the queue's hot path takes the short way.
_ALONE: Final = frozenset(
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


def _decide_alone(world: World, known: attempt.Attempt, command: Command, at: int) -> Decision:
    events: list[Event] = []
    changed = attempt.decide(known, command, at if at > known.updated_at else known.updated_at, events)
    if changed is known:
        return Decision(known, {}, events)
    world.records[known.id] = changed
    world.latest = changed.updated_at
    return Decision(changed, {known.id: changed}, events)


def _bear_alone(world: World, birth: Birth, at: int) -> Decision:
    """Nothing follows from the birth of an attempt without a run; other records take the long way."""
    record = birth.record
    if not isinstance(record, attempt.Attempt):
        return _decide_fully(world, birth, at)
    events: list[Event] = []
    first = attempt.Publish(id=record.id, actor=birth.actor, request_id=birth.request_id)
    born = attempt.MACHINE.step(record, first, at, events)
    if birth.request_id:
        born = remembering(born, birth)
    world.records[born.id] = born
    return Decision(born, {born.id: born}, events)


def _carry_out(world: World, command: Command, at: int) -> Record:
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
            if type(order) is Stop:
                live = world.job(order.id)
                if live.state in job.TERMINAL:
                    continue
                order = cancel_job(live, order.reason, order.actor, order.request_id)
            seen = len(world.events)
            _one(world, order, at, is_asked=is_asked, may_refuse=may_refuse)
            for event in world.events[seen:]:
                _count(world, event, touched)
            # What follows comes first: a later order finds the world as this one leaves it.
            orders.extendleft(reversed(_following(world, world.events[seen:])))
        for id in list(touched):
            del touched[id]
            following = run.next_command(world.run(id))
            if following is not None:
                orders.append((following, False, False))
        if not orders:
            return _addressed(world, command)
    raise InvariantBroken(f"{type(command).__name__} on {command.id} never settles")


def _following(world: World, events: list[Event]) -> list[tuple[Command, bool, bool]]:
    found: list[tuple[Command, bool, bool]] = []
    for event in events:
        if event.from_ != event.to:
            for follow, may_refuse in _FOLLOWS.get((event.entity, event.to), ()):
                found += [(each, False, may_refuse) for each in follow(world, event)]
    return found


def _one(world: World, order: Command, at: int, *, is_asked: bool, may_refuse: bool) -> None:
    if isinstance(order, Birth):
        _bear(world, order, at)
        return
    kind = _KIND.get(type(order))
    if kind is None:
        raise InvariantBroken(f"no machine takes {type(order).__name__}")
    record = world.get(order.id, kind)
    if record.updated_at > at:
        raise _Later(record.updated_at)
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


def _bear(world: World, birth: Birth, at: int) -> None:
    record = birth.record
    first = _FIRST[type(record)](id=record.id, actor=birth.actor, request_id=birth.request_id)
    born = MACHINES[type(record)].step(record, first, at, world.events)
    world.bear(born)


def _count(world: World, event: Event, touched: dict[str, None]) -> None:
    """Keep the run's tally when one of its jobs moved, and remember to look at the run."""
    if event.entity == RUN:
        touched[event.run_id] = None
    if event.entity != JOB or event.from_ == event.to:
        return
    owner = world.run(event.run_id)
    if run.is_over(owner):
        return
    world.put(
        msgspec.structs.replace(owner, tally=run.counted(owner.tally, event.from_ or "", world.job(event.entity_id)))
    )
    touched[event.run_id] = None


def _addressed(world: World, command: Command) -> Record:
    record = world.find(command.id)
    if record is None:
        raise InvariantBroken(f"{command.id} vanished while it was decided")
    if command.request_id and type(command) in _ORDERS and world.events:
        record = remembering(record, command)
        world.put(record)
    return record


def _expand(world: World, command: Command) -> Iterable[Command]:
    """An order about many records, as orders about one each."""
    expand = _ORDERS.get(type(command))
    if expand is not None:
        known = world.find(command.id) if command.request_id else None
        return () if known is not None and is_repeat(known, command) else expand(world, command)
    if isinstance(command, attempt.Leased):
        return _expand_message(world, command)
    return (command,)


def _expand_message(world: World, command: attempt.Leased) -> Iterable[Command]:
    """A runner that was given up for silent and still has to stop an attempt has, by speaking, recovered."""
    known = world.find(command.id)
    if not isinstance(known, attempt.Attempt):
        raise lease.unknown_attempt(command.id)
    if known.state == attempt.CANCEL_REQUESTED and not is_repeat(known, command):
        sender = world.worker(command.actor.partition(":")[2])
        if sender is not None and worker.MACHINE.rule(sender.state, worker.Recover):
            return worker.Recover(id=sender.id), command
    return (command,)


def _expand_birth(world: World, birth: Birth) -> Iterable[Command]:
    known = world.find(birth.id)
    if known is not None:
        if birth.or_existing:
            return ()
        if birth.request_id:
            check_unused(known, birth)
        raise Refused("bad_request", f"{birth.id!r} exists already; choose another id")
    if isinstance(birth.record, worker.Worker):
        return birth, worker.CompleteRegistration(id=birth.id, actor=birth.actor)
    return (birth,)


def _expand_births(world: World, command: BearAll) -> Iterable[Command]:
    """Each as it would be on its own; one that is refused keeps out all."""
    world.need(birth.id for birth in command.births)
    found: list[Command] = []
    born: dict[str, Record] = {}
    for birth in command.births:
        known = born.get(birth.id) or world.find(birth.id)
        if known is not None and is_repeat(known, birth):
            continue
        if birth.id in born and birth.or_existing:
            continue
        if birth.id in born:
            check_unused(born[birth.id], birth)
        # Each record remembers the request that it was made by, not the one for all of them.
        record = remembering(birth.record, birth) if birth.request_id else birth.record
        born[birth.id] = record
        found += _expand_birth(world, msgspec.structs.replace(birth, record=record))
    return found


def _expand_plan(world: World, planned: Plan) -> Iterable[Command]:
    check_actor(planned)
    of = world.run(planned.id)
    if run.MACHINE.rule(of.state, run.PlanReady) is None:
        raise run.MACHINE.refusal(of, run.PlanReady)
    births = _births(of, planned.jobs, planned.plan_hash, of.started_by)
    world.need([birth.id for birth in births])
    ready = run.PlanReady(
        id=of.id,
        jobs=len(births),
        plan_hash=planned.plan_hash,
        is_fail_fast=planned.is_fail_fast,
        timeout_seconds=planned.timeout_seconds,
    )
    return [*births, ready]


def _expand_start(world: World, start: StartRun) -> Iterable[Command]:
    check_actor(start)
    known, record = world.find(start.id), start.record
    if known is not None:
        if start.request_id:
            check_unused(known, start)
        raise Refused("bad_request", f"{start.id!r} exists already; choose another id")
    if (record.id, record.run_id, record.state) != (start.id, start.id, BIRTH):
        raise Refused(
            "bad_request",
            f"the record of the run to start is {record.id!r} of run {record.run_id!r}, {record.state or 'new'}; "
            f"send a new one with the id {start.id!r}",
        )
    births = _births(record, start.jobs, start.plan_hash, record.started_by or approvals.person(start.actor))
    # Whatever is named after a run that is not there is not there either.
    world.expect_none(id for birth in births for id in (birth.id, attempt_id(birth.id, 1)))
    return [
        Birth(id=start.id, record=record, actor=start.actor),
        run.BeginPlanning(id=start.id),
        *births,
        run.PlanReady(id=start.id, jobs=len(births), plan_hash=start.plan_hash),
    ]


def _births(of: run.Run, specs: tuple[JobSpec, ...], plan_hash: str, started_by: str) -> list[Birth]:
    """The jobs of a plan that makes sense."""
    dependents, followers = plan.dependents(specs), plan.followers(specs)
    found: list[Birth] = []
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
            unmet=len(plan.waits_for(spec)),
            plan_hash=plan_hash if is_gate else "",
            started_by=started_by.removeprefix(f"{USER}:") if is_gate else "",
            position=position,
        )
        found.append(Birth(id=id, record=record))
    return found


def _expand_cancel_job(world: World, command: CancelJob) -> Iterable[Command]:
    reason = command.reason or job.JOB_CANCELED
    if reason in job.FINDINGS and actor_kind(command.actor) == USER:
        reason = f"“{reason}”"  # A person's words: what they name was not found.
    return (cancel_job(world.job(command.id), reason, command.actor, command.request_id),)


def job_id(run_id: str, name: str) -> str:
    """A job's id says which run it belongs to and what the plan calls it."""
    return f"{run_id}/{name}"


_ORDERS: Final[dict[type[Command], Callable[[World, Any], Iterable[Command]]]] = {
    Birth: _expand_birth,
    BearAll: _expand_births,
    Plan: _expand_plan,
    StartRun: _expand_start,
    CancelJob: _expand_cancel_job,
}
