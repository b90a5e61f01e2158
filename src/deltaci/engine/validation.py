"""What a caller of the queue may say. Checked before anything is decided, while its author is still there.

Every refusal says what was found, what was expected and what to do. Nothing that passes here can fail to be stored.
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final

import msgspec

from deltaci.core import ids
from deltaci.core.errors import Refused, StaleLease
from deltaci.core.instants import from_datetime

MAX_PAYLOAD_BYTES: Final = 1024 * 1024
MAX_DEPTH: Final = 100
MAX_TEXT: Final = 200
MAX_LABELS: Final = 32
MAX_CLAIM: Final = 1000
MAX_SECONDS: Final = 30 * 86400
MAX_REPR: Final = 60

_MIN_INT: Final = -(2**63)
_MAX_INT: Final = 2**64 - 1
_OPTIONS: Final = frozenset({"request_id", "expected_rev"})


def bad_request(message: str) -> Refused:
    """The caller's mistake."""
    return Refused("bad_request", message)


def short_repr(value: object) -> str:
    """The value in a message: short, and never a reason to fail itself."""
    try:
        text = repr(value)
    except Exception:
        return f"some {type(value).__name__}"
    return text if len(text) <= MAX_REPR else f"{text[:MAX_REPR]}…"


# -- names


def _is_printable_text(value: object) -> bool:
    """Whether it can be stored, shown and searched for: lone surrogates and NUL are not printable."""
    return isinstance(value, str) and 0 < len(value) <= MAX_TEXT and value.isprintable()


def check_text(name: str, value: object) -> None:
    """Refuse what cannot be a name."""
    if not _is_printable_text(value):
        raise bad_request(f"{name} is {short_repr(value)}; give a printable text of 1 to {MAX_TEXT} characters")


def valid_id(id: object) -> str:
    """The id, if it can be one."""
    if not isinstance(id, str) or not _is_printable_text(id):
        raise Refused("not_found", "that is not an id of ours; check it")
    return id


def parse_lease_id(lease_id: object) -> ids.LeaseRef:
    """What a lease id says about itself. A thing that cannot be one is an unknown lease."""
    if not isinstance(lease_id, str) or not _is_printable_text(lease_id):
        raise StaleLease("UNKNOWN_LEASE", "the lease id is malformed; stop this attempt")
    return ids.lease_ref(lease_id)


def check_labels(labels: object) -> None:
    """Refuse labels that no worker could have. One text is a mistake: it would be taken apart into letters."""
    if not isinstance(labels, list | tuple | set | frozenset) or len(labels) > MAX_LABELS:
        raise bad_request(f"labels is {short_repr(labels)}; give a list of at most {MAX_LABELS} texts")
    for label in labels:
        check_text("a label", label)
        if "," in label:
            raise bad_request(f"label {label!r} contains a comma; use several labels")


# -- numbers and times


def check_number(name: str, value: object, most: int) -> None:
    """Refuse what is no whole number from 1 on."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise bad_request(f"{name} is {short_repr(value)}; give a whole number from 1 to {most}")


def check_seconds(name: str, value: object) -> None:
    """Refuse what is no length of time."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MAX_SECONDS:
        raise bad_request(f"{name} is {short_repr(value)}; give a number of seconds from 0 to {MAX_SECONDS}")


def parse_instant(name: str, moment: object) -> int:
    """The moment as the engine counts time."""
    expected = "give a datetime with a time zone, in the years 1 to 9999 of UTC"
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise bad_request(f"{name} is {short_repr(moment)}; {expected}")
    try:
        return from_datetime(moment.astimezone(UTC))
    except OverflowError:
        raise bad_request(f"{name} is {short_repr(moment)}; {expected}") from None


def check_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options that every order takes."""
    unknown = options.keys() - _OPTIONS
    if unknown:
        raise bad_request(f"unknown option {', '.join(sorted(unknown))}; give request_id or expected_rev")
    if options.get("request_id", "") != "":
        check_text("request_id", options["request_id"])
    rev = options.get("expected_rev")
    if rev is not None and (not isinstance(rev, int) or isinstance(rev, bool)):
        raise bad_request(f"expected_rev is {short_repr(rev)}; give the whole number that `rev` was")
    return options


# -- contents


def replace_surrogates(value: object) -> str:
    """The text as it can be stored: what has no place in Unicode becomes a question mark."""
    return str(value).encode("utf-8", "replace").decode()


def json_copy(name: str, value: Any) -> Any:
    """The value as it will be kept and come back, and as the caller can no longer change it."""
    if value is None or value is True or value is False:
        return value
    trouble = ""
    try:
        body = msgspec.json.encode(value)
        copy = msgspec.json.decode(body)
        msgspec.msgpack.encode(copy)  # The form in which it is stored: integers beyond 64 bits have none.
        is_plain = copy == value and body.count(b"[") + body.count(b"{") <= MAX_DEPTH
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        body, copy, is_plain, trouble = b"", None, False, str(error)
    if not is_plain:
        trouble = _json_problem(value) or trouble
    if trouble:
        raise bad_request(f"{name} is not JSON: {trouble}; give numbers, texts, lists and objects")
    if len(body) > MAX_PAYLOAD_BYTES:
        raise bad_request(f"{name} has {len(body)} bytes; at most {MAX_PAYLOAD_BYTES}: store it elsewhere, refer to it")
    return copy


def _json_problem(value: Any) -> str:
    """The first thing in it that JSON has no word for, or that we would not give back as it was."""
    waiting: list[tuple[Any, int]] = [(value, 0)]
    while waiting:
        each, depth = waiting.pop()
        if depth > MAX_DEPTH:
            return f"it is nested more than {MAX_DEPTH} deep"
        if isinstance(each, dict):
            keys = [key for key in each if not isinstance(key, str)]
            if keys:
                return f"the key {short_repr(keys[0])} is no text"
            waiting += [(part, depth + 1) for pair in each.items() for part in pair]
        elif isinstance(each, list | tuple):
            waiting += [(part, depth + 1) for part in each]
        elif trouble := _scalar_problem(each):
            return trouble
    return ""


def _scalar_problem(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, str):
        return "" if replace_surrogates(value) == value else f"the text {short_repr(value)} has lone surrogates"
    if isinstance(value, int):
        return "" if _MIN_INT <= value <= _MAX_INT else f"the number {short_repr(value)} does not fit 64 bits"
    if isinstance(value, float):
        return "" if isfinite(value) else f"{value} is no number"
    return f"{short_repr(value)} is a {type(value).__name__}"
