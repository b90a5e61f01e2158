"""Parse command-line arguments: times, durations, NAME=VALUE pairs, run names and JSON files."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from deltaci.api.schemas.inputs import MAX_BODY_BYTES
from deltaci.client.run_refs import RunRef, parse_refs

_SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SPAN: Final = re.compile(r"([0-9]{1,9})\s*(s|m|min|h|d|w)")
_TEMPLATE: Final = re.compile(r"([^@]+)(?:@([0-9]{1,9}))?")


def moment(text: str | None) -> datetime | None:
    """Parse a time: an age like 90m, 2h or 3d, or a date with or without a time, in UTC unless it names a zone."""
    if text is None:
        return None
    if found := _SPAN.fullmatch(text.strip()):
        return datetime.now(UTC) - timedelta(seconds=int(found[1]) * _SECONDS[found[2]])
    try:
        read = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not a time; expected e.g. 2h, 3d, 2026-01-31 or 2026-01-31T12:00:00Z") from None
    return read if read.tzinfo is not None else read.replace(tzinfo=UTC)


def seconds(text: str) -> int:
    """Parse a duration like 90m, 2h or 30d."""
    if found := _SPAN.fullmatch(text.strip()):
        return int(found[1]) * _SECONDS[found[2]]
    raise ValueError(f"{text!r} is not a duration; expected e.g. 90m, 12h or 30d")


def pairs(given: Iterable[str] | None) -> dict[str, str]:
    """Parse NAME=VALUE arguments. Raises `ValueError` for any other form and for a repeated name."""
    found: dict[str, str] = {}
    for each in given or ():
        name, sign, value = each.partition("=")
        if not sign or not name:
            raise ValueError(f"{each!r} is not an input; expected NAME=VALUE")
        if name in found:
            raise ValueError(f"the input {name!r} is given twice")
        found[name] = value
    return found


def template(text: str) -> tuple[str, int | None]:
    """Parse `NAME` or `NAME@VERSION`."""
    found = _TEMPLATE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a template name; expected NAME or NAME@VERSION")
    return found[1], int(found[2]) if found[2] else None


def run_only(text: str) -> str:
    """Return the run id in a reference. Raises `ValueError` if it names a job."""
    [*_, name] = parse_refs(text)
    if name.job:
        raise ValueError(f"{text!r} names a job; expected a run: {name.run}")
    return name.run


def in_a_run(text: str) -> tuple[RunRef, ...]:
    """Return the possible readings of `RUN/JOB` or `RUN/JOB.N`. Raises `ValueError` if it names only a run."""
    names = parse_refs(text)
    if not names[-1].job:
        raise ValueError(f"{text!r} names a run; expected one of its jobs: {text}/JOB, or an attempt: {text}/JOB.N")
    return names


def json_file(file: str) -> dict[str, Any]:
    """Return the JSON object in a file, or on standard input for `-`."""
    if file == "-":
        read = sys.stdin.buffer.read(MAX_BODY_BYTES + 1)
    else:
        try:
            with Path(file).open("rb") as source:
                read = source.read(MAX_BODY_BYTES + 1)
        except OSError as error:
            raise ValueError(
                f"{file!r} cannot be read: {error.strerror}; give a JSON file, or - for standard input"
            ) from None
    shown = "standard input" if file == "-" else file
    if len(read) > MAX_BODY_BYTES:
        raise ValueError(f"{shown} is larger than {MAX_BODY_BYTES // 1024 // 1024} MiB, more than a server accepts")
    try:
        found = msgspec.json.decode(read)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{shown} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f'{shown} is not a JSON object; expected e.g. {{"jobs": […]}}')
    return found
