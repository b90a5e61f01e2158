"""Checks of the arguments that callers pass to the queue.

Arguments are checked before a command is made from them, so that the caller gets the error. Every refusal names
the actual value, the expected one and the next step. A value that passes can be stored.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from deltaci.core import ids
from deltaci.core.errors import Refused, StaleLease
from deltaci.core.instants import from_datetime
from deltaci.core.json_values import bad_request, short_repr

MAX_TEXT: Final = 200
MAX_LABELS: Final = 32
MAX_CLAIM: Final = 1000
MAX_SECONDS: Final = 30 * 86400

_OPTIONS: Final = frozenset({"request_id", "expected_rev"})


# -- names


def _is_printable_text(value: object) -> bool:
    """Return whether the value is a printable text of 1 to MAX_TEXT characters.

    Texts with NUL or lone surrogates, which cannot be stored, are not printable.
    """
    return isinstance(value, str) and 0 < len(value) <= MAX_TEXT and value.isprintable()


def check_text(name: str, value: object) -> None:
    """Raise `Refused`, with `name` in its message, unless the value is a printable text of 1 to MAX_TEXT characters."""
    if not _is_printable_text(value):
        raise bad_request(f"{name} is {short_repr(value)}; give a printable text of 1 to {MAX_TEXT} characters")


def valid_id(id: object) -> str:
    """Return the id unchanged. Raises `Refused` with `not_found` if no record can have it."""
    if not isinstance(id, str) or not _is_printable_text(id):
        raise Refused("not_found", "that is not a valid id; check it")
    return id


def parse_lease_id(lease_id: object) -> ids.LeaseRef:
    """Return the parsed lease id. Raises `StaleLease` if it is malformed."""
    if not isinstance(lease_id, str) or not _is_printable_text(lease_id):
        raise StaleLease("UNKNOWN_LEASE", "the lease id is malformed; stop this attempt")
    return ids.lease_ref(lease_id)


def check_labels(labels: object) -> None:
    """Raise `Refused` unless the value is a collection of valid labels.

    A single text is refused, because it would be taken for a list of characters.
    """
    if not isinstance(labels, (list, tuple, set, frozenset)) or len(labels) > MAX_LABELS:
        raise bad_request(f"labels is {short_repr(labels)}; give a list of at most {MAX_LABELS} texts")
    for label in labels:
        check_text("a label", label)
        if "," in label:
            raise bad_request(f"label {label!r} contains a comma; use several labels")


def check_request_id(request_id: object) -> None:
    """Raise `Refused` unless the value is a valid request id, or empty."""
    if request_id != "":
        check_text("request_id", request_id)


# -- numbers and times


def check_positive_integer(name: str, value: object, maximum: int) -> None:
    """Raise `Refused`, with `name` in its message, unless the value is an integer from 1 to `maximum`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= maximum:
        raise bad_request(f"{name} is {short_repr(value)}; give a whole number from 1 to {maximum}")


def check_seconds(name: str, value: object) -> None:
    """Raise `Refused`, with `name` in its message, unless the value is a number from 0 to MAX_SECONDS."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MAX_SECONDS:
        raise bad_request(f"{name} is {short_repr(value)}; give a number of seconds from 0 to {MAX_SECONDS}")


def parse_instant(name: str, moment: object) -> int:
    """Return a timezone-aware datetime as microseconds since the epoch. Raises `Refused` for any other value."""
    expected = "give a datetime with a time zone, in the years 1 to 9999 of UTC"
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise bad_request(f"{name} is {short_repr(moment)}; {expected}")
    try:
        return from_datetime(moment.astimezone(UTC))
    except OverflowError:
        raise bad_request(f"{name} is {short_repr(moment)}; {expected}") from None


def check_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options unchanged. Raises `Refused` for others than a valid `request_id` and `expected_rev`."""
    unknown = options.keys() - _OPTIONS
    if unknown:
        raise bad_request(f"unknown option {', '.join(sorted(unknown))}; give request_id or expected_rev")
    check_request_id(options.get("request_id", ""))
    rev = options.get("expected_rev")
    if rev is not None and (not isinstance(rev, int) or isinstance(rev, bool)):
        raise bad_request(f"expected_rev is {short_repr(rev)}; give the whole number that `rev` was")
    return options
