"""Names of NATS streams, subjects and consumers, as server and runner use them. See docs/nats.md.

Every name contains the tenant, so that NATS permissions can be granted by name. Tenants, labels and ids may contain any
character; in a subject each is one token of letters and digits that have no meaning to NATS.
"""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Iterable
from hashlib import blake2b
from itertools import combinations
from typing import Final

from deltaci.core.ids import first_incarnation_id
from deltaci.core.worker import queue_key

MAX_TOKEN_CHARS: Final = 100
MAX_LABELS: Final = 6  # A runner consumes the queue of every subset of its labels: 64 of them.

_EMPTY: Final = "0"  # base32 has neither 0 nor 1, so these tokens cannot equal an encoded name.
_DIGEST: Final = "1"


def token(text: str) -> str:
    """Return the part of a subject that encodes a text. Different texts have different tokens."""
    if not text:
        return _EMPTY
    encoded = _base32(text.encode())
    return (
        encoded
        if len(encoded) <= MAX_TOKEN_CHARS
        else _DIGEST + _base32(blake2b(text.encode(), digest_size=20).digest())
    )


def stream(tenant: str) -> str:
    """Return the name of the JetStream stream with a tenant's dispatches."""
    return f"deltaci-{token(tenant)}"


def all_dispatches(tenant: str) -> str:
    """Return the subject pattern that matches every dispatch of a tenant, for all of its queues."""
    return f"deltaci.dispatch.{token(tenant)}.>"


def queue(tenant: str, queue_key: str) -> str:
    """Return the subject pattern that matches every dispatch of one queue of a tenant."""
    return f"deltaci.dispatch.{token(tenant)}.{token(queue_key)}.*"


def dispatch(tenant: str, queue_key: str, attempt_id: str) -> str:
    """Return the subject of the dispatch message of one attempt.

    No other attempt has this subject, and the stream keeps one message per subject, so a repeated dispatch replaces the
    earlier one.
    """
    return f"deltaci.dispatch.{token(tenant)}.{token(queue_key)}.{token(attempt_id)}"


def consumer_name(key: str) -> str:
    """Return the name of the consumer that all runners of a queue share."""
    return token(key)


def next_dispatch(tenant: str, queue_key: str) -> str:
    """Return the subject to which a runner sends a request for the next dispatches of a queue."""
    return f"$JS.API.CONSUMER.MSG.NEXT.{stream(tenant)}.{consumer_name(queue_key)}"


def new_queues(tenant: str) -> str:
    """Return the subject on which a tenant's runners are informed that a new queue exists."""
    return f"deltaci.queues.{token(tenant)}"


def control(tenant: str, runner_id: str) -> str:
    """Return the subject on which cancel requests are sent to a runner.

    All incarnations of a runner share it, so that one NATS permission is enough.
    """
    return f"deltaci.control.{token(tenant)}.{token(first_incarnation_id(runner_id))}"


def inbox(tenant: str, runner_id: str) -> str:
    """Return the prefix of the subjects on which a runner receives replies."""
    return f"deltaci.inbox.{token(tenant)}.{token(first_incarnation_id(runner_id))}"


def queue_keys(labels: Iterable[str]) -> list[str]:
    """Return the keys of all queues that a runner with these labels consumes, the queue without labels first.

    Return an empty list if there are more than `MAX_LABELS` labels.
    """
    distinct_labels = sorted(set(labels))
    if len(distinct_labels) > MAX_LABELS:
        return []
    return [
        queue_key(subset) for size in range(len(distinct_labels) + 1) for subset in combinations(distinct_labels, size)
    ]


def _base32(raw_bytes: bytes) -> str:
    return b32encode(raw_bytes).decode().rstrip("=").lower()
