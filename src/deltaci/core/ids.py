"""Ids of records. Random parts are passed in; all other parts are derived, so that a decision can be repeated.

A lease id is `<attempt id>.<number>.<secret>`. It contains its attempt's id, so that finding the attempt needs no
second index. Only its hash is stored; events and logs name a lease `<attempt id>#<number>`.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import msgspec

from deltaci.core.errors import StaleLease

MIN_SECRET_CHARS = 16
MAX_NUMBER_CHARS = 9


class LeaseRef(msgspec.Struct, frozen=True):
    """The lease that a message was sent under, with the hash of its id instead of the secret."""

    attempt_id: str
    number: int
    fingerprint: str


RESOURCE_PREFIX: Final = "resource:"
MERGE_RUN_PREFIX: Final = "merge-"  # Ids of the runs that test candidates of a merge queue.


def attempt_id(job_id: str, index: int) -> str:
    """Return the id of a job's attempt, `<job id>.<index>`.

    It is derived, so that deciding a retry twice creates one attempt.
    """
    return f"{job_id}.{index}"


def job_id(run_id: str, name: str) -> str:
    """Return the id of a job, `<run id>/<name in the plan>`."""
    return f"{run_id}/{name}"


def lease_id(attempt: str, lease_number: int, secret: str) -> str:
    """Return the lease id: the secret fencing token, which is sent only to the runner that was granted the lease."""
    return f"{attempt}.{lease_number}.{secret}"


def lease_name(attempt: str, lease_number: int) -> str:
    """Return the name of a lease in logs and exports: unique, and without the secret of the lease id."""
    return f"{attempt}#{lease_number}"


def lease_fingerprint(token: str) -> str:
    """Return the hash of a lease id, the only form that is stored."""
    return blake2b(token.encode(), digest_size=16).hexdigest()


def lease_ref(token: str) -> LeaseRef:
    """Parse a lease id that a runner sent and hash it; raise `StaleLease` if it is malformed."""
    attempt_and_number, _, secret = token.rpartition(".")
    attempt_id_text, _, number_text = attempt_and_number.rpartition(".")
    if (
        not attempt_id_text
        or not number_text.isdecimal()
        or len(number_text) > MAX_NUMBER_CHARS
        or len(secret) < MIN_SECRET_CHARS
    ):
        raise StaleLease("UNKNOWN_LEASE", "the lease id is malformed; stop this attempt")
    return LeaseRef(attempt_id_text, int(number_text), lease_fingerprint(token))


def administration_id(tenant: str) -> str:
    """Return the id of the record that counts the administrative events of a tenant: the prefix of resource ids.

    No other tenant has the same, because a slash in the tenant's name is escaped.
    """
    return f"{RESOURCE_PREFIX}{tenant.replace('%', '%25').replace('/', '%2F')}"


def resource_id(tenant: str, kind: str, name: str) -> str:
    """Return the id of a resource, `resource:<tenant>/<kind>:<name>`. A kind has no colon."""
    return f"{administration_id(tenant)}/{kind}:{name}"


def incarnation_id(name: str, number: int) -> str:
    """Return the record id of the incarnation `number` of a worker.

    It is `name` for the first, `<name>/<number>` for later ones.
    """
    return name if number <= 1 else f"{name}/{number}"


def worker_name(id: str) -> str:
    """Return the name of the worker in the id of one of its incarnations: the part before the first slash."""
    return id.partition("/")[0]


def first_incarnation_id(id: str) -> str:
    """Return the id of the worker's first incarnation; an id that is no incarnation id is returned unchanged."""
    name, _, number_text = id.partition("/")
    is_incarnation = (
        number_text.isdecimal() and number_text.isascii() and not number_text.startswith("0") and number_text != "1"
    )
    return name if is_incarnation else id
