"""What things are called on NATS, on both sides of it. See docs/nats.md.

Every name has the tenant in it, so that permissions can be given by it. Names that people chose may hold anything; on
the wire they are one token each, in an alphabet that means nothing to NATS.
"""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Iterable
from hashlib import blake2b
from itertools import combinations
from typing import Final

from deltaci.core.ids import first_life
from deltaci.core.worker import queue_key

MAX_TOKEN_CHARS: Final = 100
MAX_LABELS: Final = 6  # A runner takes from the queue of every subset of its labels: 64 of them.

_EMPTY: Final = "0"  # Neither this nor the next is a letter of base32, so that no name can look like another.
_DIGEST: Final = "1"


def token(text: str) -> str:
    """Any text as one token: the same text, the same token, and no two texts share one."""
    if not text:
        return _EMPTY
    plain = _base32(text.encode())
    return (
        plain if len(plain) <= MAX_TOKEN_CHARS else _DIGEST + _base32(blake2b(text.encode(), digest_size=20).digest())
    )


def stream(tenant: str) -> str:
    """The stream of a tenant's dispatches."""
    return f"deltaci-{token(tenant)}"


def all_dispatches(tenant: str) -> str:
    """All subjects of that stream."""
    return f"deltaci.dispatch.{token(tenant)}.>"


def queue(tenant: str, key: str) -> str:
    """The dispatches of one queue."""
    return f"deltaci.dispatch.{token(tenant)}.{token(key)}.*"


def dispatch(tenant: str, key: str, attempt_id: str) -> str:
    """The dispatch of one attempt. Its own subject, so that what is told again takes the place of what was told."""
    return f"deltaci.dispatch.{token(tenant)}.{token(key)}.{token(attempt_id)}"


def consumer(key: str) -> str:
    """The consumer that all runners share which take from this queue."""
    return token(key)


def next_dispatch(tenant: str, key: str) -> str:
    """Where a runner asks for the next dispatch of a queue."""
    return f"$JS.API.CONSUMER.MSG.NEXT.{stream(tenant)}.{consumer(key)}"


def new_queues(tenant: str) -> str:
    """Where it is told that there is a queue that was not there before."""
    return f"deltaci.queues.{token(tenant)}"


def control(tenant: str, runner_id: str) -> str:
    """Where a runner is told what is wanted of it: in all of its lives the same, so that one permission is enough."""
    return f"deltaci.control.{token(tenant)}.{token(first_life(runner_id))}"


def inbox(tenant: str, runner_id: str) -> str:
    """Where answers to a runner go."""
    return f"deltaci.inbox.{token(tenant)}.{token(first_life(runner_id))}"


def queue_keys(labels: Iterable[str]) -> list[str]:
    """Every queue that a runner with these labels may take from, the plain one first; none when they are too many."""
    offered = sorted(set(labels))
    if len(offered) > MAX_LABELS:
        return []
    return [queue_key(some) for size in range(len(offered) + 1) for some in combinations(offered, size)]


def _base32(data: bytes) -> str:
    return b32encode(data).decode().rstrip("=").lower()
