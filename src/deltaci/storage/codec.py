"""Encodes records and events as bytes, in the same way for every store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from deltaci.core.attempt import Attempt
from deltaci.core.events import RESOURCE, USER, WORKER, Event, actor_kind
from deltaci.core.ids import administration_id
from deltaci.core.job import Job
from deltaci.core.machine import Record
from deltaci.core.resource import Resource
from deltaci.core.run import Run
from deltaci.core.worker import Worker
from deltaci.storage.port import UnreadableRecord

KINDS: Final[tuple[type[Record], ...]] = (Run, Job, Attempt, Worker, Resource)
KIND_OF: Final = {kind: number for number, kind in enumerate(KINDS)}
JOB_KIND: Final = KIND_OF[Job]
ATTEMPT_KIND: Final = KIND_OF[Attempt]
RESOURCE_KIND: Final = KIND_OF[Resource]
LISTED_KINDS: Final = (KIND_OF[Run], KIND_OF[Worker])
_DECODERS: Final = tuple(msgspec.msgpack.Decoder(kind) for kind in KINDS)
_ENCODER: Final = msgspec.msgpack.Encoder()
_EVENTS: Final = msgspec.msgpack.Decoder(list[Event])
_EVENT: Final = msgspec.msgpack.Decoder(Event)
_RAW_EVENTS: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
LAZY_DECODE_COUNT: Final = 1000  # A row with more events is decoded event by event, from the requested one on.

encode = _ENCODER.encode


def decode_record(id: str, kind: int, body: bytes) -> Record:
    """Return the decoded record.

    Return an `UnreadableRecord` instead of raising, so that one such record does not hide the others.
    """
    try:
        return _DECODERS[kind].decode(body)
    except Exception as error:
        return UnreadableRecord(id=id, problem=f"{type(error).__name__}: {error}")


class EventChunk(msgspec.Struct, frozen=True):
    """The encoded events of one transaction, as one row of the log. `scopes` are the ids by which the row is found."""

    count: int
    at: int
    body: bytes
    scopes: frozenset[str]


def pack_events(events: Sequence[Event]) -> EventChunk:
    """Return the events of one transaction, encoded as one row. It is found by the ids of their runs.

    Events of records without a run, such as workers, are found by the ids of these records, administrative events also
    by the `administration_id` of their tenant.
    """
    scopes = {event.run_id or event.entity_id for event in events}
    for event in events:
        if event.entity in (WORKER, RESOURCE) and is_administrative(event):
            scopes.add(administration_id(event.tenant))
    return EventChunk(len(events), events[-1].at, encode(events), frozenset(scopes))


def is_administrative(event: Event) -> bool:
    """Return whether the event belongs to the audit log: that of a resource, or a person's action on a worker."""
    return event.entity == RESOURCE or (event.entity == WORKER and actor_kind(event.actor) == USER)


def latest_administrative(
    log_rows: Iterable[tuple[int, int, bytes]], tenant: str, before: int, limit: int
) -> list[Event]:
    """Return up to `limit` administrative events of these rows with a `seq` below `before`, the newest first.

    The rows are given in the same order.
    """
    events: list[Event] = []
    for last_seq, event_count, body in log_rows:
        for event in reversed(list(unpack_events(last_seq, event_count, body))):
            if event.seq < before and event.tenant == tenant and is_administrative(event):
                events.append(event)
                if len(events) == limit:
                    return events
    return events


def unpack_events(last_seq: int, event_count: int, body: bytes, after: int = 0) -> Iterator[Event]:
    """Yield the events of one row of the log, each with its `seq`.

    Of a large row, events up to the `seq` `after` are left out without decoding them.
    """
    first_seq = last_seq - event_count + 1
    if event_count <= LAZY_DECODE_COUNT:
        for event_index, event in enumerate(_EVENTS.decode(body)):
            yield msgspec.structs.replace(event, seq=first_seq + event_index)
        return
    # The start of a large run is one row: do not decode all of it again for each page.
    encoded_events = _RAW_EVENTS.decode(body)
    for event_index in range(max(0, after + 1 - first_seq), event_count):
        yield msgspec.structs.replace(_EVENT.decode(encoded_events[event_index]), seq=first_seq + event_index)


def select_events(
    log_rows: Iterable[tuple[int, int, bytes]], after: int, limit: int, entity_id: str, run_id: str
) -> list[Event]:
    """Return up to `limit` events of these rows with a `seq` above `after`, of all records or of one entity or run."""
    events: list[Event] = []
    for last_seq, event_count, encoded_events in log_rows:
        for event in unpack_events(last_seq, event_count, encoded_events, after):
            is_selected = entity_id in ("", event.entity_id) and run_id in ("", event.run_id)
            if event.seq > after and is_selected:
                events.append(event)
                if len(events) == limit:
                    return events
    return events
