"""Parse the runner's markers in a job's log: where each step begins and ends.

`deltaci.runner.log.sections` writes them; it describes the layout of a log and why a job cannot forge a marker.
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
    """Return whether a line has the form of a marker with any nonce. Such a line is not output of the job."""
    return _LIKE_MARKER.match(line) is not None


class LogSection(msgspec.Struct, frozen=True, kw_only=True):
    """The range of one step in a log: the bytes from `start` to `stop` are its output, without markers."""

    index: int
    name: str
    start: int
    stop: int
    is_over: bool = False
    exit_code: int | None = None
    seconds: float | None = None


class StepMarker(msgspec.Struct, frozen=True, kw_only=True):
    """One marker. The marker at the beginning of a step has `name`, the one at its end has `seconds`."""

    index: int
    name: str | None = None
    exit_code: int | None = None
    seconds: float | None = None


def log_nonce(log: bytes) -> str | None:
    """Return the nonce in the first line of a log; None if there is none, or the line is not complete yet."""
    header = _HEADER.match(log)
    return header[1].decode() if header else None


def sections(log: bytes) -> list[LogSection]:
    """Return the sections of all steps in a log, in order.

    If the last step has no end marker yet, its section extends to the end of the log and `is_over` is false.
    """
    nonce = log_nonce(log)
    return [] if nonce is None else sections_from(log, nonce)


def sections_from(part: bytes, nonce: str, offset: int = 0) -> list[LogSection]:
    """Return the sections of the steps that begin in a part of a log, which must start at the beginning of a line.

    `offset` is the position of the part in the log; positions in the result refer to the whole log. An end marker
    without its begin marker is ignored.
    """
    expected_nonce = nonce.encode()
    steps: list[LogSection] = []
    for marker in _MARKER.finditer(part):
        if marker["nonce"] != expected_nonce:
            continue
        stop = offset + marker.start() - (1 if marker["cut"] else 0)
        stop = max(stop, steps[-1].start) if steps else stop
        if marker["begin"] is not None:
            name = _parse_name(marker["name"])
            if name is None:
                continue
            if steps and not steps[-1].is_over:  # The runner died before it wrote the end marker.
                steps[-1] = msgspec.structs.replace(steps[-1], stop=stop, is_over=True)
            start = offset + marker.end()
            steps.append(LogSection(index=int(marker["begin"]), name=name, start=start, stop=start))
        elif steps and not steps[-1].is_over and steps[-1].index == int(marker["end"]):
            exit_code = None if marker["exit"] == b"none" else int(marker["exit"])
            steps[-1] = msgspec.structs.replace(
                steps[-1], stop=stop, is_over=True, exit_code=exit_code, seconds=float(marker["seconds"])
            )
    if steps and not steps[-1].is_over:
        steps[-1] = msgspec.structs.replace(steps[-1], stop=offset + len(part))
    return steps


def parse_marker(line: bytes, nonce: str) -> StepMarker | None:
    """Return the marker that this line of a log is; None if it is no marker with this nonce."""
    marker = _MARKER.fullmatch(line)
    if marker is None or marker["nonce"] != nonce.encode():
        return None
    if marker["begin"] is not None:
        name = _parse_name(marker["name"])
        return None if name is None else StepMarker(index=int(marker["begin"]), name=name)
    exit_code = None if marker["exit"] == b"none" else int(marker["exit"])
    return StepMarker(index=int(marker["end"]), exit_code=exit_code, seconds=float(marker["seconds"]))


def _parse_name(quoted: bytes) -> str | None:
    """Return the step name in a marker, or None if it is not valid JSON."""
    try:
        return str(json.loads(quoted))
    except ValueError:
        return None
