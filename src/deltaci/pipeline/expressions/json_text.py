"""Values as JSON and back, within limits: as toJSON() prints them, and as an expression can carry them."""

from __future__ import annotations

import math
import re
from typing import Any, Final

import msgspec

from deltaci.pipeline.expressions.limits import MAX_STEPS, MAX_TEXT, MAX_VALUE_DEPTH
from deltaci.pipeline.expressions.values import EXACT, Value, is_list, is_object, number_text

_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
# Control signs, and the three that end a line for JavaScript; a lone half of a pair would be no text at all.
_ESCAPED: Final = re.compile('["\\\\\x00-\x1f\x85\u2028\u2029\ud800-\udfff]')


class NoJson(Exception):
    """It cannot be printed or read. The message says what was found; the evaluator says where."""


def pretty(value: Value) -> str:
    """JSON with two spaces for each level, as GitHub prints it. Refuses before it becomes too long."""
    printer = _Printer()
    printer.value(value, 0)
    return "".join(printer.parts)


class _Printer:
    """Counts while it prints, so that a value that repeats itself cannot become a text without end."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._length = 0

    def value(self, value: Value, level: int) -> None:
        if level > MAX_VALUE_DEPTH:
            raise NoJson(f"a value deeper than {MAX_VALUE_DEPTH} levels")
        if is_object(value) and value:
            self._many("{", [(f"{quoted(str(key))}: ", item) for key, item in value.items()], "}", level)
        elif is_list(value) and value:
            self._many("[", [("", item) for item in value], "]", level)
        else:
            self._put(_scalar(value))

    def _many(self, opening: str, items: list[tuple[str, Value]], closing: str, level: int) -> None:
        inner = "\n" + "  " * (level + 1)
        for index, (key, item) in enumerate(items):
            self._put((opening if index == 0 else ",") + inner + key)
            self.value(item, level + 1)
        self._put("\n" + "  " * level + closing)

    def _put(self, part: str) -> None:
        self._length += len(part)
        if self._length > MAX_TEXT:
            raise NoJson(f"JSON of more than {MAX_TEXT} characters")
        self.parts.append(part)


def quoted(text: str) -> str:
    """A text in double quotes."""
    return '"' + _ESCAPED.sub(lambda found: _SHORT.get(found[0], f"\\u{ord(found[0]):04x}"), text) + '"'


def parsed(text: str) -> Value:
    """The value of a JSON text, within limits. Numbers that are not exact become what they are on GitHub."""
    if len(text) > MAX_TEXT:
        raise NoJson(f"JSON of {len(text)} characters")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError) as why:
        raise NoJson(f"a text that is no JSON ({why})") from None
    except RecursionError:
        raise NoJson(f"a value deeper than {MAX_VALUE_DEPTH} levels") from None
    return _bounded(value)


def compact(value: Value, most: int) -> str | None:
    """JSON of at most so many characters that `parsed` reads back as an equal value, or None if there is none."""
    if not _is_small(value, most):
        return None
    try:
        text = msgspec.json.encode(value).decode()
        return text if len(text) <= most and parsed(text) == value else None
    except (NoJson, msgspec.MsgspecError, TypeError, ValueError):
        return None


def _scalar(value: Value) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return number_text(value)
        case str():
            return quoted(value)
        case _:
            return "[]" if is_list(value) else "{}"


def _bounded(root: Any) -> Value:
    """The same value, if it is neither too deep nor too large, with large whole numbers as they are counted."""
    holder = [root]
    waiting: list[tuple[Any, int]] = [(holder, 0)]
    count = 0
    while waiting:
        inside, depth = waiting.pop()
        if depth > MAX_VALUE_DEPTH:
            raise NoJson(f"a value deeper than {MAX_VALUE_DEPTH} levels")
        for key, item in list(inside.items() if isinstance(inside, dict) else enumerate(inside)):
            count += 1
            if count > MAX_STEPS:
                raise NoJson(f"a value of more than {MAX_STEPS} items")
            if isinstance(item, dict | list):
                waiting.append((item, depth + 1))
            elif isinstance(item, int) and not isinstance(item, bool) and abs(item) > EXACT:
                inside[key] = _inexact(item)
    value: Value = holder[0]
    return value


def _inexact(whole: int) -> float:
    try:
        return float(whole)
    except OverflowError:
        return math.inf if whole > 0 else -math.inf


def _is_small(root: Value, most: int) -> bool:
    """Can it be so short in JSON, without anything that JSON does not have? What is there twice counts twice."""
    waiting: list[tuple[Value, int]] = [(root, 0)]
    length = 0
    while waiting:
        value, depth = waiting.pop()
        length += len(value) if isinstance(value, str | list | tuple) else 1
        if length > most or depth > MAX_VALUE_DEPTH:
            return False
        if isinstance(value, float) and not math.isfinite(value):
            return False
        if is_object(value):
            length += sum(map(len, value))
            waiting.extend((item, depth + 1) for item in value.values())
        elif is_list(value):
            waiting.extend((item, depth + 1) for item in value)
    return True
