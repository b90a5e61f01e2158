"""The file `transitions.jsonl`: the transitions of document 003, each exactly once, also after a crash.

Each line contains the `seq` of its event. A snapshot beside the file stores the state of its writer after some event.
Opening the file truncates an incomplete last line, loads the snapshot, and replays the events after it, skipping lines
that already exist. The file can always be rebuilt from the event log; therefore it is synced only before a snapshot.

All functions block on the disk and are called in threads, one at a time.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from deltaci.audit.projections.transitions import ExporterState, TransitionsExporter
from deltaci.core.events import Event
from deltaci.storage.blobs.disk_reserve import check_free_space

FILE: Final = "transitions.jsonl"
SNAPSHOT: Final = "transitions.snapshot.json"
LOCK: Final = "transitions.lock"
VERSION: Final = 1
BLOCK_BYTES: Final = 64 * 1024


class FileLockedError(Exception):
    """Another process has locked this file for writing."""


class MissingEventsError(Exception):
    """The events that follow the last written one are not among the given ones."""


class EventMark(msgspec.Struct, frozen=True):
    """The seq, entity and time of an event. They show whether an event with the same seq is of another log."""

    seq: int = 0
    entity_id: str = ""
    at: int = 0

    @classmethod
    def of(cls, event: Event) -> EventMark:
        """Return the mark of an event."""
        return cls(event.seq, event.entity_id, event.at)

    def fits(self, event: Event) -> bool:
        """Return whether this mark can be of the event. A mark from a line of the file lacks the exact time."""
        return event.seq == self.seq and self.entity_id in ("", event.entity_id) and self.at in (0, event.at)


class JournalSnapshot(msgspec.Struct, frozen=True):
    """The state of the writer after the event `mark`, when the file has `bytes` bytes and all lines up to `written`.

    `written` is greater than `mark` while events are replayed.
    """

    version: int = VERSION
    mark: EventMark = EventMark()
    written: int = 0
    bytes: int = 0
    memory: ExporterState = msgspec.field(default_factory=ExporterState)


class JournalPosition(msgspec.Struct, frozen=True):
    """Where to continue: the event after which the snapshot was made, and the last event that has a line."""

    snapshot: EventMark
    last: EventMark
    is_ours: bool = True  # Whether its last line says where in the log it belongs.


class _LineMetadata(msgspec.Struct, frozen=True):
    seq: int


class _TransitionLine(msgspec.Struct, frozen=True):
    entity_id: str
    metadata: _LineMetadata


_encode: Final = msgspec.json.Encoder(decimal_format="number").encode
_decode: Final = msgspec.json.Decoder(_TransitionLine).decode


class TransitionJournal:
    """The file `transitions.jsonl` and the state of its exporter."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._snapshot_path = folder / SNAPSHOT
        self._lock_path = folder / LOCK
        self._lock: BinaryIO | None = None
        self._file: BinaryIO | None = None
        self._size = 0
        self._exporter = TransitionsExporter()
        self._mark = EventMark()
        self._written = 0  # Up to this seq, lines are there.
        self.unsaved = 0  # So many events were heard since the last snapshot.

    @property
    def seen(self) -> int:
        """Return the seq of the last event that was appended."""
        return self._mark.seq

    @property
    def remembered(self) -> int:
        """Return the number of records in a snapshot."""
        return len(self._exporter.state.live)

    def open(self) -> JournalPosition:
        """Lock and open the file, and remove an incomplete last line. Return where to continue.

        Raises `FileLockedError` if another process has locked it.
        """
        self.close()
        self._take()
        check_free_space(self.path.parent, BLOCK_BYTES, is_small=True)
        self._file = self.path.open("a+b")
        size = self._file.seek(0, os.SEEK_END)
        line, end = _last_line(self._file, size)
        if end < size:  # Somebody ended in the middle of it.
            self._file.truncate(end)
        self._size = end
        snapshot = self._snapshot(end)
        self._exporter, self._mark, self.unsaved = TransitionsExporter(snapshot.memory), snapshot.mark, 0
        last = max(snapshot.mark, EventMark(snapshot.written), key=lambda mark: mark.seq)
        if end > snapshot.bytes:
            try:
                said = _decode(line)
            except msgspec.DecodeError:
                return JournalPosition(snapshot.mark, last, is_ours=False)
            last = EventMark(said.metadata.seq, said.entity_id)
        self._written = last.seq
        return JournalPosition(snapshot.mark, last, is_ours=last.seq >= snapshot.written)

    def _take(self) -> None:
        self._lock = self._lock_path.open("ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise FileLockedError(f"another server writes {self.path}") from None

    def _snapshot(self, end: int) -> JournalSnapshot:
        """Return the stored snapshot, or an empty one if it is invalid or the file is shorter than it says."""
        try:
            found = msgspec.json.decode(self._snapshot_path.read_bytes(), type=JournalSnapshot)
        except (FileNotFoundError, msgspec.DecodeError):
            return JournalSnapshot()
        assert self._file is not None
        if found.version != VERSION or found.bytes > end:
            return JournalSnapshot()
        if found.bytes:
            self._file.seek(found.bytes - 1)
            if self._file.read(1) != b"\n":
                return JournalSnapshot()
        return found

    def begin_anew(self, after: int) -> Path | None:
        """Rename the file, and begin an empty one after this event.

        Return the new path of the old file, if it had lines.
        """
        kept: Path | None = None
        assert self._file is not None
        self._snapshot_path.unlink(missing_ok=True)
        if self._size:
            kept = _free(self.path.with_name(f"transitions-until-{self._written}.jsonl"))
            self.path.rename(kept)
        self._file.close()
        self._file = self.path.open("a+b")
        self._size = self._file.seek(0, os.SEEK_END)
        self._exporter, self._mark, self._written = TransitionsExporter(), EventMark(after), after
        if after:
            self.save()  # Where it begins follows from nothing else.
        return kept

    def append(self, events: Sequence[Event]) -> None:
        """Write the transitions of these events. Raise `MissingEventsError` if they leave a gap."""
        lines: list[bytes] = []
        last: Event | None = None
        for number, event in enumerate(events, self.seen + 1):
            if event.seq != number:
                break
            last = event
            for line in self._exporter.export((event,)):
                if event.seq > self._written:
                    line["metadata"]["seq"] = event.seq
                    lines.append(_encode(line))
        if last is None:
            raise MissingEventsError(f"event {self.seen + 1} is missing")
        self.unsaved += last.seq - self.seen
        self._mark = EventMark.of(last)
        self._write(b"".join(line + b"\n" for line in lines))
        self._written = max(self._written, last.seq)

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        if data:
            check_free_space(self.path.parent, len(data), is_small=True)
            self._file.write(data)
            self._file.flush()
            self._size += len(data)

    def save(self) -> None:
        """Write a snapshot of the present state."""
        assert self._file is not None
        os.fsync(self._file.fileno())
        text = _encode(JournalSnapshot(VERSION, self._mark, self._written, self._size, self._exporter.state))
        draft = self._snapshot_path.with_suffix(".new")
        with draft.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._snapshot_path)
        self.unsaved = 0

    def close(self) -> None:
        """Close and unlock the file."""
        for each in (self._file, self._lock):
            if each is not None:
                with suppress(OSError):
                    each.close()
        self._file = self._lock = None


def _last_line(file: BinaryIO, size: int) -> tuple[bytes, int]:
    """Return the last complete line of the file, and where it ends."""
    at, tail = size, b""
    while at and tail.count(b"\n") < 2:
        step = min(BLOCK_BYTES, at)
        at -= step
        file.seek(at)
        tail = file.read(step) + tail
    whole, newline, _ = tail.rpartition(b"\n")
    if not newline:
        return b"", 0
    return whole.rpartition(b"\n")[2], at + len(whole) + 1


def _free(path: Path) -> Path:
    """Return this path, or one with a number if it exists."""
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return found
