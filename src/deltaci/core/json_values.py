"""Check JSON values that callers pass in, and copy them to the form in which they are read back from the store."""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

import msgspec

from deltaci.core.errors import Refused

MAX_PAYLOAD_BYTES: Final = 1024 * 1024
MAX_DEPTH: Final = 100
MAX_REPR: Final = 60

_MIN_INT: Final = -(2**63)
_MAX_INT: Final = 2**64 - 1


def bad_request(message: str) -> Refused:
    return Refused("bad_request", message)


def short_repr(value: object) -> str:
    """Return the value's `repr`, cut to MAX_REPR characters, for a message. Does not raise, even if `repr` does."""
    try:
        value_repr = repr(value)
    except Exception:
        return f"some {type(value).__name__}"
    return value_repr if len(value_repr) <= MAX_REPR else f"{value_repr[:MAX_REPR]}…"


def replace_surrogates(value: object) -> str:
    """Return the value as text with each lone surrogate replaced by `?`, so that it can be stored as UTF-8."""
    return str(value).encode("utf-8", "replace").decode()


def json_copy(value_name: str, value: Any) -> Any:
    """Return a copy of a JSON value as it will be read back from the store.

    Raises `Refused`, with `value_name` in its message, if the value is not JSON or too large.
    """
    if value is None or value is True or value is False:
        return value
    problem_text = ""
    try:
        encoded_value = msgspec.json.encode(value)
        decoded_copy = msgspec.json.decode(encoded_value)
        msgspec.msgpack.encode(decoded_copy)  # The stored form; fails for integers beyond 64 bits.
        is_unchanged = decoded_copy == value and encoded_value.count(b"[") + encoded_value.count(b"{") <= MAX_DEPTH
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        encoded_value, decoded_copy, is_unchanged, problem_text = b"", None, False, str(error)
    if not is_unchanged:
        problem_text = _json_problem(value) or problem_text
    if problem_text:
        raise bad_request(f"{value_name} is not JSON: {problem_text}; give numbers, texts, lists and objects")
    if len(encoded_value) > MAX_PAYLOAD_BYTES:
        raise bad_request(
            f"{value_name} has {len(encoded_value)} bytes; at most {MAX_PAYLOAD_BYTES}: store it elsewhere, refer to it"
        )
    return decoded_copy


def _json_problem(value: Any) -> str:
    """Return a description of the first part of the value that JSON cannot represent; empty if there is no such part.

    A part that would be read back with a different value is a problem as well.
    """
    unvisited: list[tuple[Any, int]] = [(value, 0)]
    while unvisited:
        part, depth = unvisited.pop()
        if depth > MAX_DEPTH:
            return f"it is nested more than {MAX_DEPTH} deep"
        if isinstance(part, dict):
            invalid_keys = [key for key in part if not isinstance(key, str)]
            if invalid_keys:
                return f"the key {short_repr(invalid_keys[0])} is no text"
            unvisited += [(child, depth + 1) for pair in part.items() for child in pair]
        elif isinstance(part, list | tuple):
            unvisited += [(child, depth + 1) for child in part]
        elif problem := _scalar_problem(part):
            return problem
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
