"""Convert a plan to readable JSON and back; syntax errors have a line and a column."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

MAX_DEPTH: Final = 60
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_PART: Final = re.compile(r"\.([A-Za-z0-9_\-]+)|\[(\d+)\]|\[\.\.\.\]")
_read = json.JSONDecoder().raw_decode

Place = tuple[int, int]  # The line and the column, as editors count: both from 1 on.


class JsonSyntaxError(Exception):
    """The text is not valid JSON; has the message and the position."""

    def __init__(self, message: str, place: Place) -> None:
        super().__init__(message)
        self.message = message
        self.place = place


def written(value: Any) -> str:
    """Anything of the API as JSON with indents."""
    return json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False)


def read(text: str) -> Any:
    """What the text says."""
    if not text.strip():
        raise JsonSyntaxError("it is empty; expected JSON, at least {}", (1, 1))
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        said = f"line {error.lineno}, column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"
        raise JsonSyntaxError(said, (error.lineno, error.colno)) from None
    except (RecursionError, ValueError) as error:
        raise JsonSyntaxError(f"it cannot be read: {error}", (1, 1)) from None


def place_of(text: str, path: str) -> Place | None:
    """Where what a path like `.jobs[2].work` names stands in a text that is JSON; None for what is not there.

    Where a path does not say which of many is meant, it is all of them: their beginning."""
    at = _after(text, 0)
    for part in list(_PART.finditer(path))[:MAX_DEPTH]:
        name, index = part[1], part[2]
        if name is None and index is None:
            break
        inside = _member(text, at, name) if name is not None else _item(text, at, int(index))
        if inside is None:
            break
        at = inside
    if at >= len(text):
        return None
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def _after(text: str, at: int) -> int:
    """Behind the spaces here."""
    found = _SPACE.match(text, at)
    return found.end() if found is not None else at


def _member(text: str, at: int, name: str) -> int | None:
    """Where the value of an object's member begins."""
    if text[at : at + 1] != "{":
        return None
    at = _after(text, at + 1)
    while text[at : at + 1] == '"':
        key, at = _read(text, at)
        at = _after(text, _after(text, at) + 1)
        if key == name:
            return at
        at = _next(text, at)
    return None


def _item(text: str, at: int, index: int) -> int | None:
    """Where an item of a list begins."""
    if text[at : at + 1] != "[":
        return None
    at = _after(text, at + 1)
    for _ in range(index):
        if text[at : at + 1] in ("]", ""):
            return None
        at = _next(text, at)
    return at if text[at : at + 1] != "]" else None


def _next(text: str, at: int) -> int:
    """Behind the value here, and the comma behind that."""
    _, at = _read(text, at)
    at = _after(text, at)
    return _after(text, at + 1) if text[at : at + 1] == "," else at
