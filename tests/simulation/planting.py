"""How a fault is planted into the real code, for the time of some histories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

import msgspec

from deltaci.core import decide as deciding
from deltaci.core.machine import Command, Machine


class Fault(NamedTuple):
    """A mistake that somebody could have made."""

    name: str
    sentence: str
    planted: Callable[[], AbstractContextManager[None]]


T = TypeVar("T")

FAULTS: dict[str, Fault] = {}


def fault(function: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    """A fault is a function that changes the code, yields, and changes it back. Its docstring says what is wrong."""
    name = function.__name__.replace("_", " ")
    FAULTS[name] = Fault(name, " ".join((function.__doc__ or "").split()), contextmanager(function))
    return function


@contextmanager
def instead(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Let these names of modules and classes mean something else."""
    with ExitStack() as stack:
        for owner, name, value in changes:
            real = vars(owner)[name] if name in vars(owner) else getattr(owner, name)
            setattr(owner, name, value)
            stack.callback(setattr, owner, name, real)
        yield


@contextmanager
def rule(
    machine: Machine[Any], states: tuple[str, ...], command: type[Command], handler: Any, **targets: str
) -> Iterator[None]:
    """Carry out another function for this command in these states; `targets` are states that it may lead to besides."""
    with ExitStack() as stack:
        for state in states:
            entry = machine._entries[state, command]
            stack.callback(setattr, entry, "handler", entry.handler)
            stack.callback(setattr, entry, "targets", entry.targets)
            entry.handler = handler
            entry.targets = entry.targets | {to: (trigger, "info") for to, trigger in targets.items()}
        yield


@contextmanager
def new_rule(machine: Machine[Any], state: str, command: type[Command], like: str) -> Iterator[None]:
    """Take the command in a state that does not know it, as in another one that does."""
    machine._entries[state, command] = machine._entries[like, command]
    try:
        yield
    finally:
        del machine._entries[state, command]


@contextmanager
def reaction(entity: str, states: tuple[str, ...], real: Any, other: Any = None) -> Iterator[None]:
    """Let something else follow, or nothing."""
    with ExitStack() as stack:
        for state in states:
            rows = deciding._FOLLOW_UPS[entity, state]
            stack.callback(deciding._FOLLOW_UPS.__setitem__, (entity, state), rows)
            deciding._FOLLOW_UPS[entity, state] = [
                (other if follow is real else follow, may) for follow, may in rows if follow is not real or other
            ]
        yield


def set_field(record: T, /, **fields: Any) -> T:
    """A copy of a record with other contents."""
    changed: T = msgspec.structs.replace(record, **fields)  # type: ignore[type-var]
    return changed
