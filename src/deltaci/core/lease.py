"""The lease: the right to execute one attempt, and the fence that rejects messages from any other holder.

A lease is part of its attempt's record, so that an attempt has at most one live lease by construction. Its transitions
are recorded in the events of the attempt. All times are those of the store's clock.
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
RUNTIME_BUFFER_SECONDS: Final = 60  # How long after the job timeout a runner stops the job by itself.


class Lease(Stateful, frozen=True, kw_only=True):
    """The worker that may execute an attempt, until when, and the hash of the lease id that its messages carry.

    With `salt` and a secret key, the server can compute the lease id again; `salt` alone reveals nothing. It is empty
    if the id was random, so that it cannot be computed again. `reassign_at` is when the lease ends unless its worker,
    which became unresponsive, sends a message under it; 0 after such a message.
    """

    number: int
    worker_id: str
    fingerprint: str
    ttl_seconds: int
    accept_by: int
    expires_at: int
    salt: str = ""
    last_heartbeat_no: int = -1  # The highest number of a heartbeat under this lease.
    reassign_at: int = 0


class Grant(Command, frozen=True, kw_only=True):
    """Lease the attempt to a worker."""


class Ack(Command, frozen=True, kw_only=True):
    """Activate the lease, because the runner accepted the job."""

    by: ClassVar[frozenset[str]] = frozenset({RUNNER})


class Renew(Command, frozen=True, kw_only=True):
    """Extend the lease to its full TTL from now, because of a heartbeat."""

    by: ClassVar[frozenset[str]] = frozenset({RUNNER})


class Finish(Command, frozen=True, kw_only=True):
    """Complete the lease, because the result of the attempt was accepted."""

    by: ClassVar[frozenset[str]] = frozenset({RUNNER})


class Cancel(Command, frozen=True, kw_only=True):
    """End the lease, because the runner has stopped the cancelled attempt."""

    by: ClassVar[frozenset[str]] = frozenset({RUNNER})


class Expire(Command, frozen=True, kw_only=True):
    """End the lease, because it was not renewed in time."""


class Revoke(Command, frozen=True, kw_only=True):
    """End the lease before it expires, because the orchestrator takes the attempt back."""


def _grant(lease: Lease, _command: Grant, _at: int) -> Transition:
    return GRANTED, {}, {}


def _renewed_expiry(lease: Lease, at: int) -> int:
    # A clock that jumped back must not shorten the lease that the runner was already promised.
    expires_at = at + lease.ttl_seconds * SECOND
    return expires_at if expires_at > lease.expires_at else lease.expires_at


def _ack(lease: Lease, _command: Ack, at: int) -> Transition:
    return ACTIVE, {"expires_at": _renewed_expiry(lease, at)}, {}


def _renew(lease: Lease, _command: Renew, at: int) -> Transition:
    return ACTIVE, {"expires_at": _renewed_expiry(lease, at)}, {}


def _finish(_lease: Lease, _command: Finish, _at: int) -> Transition:
    return COMPLETED, {}, {}


def _cancel(_lease: Lease, _command: Cancel, _at: int) -> Transition:
    return CANCELED, {}, {}


def _expire(lease: Lease, _command: Expire, at: int) -> Transition:
    """Expire a lease that was not renewed; refuse if it is not due."""
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
        "the runner accepted the job",
        ("ORC-L1", "MOD-L4"),
    ),
    Rule(
        ACTIVE,
        Ack,
        (),
        no_change,
        RUNNER,
        "a repeat after a lost answer is no error",
        ("ORC-I2",),
    ),
    Rule(
        ACTIVE,
        Renew,
        (Target(ACTIVE, "lease_renewed"),),
        _renew,
        RUNNER,
        "a heartbeat before the lease expires",
        ("PRO-Q5",),
    ),
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


# Commands without a condition: the target state, and whether the lease is renewed. Derived from the table above.
_UNCONDITIONAL: Final = {
    (rule.source, rule.command): (rule.targets[0].state, rule.handler in (_ack, _renew))
    for rule in MACHINE.rules
    if rule.handler in (_grant, _ack, _renew, _finish, _cancel, _revoke)
}


def change(lease: Lease, command_type: type[Command], at: int) -> Lease:
    """Return the lease after applying a command of this type, which has no fields.

    A repeat returns the same lease; a command that the state does not allow is refused.
    """
    state_and_renewal = _UNCONDITIONAL.get((lease.state, command_type))
    if state_and_renewal is not None:
        expires_at = _renewed_expiry(lease, at) if state_and_renewal[1] else lease.expires_at
        return msgspec.structs.replace(lease, state=state_and_renewal[0], expires_at=expires_at, reassign_at=0)
    rule = MACHINE.rule(lease.state, command_type)
    if rule is None:
        raise MACHINE.refusal(lease, command_type)
    transition = rule.handler(lease, command_type, at)
    return lease if transition is None else msgspec.structs.replace(lease, state=transition[0], **transition[1])


def is_live(lease: Lease | None) -> bool:
    """Return whether the lease is granted or active, so that no other worker may execute the attempt."""
    return lease is not None and lease.state in LIVE


def is_held_by(lease: Lease, ref: LeaseRef, worker_id: str) -> bool:
    """Return whether a message with this lease reference, from this worker, belongs to the lease."""
    return lease.number == ref.number and lease.fingerprint == ref.fingerprint and lease.worker_id == worker_id


_REASONS: Final = {
    EXPIRED: "LEASE_EXPIRED",
    REVOKED: "LEASE_REVOKED",
    COMPLETED: "LEASE_COMPLETED",
    CANCELED: "LEASE_CANCELED",
}


def unknown_attempt(id: str) -> StaleLease:
    """Return the error for a message about an attempt that does not exist or belongs to another tenant."""
    return StaleLease("UNKNOWN_LEASE", f"there is no attempt {id!r}; stop this attempt")


def check_fence(lease: Lease | None, ended_lease: Lease | None, ref: LeaseRef, worker_id: str, at: int) -> Lease:
    """Return `lease` if it is live and a message with this reference, from this worker, was sent under it.

    Otherwise raise `StaleLease` with the reason. `ended_lease` is the attempt's latest ended lease.
    """
    if lease is not None and is_held_by(lease, ref, worker_id):
        if at < lease.expires_at:
            return lease
        raise StaleLease("LEASE_EXPIRED", f"expired {(at - lease.expires_at) / SECOND:.0f} s ago; stop this attempt")
    if ended_lease is not None and is_held_by(ended_lease, ref, worker_id):
        raise StaleLease(_REASONS[ended_lease.state], f"the lease is {ended_lease.state}; stop this attempt")
    latest_lease = lease or ended_lease
    if latest_lease is not None and ref.number < latest_lease.number:
        raise StaleLease(
            "LEASE_REPLACED", f"lease {ref.number} was replaced by lease {latest_lease.number}; stop this attempt"
        )
    raise StaleLease("UNKNOWN_LEASE", "this worker has no such lease; stop this attempt")
