"""How a job's log is laid out: the steps' beginnings and ends are lines that only the runner can write.

The first line of a log names a nonce, made for this log alone, and every marker carries it. It is written before any of
the job's own output, so a viewer that trusts the first line knows all true markers:

    ::log 1 nonce=5f0c…
    ::step 5f0c… begin index=0 name="make test"
    …output…
    ::step 5f0c… end index=0 exit=0 seconds=1.234

A job cannot guess the nonce. One that could read its own log might learn it, so the runner gives the nonce to the
`Mask` too, as one more secret: then it cannot be said in the job's output at all. Markers themselves are not masked.

Nothing is lost: what a step wrote is found again byte by byte. Output that has no newline at its end gets one before
the next marker, which then says `cut=1`.
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
MAX_SECONDS: Final = 10.0**11  # As many digits as a marker may have.
# The runner's own sections. Steps count from 0, and are never so many.
RESTORE_CACHES: Final = 900_000_000
UPLOAD_ARTIFACTS: Final = 900_000_001
VALIDATE: Final = 900_000_002
START_SERVICES: Final = 900_000_003
PREPARE_TREE: Final = 900_000_004
HAND_OVER: Final = 900_000_005


def new_nonce() -> str:
    """A nonce for one log. Give it to the log's `Mask` as well."""
    return secrets.token_hex(16)


class SectionWriter:
    """Lays out one log. Returns the bytes to append; keeps only whether the last line was ended."""

    def __init__(self, nonce: str) -> None:
        self.nonce = nonce
        self._is_line_open = False

    def header(self) -> bytes:
        """The first line."""
        return f"::log {VERSION} nonce={self.nonce}\n".encode()

    def begin(self, index: int, name: str) -> bytes:
        """A step begins."""
        quoted = json.dumps(name[:MAX_NAME_CHARACTERS])
        return self._marker(f"begin index={index} name={quoted}")

    def output(self, data: bytes) -> bytes:
        """What the job wrote, masked; it is returned as it is."""
        if data:
            self._is_line_open = not data.endswith(b"\n")
        return data

    def end(self, index: int, exit_code: int | None, seconds: float) -> bytes:
        """A step ended; without an exit code if it was killed before it had one."""
        took = min(seconds, MAX_SECONDS) if math.isfinite(seconds) and seconds > 0 else 0.0
        code = "none" if exit_code is None else exit_code
        return self._marker(f"end index={index} exit={code} seconds={took:.3f}")

    def _marker(self, what: str) -> bytes:
        is_cut, self._is_line_open = self._is_line_open, False
        before, after = ("\n", " cut=1") if is_cut else ("", "")
        return f"{before}::step {self.nonce} {what}{after}\n".encode()
