"""Indexes of logs: the positions of lines and steps, so that a page reads only the part of a log that it shows.

A log only grows, so an index is cached and extended; the cost of following a log depends only on the appended bytes.
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
MAX_MARKER_BYTES: Final = 16 * 1024  # More than a marker with the longest step name.
MAX_SECTIONS: Final = 2000
MAX_CACHED: Final = 128  # The number of logs; the index of the largest possible log has 128 kB.


class LogIndex:
    """The size, lines and sections (steps) of the part of a log that was indexed so far.

    `blocks[n]` is the number of newlines before its n-th block of `BLOCK_BYTES` bytes.
    """

    def __init__(self) -> None:
        self.size = 0
        self.newlines = 0
        self.blocks: array[int] = array("Q", [0])
        self.sections: list[LogSection] = []
        self._nonce = ""
        self._unfinished_line = b""  # The unfinished last line, while it is short enough for a marker.
        self._is_line_too_long = False

    @property
    def lines(self) -> int:
        """Return the number of lines, including an unfinished last one."""
        is_open = bool(self._unfinished_line) or self._is_line_too_long
        return self.newlines + (1 if is_open else 0)

    @property
    def has_header(self) -> bool:
        """Return whether the first line is a header of the runner, with the nonce that step markers carry."""
        return bool(self._nonce)

    def feed(self, chunk: bytes) -> None:
        """Add the next bytes of the log to the index."""
        self._find_markers(chunk)
        block_start = 0
        while block_start < len(chunk):
            block_end = min(len(chunk), block_start + BLOCK_BYTES - self.size % BLOCK_BYTES)
            self.newlines += chunk.count(b"\n", block_start, block_end)
            self.size += block_end - block_start
            block_start = block_end
            if self.size % BLOCK_BYTES == 0:
                self.blocks.append(self.newlines)

    def _find_markers(self, chunk: bytes) -> None:
        """Apply the step markers in the next complete lines, and keep the unfinished last line for the next call."""
        pending_text = self._unfinished_line + chunk if self._unfinished_line else chunk
        if not self._nonce and not self.newlines and not self._is_line_too_long:
            self._nonce = log_nonce(pending_text) or ""
        nonce_bytes = self._nonce.encode()
        next_nonce_offset = pending_text.find(nonce_bytes) if nonce_bytes else -1
        counted_end, line_number = 0, self.newlines + 1
        while next_nonce_offset >= 0:
            marker_start, marker_end = (
                pending_text.rfind(b"\n", 0, next_nonce_offset) + 1,
                pending_text.find(b"\n", next_nonce_offset),
            )
            if marker_end < 0:
                break
            if marker_start or not self._is_line_too_long:
                marker = parse_marker(pending_text[marker_start : marker_end + 1], self._nonce)
                line_number, counted_end = (
                    line_number + pending_text.count(b"\n", counted_end, marker_start),
                    marker_start,
                )
                if marker is not None:
                    self._apply_marker(marker, line_number)
            next_nonce_offset = pending_text.find(nonce_bytes, marker_end)
        line_start = pending_text.rfind(b"\n") + 1
        self._unfinished_line = pending_text[line_start:] if line_start else pending_text
        was_too_long = self._is_line_too_long and not line_start
        self._is_line_too_long = was_too_long or len(self._unfinished_line) > MAX_MARKER_BYTES
        if self._is_line_too_long:
            self._unfinished_line = b""

    def _apply_marker(self, marker: StepMarker, line_number: int) -> None:
        """Begin or end a section for a step marker. Ignores an end marker that does not belong to the open section."""
        last_section = self.sections[-1] if self.sections else None
        if marker.name is not None:
            if len(self.sections) >= MAX_SECTIONS:
                return
            if last_section is not None and not last_section.is_over:  # The runner died before it wrote the end marker.
                self._end_section(last_section, line_number - 1, StepMarker(index=last_section.index))
            self.sections.append(
                LogSection(
                    index=marker.index,
                    name=marker.name,
                    first_line=line_number,
                    last_line=None,
                    is_over=False,
                    exit_code=None,
                    seconds=None,
                )
            )
        elif last_section is not None and not last_section.is_over and last_section.index == marker.index:
            self._end_section(last_section, line_number, marker)

    def _end_section(self, section: LogSection, line_number: int, marker: StepMarker) -> None:
        self.sections[-1] = LogSection(
            index=section.index,
            name=section.name,
            first_line=section.first_line,
            last_line=line_number,
            is_over=True,
            exit_code=marker.exit_code,
            seconds=marker.seconds,
        )


class LogIndexSnapshot:
    """A copy of an index at one moment. Its `blocks` begin with the block of the given number."""

    def __init__(self, index: LogIndex, first_block: int) -> None:
        self.size = index.size
        self.newlines = index.newlines
        self.lines = index.lines
        self.blocks = index.blocks[first_block:].tolist()
        self.has_header = index.has_header
        self.sections = list(index.sections)


class _LockedIndex:
    """The index of one log and the lock of the thread that extends it."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.index = LogIndex()


class LogIndexes:
    """The indexes of recently read logs. All methods are thread-safe."""

    def __init__(self, max_cached: int = MAX_CACHED) -> None:
        self._max_cached = max_cached
        self._index_by_lease: OrderedDict[tuple[str, int], _LockedIndex] = OrderedDict()
        self._lock = Lock()

    def snapshot(self, logs: LogStore, attempt_id: str, lease_number: int, first_block: int = 0) -> LogIndexSnapshot:
        """Index the log of an attempt's lease up to its present end.

        Return a copy whose `blocks` begin with this block.
        """
        log_key = (attempt_id, lease_number)
        with self._lock:
            locked_index = self._index_by_lease.pop(log_key, None) or _LockedIndex()
            self._index_by_lease[log_key] = locked_index
            while len(self._index_by_lease) > self._max_cached:
                self._index_by_lease.popitem(last=False)
        with locked_index.lock:
            log_size = logs.size(attempt_id, lease_number)
            if log_size < locked_index.index.size:  # The log was deleted and restarted.
                locked_index.index = LogIndex()
            while locked_index.index.size < log_size:
                chunk = logs.read(attempt_id, lease_number, locked_index.index.size, PART_BYTES)
                if not chunk:
                    break
                locked_index.index.feed(chunk)
            return LogIndexSnapshot(locked_index.index, first_block)
