"""Writes the sections of a job's log: steps begin and end with marker lines that only the runner can write.

The first line of a log contains a nonce, random for each log, and every marker repeats it. It is written before any
output of the job, so a viewer that trusts the first line recognises all true markers:

    ::log 1 nonce=5f0c…
    ::step 5f0c… begin index=0 name="make test"
    …output…
    ::step 5f0c… end index=0 exit=0 seconds=1.234

A job cannot guess the nonce. It might learn the nonce by reading its own log, so the nonce is also given to the `Mask`
as a secret: then it cannot occur in the job's output at all. Markers themselves are not masked.

The output of a step can be recovered byte by byte. Output without a newline at its end gets one before the next marker,
which then has `cut=1`.
"""

from __future__ import annotations

import json
import math
import secrets
from typing import Final

from deltaci.protocol.log_sections import (
    LogSection,
    StepMarker,
    log_nonce,
    looks_like_marker,
    parse_marker,
    sections,
    sections_from,
)

__all__ = [
    "LogSection",
    "SectionWriter",
    "StepMarker",
    "log_nonce",
    "looks_like_marker",
    "new_nonce",
    "parse_marker",
    "sections",
    "sections_from",
]

VERSION: Final = 1
MAX_NAME_CHARACTERS: Final = 500
MAX_SECONDS: Final = 10.0**11  # The parser accepts no more digits.
# Indexes of the runner's own sections. Steps count from 0 and never reach them.
RESTORE_CACHES: Final = 900_000_000
UPLOAD_ARTIFACTS: Final = 900_000_001
VALIDATE: Final = 900_000_002
START_SERVICES: Final = 900_000_003
PREPARE_TREE: Final = 900_000_004
HAND_OVER: Final = 900_000_005


def new_nonce() -> str:
    """Return a nonce for one log. It must also be given to the log's `Mask`."""
    return secrets.token_hex(16)


class SectionWriter:
    """Formats what is appended to one log. It keeps no state except whether the last line has ended."""

    def __init__(self, nonce: str) -> None:
        self.nonce = nonce
        self._is_line_open = False

    def header(self) -> bytes:
        """Return the first line of the log."""
        return f"::log {VERSION} nonce={self.nonce}\n".encode()

    def begin(self, index: int, name: str) -> bytes:
        """Return the marker with which a step begins."""
        quoted = json.dumps(name[:MAX_NAME_CHARACTERS])
        return self._marker_line(f"begin index={index} name={quoted}")

    def output(self, chunk: bytes) -> bytes:
        """Return masked output unchanged, and remember whether it ends with a newline."""
        if chunk:
            self._is_line_open = not chunk.endswith(b"\n")
        return chunk

    def end(self, index: int, exit_code: int | None, seconds: float) -> bytes:
        """Return the marker with which a step ends. A step that was killed may have no exit code."""
        bounded_seconds = min(seconds, MAX_SECONDS) if math.isfinite(seconds) and seconds > 0 else 0.0
        exit_text = "none" if exit_code is None else exit_code
        return self._marker_line(f"end index={index} exit={exit_text} seconds={bounded_seconds:.3f}")

    def _marker_line(self, content: str) -> bytes:
        """Return a marker line with this content. If the last line has not ended, end it and add `cut=1`."""
        is_cut, self._is_line_open = self._is_line_open, False
        newline, cut_field = ("\n", " cut=1") if is_cut else ("", "")
        return f"{newline}::step {self.nonce} {content}{cut_field}\n".encode()
