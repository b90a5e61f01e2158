"""The JSON Schema of a pipeline file, for editors; made from the model. `docs/pipeline.schema.json` is its output.

python -m scripts.docgen.pipelines docs/pipelines.md docs/pipeline.schema.json writes it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import inspect
from msgspec.structs import FieldInfo

from deltaci.pipeline import model
from deltaci.pipeline.parse.shapes import (
    Option,
    Shape,
    field_default,
    field_description,
    options,
    reachable_types,
    shape,
)
from deltaci.protocol.schema_names import schema_name

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema(root: type[model.FileStruct] = model.Pipeline, title: str = "Delta CI pipeline") -> dict[str, Any]:
    """The whole schema."""
    parts = {schema_name(cls): _part(shape(cls)) for cls in reachable_types(root)}
    return {
        "$schema": DIALECT,
        "title": title,
        "$ref": f"#/$defs/{schema_name(root)}",
        "$defs": dict(sorted(parts.items())),
    }


def format_schema(found: dict[str, Any] | None = None) -> str:
    """The schema as a file."""
    return msgspec.json.format(msgspec.json.encode(found or schema()), indent=2).decode() + "\n"


def _part(of: Shape) -> dict[str, Any]:
    told: dict[str, Any] = {
        "type": "object",
        "properties": {name: _field(field) for name, field in of.fields.items()},
        "additionalProperties": False,
    }
    if required := [name for name, field in of.fields.items() if field.required]:
        told["required"] = required
    if of.cls.exactly_one_of:
        told["oneOf"] = [{"required": [name]} for name in of.cls.exactly_one_of]
    if of.rest is not None:
        [every] = options(of.rest.type)
        told["additionalProperties"] = _any(options(every.type.value_type))
    ways = [told]
    if of.cls.shorthand:
        ways += [_one(option) for option in options(of.fields[of.cls.shorthand].type)]
    if of.cls.accepts_key_names:
        names: dict[str, Any] = {"enum": [name for name in of.fields if name != "schedule"]}
        ways += [names, {"type": "array", "items": names, "minItems": 1}]
    if of.cls.accepts_null:
        ways.append({"type": "null"})
    description = (of.cls.__doc__ or "").strip()
    return {"description": description, **(ways[0] if len(ways) == 1 else {"anyOf": ways})}


def _field(field: FieldInfo) -> dict[str, Any]:
    told = {"description": field_description(field), **_any(options(field.type))}
    default = None if field.required else field_default(field)
    if isinstance(default, bool | int | float | str) and default != "":
        told["default"] = default
    return told


def _any(allowed: list[Option]) -> dict[str, Any]:
    ways = [way for option in allowed for way in _ways(option)]
    return ways[0] if len(ways) == 1 else {"anyOf": ways}


def _ways(option: Option) -> list[dict[str, Any]]:
    way = _one(option)
    if isinstance(option.type, inspect.VarTupleType) and option.extra.get("one"):
        return [way, *(each for item in options(option.type.item_type) for each in _ways(item))]
    if option.extra.get("condition"):
        return [way, {"type": "boolean"}]
    return [way]


def _one(option: Option) -> dict[str, Any]:
    kind = option.type
    match kind:
        case inspect.StrType():
            pattern = kind.pattern and _plain(kind.pattern, is_filled_in=bool(option.extra.get("expressions")))
            return _with("string", minLength=kind.min_length, maxLength=kind.max_length, pattern=pattern)
        case inspect.AnyType():
            return {"type": ["array", "object"]}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            return _with("integer", minimum=kind.ge, exclusiveMinimum=kind.gt, maximum=kind.le)
        case inspect.FloatType():
            return _with("number", minimum=kind.ge, exclusiveMinimum=kind.gt, maximum=kind.le)
        case inspect.LiteralType(values=values):
            return {"enum": list(values)}
        case inspect.VarTupleType():
            items = _any(options(kind.item_type))
            return _with("array", items=items, minItems=kind.min_length, maxItems=kind.max_length)
        case inspect.DictType():
            [key] = options(kind.key_type)
            return _with(
                "object",
                propertyNames=_one(key),
                additionalProperties=_any(options(kind.value_type)),
                minProperties=kind.min_length,
                maxProperties=kind.max_length,
            )
        case _:
            return {"$ref": f"#/$defs/{schema_name(kind.cls)}"}


def _with(type: str, **limits: Any) -> dict[str, Any]:
    return {"type": type, **{name: value for name, value in limits.items() if value is not None}}


def _plain(pattern: str, *, is_filled_in: bool) -> str:
    """The pattern as JavaScript has it: there `$` is only the end, and control characters are written in full."""
    plain = pattern.removesuffix("(?!\\n)").replace("\\x00", "\\u0000").replace("\\x1f", "\\u001f")
    plain = plain.replace("\\x7f", "\\u007f")
    return rf"{plain}|\$\{{\{{" if is_filled_in else plain
