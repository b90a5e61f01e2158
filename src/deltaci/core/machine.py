"""The only engine for state machines. A machine is a table of rules; the same table is run, drawn and verified.

A rule says: in this state, this command, by these actors, leads to one of these targets. Its function
decides which target and what else changes; it never touches the record itself. The engine owns the
rest: one event per transition, `rev` by one, time that does not run backwards, repeats that change
nothing. A command that implies earlier steps goes `Through` them, so no state is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec
from msgspec.structs import force_setattr as put
from msgspec.structs import replace

from deltaci.core.errors import InvariantBroken, Refused
from deltaci.core.events import INFO, ORCHESTRATOR, Event, actor_kind

ABSENT: Final = ""  # The state of a record that does not exist yet; events write it as null.
REQUESTS_REMEMBERED: Final = 8


class Command(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An order addressed to one record, with who gives it.

    With `is_unordered`, whoever sends it again may write the keys of its dicts in another order.
    """

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR})
    is_unordered: ClassVar[bool] = False

    id: str
    actor: str = ORCHESTRATOR
    request_id: str = ""
    expected_rev: int | None = None


class Stateful(msgspec.Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """Anything with an identity and a state."""

    id: str
    state: str = ABSENT


class Record(Stateful, frozen=True, kw_only=True):
    """What every record of the store has. `rev` counts its events; `requests` are the first and the last applied."""

    tenant: str = ""
    run_id: str = ""
    rev: int = 0
    created_at: int = 0
    updated_at: int = 0
    requests: tuple[str, ...] = ()


copy: Final = Record.__copy__  # type: ignore[attr-defined]  # In C, and four times as fast as the copy module.

S = TypeVar("S", bound=Stateful)
R = TypeVar("R", bound=Record)

# What a rule's function answers: the target, the fields that change, what the event tells. None: a repeat.
Transition = tuple[str, dict[str, Any], dict[str, Any]]
Handler = Callable[[Any, Any, int], Transition | None]


class Target(msgspec.Struct, frozen=True):
    """One possible target of a rule, with the word and the severity that its event carries."""

    state: str
    trigger: str
    severity: str = INFO


class Rule(msgspec.Struct, frozen=True):
    """In `source`, `command` leads to one of `targets`. `owner` is the component that carries it out.

    Without targets the rule accepts a repeat: nothing changes and no event is appended.
    """

    source: str
    command: type[Command]
    targets: tuple[Target, ...]
    handler: Handler
    owner: str
    why: str
    cites: tuple[str, ...] = ()


class Implies(msgspec.Struct, frozen=True):
    """In `source`, `command` implies `first`: take that step, then try the command again where it led."""

    source: str
    command: type[Command]
    first: type[Command]
    why: str
    when: Callable[[Any], bool] | None = None


class _Row:
    """What applies to one state and one command: a step to take before, a rule, or both."""

    __slots__ = ("do", "rule", "targets", "through")

    def __init__(self, through: Implies | None, rule: Rule | None) -> None:
        self.through = through
        self.rule = rule
        self.do = rule.handler if rule is not None else no_change
        self.targets = {to.state: (to.trigger, to.severity) for to in rule.targets} if rule is not None else {}


def check_actor(command: Command) -> None:
    """Refuse an order from somebody who may not give it."""
    if actor_kind(command.actor) not in command.by:
        expected = " or ".join(sorted(command.by))
        raise Refused("wrong_actor", f"{type(command).__name__} may come from {expected}, not from {command.actor}")


def is_repeat(record: Record, command: Command) -> bool:
    """Whether this very request was applied to the record before."""
    return bool(command.request_id) and _request_fingerprint(command) in record.requests


def check_request_id_unused(record: Record, command: Command) -> None:
    """Refuse a request id that this record knows from something else."""
    if any(known.rpartition(" ")[0] == command.request_id for known in record.requests):
        raise Refused(
            "request_id_reused",
            f"request {command.request_id!r} was already used on {record.id} for something else; "
            "send a new request_id for a new request",
        )


def remember_request(record: R, command: Command) -> R:
    """The record, knowing that this request was applied to it.

    The first one is never forgotten: it may be the one that the record was made by, and follow from its id.
    """
    known = record.requests
    if len(known) >= REQUESTS_REMEMBERED:
        known = (known[0], *known[2:])
    return replace(record, requests=(*known, _request_fingerprint(command)))


def no_change(_record: Any, _command: Any, _at: int) -> None:
    """A repeat: the record already shows what was asked for."""


class Machine(Generic[S]):
    """The rules of one kind of record. Refuses, when built, any table that is ambiguous or leads nowhere."""

    def __init__(self, name: str, *rows: Rule | Implies, initial: str) -> None:
        self.name = name
        self.initial = initial
        self.rules = tuple(row for row in rows if isinstance(row, Rule))
        self.implied_steps = tuple(row for row in rows if isinstance(row, Implies))
        self._rule = _unique(name, self.rules)
        self._through = _unique(name, self.implied_steps)
        # All that one step needs, found at once: the hot path of the whole system.
        self._row = {
            pair: _Row(self._through.get(pair), self._rule.get(pair)) for pair in (*self._rule, *self._through)
        }
        self.states = _ordered(
            state for rule in self.rules for state in (rule.source, *(to.state for to in rule.targets)) if state
        )
        leaves = {rule.source for rule in self.rules for to in rule.targets if to.state != rule.source}
        self.terminal = frozenset(state for state in self.states if state not in leaves)
        self.commands = _ordered(row.command for row in rows)
        for through in self.implied_steps:
            implied = (through.source, through.first)
            if implied not in self._rule and implied not in self._through:
                raise InvariantBroken(
                    f"{name}: {through.command.__name__} in {through.source} goes through a step without a rule"
                )
            if not through.command.by <= through.first.by:
                raise InvariantBroken(
                    f"{name}: {through.command.__name__} implies {through.first.__name__}, which its actors may not do"
                )

    def rule(self, state: str, command: type[Command]) -> Rule | None:
        """The rule for this pair, if there is one."""
        return self._rule.get((state, command))

    def changes(self, state: str, command: type[Command]) -> bool:
        """Whether the command changes something in this state, rather than being a repeat or refused."""
        rule = self._rule.get((state, command))
        return rule is not None and bool(rule.targets)

    def implied_step(self, state: str, command: type[Command]) -> Implies | None:
        """The implied first step for this pair, if there is one."""
        return self._through.get((state, command))

    def edges(self) -> list[tuple[Rule, Target]]:
        """Every transition that leaves its state, in table order."""
        return [(rule, to) for rule in self.rules for to in rule.targets if to.state != rule.source]

    def decide(self, record: R, command: Command, at: int, events: list[Event]) -> R:
        """Apply one order from outside: checked against earlier requests and `expected_rev`, then stepped."""
        request = ""
        if command.request_id:
            request = _request_fingerprint(command)
            if request in record.requests:
                return record
            check_request_id_unused(record, command)
        if command.expected_rev is not None and command.expected_rev != record.rev:
            raise Refused(
                "stale_rev",
                f"{self.name} {record.id} is at rev {record.rev}, not {command.expected_rev}; "
                "read it again and decide anew",
            )
        changed = self.step(record, command, at, events)
        return remember_request(changed, command) if request and changed is not record else changed

    def step(self, record: R, command: Command, at: int, events: list[Event]) -> R:
        """Follow the table once, after the steps that the command implies, and append an event for each."""
        if actor_kind(command.actor) not in command.by:
            check_actor(command)
        # No clock that jumped back may order two events of one record wrongly.
        at = at if at > record.updated_at else record.updated_at
        return self._follow(record, command.__class__, command, at, events)

    def _follow(self, record: R, kind: type[Command], command: Command, at: int, events: list[Event]) -> R:
        """The rule for this state and this kind of command, on the word of the command that is carried out."""
        draft, orders = record, [kind]
        while orders:
            row = self._row.get((draft.state, orders[-1]))
            if row is None:
                raise self.refusal(draft, orders[-1])
            through = row.through
            if through is not None and (through.when is None or through.when(draft)):
                orders.append(through.first)
                continue
            order = orders.pop()
            if row.rule is None:
                raise self.refusal(draft, order)
            move = row.do(draft, command, at)
            if move is None:
                continue
            state, changes, metadata = move
            told = row.targets.get(state)
            if told is None:
                raise InvariantBroken(
                    f"{self.name}: {order.__name__} in {draft.state} landed in {state}, outside its targets"
                )
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
                    state,
                    told[0],
                    command.actor,
                    told[1],
                    command.request_id,
                    rev,
                    metadata,
                )
            )
            # A copy that nobody has seen yet may be written on: one copy for all steps of a command.
            if draft is record:
                draft = copy(record)
            put(draft, "state", state)
            put(draft, "rev", rev)
            put(draft, "updated_at", at)
            for name, value in changes.items():
                put(draft, name, value)
        return draft

    def refusal(self, record: Stateful, order: type[Command]) -> Refused:
        """Say what was found, what was expected and what to do."""
        rows: tuple[Rule | Implies, ...] = (*self.rules, *self.implied_steps)
        sources = [row.source for row in rows if row.command is order]
        expected = ", ".join(_ordered(source or "no record" for source in sources))
        found = record.state or "no record"
        return Refused(
            "wrong_state",
            f"{self.name} {record.id} is {found}; {order.__name__} applies in {expected or 'no state'}; "
            "read it again to see what happened to it",
        )


def _unique(name: str, rows: Iterable[Any]) -> dict[tuple[str, type[Command]], Any]:
    table: dict[tuple[str, type[Command]], Any] = {}
    for row in rows:
        pair = (row.source, row.command)
        if pair in table:
            raise InvariantBroken(f"{name}: two rules for {row.command.__name__} in {row.source or 'no record'}")
        table[pair] = row
    return table


def _ordered(items: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(items))


def stored_name(command: type[Command]) -> str:
    """Return the command name that is hashed with a stored request id.

    It is the class variable `stored_name` if this class itself defines one, which a renamed class does; otherwise the
    name of the class.
    """
    name: str = vars(command).get("stored_name", command.__name__)
    return name


def _request_fingerprint(command: Command) -> str:
    """The request id with a fingerprint of its content, so that a reuse for something else is seen."""
    plain = replace(command, expected_rev=None)
    text = msgspec.json.encode(plain, order="deterministic" if command.is_unordered else None)
    content = blake2b(text, digest_size=8, person=stored_name(type(command))[:16].encode())
    return f"{command.request_id} {content.hexdigest()}"
