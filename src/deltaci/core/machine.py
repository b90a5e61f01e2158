"""State machines as tables of rules; the same table is executed, drawn in the documentation and verified.

A `Rule` says that, in its source state, a command leads to one of its targets. Its handler chooses the target, the
fields that change and the metadata of the event; it does not modify the record. `Machine` does the rest: it checks
actor, request id and expected revision, appends one event per transition, increments `rev`, keeps time from running
backwards and ignores repeats. A command that implies earlier steps has an `Implies` row for them, so that the log
shows every state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from hashlib import blake2b
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec
from msgspec.structs import force_setattr as put
from msgspec.structs import replace

from deltaci.core.errors import InvariantBroken, Refused
from deltaci.core.events import INFO, ORCHESTRATOR, Event, actor_kind

ABSENT: Final = ""  # The state of a record that does not exist yet; null in events.
REQUESTS_IN_RECORD: Final = 32
LATEST_REQUESTS: Final = 8  # They stay in the record when others are moved out of it.
MOVED: Final = ""  # The second entry of `Record.requests` if others were moved out of the record.


class Command(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A command to the record `id`, sent by `actor`. `by` are the kinds of actors that may send it.

    A command with a `request_id` may be repeated: the repeat changes nothing. With `is_unordered`, the repeat may have
    the keys of its dicts in another order.
    """

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR})
    is_unordered: ClassVar[bool] = False
    has_request_ids_per_actor: ClassVar[bool] = False  # Unique per actor, not per record.

    id: str
    actor: str = ORCHESTRATOR
    request_id: str = ""
    expected_rev: int | None = None


class Stateful(msgspec.Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A struct with an id and a state."""

    id: str
    state: str = ABSENT


class Record(Stateful, frozen=True, kw_only=True):
    """A stored record.

    `rev` counts its events. `requests` are fingerprints of the requests that were applied to it: either every one, or
    the first, `MOVED` and the latest.
    """

    tenant: str = ""
    run_id: str = ""
    rev: int = 0
    created_at: int = 0
    updated_at: int = 0
    requests: tuple[str, ...] = ()


copy: Final = Record.__copy__  # type: ignore[attr-defined]  # Written in C; four times as fast as copy.copy.

S = TypeVar("S", bound=Stateful)
R = TypeVar("R", bound=Record)

# The result of a handler: target state, changed fields, event metadata (a new dict). None means a repeat, which changes
# nothing.
Transition = tuple[str, dict[str, Any], dict[str, Any]]
Handler = Callable[[Any, Any, int], Transition | None]


class Target(msgspec.Struct, frozen=True):
    """A possible target state of a rule, with the trigger and the severity of its event."""

    state: str
    trigger: str
    severity: str = INFO


class Rule(msgspec.Struct, frozen=True):
    """In state `source`, `command` leads to one of `targets`. `owner` is the component that makes the transition.

    Without targets the rule accepts a repeat: nothing changes and no event is appended. `cites` are the rules of
    `docs/spec` that demand it.
    """

    source: str
    command: type[Command]
    targets: tuple[Target, ...]
    handler: Handler
    owner: str
    why: str
    cites: tuple[str, ...] = ()


class Implies(msgspec.Struct, frozen=True):
    """In state `source`, `command` first applies `first`, then is looked up again in the resulting state.

    `when`, if given, restricts this to records for which it returns True.
    """

    source: str
    command: type[Command]
    first: type[Command]
    why: str
    when: Callable[[Any], bool] | None = None


class _Entry:
    """The implied step and the rule for one state and one command, in the form that `_apply_rules` needs."""

    __slots__ = ("handler", "implied", "rule", "targets")

    def __init__(self, implied: Implies | None, rule: Rule | None) -> None:
        self.implied = implied
        self.rule = rule
        self.handler = rule.handler if rule is not None else no_change
        self.targets = (
            {target.state: (target.trigger, target.severity) for target in rule.targets} if rule is not None else {}
        )


def check_actor(command: Command) -> None:
    """Refuse a command from a kind of actor that may not send it."""
    if actor_kind(command.actor) not in command.by:
        expected = " or ".join(sorted(command.by))
        raise Refused("wrong_actor", f"{type(command).__name__} may come from {expected}, not from {command.actor}")


def is_repeat(record: Record, command: Command) -> bool:
    """Return whether the same request, with the same content, was applied to the record before."""
    return bool(command.request_id) and _request_fingerprint(command) in record.requests


def check_request_id_unused(record: Record, command: Command) -> None:
    """Refuse a request id that was used on this record with other content."""
    if any(request_id_of(request) == command.request_id for request in record.requests):
        raise Refused(
            "request_id_reused",
            f"request {command.request_id!r} was already used on {record.id} for something else; "
            "send a new request_id for a new request",
        )


def remember_request(record: R, command: Command) -> R:
    """Return the record with this request added to its remembered ones."""
    return replace(record, requests=(*record.requests, _request_fingerprint(command)))


def move_requests(record: R) -> tuple[R, tuple[str, ...]]:
    """Return the record with only its first and latest requests, and the others, which the caller stores elsewhere.

    The first request stays: it may have created the record, whose id may be derived from it.
    """
    requests = [request for request in record.requests if request != MOVED]
    remaining = (requests[0], MOVED, *requests[-LATEST_REQUESTS:])
    return replace(record, requests=remaining), tuple(requests[1:-LATEST_REQUESTS])


def may_have_moved(record: Record, request_id: str) -> bool:
    """Return whether a request with this id may have been moved out of the record."""
    return MOVED in record.requests[1:2] and all(request_id_of(request) != request_id for request in record.requests)


def recall_requests(record: R, requests: Iterable[str]) -> R:
    """Return the record with requests that were moved out of it, so that a repeat of one is recognised."""
    return replace(record, requests=(*record.requests, *requests))


def request_id_of(request: str) -> str:
    """Return the request id in the fingerprint of a request."""
    return request.rpartition(" ")[0]


def no_change(_record: Any, _command: Any, _at: int) -> None:
    """Return None, so that the command changes nothing: the record already is in the requested state."""


class Machine(Generic[S]):
    """The rules and implied steps of one kind of record.

    The constructor raises `InvariantBroken` for two rules with the same state and command, and for implied steps
    without a rule.
    """

    def __init__(self, name: str, *rows: Rule | Implies, initial: str) -> None:
        self.name = name
        self.initial = initial
        self.rules = tuple(row for row in rows if isinstance(row, Rule))
        self.implied_steps = tuple(row for row in rows if isinstance(row, Implies))
        self._rules = _by_state_and_command(name, self.rules)
        self._implied_steps = _by_state_and_command(name, self.implied_steps)
        # One lookup per step: this is the hot path of the whole system.
        self._entries = {
            key: _Entry(self._implied_steps.get(key), self._rules.get(key))
            for key in (*self._rules, *self._implied_steps)
        }
        self.states = _distinct(
            state for rule in self.rules for state in (rule.source, *(target.state for target in rule.targets)) if state
        )
        left_states = {rule.source for rule in self.rules for target in rule.targets if target.state != rule.source}
        self.terminal = frozenset(state for state in self.states if state not in left_states)
        self.commands = _distinct(row.command for row in rows)
        for step in self.implied_steps:
            implied = (step.source, step.first)
            if implied not in self._rules and implied not in self._implied_steps:
                raise InvariantBroken(f"{name}: {step.command.__name__} in {step.source} implies a step without a rule")
            if not step.command.by <= step.first.by:
                raise InvariantBroken(
                    f"{name}: {step.command.__name__} implies {step.first.__name__}, which its actors may not do"
                )

    def rule(self, state: str, command: type[Command]) -> Rule | None:
        """Return the rule for a command in a state, or None."""
        return self._rules.get((state, command))

    def changes(self, state: str, command: type[Command]) -> bool:
        """Return whether the command makes a transition in this state, rather than being a repeat or refused."""
        rule = self._rules.get((state, command))
        return rule is not None and bool(rule.targets)

    def implied_step(self, state: str, command: type[Command]) -> Implies | None:
        """Return the step that a command implies in a state, or None."""
        return self._implied_steps.get((state, command))

    def edges(self) -> list[tuple[Rule, Target]]:
        """Return each rule with each target that is another state, in the order of the table."""
        return [(rule, target) for rule in self.rules for target in rule.targets if target.state != rule.source]

    def decide(self, record: R, command: Command, at: int, events: list[Event]) -> R:
        """Apply a submitted command and return the changed record; append an event for each transition.

        A repeated request returns the same record. A reused request id or another `expected_rev` than the record's is
        refused.
        """
        request = ""
        if command.request_id:
            request = _request_fingerprint(command)
            if request in record.requests:
                return record
            if not command.has_request_ids_per_actor:
                check_request_id_unused(record, command)
        if command.expected_rev is not None and command.expected_rev != record.rev:
            raise Refused(
                "stale_rev",
                f"{self.name} {record.id} is at rev {record.rev}, not {command.expected_rev}; "
                "read it again and decide again",
            )
        changed = self.step(record, command, at, events)
        return remember_request(changed, command) if request and changed is not record else changed

    def step(self, record: R, command: Command, at: int, events: list[Event]) -> R:
        """Apply the command after the steps that it implies, and append an event for each transition.

        Return the changed record. Unlike `decide`, it does not check for repeated requests.
        """
        if actor_kind(command.actor) not in command.by:
            check_actor(command)
        # A clock that jumped back must not put two events of a record in the wrong order.
        at = at if at > record.updated_at else record.updated_at
        return self._apply_rules(record, command.__class__, command, at, events)

    def _apply_rules(self, record: R, command_type: type[Command], command: Command, at: int, events: list[Event]) -> R:
        """Apply the rules for `command_type` and the types that it implies, with the fields of `command`.

        Return the changed record, and append an event for each transition.
        """
        draft, pending_types = record, [command_type]
        while pending_types:
            entry = self._entries.get((draft.state, pending_types[-1]))
            if entry is None:
                raise self.refusal(draft, pending_types[-1])
            implied = entry.implied
            if implied is not None and (implied.when is None or implied.when(draft)):
                pending_types.append(implied.first)
                continue
            current_type = pending_types.pop()
            if entry.rule is None:
                raise self.refusal(draft, current_type)
            transition = entry.handler(draft, command, at)
            if transition is None:
                continue
            new_state, changes, metadata = transition
            target = entry.targets.get(new_state)
            if target is None:
                raise InvariantBroken(
                    f"{self.name}: {current_type.__name__} in {draft.state} led to {new_state}, outside its targets"
                )
            if current_type is not command_type:
                # Nobody sent this step: it follows from the command.
                metadata["implied_by"] = stored_name(command_type)
            rev = draft.rev + 1
            events.append(
                Event(
                    0,
                    at,
                    draft.tenant,
                    self.name,
                    draft.id,
                    draft.run_id,
                    draft.state or None,
                    new_state,
                    target[0],
                    command.actor,
                    target[1],
                    command.request_id,
                    rev,
                    metadata,
                )
            )
            # Copy once per command: no caller has seen the copy yet, so that its fields may be overwritten.
            if draft is record:
                draft = copy(record)
                put(draft, "updated_at", at)
            put(draft, "state", new_state)
            put(draft, "rev", rev)
            for field_name, field_value in changes.items():
                put(draft, field_name, field_value)
        return draft

    def refusal(self, record: Stateful, command_type: type[Command]) -> Refused:
        """Return the `Refused` for a command that no rule accepts in the record's state; the caller raises it."""
        rows: tuple[Rule | Implies, ...] = (*self.rules, *self.implied_steps)
        sources = [row.source for row in rows if row.command is command_type]
        expected = ", ".join(_distinct(source or "no record" for source in sources))
        actual = record.state or "no record"
        return Refused(
            "wrong_state",
            f"{self.name} {record.id} is {actual}; {command_type.__name__} applies in {expected or 'no state'}; "
            "read it again to see what happened to it",
        )


def _by_state_and_command(name: str, rows: Iterable[Any]) -> dict[tuple[str, type[Command]], Any]:
    table: dict[tuple[str, type[Command]], Any] = {}
    for row in rows:
        key = (row.source, row.command)
        if key in table:
            raise InvariantBroken(f"{name}: two rules for {row.command.__name__} in {row.source or 'no record'}")
        table[key] = row
    return table


def _distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the distinct values in order of first occurrence."""
    return tuple(dict.fromkeys(values))


@cache
def stored_name(command: type[Command]) -> str:
    """Return the name that stands for this type of command in fingerprints of stored requests.

    It is the class variable `stored_name` if this class itself defines one, which a renamed class does; otherwise the
    name of the class.
    """
    name: str = vars(command).get("stored_name", command.__name__)
    return name


def _request_fingerprint(command: Command) -> str:
    """Return the request id with a hash of the command, so that a reuse of the id with other content is detected."""
    command_without_rev = replace(command, expected_rev=None)
    encoded_command = msgspec.json.encode(command_without_rev, order="deterministic" if command.is_unordered else None)
    content_hash = blake2b(encoded_command, digest_size=8, person=stored_name(type(command))[:16].encode())
    return f"{command.request_id} {content_hash.hexdigest()}"
