"""Conversion between values and JSON, within limits: for toJSON(), fromJSON() and values embedded in expressions."""

from __future__ import annotations

import math
import re
from typing import Any, Final

import msgspec

from deltaci.pipeline.expressions.limits import MAX_STEPS, MAX_TEXT, MAX_VALUE_DEPTH
from deltaci.pipeline.expressions.values import MAX_EXACT_INTEGER, Value, format_number, is_list, is_object

_SHORT_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
# Control characters, the line terminators of JavaScript, and lone surrogates, which cannot be encoded as UTF-8.
_ESCAPED: Final = re.compile('["\\\\\x00-\x1f\x85\u2028\u2029\ud800-\udfff]')


class JsonError(Exception):
    """A value cannot be written as JSON, or a text is not valid JSON. The message describes the value or text."""


def format_json(value: Value) -> str:
    """Return JSON indented by two spaces, as GitHub formats it. Raise JsonError if it would be too long or too deep."""
    formatter = _Formatter()
    formatter.append_value(value, 0)
    return "".join(formatter.json_parts)


class _Formatter:
    """Formats one value as JSON. Limits the length, because a value may contain the same list many times."""

    def __init__(self) -> None:
        self.json_parts: list[str] = []
        self._length = 0

    def append_value(self, value: Value, depth: int) -> None:
        if depth > MAX_VALUE_DEPTH:
            raise JsonError(f"a value deeper than {MAX_VALUE_DEPTH} levels")
        if is_object(value) and value:
            self._append_container(
                "{", [(f"{quote_json_string(str(key))}: ", item) for key, item in value.items()], "}", depth
            )
        elif is_list(value) and value:
            self._append_container("[", [("", item) for item in value], "]", depth)
        else:
            self._append(_format_scalar(value))

    def _append_container(self, opening: str, items: list[tuple[str, Value]], closing: str, depth: int) -> None:
        indentation = "\n" + "  " * (depth + 1)
        for index, (prefix, item) in enumerate(items):
            self._append((opening if index == 0 else ",") + indentation + prefix)
            self.append_value(item, depth + 1)
        self._append("\n" + "  " * depth + closing)

    def _append(self, part: str) -> None:
        self._length += len(part)
        if self._length > MAX_TEXT:
            raise JsonError(f"JSON of more than {MAX_TEXT} characters")
        self.json_parts.append(part)


def quote_json_string(text: str) -> str:
    """Return a string as a JSON string literal."""
    return '"' + _ESCAPED.sub(lambda match: _SHORT_ESCAPES.get(match[0], f"\\u{ord(match[0]):04x}"), text) + '"'


def parse_json(text: str) -> Value:
    """Parse JSON. Raise JsonError if invalid or beyond the limits; large integers become doubles, as on GitHub."""
    if len(text) > MAX_TEXT:
        raise JsonError(f"JSON of {len(text)} characters")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError) as error:
        raise JsonError(f"a text that is not JSON ({error})") from None
    except RecursionError:
        raise JsonError(f"a value deeper than {MAX_VALUE_DEPTH} levels") from None
    return _check_bounds(value)


def compact_json(value: Value, max_length: int) -> str | None:
    """Return a value as JSON without spaces.

    Return None if that would be longer than `max_length`, or if `parse_json` would not return an equal value.
    """
    if not _may_fit(value, max_length):
        return None
    try:
        json_text = msgspec.json.encode(value).decode()
        return json_text if len(json_text) <= max_length and parse_json(json_text) == value else None
    except (JsonError, msgspec.MsgspecError, TypeError, ValueError):
        return None


def _format_scalar(value: Value) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return format_number(value)
        case str():
            return quote_json_string(value)
        case _:
            return "[]" if is_list(value) else "{}"


def _check_bounds(root: Any) -> Value:
    """Return the value with large integers as doubles; raise JsonError if it is too deep or has too many items."""
    root_holder = [root]
    unvisited: list[tuple[Any, int]] = [(root_holder, 0)]
    item_count = 0
    while unvisited:
        container, depth = unvisited.pop()
        if depth > MAX_VALUE_DEPTH:
            raise JsonError(f"a value deeper than {MAX_VALUE_DEPTH} levels")
        for key, item in list(container.items() if isinstance(container, dict) else enumerate(container)):
            item_count += 1
            if item_count > MAX_STEPS:
                raise JsonError(f"a value of more than {MAX_STEPS} items")
            if isinstance(item, dict | list):
                unvisited.append((item, depth + 1))
            elif isinstance(item, int) and not isinstance(item, bool) and abs(item) > MAX_EXACT_INTEGER:
                container[key] = _to_double(item)
    value: Value = root_holder[0]
    return value


def _to_double(integer: int) -> float:
    try:
        return float(integer)
    except OverflowError:
        return math.inf if integer > 0 else -math.inf


def _may_fit(root: Value, max_length: int) -> bool:
    """Return False if a value is certainly longer than `max_length` as JSON, or contains NaN or infinity.

    This check avoids encoding a huge value. A part that occurs twice counts twice.
    """
    unvisited: list[tuple[Value, int]] = [(root, 0)]
    min_length = 0
    while unvisited:
        value, depth = unvisited.pop()
        min_length += len(value) if isinstance(value, str | list | tuple) else 1
        if min_length > max_length or depth > MAX_VALUE_DEPTH:
            return False
        if isinstance(value, float) and not math.isfinite(value):
            return False
        if is_object(value):
            min_length += sum(map(len, value))
            unvisited.extend((item, depth + 1) for item in value.values())
        elif is_list(value):
            unvisited.extend((item, depth + 1) for item in value)
    return True
