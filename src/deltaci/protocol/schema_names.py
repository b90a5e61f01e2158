"""The names of structs in JSON Schema and OpenAPI documents, which stay when a Python class is renamed.

A renamed class keeps its old name there by a class variable: `schema_name: ClassVar[str] = "Lease"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import inspect


def schema_name(struct_type: type) -> str:
    """Return the name of a type in schemas: its own `schema_name`, not an inherited one, or else its class name."""
    name: str = vars(struct_type).get("schema_name", struct_type.__name__)
    return name


def schema(value_type: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type as one document, with the schemas of inner structs under `$defs`."""
    [root_schema], components = schema_components([value_type], "#/$defs/{name}")
    return {**root_schema, "$defs": components} if components else root_schema


def schema_components(types: Iterable[Any], ref_template: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the schema of each type, and the schemas of all structs inside these types by schema name."""
    types = list(types)
    schemas, components = msgspec.json.schema_components(types, ref_template=ref_template)
    new_names = {
        struct.__name__: schema_name(struct)
        for struct in structs(inspect.multi_type_info(types))
        if schema_name(struct) != struct.__name__
    }
    if not new_names:
        return list(schemas), components
    new_references = {
        ref_template.format(name=class_name): ref_template.format(name=new_name)
        for class_name, new_name in new_names.items()
    }
    renamed = {
        new_names.get(name, name): _renamed(schema, new_names, new_references) for name, schema in components.items()
    }
    if len(renamed) != len(components):
        ambiguous_names = sorted(set(new_names.values()) & set(components))
        raise ValueError(
            f"two structs have the schema name {', '.join(ambiguous_names)}; give each its own schema_name"
        )
    return [_renamed(schema, new_names, new_references) for schema in schemas], renamed


def structs(kinds: Iterable[inspect.Type]) -> Iterator[type]:
    """Yield each struct that values of these types may contain, once."""
    seen, pending = set[type](), list(kinds)
    while pending:
        type_info = pending.pop()
        if isinstance(type_info, inspect.StructType):
            if type_info.cls in seen:
                continue
            seen.add(type_info.cls)
            yield type_info.cls
            pending += [field.type for field in type_info.fields]
        for type_attribute in ("type", "types", "item_type", "item_types", "key_type", "value_type"):
            attribute = getattr(type_info, type_attribute, ())
            inner_types = attribute if isinstance(attribute, tuple) else (attribute,)
            pending += [inner_type for inner_type in inner_types if isinstance(inner_type, inspect.Type)]


def _renamed(schema: Any, new_name_by_schema: dict[str, str], new_reference_by_reference: dict[str, str]) -> Any:
    """Return a copy of a schema in which titles and references use the new names."""
    if isinstance(schema, list):
        return [_renamed(element, new_name_by_schema, new_reference_by_reference) for element in schema]
    if not isinstance(schema, dict):
        return schema
    renamed = {
        keyword: _renamed(value, new_name_by_schema, new_reference_by_reference) for keyword, value in schema.items()
    }
    for keyword, renames in (("title", new_name_by_schema), ("$ref", new_reference_by_reference)):
        if isinstance(renamed.get(keyword), str):
            renamed[keyword] = renames.get(renamed[keyword], renamed[keyword])
    if "discriminator" in renamed and "mapping" in renamed["discriminator"]:
        mapping = renamed["discriminator"]["mapping"]
        renamed["discriminator"]["mapping"] = {
            tag: new_reference_by_reference.get(ref, ref) for tag, ref in mapping.items()
        }
    return renamed
