"""Format a pipeline as YAML. Parsing the text gives an equal pipeline."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from deltaci.pipeline import model
from deltaci.pipeline.parse.shapes import field_default, get_shape
from deltaci.pipeline.parse.yaml import TEXT, needs_escapes, resolve_scalar

# Texts that every YAML parser reads as text without quotes, except the reserved words below.
_BARE: Final = re.compile(r"[A-Za-z_./][A-Za-z0-9_./ -]*[A-Za-z0-9_./]|[A-Za-z_]")
_RESERVED: Final = frozenset({"yes", "no", "on", "off", "y", "n", "true", "false", "null"})
ON: Final = "on"  # Never quoted as a key, although YAML 1.1 reads it as a boolean: YAML 1.2 does not.


def format_pipeline(pipeline: model.Pipeline) -> str:
    """Return a pipeline as the text of a file, without keys whose value is the default."""
    return "\n".join(_lines(to_plain(pipeline), 0)) + "\n"


def to_plain(struct: model.FileStruct) -> dict[str, Any]:
    """Return the keys of a struct with builtin values, in the order of the model, without default values."""
    struct_shape = get_shape(type(struct))
    plain_values: dict[str, Any] = {}
    for key, field in struct_shape.fields.items():
        value = getattr(struct, field.name)
        if field.required or value != field_default(field):
            plain_values[key] = _plain_value(value)
    extra_keys = struct_shape.extra_keys
    return (_plain_value(getattr(struct, extra_keys.name)) if extra_keys is not None else {}) | plain_values


def _plain_value(value: Any) -> Any:
    """Return a value of the model as builtin types, a struct in its shorthand notation if possible."""
    if isinstance(value, model.FileStruct):
        plain_struct, shorthand = to_plain(value), type(value).shorthand
        is_text_shorthand = bool(shorthand) and isinstance(plain_struct.get(shorthand), str)
        return plain_struct[shorthand] if is_text_shorthand and set(plain_struct) == {shorthand} else plain_struct
    if isinstance(value, dict):
        return {key: _plain_value(item_value) for key, item_value in value.items()}
    return [_plain_value(item) for item in value] if isinstance(value, tuple) else value


def _lines(value: Any, depth: int) -> Iterator[str]:
    """Yield the YAML lines of an object or a list, indented by `depth` levels."""
    indentation = "  " * depth
    for key, item_value in value.items() if isinstance(value, dict) else ((None, list_item) for list_item in value):
        start_text = (
            f"{indentation}-" if key is None else f"{indentation}{key if key == ON else _quote_if_needed(key)}:"
        )
        if isinstance(item_value, dict | list) and item_value and not _is_short(item_value):
            inner_lines = list(_lines(item_value, depth + 1))
            if key is None and isinstance(item_value, dict):  # The first key follows the dash on the same line.
                yield f"{start_text} {inner_lines[0].lstrip()}"
                yield from inner_lines[1:]
            else:
                yield start_text
                yield from inner_lines
        elif isinstance(item_value, str) and _is_block(item_value):
            yield f"{start_text} |" if item_value.endswith("\n") else f"{start_text} |-"
            yield from (
                f"{indentation}  {block_line}" if block_line else ""
                for block_line in item_value.removesuffix("\n").split("\n")
            )
        else:
            yield f"{start_text} {_inline(item_value)}"


def _is_block(text: str) -> bool:
    """Return whether a text contains a line break and can be written as a block scalar (`|`) without change."""
    lines = text.removesuffix("\n").split("\n")
    has_line_break = len(lines) > 1 or text.endswith("\n")
    is_representable = (
        all(line.strip() == "" == line or line.strip() for line in lines) and bool(lines[0]) and bool(lines[-1])
    )
    return has_line_break and is_representable and not lines[0].startswith((" ", "\t")) and not needs_escapes(text)


def _is_short(value: Any) -> bool:
    """Return whether a value is a list of scalars that fits on one line."""
    return (
        isinstance(value, list)
        and all(not isinstance(item, dict | list) for item in value)
        and len(_inline(value)) < 80
    )


def _inline(value: Any) -> str:
    """Return a scalar, a list of scalars or an empty object as YAML on one line."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return _quote_if_needed(value)
        case dict():
            return "{}"
        case list():
            return f"[{', '.join(_inline(item) for item in value)}]"
        case _:
            return str(value)


def _quote_if_needed(value: str) -> str:
    """Return a text as a YAML scalar, in double quotes unless every parser reads it as text without them."""
    if _BARE.fullmatch(value) and value.lower() not in _RESERVED and resolve_scalar(value)[0] == TEXT:
        return value
    # A JSON string is a YAML string. Non-ASCII characters are escaped, because some of them are line breaks in YAML.
    quoted = msgspec.json.encode(value).decode()
    return "".join(char if " " <= char <= "~" else _escape(char) for char in quoted)


def _escape(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
