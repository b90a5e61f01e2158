"""Is this log legal? Every transition, every owner, every view, every invariant, in one pass.

Takes any of the three formats and tells them apart by the first line. Keeps only what is not over, so the
size of the log does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec

from deltaci.audit.verify.canonical import CanonicalVerifier
from deltaci.audit.verify.job_events import JobEventsVerifier
from deltaci.audit.verify.report import Report, Violation
from deltaci.audit.verify.transitions import TransitionsVerifier

__all__ = ["FORMATS", "NotAnEventLogError", "Report", "Violation", "verify"]

MAX_SHOWN: Final = 120
PROGRESS_MASK: Final = 0x1FFF
MIN_LINE: Final = 64  # No event is shorter, so only a shorter line can be blank.


class Verifier(Protocol):
    """A verification of one format, under way."""

    report: Report

    def feed(self, number: int, raw: bytes) -> None: ...
    def end(self) -> Report: ...


class NotAnEventLogError(Exception):
    """The input is none of the formats that can be verified."""


FORMATS: Final[dict[str, Callable[[], Verifier]]] = {
    "canonical": CanonicalVerifier,
    "transitions": TransitionsVerifier,
    "job-events": JobEventsVerifier,
}
_MARKS: Final = (("canonical", "entity"), ("transitions", "event_type"), ("job-events", "from_status"))


def detect(raw: bytes) -> str:
    """The format of a log, by its first line."""
    try:
        first = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = raw[:MAX_SHOWN].decode("utf-8", "replace")
        raise NotAnEventLogError(f"the first line is not JSON ({error}): {shown}") from None
    for name, mark in _MARKS:
        if isinstance(first, dict) and mark in first:
            return name
    known = ", ".join(f"{name} (has {mark!r})" for name, mark in _MARKS)
    raise NotAnEventLogError(f"the first line is JSON, but no event of a known log; expected one of: {known}")


def verify(lines: Iterable[bytes], format: str = "", progress: Callable[[int], None] | None = None) -> Report:
    """Read the log to its end and say what is wrong with it. Blank lines are allowed and counted."""
    verifier: Verifier | None = FORMATS[format]() if format else None
    feed = verifier.feed if verifier else None
    read = 0
    for number, raw in enumerate(lines, 1):
        if len(raw) < MIN_LINE and not raw.strip():
            continue
        if feed is None:
            verifier = FORMATS[detect(raw)]()
            feed = verifier.feed
        read += 1
        feed(number, raw)
        if progress is not None and not number & PROGRESS_MASK:
            progress(number)
    if verifier is None:
        raise NotAnEventLogError("the log is empty; expected at least one event")
    report = verifier.end()
    report.lines = read
    return report
