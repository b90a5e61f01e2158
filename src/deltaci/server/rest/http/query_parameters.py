"""Addresses and queries are texts: here they become what their types say, and nothing else passes for it.

A number is written as JSON writes it and a yes or no is `true` or `false`. So `null`, `1e3` or `TRUE`, which a lenient
reader would guess about, are refused with the field's name.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec

from deltaci.api.schemas.inputs import RequestSchema
from deltaci.core.errors import Refused

MAX_FIELDS: Final = 100
MAX_SHOWN: Final = 200
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_WORDS: Final = {"true": True, "false": False}

A = TypeVar("A", bound=RequestSchema)


def read(query: bytes, kind: type[A]) -> A:
    """The query as this type. What is given twice, unless it is a list, is refused."""
    defaults = _defaults(kind)
    given: dict[str, Any] = {}
    for name, text in _pairs(query):
        default = defaults.get(name)
        if default is msgspec.NODEFAULT:  # Lists are the only fields whose default is made anew.
            given.setdefault(name, []).append(text)
        elif name in given:
            raise Refused("bad_request", f"{name[:MAX_SHOWN]!r} is given twice in the query")
        elif isinstance(default, bool):
            given[name] = _WORDS.get(text, text)
        else:
            given[name] = number(text) if isinstance(default, int) else text
    return msgspec.convert(given, kind)


def number(text: str) -> int | str:
    """A whole number; or the text itself, if it is none."""
    return int(text) if _NUMBER.fullmatch(text) else text


@cache
def _defaults(kind: type[RequestSchema]) -> dict[str, Any]:
    """What each field is when it is not given: that shows of which kind it is."""
    return {field.name: field.default for field in msgspec.structs.fields(kind)}


def _pairs(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise Refused("bad_request", f"the query cannot be read: {error}") from None
