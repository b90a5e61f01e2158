"""Records and events as bytes: compact, typed, and the same in every store."""

from __future__ import annotations

from typing import Final

import msgspec

from deltaci.core.attempt import Attempt
from deltaci.core.events import Event
from deltaci.core.job import Job
from deltaci.core.machine import Record
from deltaci.core.run import Run
from deltaci.core.worker import Worker

KINDS: Final[tuple[type[Record], ...]] = (Run, Job, Attempt, Worker)
KIND_OF: Final = {kind: number for number, kind in enumerate(KINDS)}
JOB_KIND: Final = KIND_OF[Job]
_DECODERS: Final = tuple(msgspec.msgpack.Decoder(kind) for kind in KINDS)
_ENCODER: Final = msgspec.msgpack.Encoder()
_EVENT: Final = msgspec.msgpack.Decoder(Event)

encode = _ENCODER.encode


def decode_record(kind: int, body: bytes) -> Record:
    """The record that these bytes are."""
    return _DECODERS[kind].decode(body)


def decode_event(seq: int, body: bytes) -> Event:
    """The event that these bytes are, at its place in the log."""
    return msgspec.structs.replace(_EVENT.decode(body), seq=seq)
