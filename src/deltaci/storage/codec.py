"""Records and events as bytes: compact, typed, and the same in every store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from deltaci.core.attempt import Attempt
from deltaci.core.events import WORKER, Event
from deltaci.core.job import Job
from deltaci.core.machine import Record
from deltaci.core.run import Run
from deltaci.core.worker import Worker
from deltaci.storage.port import UnreadableRecord

KINDS: Final[tuple[type[Record], ...]] = (Run, Job, Attempt, Worker)
KIND_OF: Final = {kind: number for number, kind in enumerate(KINDS)}
JOB_KIND: Final = KIND_OF[Job]
ATTEMPT_KIND: Final = KIND_OF[Attempt]
LISTED_KINDS: Final = (KIND_OF[Run], KIND_OF[Worker])
_DECODERS: Final = tuple(msgspec.msgpack.Decoder(kind) for kind in KINDS)
_ENCODER: Final = msgspec.msgpack.Encoder()
_EVENTS: Final = msgspec.msgpack.Decoder(list[Event])
_EVENT: Final = msgspec.msgpack.Decoder(Event)
_RAW_EVENTS: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
LAZY_DECODE_COUNT: Final = 1000  # Events of one row, from which on they are read one by one.

encode = _ENCODER.encode


def decode_record(id: str, kind: int, body: bytes) -> Record:
    """The record that these bytes are. Bytes that make no sense are one, too: nobody else may suffer from them."""
    try:
        return _DECODERS[kind].decode(body)
    except Exception as error:
        return UnreadableRecord(id=id, problem=f"{type(error).__name__}: {error}")


class EventChunk(msgspec.Struct, frozen=True):
    """The events of one transaction, as one row of the log."""

    count: int
    at: int
    body: bytes
    scopes: frozenset[str]


def pack_events(events: Sequence[Event]) -> EventChunk:
    """The row for these events, and under which names it is found."""
    scopes = frozenset(event.run_id or event.entity_id for event in events)
    return EventChunk(len(events), events[-1].at, encode(events), scopes | _workers(events))


def _workers(events: Sequence[Event]) -> frozenset[str]:
    return frozenset(event.entity_id for event in events if event.entity == WORKER)


def unpack_events(last_seq: int, count: int, body: bytes, after: int = 0) -> Iterator[Event]:
    """The events of one row, each at its place in the log; of a large one only those that come after this seq."""
    first = last_seq - count + 1
    if count <= LAZY_DECODE_COUNT:
        for n, event in enumerate(_EVENTS.decode(body)):
            yield msgspec.structs.replace(event, seq=first + n)
        return
    # A large run is one row: whoever reads it page by page must not pay for all of it each time.
    parts = _RAW_EVENTS.decode(body)
    for n in range(max(0, after + 1 - first), count):
        yield msgspec.structs.replace(_EVENT.decode(parts[n]), seq=first + n)


def select_events(
    rows: Iterable[tuple[int, int, bytes]], after: int, limit: int, entity_id: str, run_id: str
) -> list[Event]:
    """The wanted events of some rows of the log."""
    found: list[Event] = []
    for last_seq, count, body in rows:
        for event in unpack_events(last_seq, count, body, after):
            is_wanted = entity_id in ("", event.entity_id) and run_id in ("", event.run_id)
            if event.seq > after and is_wanted:
                found.append(event)
                if len(found) == limit:
                    return found
    return found
