"""The lease: the right to execute one attempt, and the fence that keeps everyone else out.

A lease lives inside its attempt's record, so one attempt has at most one live lease by construction.
Its changes ride on its attempt's events. Time here is always the store's.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from deltaci.core.errors import Refused, StaleLease
from deltaci.core.events import LEASE as ENTITY
from deltaci.core.events import ORCHESTRATOR, RUNNER
from deltaci.core.ids import LeaseRef
from deltaci.core.instants import SECOND
from deltaci.core.machine import ABSENT, Command, Machine, Rule, Stateful, Target, Transition, no_change

GRANTED: Final = "GRANTED"
ACTIVE: Final = "ACTIVE"
EXPIRED: Final = "EXPIRED"
REVOKED: Final = "REVOKED"
COMPLETED: Final = "COMPLETED"
CANCELED: Final = "CANCELED"

LIVE: Final = frozenset({GRANTED, ACTIVE})

TTL_SECONDS: Final = 120
HEARTBEAT_SECONDS: Final = 20
ACCEPT_SECONDS: Final = 30
CANCEL_SECONDS: Final = 30
RUNTIME_BUFFER_SECONDS: Final = 60  # How much later than its time is over a runner stops a job of its own accord.


class Lease(Stateful, frozen=True, kw_only=True):
    """Who may execute the attempt, until when, and how to recognise them.

    `salt` is what whoever made the lease's id needs, beside their key, to make the same one again; alone it tells
    nothing. Empty: its id was drawn, and nobody can.
    """

    number: int
    worker_id: str
    fingerprint: str
    ttl_seconds: int
    accept_by: int
    expires_at: int
    salt: str = ""


class Grant(Command, frozen=True, kw_only=True):
    """Give the attempt to a worker."""


class Ack(Command, frozen=True, kw_only=True):
    """The runner took the job."""

    by: ClassVar[frozenset[str]] = frozenset({RUNNER})


class Renew(Command, frozen=True, kw_only=True):
    """A heartbeat: the lease runs anew from now."""

    by: ClassVar[frozenset[str]] = frozenset({RUNNER})


class Finish(Command, frozen=True, kw_only=True):
    """The result was accepted."""

    by: ClassVar[frozenset[str]] = frozenset({RUNNER})


class Cancel(Command, frozen=True, kw_only=True):
    """The runner proved that it stopped."""

    by: ClassVar[frozenset[str]] = frozenset({RUNNER})


class Expire(Command, frozen=True, kw_only=True):
    """Nobody renewed it in time."""


class Revoke(Command, frozen=True, kw_only=True):
    """The orchestrator takes the right back."""


def _grant(lease: Lease, _command: Grant, _at: int) -> Transition:
    return GRANTED, {}, {}


def _renewed(lease: Lease, at: int) -> int:
    # A clock that jumped back must not shorten what the runner was already promised.
    anew = at + lease.ttl_seconds * SECOND
    return anew if anew > lease.expires_at else lease.expires_at


def _ack(lease: Lease, _command: Ack, at: int) -> Transition:
    return ACTIVE, {"expires_at": _renewed(lease, at)}, {}


def _renew(lease: Lease, _command: Renew, at: int) -> Transition:
    return ACTIVE, {"expires_at": _renewed(lease, at)}, {}


def _finish(_lease: Lease, _command: Finish, _at: int) -> Transition:
    return COMPLETED, {}, {}


def _cancel(_lease: Lease, _command: Cancel, _at: int) -> Transition:
    return CANCELED, {}, {}


def _expire(lease: Lease, _command: Expire, at: int) -> Transition:
    """Expire a lease nobody renewed. Safe to repeat: the second call is refused, not applied."""
    if at < lease.expires_at:
        raise Refused(
            "not_due", f"lease {lease.id} runs for another {(lease.expires_at - at) / SECOND:.3f} s; wait for it"
        )
    return EXPIRED, {}, {}


def _revoke(_lease: Lease, _command: Revoke, _at: int) -> Transition:
    return REVOKED, {}, {}


MACHINE: Final[Machine[Lease]] = Machine(
    ENTITY,
    Rule(
        ABSENT, Grant, (Target(GRANTED, "lease_granted"),), _grant, ORCHESTRATOR, "a worker asked for work", ("ORC-A2",)
    ),
    Rule(
        GRANTED,
        Ack,
        (Target(ACTIVE, "lease_acknowledged"),),
        _ack,
        RUNNER,
        "the runner took the job",
        ("ORC-L1", "MOD-L4"),
    ),
    Rule(
        ACTIVE,
        Ack,
        (),
        no_change,
        RUNNER,
        "our first answer was lost; a repeat is no error",
        ("ORC-I2",),
    ),
    Rule(ACTIVE, Renew, (Target(ACTIVE, "lease_renewed"),), _renew, RUNNER, "a heartbeat in time", ("PRO-Q5",)),
    Rule(ACTIVE, Finish, (Target(COMPLETED, "lease_completed"),), _finish, RUNNER, "an accepted Complete", ("ORC-L3",)),
    Rule(ACTIVE, Cancel, (Target(CANCELED, "lease_canceled"),), _cancel, RUNNER, "an accepted CancelAck", ("ORC-L4",)),
    Rule(
        GRANTED,
        Expire,
        (Target(EXPIRED, "lease_expired"),),
        _expire,
        ORCHESTRATOR,
        "no heartbeat within the TTL",
        ("ORC-L2",),
    ),
    Rule(
        ACTIVE,
        Expire,
        (Target(EXPIRED, "lease_expired"),),
        _expire,
        ORCHESTRATOR,
        "no heartbeat within the TTL",
        ("ORC-L2",),
    ),
    Rule(
        GRANTED,
        Revoke,
        (Target(REVOKED, "lease_revoked"),),
        _revoke,
        ORCHESTRATOR,
        "not acknowledged in time, or taken over",
        ("ORC-L5",),
    ),
    Rule(ACTIVE, Revoke, (Target(REVOKED, "lease_revoked"),), _revoke, ORCHESTRATOR, "taken over", ("ORC-L5",)),
    initial=GRANTED,
)


# Where an order looks at nothing first: the state after it, and whether the lease runs anew. Out of the table above.
_PLAIN: Final = {
    (rule.source, rule.command): (rule.targets[0].state, rule.handler in (_ack, _renew))
    for rule in MACHINE.rules
    if rule.handler in (_grant, _ack, _renew, _finish, _cancel, _revoke)
}


def change(lease: Lease, order: type[Command], at: int) -> Lease:
    """The lease after the order, which carries nothing but its kind. A repeat gives the same lease back."""
    plain = _PLAIN.get((lease.state, order))
    if plain is not None:
        until = _renewed(lease, at) if plain[1] else lease.expires_at
        return msgspec.structs.replace(lease, state=plain[0], expires_at=until)
    rule = MACHINE.rule(lease.state, order)
    if rule is None:
        raise MACHINE.refusal(lease, order)
    move = rule.handler(lease, order, at)
    return lease if move is None else msgspec.structs.replace(lease, state=move[0], **move[1])


def is_live(lease: Lease | None) -> bool:
    """Whether the lease still excludes everyone else."""
    return lease is not None and lease.state in LIVE


def is_held_by(lease: Lease, ref: LeaseRef, worker_id: str) -> bool:
    """Whether this message really speaks for this lease: the right token from the right worker."""
    return lease.number == ref.number and lease.fingerprint == ref.fingerprint and lease.worker_id == worker_id


_REASONS: Final = {
    EXPIRED: "LEASE_EXPIRED",
    REVOKED: "LEASE_REVOKED",
    COMPLETED: "LEASE_COMPLETED",
    CANCELED: "LEASE_CANCELED",
}


def unknown_attempt(id: str) -> StaleLease:
    """The answer to a lease of an attempt that does not exist, or not for whoever asks: the two look the same."""
    return StaleLease("UNKNOWN_LEASE", f"there is no attempt {id!r}; stop this attempt")


def check_fence(lease: Lease | None, ended: Lease | None, ref: LeaseRef, worker_id: str, at: int) -> Lease:
    """The live lease that this message speaks for; otherwise `StaleLease` with the reason."""
    if lease is not None and is_held_by(lease, ref, worker_id):
        if at < lease.expires_at:
            return lease
        raise StaleLease("LEASE_EXPIRED", f"expired {(at - lease.expires_at) / SECOND:.0f} s ago; stop this attempt")
    if ended is not None and is_held_by(ended, ref, worker_id):
        raise StaleLease(_REASONS[ended.state], f"the lease is {ended.state}; stop this attempt")
    newest = lease or ended
    if newest is not None and ref.number < newest.number:
        raise StaleLease(
            "LEASE_REPLACED", f"lease {ref.number} was replaced by lease {newest.number}; stop this attempt"
        )
    raise StaleLease("UNKNOWN_LEASE", "no such lease is known for this worker; stop this attempt")
