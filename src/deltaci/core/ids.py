"""Identities. Random parts come in from outside; everything else is derived, so it can be replayed.

A lease id is `<attempt id>.<number>.<secret>`: it names its attempt, so finding the attempt needs no
second index. Only its hash is ever stored; events name a lease `<attempt id>#<number>`.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from deltaci.core.errors import StaleLease

MIN_SECRET_CHARS = 16
MAX_NUMBER_CHARS = 9


class LeaseRef(msgspec.Struct, frozen=True):
    """What a message proves about the lease that it speaks for. Holds no secret."""

    attempt_id: str
    number: int
    fingerprint: str


def attempt_id(job_id: str, index: int) -> str:
    """The id of a job's attempt. Derived, so that a retry decided twice is still one attempt."""
    return f"{job_id}.{index}"


def lease_id(attempt: str, number: int, secret: str) -> str:
    """The fencing token that its runner is shown once."""
    return f"{attempt}.{number}.{secret}"


def lease_name(attempt: str, number: int) -> str:
    """How logs and exports name a lease: unique, and useless to an attacker."""
    return f"{attempt}#{number}"


def lease_fingerprint(token: str) -> str:
    """The only form of a lease id that is stored."""
    return blake2b(token.encode(), digest_size=16).hexdigest()


def lease_ref(token: str) -> LeaseRef:
    """Read a lease id that a runner sent. A text that cannot be one is an unknown lease."""
    head, _, secret = token.rpartition(".")
    attempt, _, number = head.rpartition(".")
    if not attempt or not number.isdecimal() or len(number) > MAX_NUMBER_CHARS or len(secret) < MIN_SECRET_CHARS:
        raise StaleLease("UNKNOWN_LEASE", "the lease id is not one of ours; stop this attempt")
    return LeaseRef(attempt, int(number), lease_fingerprint(token))


def incarnation_id(name: str, number: int) -> str:
    """The record of a worker's life: the first has its name, a later one says which it is."""
    return name if number <= 1 else f"{name}/{number}"


def worker_name(id: str) -> str:
    """What people call the worker of whom this is a life, or a part."""
    return id.partition("/")[0]


def first_incarnation_id(id: str) -> str:
    """The id of the worker's first life. What is named otherwise behind the slash is no life, and stays as it is."""
    name, _, number = id.partition("/")
    is_life = number.isdecimal() and number.isascii() and not number.startswith("0") and number != "1"
    return name if is_life else id
