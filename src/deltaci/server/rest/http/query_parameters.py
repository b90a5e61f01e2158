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


def parse_query(query_string: bytes, query_type: type[Query]) -> Query:
    """Parse a query string into this type. Raise Refused if a parameter that is not a list is repeated."""
    default_by_name = _defaults(query_type)
    value_by_name: dict[str, Any] = {}
    for parameter_name, value_text in _pairs(query_string):
        default_value = default_by_name.get(parameter_name)
        if default_value is msgspec.NODEFAULT:  # Only lists have a default factory.
            value_by_name.setdefault(parameter_name, []).append(value_text)
        elif parameter_name in value_by_name:
            raise Refused("bad_request", f"{parameter_name[:MAX_QUOTED_CHARS]!r} is given twice in the query")
        elif isinstance(default_value, bool):
            value_by_name[parameter_name] = _BOOLEANS.get(value_text, value_text)
        else:
            value_by_name[parameter_name] = parse_number(value_text) if isinstance(default_value, int) else value_text
    return msgspec.convert(value_by_name, query_type)


def parse_number(text: str) -> int | str:
    """Return the text as an integer, or unchanged if it is not one."""
    return int(text) if _NUMBER.fullmatch(text) else text


@cache
def _defaults(query_type: type[RequestSchema]) -> dict[str, Any]:
    """Return the default of each field by its name.

    The type of the default decides how the text of a parameter is converted.
    """
    return {field.name: field.default for field in msgspec.structs.fields(query_type)}


def _pairs(query_string: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            query_string.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
        )
    except ValueError as error:
        raise Refused("bad_request", f"the query cannot be decoded: {error}") from None
