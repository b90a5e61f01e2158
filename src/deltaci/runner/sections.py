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
import re
import secrets
from typing import Final

import msgspec

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

_HEADER: Final = re.compile(rb"::log 1 nonce=([0-9a-f]{32})\n")
_MARKER: Final = re.compile(
    rb"^::step (?P<nonce>[0-9a-f]{32}) (?:"
    rb'begin index=(?P<begin>\d{1,9}) name=(?P<name>"(?:[^"\\\n]|\\.)*")'
    rb"|end index=(?P<end>\d{1,9}) exit=(?P<exit>-?\d{1,9}|none) seconds=(?P<seconds>\d{1,12}\.\d{3})"
    rb")(?P<cut> cut=1)?\n",
    re.MULTILINE,
)


_LIKE_MARKER: Final = re.compile(r"::(?:log 1 nonce=|step [0-9a-f]{32} (?:begin|end) )")


def is_marker(line: str) -> bool:
    """Whether a line looks like one that only lays out the log: it says nothing of how the job went."""
    return _LIKE_MARKER.match(line) is not None


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One step's place in a log: its output is the bytes from `start` to `stop`, without any marker."""

    index: int
    name: str
    start: int
    stop: int
    is_over: bool = False
    exit_code: int | None = None
    seconds: float | None = None


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """One marker: a step that begins has a name, one that ends has its seconds."""

    name: str | None = None
    exit_code: int | None = None
    seconds: float | None = None


def new_nonce() -> str:
    """A nonce for one log. Give it to the log's `Mask` as well."""
    return secrets.token_hex(16)


class Writer:
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


def nonce_of(log: bytes) -> str | None:
    """The nonce that the beginning of a log names; None if this is not a log of ours, or not yet a whole line."""
    found = _HEADER.match(log)
    return found[1].decode() if found else None


def sections(log: bytes) -> list[Section]:
    """The steps of a log, in order, also of one that is still written: the last may have no end yet."""
    nonce = nonce_of(log)
    return [] if nonce is None else sections_from(log, nonce)


def sections_from(part: bytes, nonce: str, offset: int = 0) -> list[Section]:
    """The steps that begin in a part of a log that was read from an offset, at the start of a line. Places are the
    whole log's. A marker that no writer writes (an end without its beginning) is passed over."""
    known = nonce.encode()
    found: list[Section] = []
    for marker in _MARKER.finditer(part):
        if marker["nonce"] != known:
            continue
        stop = offset + marker.start() - (1 if marker["cut"] else 0)
        stop = max(stop, found[-1].start) if found else stop
        if marker["begin"] is not None:
            name = _name(marker["name"])
            if name is None:
                continue
            if found and not found[-1].is_over:  # Its runner died before it wrote the end.
                found[-1] = msgspec.structs.replace(found[-1], stop=stop, is_over=True)
            start = offset + marker.end()
            found.append(Section(index=int(marker["begin"]), name=name, start=start, stop=start))
        elif found and not found[-1].is_over and found[-1].index == int(marker["end"]):
            code = None if marker["exit"] == b"none" else int(marker["exit"])
            found[-1] = msgspec.structs.replace(
                found[-1], stop=stop, is_over=True, exit_code=code, seconds=float(marker["seconds"])
            )
    if found and not found[-1].is_over:
        found[-1] = msgspec.structs.replace(found[-1], stop=offset + len(part))
    return found


def mark_of(line: bytes, nonce: str) -> Mark | None:
    """The marker that a line of the log is, if it is one."""
    marker = _MARKER.fullmatch(line)
    if marker is None or marker["nonce"] != nonce.encode():
        return None
    if marker["begin"] is not None:
        name = _name(marker["name"])
        return None if name is None else Mark(name=name)
    code = None if marker["exit"] == b"none" else int(marker["exit"])
    return Mark(exit_code=code, seconds=float(marker["seconds"]))


def _name(quoted: bytes) -> str | None:
    """The name in a marker, or None for one that no writer writes."""
    try:
        return str(json.loads(quoted))
    except ValueError:
        return None
