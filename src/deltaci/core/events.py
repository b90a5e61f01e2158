"""Events: accepted transitions, appended to the log and never changed."""

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
RESOURCE: Final = "resource"
ENTITIES: Final = (RUN, JOB, ATTEMPT, LEASE, WORKER, RESOURCE)

INFO: Final = "info"
WARNING: Final = "warning"
ERROR: Final = "error"
CRITICAL: Final = "critical"

# The kinds of actors that send commands. An actor is a kind, followed by ":name" where there are many of the kind.
ORCHESTRATOR: Final = "orchestrator"
REPORTER: Final = "reporter"
RUNNER: Final = "worker"
USER: Final = "user"
ACTOR_KINDS: Final = (ORCHESTRATOR, REPORTER, RUNNER, USER)


class Event(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One transition of a record.

    `entity` is the kind of record: run, job, attempt, worker or resource. `seq` is 0 until the store assigns it;
    `from_` is None for the creation of a record.
    """

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
    """Return the kind of an actor, the part before the colon: `worker` for `worker:w1`."""
    return actor.partition(":")[0]


def worker_actor(worker_id: str) -> str:
    """Return the actor under which messages of this worker are recorded: `worker:w1` for `w1`."""
    return f"{RUNNER}:{worker_id}"


def to_json_line(event: Event) -> bytes:
    """Return the event as one JSON object without a newline, with its fields in a fixed order and `at` as UTC text."""
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
    """Return a copy of the event with this position in the log.

    Raise `InvariantBroken` if it already has a position.
    """
    if event.seq:
        raise InvariantBroken(f"event {event.entity_id} rev {event.rev} already has seq {event.seq}")
    return msgspec.structs.replace(event, seq=seq)
