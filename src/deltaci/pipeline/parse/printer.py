"""A pipeline as YAML text, which reads back as the same pipeline."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from deltaci.pipeline import model
from deltaci.pipeline.parse.shapes import field_default, shape
from deltaci.pipeline.parse.yaml import TEXT, needs_escapes, resolve_scalar

# Words that no reader of YAML takes for anything but a text.
_BARE: Final = re.compile(r"[A-Za-z_./][A-Za-z0-9_./ -]*[A-Za-z0-9_./]|[A-Za-z_]")
_TRAPS: Final = frozenset({"yes", "no", "on", "off", "y", "n", "true", "false", "null"})
ON: Final = "on"  # As a key it is always written so; YAML 1.2 has no other meaning for it.


def format_pipeline(pipeline: model.Pipeline) -> str:
    """The whole file; keys that are as without them are left out."""
    return "\n".join(_lines(to_plain(pipeline), 0)) + "\n"


def to_plain(part: model.FileStruct) -> dict[str, Any]:
    """A part as keys and values, in the order of the model."""
    of = shape(type(part))
    told: dict[str, Any] = {}
    for name, field in of.fields.items():
        value = getattr(part, field.name)
        if field.required or value != field_default(field):
            told[name] = _plain(value)
    return (_plain(getattr(part, of.rest.name)) if of.rest is not None else {}) | told


def _plain(value: Any) -> Any:
    if isinstance(value, model.FileStruct):
        told, short = to_plain(value), type(value).shorthand
        is_text = bool(short) and isinstance(told.get(short), str)
        return told[short] if is_text and set(told) == {short} else told
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _lines(value: Any, depth: int) -> Iterator[str]:
    space = "  " * depth
    for name, each in value.items() if isinstance(value, dict) else ((None, each) for each in value):
        head = f"{space}-" if name is None else f"{space}{name if name == ON else _text(name)}:"
        if isinstance(each, dict | list) and each and not _is_short(each):
            inner = list(_lines(each, depth + 1))
            if name is None and isinstance(each, dict):  # The first key stands behind the dash.
                yield f"{head} {inner[0].lstrip()}"
                yield from inner[1:]
            else:
                yield head
                yield from inner
        elif isinstance(each, str) and _is_block(each):
            yield f"{head} |" if each.endswith("\n") else f"{head} |-"
            yield from (f"{space}  {line}" if line else "" for line in each.removesuffix("\n").split("\n"))
        else:
            yield f"{head} {_one(each)}"


def _is_block(text: str) -> bool:
    """Whether a text of several lines can be written as a block, and reads back as it is."""
    lines = text.removesuffix("\n").split("\n")
    has_lines = len(lines) > 1 or text.endswith("\n")
    is_plain = all(line.strip() == "" == line or line.strip() for line in lines) and bool(lines[0]) and bool(lines[-1])
    return has_lines and is_plain and not lines[0].startswith((" ", "\t")) and not needs_escapes(text)


def _is_short(value: Any) -> bool:
    return (
        isinstance(value, list) and all(not isinstance(each, dict | list) for each in value) and len(_one(value)) < 80
    )


def _one(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return _text(value)
        case dict():
            return "{}"
        case list():
            return f"[{', '.join(_one(each) for each in value)}]"
        case _:
            return str(value)


def _text(value: str) -> str:
    if _BARE.fullmatch(value) and value.lower() not in _TRAPS and resolve_scalar(value)[0] == TEXT:
        return value
    # JSON's quotes are YAML's; what is beyond ASCII is escaped, as some of it would end a line.
    quoted = msgspec.json.encode(value).decode()
    return "".join(char if " " <= char <= "~" else _escaped(char) for char in quoted)


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
