"""Generate the JSON Schema of pipeline files from the model, for editors.

`scripts/docgen` writes it to `docs/pipeline.schema.json`.
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
    get_shape,
    list_options,
    reachable_types,
)
from deltaci.protocol.schema_names import schema_name

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema(root_type: type[model.FileStruct] = model.Pipeline, title: str = "Delta CI pipeline") -> dict[str, Any]:
    """Return the JSON Schema of files whose top-level object is of the struct type `root_type`."""
    definitions = {schema_name(cls): _struct_schema(get_shape(cls)) for cls in reachable_types(root_type)}
    return {
        "$schema": DIALECT,
        "title": title,
        "$ref": f"#/$defs/{schema_name(root_type)}",
        "$defs": dict(sorted(definitions.items())),
    }


def format_schema(schema_document: dict[str, Any] | None = None) -> str:
    """Return a schema as indented JSON; without an argument, the schema of pipeline files."""
    return msgspec.json.format(msgspec.json.encode(schema_document or schema()), indent=2).decode() + "\n"


def _struct_schema(struct_shape: Shape) -> dict[str, Any]:
    """Return the schema of a struct: an object, and the other notations that the struct accepts."""
    object_schema: dict[str, Any] = {
        "type": "object",
        "properties": {key: _field_schema(field) for key, field in struct_shape.fields.items()},
        "additionalProperties": False,
    }
    if required_keys := [key for key, field in struct_shape.fields.items() if field.required]:
        object_schema["required"] = required_keys
    if struct_shape.cls.exactly_one_of:
        object_schema["oneOf"] = [{"required": [key]} for key in struct_shape.cls.exactly_one_of]
    if struct_shape.extra_keys is not None:
        [option] = list_options(struct_shape.extra_keys.type)
        object_schema["additionalProperties"] = _any_of(list_options(option.type.value_type))
    alternatives = [object_schema]
    if struct_shape.cls.shorthand:
        alternatives += [
            _option_schema(option) for option in list_options(struct_shape.fields[struct_shape.cls.shorthand].type)
        ]
    if struct_shape.cls.accepts_key_names:
        key_names_schema: dict[str, Any] = {"enum": [key for key in struct_shape.fields if key != "schedule"]}
        alternatives += [key_names_schema, {"type": "array", "items": key_names_schema, "minItems": 1}]
    if struct_shape.cls.accepts_null:
        alternatives.append({"type": "null"})
    description = (struct_shape.cls.__doc__ or "").strip()
    return {"description": description, **(alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives})}


def _field_schema(field: FieldInfo) -> dict[str, Any]:
    schema = {"description": field_description(field), **_any_of(list_options(field.type))}
    default_value = None if field.required else field_default(field)
    if isinstance(default_value, bool | int | float | str) and default_value != "":
        schema["default"] = default_value
    return schema


def _any_of(allowed_options: list[Option]) -> dict[str, Any]:
    """Return a schema that accepts each of these kinds of values."""
    alternatives = [schema for option in allowed_options for schema in _alternatives(option)]
    return alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}


def _alternatives(option: Option) -> list[dict[str, Any]]:
    """Return the schemas of all notations of one kind of value, such as a single item instead of a list."""
    schema = _option_schema(option)
    if isinstance(option.type, inspect.VarTupleType) and option.extra.get("one"):
        return [
            schema,
            *(
                item_schema
                for item_option in list_options(option.type.item_type)
                for item_schema in _alternatives(item_option)
            ),
        ]
    if option.extra.get("condition"):
        return [schema, {"type": "boolean"}]
    return [schema]


def _option_schema(option: Option) -> dict[str, Any]:
    value_type = option.type
    match value_type:
        case inspect.StrType():
            pattern = value_type.pattern and _javascript_pattern(
                value_type.pattern, allows_expressions=bool(option.extra.get("expressions"))
            )
            return _typed("string", minLength=value_type.min_length, maxLength=value_type.max_length, pattern=pattern)
        case inspect.AnyType():
            return {"type": ["array", "object"]}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            return _typed("integer", minimum=value_type.ge, exclusiveMinimum=value_type.gt, maximum=value_type.le)
        case inspect.FloatType():
            return _typed("number", minimum=value_type.ge, exclusiveMinimum=value_type.gt, maximum=value_type.le)
        case inspect.LiteralType(values=values):
            return {"enum": list(values)}
        case inspect.VarTupleType():
            items_schema = _any_of(list_options(value_type.item_type))
            return _typed("array", items=items_schema, minItems=value_type.min_length, maxItems=value_type.max_length)
        case inspect.DictType():
            [key_option] = list_options(value_type.key_type)
            return _typed(
                "object",
                propertyNames=_option_schema(key_option),
                additionalProperties=_any_of(list_options(value_type.value_type)),
                minProperties=value_type.min_length,
                maxProperties=value_type.max_length,
            )
        case _:
            return {"$ref": f"#/$defs/{schema_name(value_type.cls)}"}


def _typed(json_type: str, **limits: Any) -> dict[str, Any]:
    """Return a schema of this JSON type with the limits that are not None."""
    return {"type": json_type, **{limit_name: limit for limit_name, limit in limits.items() if limit is not None}}


def _javascript_pattern(pattern: str, *, allows_expressions: bool) -> str:
    """Convert a pattern to JavaScript, where `$` matches only at the end and control characters are `\\uXXXX`.

    With `allows_expressions`, the result also matches texts that contain `${{`.
    """
    json_pattern = pattern.removesuffix("(?!\\n)").replace("\\x00", "\\u0000").replace("\\x1f", "\\u001f")
    json_pattern = json_pattern.replace("\\x7f", "\\u007f")
    return rf"{json_pattern}|\$\{{\{{" if allows_expressions else json_pattern
