"""Check an event log against the rules of all specification documents, in one pass.

`verify` accepts three formats (canonical events, document 003's transitions, document 004's job events) and detects
the format from the first line. It keeps state only for entities that have not ended, so memory does not grow with the
length of the log. It imports `core` and `audit.projections`. Start reading at `verify`, then `canonical.py`.
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

MAX_QUOTED_BYTES: Final = 120
PROGRESS_MASK: Final = 0x1FFF
MIN_EVENT_BYTES: Final = 64  # No event is shorter, so only a shorter line can be blank.


class Verifier(Protocol):
    """Verifies one log in one format: call `feed` with each line and its number, then `end`."""

    report: Report

    def feed(self, number: int, raw_event: bytes) -> None: ...
    def end(self) -> Report: ...


class NotAnEventLogError(Exception):
    """Raised if the input is in none of the known formats."""


FORMATS: Final[dict[str, Callable[[], Verifier]]] = {
    "canonical": CanonicalVerifier,
    "transitions": TransitionsVerifier,
    "job-events": JobEventsVerifier,
}
_FORMAT_FIELDS: Final = (("canonical", "entity"), ("transitions", "event_type"), ("job-events", "from_status"))


def detect(raw_event: bytes) -> str:
    """Return the format of a log, given its first line. Raises NotAnEventLogError if it has no known format."""
    try:
        first_event = msgspec.json.decode(raw_event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        quoted = raw_event[:MAX_QUOTED_BYTES].decode("utf-8", "replace")
        raise NotAnEventLogError(f"the first line is not JSON ({error}): {quoted}") from None
    for format_name, field_name in _FORMAT_FIELDS:
        if isinstance(first_event, dict) and field_name in first_event:
            return format_name
    listed_formats = ", ".join(f"{format_name} (has {field_name!r})" for format_name, field_name in _FORMAT_FIELDS)
    raise NotAnEventLogError(
        f"the first line is JSON but not an event in a known format; expected one of: {listed_formats}"
    )


def verify(lines: Iterable[bytes], format: str = "", progress: Callable[[int], None] | None = None) -> Report:
    """Verify a whole log and return the report. The format is detected unless it is given.

    A log without events is legal. Blank lines are skipped, but count for line numbers. `progress` is called with the
    line number about every 8192 lines.
    """
    verifier: Verifier | None = FORMATS[format]() if format else None
    feed = verifier.feed if verifier else None
    event_count = 0
    for number, raw in enumerate(lines, 1):
        if len(raw) < MIN_EVENT_BYTES and not raw.strip():
            continue
        if feed is None:
            verifier = FORMATS[detect(raw)]()
            feed = verifier.feed
        event_count += 1
        feed(number, raw)
        if progress is not None and not number & PROGRESS_MASK:
            progress(number)
    if verifier is None:
        return Report("an empty log")
    report = verifier.end()
    report.event_count = event_count
    return report
