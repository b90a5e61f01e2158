"""Complete the messages of validation errors with the allowed values of a field, or the nearest known field name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from deltaci.core.text import nearest

MAX_LISTED: Final = 20
_PATH: Final = re.compile(r"^(?P<message>.*) - at `(?P<path>[^`]*)`$", re.DOTALL)
_PART: Final = re.compile(r"\.([A-Za-z0-9_\-]+)|\[[^\]]*\]")
_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")


def explain(error: msgspec.ValidationError, expected_type: Any) -> str:
    """Return the message of an error, with the allowed values or field names at its path where there are any."""
    text = str(error)
    match = _PATH.match(text)
    message, path = (match["message"], match["path"]) if match else (text, "$")
    types = list(_types_at(expected_type, path))
    unknown = _UNKNOWN.search(message)
    if unknown is not None:
        names = [name for kind in types for name in _fields(kind)]
        return f"{text}{_suggestion(unknown[1], names)}" if names else text
    if message.startswith("Invalid enum value"):
        values = [str(value) for kind in types if get_origin(kind) is Literal for value in get_args(kind)]
        return f"{text}; expected {_join(sorted(values))}" if values else text
    return text


def _types_at(root: Any, path: str) -> Iterator[Any]:
    """Yield every type that is allowed at a path below the type `root`."""
    types = [root]
    for part in _PART.finditer(path):
        types = [inner for kind in types for member in _members(kind) for inner in _child_types(member, part[1])]
    for kind in types:
        yield from _members(kind)


def _members(kind: Any) -> Iterator[Any]:
    """Yield the members of a union, else the type itself; without annotations."""
    origin = get_origin(kind)
    if origin is Annotated:
        yield from _members(get_args(kind)[0])
    elif origin in (Union, UnionType):
        for member in get_args(kind):
            yield from _members(member)
    else:
        yield kind


def _child_types(kind: Any, name: str | None) -> Iterator[Any]:
    """Yield the types of a field of this name, or of the elements of a dict or list."""
    if name is not None and name in (fields := _fields(kind)):
        yield fields[name]
    elif get_origin(kind) is dict:
        yield get_args(kind)[1]
    elif get_origin(kind) is list and name is None:
        yield get_args(kind)[0]


@cache
def _fields(kind: Any) -> dict[str, Any]:
    """Return the types of the fields of a struct by their names in JSON; nothing for another type."""
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return {}
    hints = get_type_hints(kind, include_extras=True)
    return {field.encode_name: hints[field.name] for field in msgspec.structs.fields(kind)}


def _suggestion(name: str, names: list[str]) -> str:
    near = nearest(name, names)
    return f"; did you mean {near!r}?" if near else f"; expected {_join(sorted(set(names)))}"


def _join(values: list[str]) -> str:
    ellipsis = ", …" if len(values) > MAX_LISTED else ""
    return ", ".join(values[:MAX_LISTED]) + ellipsis
