"""Convert the text of query parameters to the types of their fields, without guessing.

An integer is written as in JSON and a boolean is `true` or `false`. `null`, `1e3` or `TRUE`, which a lenient parser
would accept, are refused with the name of the field.
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
MAX_QUOTED_CHARS: Final = 200
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_BOOLEANS: Final = {"true": True, "false": False}

Query = TypeVar("Query", bound=RequestSchema)


def parse_query(query: bytes, query_type: type[Query]) -> Query:
    """Parse a query string into this type. Raise Refused if a parameter that is not a list is repeated."""
    defaults = _defaults(query_type)
    parameters: dict[str, Any] = {}
    for name, text in _pairs(query):
        default = defaults.get(name)
        if default is msgspec.NODEFAULT:  # Only lists have a default factory.
            parameters.setdefault(name, []).append(text)
        elif name in parameters:
            raise Refused("bad_request", f"{name[:MAX_QUOTED_CHARS]!r} is given twice in the query")
        elif isinstance(default, bool):
            parameters[name] = _BOOLEANS.get(text, text)
        else:
            parameters[name] = parse_number(text) if isinstance(default, int) else text
    return msgspec.convert(parameters, query_type)


def parse_number(text: str) -> int | str:
    """Return the text as an integer, or unchanged if it is not one."""
    return int(text) if _NUMBER.fullmatch(text) else text


@cache
def _defaults(query_type: type[RequestSchema]) -> dict[str, Any]:
    """Return the default of each field by its name.

    The type of the default decides how the text of a parameter is converted.
    """
    return {field.name: field.default for field in msgspec.structs.fields(query_type)}


def _pairs(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise Refused("bad_request", f"the query cannot be decoded: {error}") from None
