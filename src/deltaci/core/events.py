"""One accepted transition, as it is written to the log and never changed again."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec

from deltaci.core.errors import InvariantBroken
from deltaci.core.instants import rfc3339

RUN: Final = "run"
JOB: Final = "job"
ATTEMPT: Final = "attempt"
LEASE: Final = "lease"
WORKER: Final = "worker"
ENTITIES: Final = (RUN, JOB, ATTEMPT, LEASE, WORKER)

INFO: Final = "info"
WARNING: Final = "warning"
ERROR: Final = "error"
CRITICAL: Final = "critical"

# Who may ask for a change. An actor is one of these kinds, with ":name" behind it where there are many.
ORCHESTRATOR: Final = "orchestrator"
REPORTER: Final = "reporter"
RUNNER: Final = "worker"
USER: Final = "user"
ACTOR_KINDS: Final = (ORCHESTRATOR, REPORTER, RUNNER, USER)


class Event(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A fact. `seq` is 0 until the store numbers it; `from_` is None for a birth."""

    seq: int
    at: int
    tenant: str
    entity: str
    entity_id: str
    run_id: str
    from_: str | None
    to: str
    trigger: str
    actor: str
    severity: str
    request_id: str
    rev: int
    metadata: dict[str, Any]


_ENCODER = msgspec.json.Encoder(decimal_format="number")


@lru_cache(maxsize=4096)
def actor_kind(actor: str) -> str:
    """`worker:w1` is a `worker`."""
    return actor.partition(":")[0]


def worker_actor(worker_id: str) -> str:
    """The actor that a message of this worker carries."""
    return f"{RUNNER}:{worker_id}"


def to_json_line(event: Event) -> bytes:
    """The canonical form: one JSON object, the fields in their fixed order, `at` as UTC text."""
    return _ENCODER.encode(
        {
            "seq": event.seq,
            "at": rfc3339(event.at),
            "tenant": event.tenant,
            "entity": event.entity,
            "entity_id": event.entity_id,
            "run_id": event.run_id,
            "from": event.from_,
            "to": event.to,
            "trigger": event.trigger,
            "actor": event.actor,
            "severity": event.severity,
            "request_id": event.request_id,
            "rev": event.rev,
            "metadata": event.metadata,
        }
    )


def with_seq(event: Event, seq: int) -> Event:
    """The event with its place in the log. A place is given once."""
    if event.seq:
        raise InvariantBroken(f"event {event.entity_id} rev {event.rev} already has seq {event.seq}")
    return msgspec.structs.replace(event, seq=seq)
