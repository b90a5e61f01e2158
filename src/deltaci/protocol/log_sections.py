"""Reading a job's log: which of its lines are markers of its runner, and where its steps begin and end.

`deltaci.runner.sections` writes them, and says how a log is laid out and why nobody else can write a marker.
"""

from __future__ import annotations

import json
import re
from typing import Final

import msgspec

_HEADER: Final = re.compile(rb"::log 1 nonce=([0-9a-f]{32})\n")
_MARKER: Final = re.compile(
    rb"^::step (?P<nonce>[0-9a-f]{32}) (?:"
    rb'begin index=(?P<begin>\d{1,9}) name=(?P<name>"(?:[^"\\\n]|\\.)*")'
    rb"|end index=(?P<end>\d{1,9}) exit=(?P<exit>-?\d{1,9}|none) seconds=(?P<seconds>\d{1,12}\.\d{3})"
    rb")(?P<cut> cut=1)?\n",
    re.MULTILINE,
)


_LIKE_MARKER: Final = re.compile(r"::(?:log 1 nonce=|step [0-9a-f]{32} (?:begin|end) )")


def looks_like_marker(line: str) -> bool:
    """Whether a line looks like one that only lays out the log: it says nothing of how the job went."""
    return _LIKE_MARKER.match(line) is not None


class LogSection(msgspec.Struct, frozen=True, kw_only=True):
    """One step's place in a log: its output is the bytes from `start` to `stop`, without any marker."""

    index: int
    name: str
    start: int
    stop: int
    is_over: bool = False
    exit_code: int | None = None
    seconds: float | None = None


class StepMarker(msgspec.Struct, frozen=True, kw_only=True):
    """One marker: a step that begins has a name, one that ends has its seconds."""

    index: int
    name: str | None = None
    exit_code: int | None = None
    seconds: float | None = None


def log_nonce(log: bytes) -> str | None:
    """The nonce that the beginning of a log names; None if this is not a log of ours, or not yet a whole line."""
    found = _HEADER.match(log)
    return found[1].decode() if found else None


def sections(log: bytes) -> list[LogSection]:
    """The steps of a log, in order, also of one that is still written: the last may have no end yet."""
    nonce = log_nonce(log)
    return [] if nonce is None else sections_from(log, nonce)


def sections_from(part: bytes, nonce: str, offset: int = 0) -> list[LogSection]:
    """The steps that begin in a part of a log that was read from an offset, at the start of a line. Places are the
    whole log's. A marker that no writer writes (an end without its beginning) is passed over."""
    known = nonce.encode()
    found: list[LogSection] = []
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
            found.append(LogSection(index=int(marker["begin"]), name=name, start=start, stop=start))
        elif found and not found[-1].is_over and found[-1].index == int(marker["end"]):
            code = None if marker["exit"] == b"none" else int(marker["exit"])
            found[-1] = msgspec.structs.replace(
                found[-1], stop=stop, is_over=True, exit_code=code, seconds=float(marker["seconds"])
            )
    if found and not found[-1].is_over:
        found[-1] = msgspec.structs.replace(found[-1], stop=offset + len(part))
    return found


def parse_marker(line: bytes, nonce: str) -> StepMarker | None:
    """The marker that a line of the log is, if it is one."""
    marker = _MARKER.fullmatch(line)
    if marker is None or marker["nonce"] != nonce.encode():
        return None
    if marker["begin"] is not None:
        name = _name(marker["name"])
        return None if name is None else StepMarker(index=int(marker["begin"]), name=name)
    code = None if marker["exit"] == b"none" else int(marker["exit"])
    return StepMarker(index=int(marker["end"]), exit_code=code, seconds=float(marker["seconds"]))


def _name(quoted: bytes) -> str | None:
    """The name in a marker, or None for one that no writer writes."""
    try:
        return str(json.loads(quoted))
    except ValueError:
        return None
