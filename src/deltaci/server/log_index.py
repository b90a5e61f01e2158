"""Where the lines and the steps of a log are, without the log: whoever shows one reads only what is seen of it.

A log only grows, so what was counted once is kept, and a log that is followed costs what was added to it.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from threading import Lock
from typing import Final

from deltaci.api.schemas.logs import LogSection
from deltaci.protocol.log_sections import StepMarker, log_nonce, parse_marker
from deltaci.storage.blobs.logs import LogStore

BLOCK_BYTES: Final = 64 * 1024
PART_BYTES: Final = 1024 * 1024
MAX_MARKER_BYTES: Final = 16 * 1024  # More than the longest name of a step takes.
MAX_SECTIONS: Final = 2000
MAX_KEPT: Final = 128  # Logs; of the largest one 128 kB are kept.


class LogIndex:
    """What is known of one log so far. `blocks[n]` is how many newlines are before its n-th block of bytes."""

    def __init__(self) -> None:
        self.size = 0
        self.newlines = 0
        self.blocks: array[int] = array("Q", [0])
        self.sections: list[LogSection] = []
        self._nonce = ""
        self._line = b""  # The line that has no end yet, as long as it may be a marker.
        self._is_line_lost = False

    @property
    def lines(self) -> int:
        """How many there are; the last one may have no end yet."""
        is_open = bool(self._line) or self._is_line_lost
        return self.newlines + (1 if is_open else 0)

    @property
    def has_header(self) -> bool:
        """Whether its first line is its runner's, and names what markers carry."""
        return bool(self._nonce)

    def feed(self, data: bytes) -> None:
        """What comes next in the log."""
        self._find_markers(data)
        at = 0
        while at < len(data):
            stop = min(len(data), at + BLOCK_BYTES - self.size % BLOCK_BYTES)
            self.newlines += data.count(b"\n", at, stop)
            self.size += stop - at
            at = stop
            if self.size % BLOCK_BYTES == 0:
                self.blocks.append(self.newlines)

    def _find_markers(self, data: bytes) -> None:
        some = self._line + data if self._line else data
        if not self._nonce and not self.newlines and not self._is_line_lost:
            self._nonce = log_nonce(some) or ""
        nonce = self._nonce.encode()
        at = some.find(nonce) if nonce else -1
        counted, line = 0, self.newlines + 1
        while at >= 0:
            start, stop = some.rfind(b"\n", 0, at) + 1, some.find(b"\n", at)
            if stop < 0:
                break
            if start or not self._is_line_lost:
                mark = parse_marker(some[start : stop + 1], self._nonce)
                line, counted = line + some.count(b"\n", counted, start), start
                if mark is not None:
                    self._add(mark, line)
            at = some.find(nonce, stop)
        last = some.rfind(b"\n") + 1
        self._line = some[last:] if last else some
        is_lost = self._is_line_lost and not last
        self._is_line_lost = is_lost or len(self._line) > MAX_MARKER_BYTES
        if self._is_line_lost:
            self._line = b""

    def _add(self, mark: StepMarker, line: int) -> None:
        """By the rules of `sections_from`: what no writer writes is passed over."""
        last = self.sections[-1] if self.sections else None
        if mark.name is not None:
            if len(self.sections) >= MAX_SECTIONS:
                return
            if last is not None and not last.is_over:  # Its runner died before it wrote the end.
                self._end(last, line - 1, StepMarker(index=last.index))
            self.sections.append(
                LogSection(
                    index=mark.index,
                    name=mark.name,
                    first_line=line,
                    last_line=None,
                    is_over=False,
                    exit_code=None,
                    seconds=None,
                )
            )
        elif last is not None and not last.is_over and last.index == mark.index:
            self._end(last, line, mark)

    def _end(self, section: LogSection, line: int, mark: StepMarker) -> None:
        self.sections[-1] = LogSection(
            index=section.index,
            name=section.name,
            first_line=section.first_line,
            last_line=line,
            is_over=True,
            exit_code=mark.exit_code,
            seconds=mark.seconds,
        )


class Seen:
    """An index as it was at one moment, from a block on."""

    def __init__(self, index: LogIndex, block: int) -> None:
        self.size = index.size
        self.newlines = index.newlines
        self.lines = index.lines
        self.blocks = index.blocks[block:].tolist()
        self.has_header = index.has_header
        self.sections = list(index.sections)


class _Kept:
    """The index of one log, and who counts in it now."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.index = LogIndex()


class LogIndexes:
    """The indexes of the logs that were looked at last. Every method may be called in any thread."""

    def __init__(self, most: int = MAX_KEPT) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[str, int], _Kept] = OrderedDict()
        self._lock = Lock()

    def look(self, logs: LogStore, attempt_id: str, number: int, block: int = 0) -> Seen:
        """The index of this log as it is now, with the counts from this block on."""
        key = (attempt_id, number)
        with self._lock:
            kept = self._kept.pop(key, None) or _Kept()
            self._kept[key] = kept
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        with kept.lock:
            size = logs.size(attempt_id, number)
            if size < kept.index.size:  # It was removed, and begun anew.
                kept.index = LogIndex()
            while kept.index.size < size:
                part = logs.read(attempt_id, number, kept.index.size, PART_BYTES)
                if not part:
                    break
                kept.index.feed(part)
            return Seen(kept.index, block)
