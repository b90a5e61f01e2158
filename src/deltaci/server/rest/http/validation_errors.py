"""What is wrong with a request, with what would be right: the words that a field may have, the nearest known name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from deltaci.core.text import nearest

MAX_LISTED: Final = 20
_PATH: Final = re.compile(r"^(?P<said>.*) - at `(?P<path>[^`]*)`$", re.DOTALL)
_PART: Final = re.compile(r"\.([A-Za-z0-9_\-]+)|\[[^\]]*\]")
_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")


def explained(error: msgspec.ValidationError, kind: Any) -> str:
    """The complaint about something that should be of this type, with what was expected where that can be told."""
    text = str(error)
    found = _PATH.match(text)
    said, path = (found["said"], found["path"]) if found else (text, "$")
    places = list(_at(kind, path))
    unknown = _UNKNOWN.search(said)
    if unknown is not None:
        names = [name for place in places for name in _fields(place)]
        return f"{text}{_nearest(unknown[1], names)}" if names else text
    if said.startswith("Invalid enum value"):
        words = [str(each) for place in places if get_origin(place) is Literal for each in get_args(place)]
        return f"{text}; expected {_listed(sorted(words))}" if words else text
    return text


def _at(kind: Any, path: str) -> Iterator[Any]:
    """Every type that may stand at this place."""
    here = [kind]
    for part in _PART.finditer(path):
        here = [inner for each in here for plain in _plain(each) for inner in _inside(plain, part[1])]
    for each in here:
        yield from _plain(each)


def _plain(kind: Any) -> Iterator[Any]:
    """What a type comes to: without its limits, and each of several one by one."""
    origin = get_origin(kind)
    if origin is Annotated:
        yield from _plain(get_args(kind)[0])
    elif origin in (Union, UnionType):
        for each in get_args(kind):
            yield from _plain(each)
    else:
        yield kind


def _inside(kind: Any, name: str | None) -> Iterator[Any]:
    if name is not None and name in (fields := _fields(kind)):
        yield fields[name]
    elif get_origin(kind) is dict:
        yield get_args(kind)[1]
    elif get_origin(kind) is list and name is None:
        yield get_args(kind)[0]


@cache
def _fields(kind: Any) -> dict[str, Any]:
    """The types of the fields of a struct, by the names that they are sent under; nothing for anything else."""
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return {}
    hints = get_type_hints(kind, include_extras=True)
    return {field.encode_name: hints[field.name] for field in msgspec.structs.fields(kind)}


def _nearest(name: str, names: list[str]) -> str:
    near = nearest(name, names)
    return f"; did you mean {near!r}?" if near else f"; expected {_listed(sorted(set(names)))}"


def _listed(words: list[str]) -> str:
    more = ", …" if len(words) > MAX_LISTED else ""
    return ", ".join(words[:MAX_LISTED]) + more
