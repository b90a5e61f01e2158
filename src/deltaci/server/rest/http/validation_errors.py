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
    """Return the error's message, completed by the allowed values or by the field name that was probably meant."""
    error_text = str(error)
    path_match = _PATH.match(error_text)
    message, json_path = (path_match["message"], path_match["path"]) if path_match else (error_text, "$")
    expected_types = list(_types_at(expected_type, json_path))
    unknown_field = _UNKNOWN.search(message)
    if unknown_field is not None:
        field_names = [field_name for annotation in expected_types for field_name in _field_types(annotation)]
        return f"{error_text}{_format_suggestion(unknown_field[1], field_names)}" if field_names else error_text
    if message.startswith("Invalid enum value"):
        allowed_values = [
            str(allowed_value)
            for annotation in expected_types
            if get_origin(annotation) is Literal
            for allowed_value in get_args(annotation)
        ]
        return f"{error_text}; expected {_join(sorted(allowed_values))}" if allowed_values else error_text
    return error_text


def _types_at(root_type: Any, json_path: str) -> Iterator[Any]:
    """Yield every type that is allowed at a path below the type `root_type`."""
    type_annotations = [root_type]
    for path_part in _PART.finditer(json_path):
        type_annotations = [
            inner_type
            for annotation in type_annotations
            for member in _members(annotation)
            for inner_type in _child_types(member, path_part[1])
        ]
    for annotation in type_annotations:
        yield from _members(annotation)


def _members(annotation: Any) -> Iterator[Any]:
    """Yield the member types of a union, else the type itself, without `Annotated`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


def _child_types(annotation: Any, field_name: str | None) -> Iterator[Any]:
    """Yield the type of the field with this name, or of the elements of a dict or list."""
    if field_name is not None and field_name in (field_types := _field_types(annotation)):
        yield field_types[field_name]
    elif get_origin(annotation) is dict:
        yield get_args(annotation)[1]
    elif get_origin(annotation) is list and field_name is None:
        yield get_args(annotation)[0]


@cache
def _field_types(annotation: Any) -> dict[str, Any]:
    """Return the types of the fields of a struct by their names in JSON; an empty dict for another type."""
    if not (isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)):
        return {}
    hints = get_type_hints(annotation, include_extras=True)
    return {field.encode_name: hints[field.name] for field in msgspec.structs.fields(annotation)}


def _format_suggestion(unknown_name: str, valid_names: list[str]) -> str:
    nearest_name = nearest(unknown_name, valid_names)
    return f"; did you mean {nearest_name!r}?" if nearest_name else f"; expected {_join(sorted(set(valid_names)))}"


def _join(values: list[str]) -> str:
    ellipsis = ", …" if len(values) > MAX_LISTED else ""
    return ", ".join(values[:MAX_LISTED]) + ellipsis
