"""Every command with any fields of the right types, at any record: decided or refused, and nothing else.

Random histories of commands that make sense are in `tests/core`.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from deltaci.core.attempt import LeasedCommand
from deltaci.core.decide import MACHINES, CancelJob, Plan, decide
from deltaci.core.errors import Refused
from deltaci.core.events import ORCHESTRATOR, REPORTER, RUNNER, USER
from deltaci.core.ids import LeaseRef
from deltaci.core.instants import SECOND
from deltaci.core.machine import Command, Record
from deltaci.core.unit_of_work import UnitOfWork
from tests.fuzz.profile import fuzzed
from tests.support.histories import History
from tests.support.lab import START, TENANT, Lab, Lease, gate, task

MADE_UP: Final = ("", "r1", "r1/a", "r1/a.1", "r1/b", "q1", "q2", "w1", "w2", "nothing", "\0", "r1/a.1.1")
ACTORS: Final = ("orchestrator", "user:ada", "worker:w1", "worker:w2", "worker:", "user:", "", "x", "planner", "timer")


def sample_records() -> tuple[UnitOfWork, LeaseRef]:
    """Return a unit of work with a run, a leased job, an approval, queue jobs and workers, and the lease."""
    lab = Lab().plan(task("a", max_attempts=2), gate("ok"), task("b", "a"))
    lab.register("w1")
    lab.register("w2", labels=("linux",))
    lab.enqueue("q1")
    lab.enqueue("q2")
    lease = lab.claim(lab.attempt("a"), by="w1")
    return lab.unit, lease.ref


def commands() -> Sequence[type[Command]]:
    """All there are."""
    known = {command for machine in MACHINES.values() for command in machine.commands}
    return sorted(known | {Plan, CancelJob}, key=lambda kind: (kind.__module__, kind.__name__))


COMMANDS: Final = commands()
_, LIVE = sample_records()


def values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Anything of a type."""
    match kind:
        case inspect.Metadata():
            return values(kind.type)
        case inspect.UnionType():
            return st.one_of(*map(values, kind.types))
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            return st.integers(-5, 5) | st.sampled_from((START, START + 600 * SECOND, 2**62, -(2**62), 10**30))
        case inspect.FloatType():
            return st.floats(allow_nan=False)
        case inspect.StrType():
            return st.sampled_from((*MADE_UP, *ACTORS, TENANT)) | st.text(max_size=5)
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.VarTupleType() | inspect.ListType() | inspect.FrozenSetType() | inspect.SetType():
            made = {inspect.ListType: list, inspect.VarTupleType: tuple}.get(type(kind), frozenset)
            return st.lists(values(kind.item_type), max_size=3).map(made)
        case inspect.DictType():
            return st.dictionaries(values(kind.key_type), values(kind.value_type), max_size=2)
        case inspect.StructType():
            return st.just(LIVE) | structs(kind.cls) if kind.cls is LeaseRef else structs(kind.cls)
    return st.none() | st.integers() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)


def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Any of a struct, with some of its fields left at their defaults."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    needed = {field.name: values(field.type) for field in info.fields if field.required}
    more = {field.name: values(field.type) for field in info.fields if not field.required}
    return st.fixed_dictionaries(needed, optional=more).map(lambda fields: kind(**fields))


@fuzzed(120, said=st.lists(st.sampled_from(COMMANDS).flatmap(structs), min_size=1, max_size=6))
def test_a_command_is_decided_or_refused(said: list[Command]) -> None:
    """Whatever a caller, a runner or a timer says; and what is refused has changed nothing."""
    here, _ = sample_records()
    for command in said:
        before: dict[str, Record | None] = dict(here.records)
        try:
            decide(here, command, START + 30 * SECOND)
        except Refused:
            assert here.records == before


@fuzzed(40, said=st.tuples(*map(structs, COMMANDS)), seed=st.integers(0, 10_000), steps=st.sampled_from((5, 40, 120)))
def test_every_command_at_every_record(said: tuple[Command, ...], seed: int, steps: int) -> None:
    """In whatever state a random history has left it, by somebody who may say so, with the last lease that it had."""
    history = History(Random(seed), max_jobs=4).go(steps)
    known, leases = history.lab.unit, {lease.ref.attempt_id: lease for lease in history.leases}
    records = {id: record for id, record in known.records.items() if record is not None}
    for id in records:
        for command in said:
            here = UnitOfWork(records, is_complete=True)
            here.job_ids, here.latest_at = dict(known.job_ids), known.latest_at
            try:
                decide(here, _rightly(command, id, leases.get(id)), history.lab.now)
            except Refused:
                assert here.records == records


def _rightly(command: Command, id: str, lease: Lease | None) -> Command:
    """The same said of this record, so that it is not refused for who says it."""
    fields: dict[str, Any] = {"id": id, "request_id": "", "expected_rev": None}
    fields["actor"] = {ORCHESTRATOR: ORCHESTRATOR, USER: "user:ada", RUNNER: "worker:w0"}.get(min(command.by), REPORTER)
    if isinstance(command, LeasedCommand) and lease is not None:
        fields |= {"actor": lease.actor, "lease": lease.ref}
    return msgspec.structs.replace(command, **fields)
