"""What is wrong with a request, with what would be right: the words that a field may have, the nearest known name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Final

import msgspec
from msgspec import inspect

MAX_LISTED: Final = 20
_PATH: Final = re.compile(r"^(?P<said>.*) - at `(?P<path>[^`]*)`$", re.DOTALL)
_PART: Final = re.compile(r"\.([A-Za-z0-9_\-]+)|\[[^\]]*\]")
_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")


def explained(error: msgspec.ValidationError, kind: Any) -> str:
    """The complaint about something that should be of this type, with what was expected where that can be told."""
    text = str(error)
    found = _PATH.match(text)
    said, path = (found["said"], found["path"]) if found else (text, "$")
    places = list(_at(inspect.type_info(kind), path))
    unknown = _UNKNOWN.search(said)
    if unknown is not None:
        names = [field.encode_name for place in places for field in getattr(place, "fields", ())]
        return f"{text}{_nearest(unknown[1], names)}" if names else text
    if said.startswith("Invalid enum value"):
        words = [str(each) for place in places for each in getattr(place, "values", ())]
        return f"{text}; expected {_listed(sorted(words))}" if words else text
    return text


def _at(info: inspect.Type, path: str) -> Iterator[inspect.Type]:
    """Every type that may stand at this place."""
    here = [info]
    for part in _PART.finditer(path):
        here = [inner for each in here for plain in _plain(each) for inner in _inside(plain, part[1])]
    for each in here:
        yield from _plain(each)


def _plain(info: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(info, inspect.UnionType):
        for each in info.types:
            yield from _plain(each)
    elif isinstance(info, inspect.Metadata):
        yield from _plain(info.type)
    else:
        yield info


def _inside(info: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    if isinstance(info, inspect.StructType) and name is not None:
        yield from (field.type for field in info.fields if field.encode_name == name)
    elif isinstance(info, inspect.DictType):
        yield info.value_type
    elif isinstance(info, inspect.CollectionType) and name is None:
        yield info.item_type


def _nearest(name: str, names: list[str]) -> str:
    near = get_close_matches(name, names, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; expected {_listed(sorted(set(names)))}"


def _listed(words: list[str]) -> str:
    more = ", …" if len(words) > MAX_LISTED else ""
    return ", ".join(words[:MAX_LISTED]) + more
