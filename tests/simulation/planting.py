"""Plants a mistake into the real code for some histories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

import msgspec

from deltaci.core import decide
from deltaci.core.machine import Command, Machine


class Fault(NamedTuple):
    """A mistake that somebody could have made."""

    name: str
    sentence: str
    planted: Callable[[], AbstractContextManager[None]]


T = TypeVar("T")

FAULTS: dict[str, Fault] = {}


def fault(function: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    """Register a mistake: a function that patches the code, yields, and restores it. Its docstring describes the
    mistake.
    """
    name = function.__name__.replace("_", " ")
    FAULTS[name] = Fault(name, " ".join((function.__doc__ or "").split()), contextmanager(function))
    return function


@contextmanager
def patched(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace these attributes of modules and classes."""
    with ExitStack() as stack:
        for owner, name, value in changes:
            real = vars(owner)[name] if name in vars(owner) else getattr(owner, name)
            setattr(owner, name, value)
            stack.callback(setattr, owner, name, real)
        yield


@contextmanager
def replaced_handler(
    machine: Machine[Any], states: tuple[str, ...], command: type[Command], handler: Any, **targets: str
) -> Iterator[None]:
    """Use another handler for this command in these states; `targets` are additional target states."""
    with ExitStack() as stack:
        for state in states:
            entry = machine._entries[state, command]
            stack.callback(setattr, entry, "handler", entry.handler)
            stack.callback(setattr, entry, "targets", entry.targets)
            entry.handler = handler
            entry.targets = entry.targets | {to: (trigger, "info") for to, trigger in targets.items()}
        yield


@contextmanager
def accepted_command(machine: Machine[Any], state: str, command: type[Command], like: str) -> Iterator[None]:
    """Accept the command in a state that refuses it, like in another state."""
    machine._entries[state, command] = machine._entries[like, command]
    try:
        yield
    finally:
        del machine._entries[state, command]


@contextmanager
def replaced_follow_up(entity: str, states: tuple[str, ...], real: Any, other: Any = None) -> Iterator[None]:
    """Replace the follow-up of these states, or remove it."""
    with ExitStack() as stack:
        for state in states:
            rows = decide._FOLLOW_UPS[entity, state]
            stack.callback(decide._FOLLOW_UPS.__setitem__, (entity, state), rows)
            decide._FOLLOW_UPS[entity, state] = [
                (other if follow is real else follow, may) for follow, may in rows if follow is not real or other
            ]
        yield


def set_field(record: T, /, **fields: Any) -> T:
    """Return a copy of a record with changed fields."""
    changed: T = msgspec.structs.replace(record, **fields)  # type: ignore[type-var]
    return changed
