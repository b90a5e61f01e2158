"""List every stored or sent format of the program, without the names of Python classes.

A format is a msgspec struct that the program reads from a database, a file, the network or another process. Each is a
line: its tag, and the names, types and defaults of its fields as they are stored. Renaming a class or a field in Python
must not change a line; a renamed field keeps its stored name by `msgspec.field(name="…")`, a renamed message by its
`tag`, a renamed command by `stored_name`. A changed line is a change of a format, which old databases and old runners
do not know: it needs a migration, or a field with a default.

The structs are found by the calls that decode them, in the route table of the API, and as commands, because a request
id is remembered with a digest of its command. The list does not show constraints of values, nor which struct a field
contains; structs of equal shape share a line.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec
from msgspec import inspect

import deltaci
from deltaci.api.routes import ROUTES
from deltaci.core.machine import Command, stored_name
from deltaci.protocol.schema_names import structs
from deltaci.storage.codec import KINDS

# Packages whose data is never read by another version of the program.
EXCLUDED_PACKAGES: Final = ("deltaci.simulation", "deltaci.conformance")
# The position of the type in the arguments of each decoding function; `decode` takes it by keyword only.
DECODING: Final = {
    "Decoder": 0,
    "_body_decoder": 0,
    "decoder": 0,
    "convert": 1,
    "TypedDocuments": 2,
    "Resources": 3,
    "decode": sys.maxsize,
}


# Where the type is a parameter: its values are found at the calls of the function, or added by `roots`.
PARAMETERS: Final = {
    ("deltaci.client.operations", "call.reads"),
    ("deltaci.forges.webhook_event", "payload_type"),
    ("deltaci.protocol.decoding", "union"),
    ("deltaci.protocol.decoding", "kind"),
    ("deltaci.runner.client", "kind"),
    ("deltaci.runner.steps.report_values", "_level(part)"),
    ("deltaci.server.rest.http.app", "fields"),
    ("deltaci.server.rest.http.app", "schema"),
    ("deltaci.server.rest.http.app", "route.body"),
    ("deltaci.server.rest.http.query_parameters", "query_type"),
    ("deltaci.storage.codec", "kind"),
}


def modules() -> Iterator[ModuleType]:
    """Import and return every module of the program."""
    for info in pkgutil.walk_packages(deltaci.__path__, "deltaci."):
        if not info.name.startswith(EXCLUDED_PACKAGES):
            yield importlib.import_module(info.name)


def decoded_types(module: ModuleType) -> Iterator[Any]:
    """Return the types that the calls of a module decode."""
    for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text("utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name not in DECODING:
            continue
        named = [keyword.value for keyword in node.keywords if keyword.arg == "type"]
        for expression in (named or node.args[DECODING[name] :])[:1]:
            try:
                yield eval(ast.unparse(expression), vars(module))
            except NameError:
                continue  # A parameter: its values are found where the function is called.


def type_text(kind: inspect.Type) -> str:
    """Return a type as text; a nested struct is shown as `struct`, because it has its own line."""
    match kind:
        case inspect.Metadata():
            return type_text(kind.type)
        case inspect.UnionType():
            return " | ".join(sorted(map(type_text, kind.types)))
        case inspect.StructType():
            return "struct"
        case inspect.LiteralType():
            return "literal " + ",".join(sorted(map(repr, kind.values)))
        case inspect.DictType():
            return f"dict[{type_text(kind.key_type)}, {type_text(kind.value_type)}]"
        case inspect.TupleType():
            return f"tuple[{', '.join(map(type_text, kind.item_types))}]"
        case inspect.CollectionType():
            return f"{type(kind).__name__.removesuffix('Type').lower()}[{type_text(kind.item_type)}]"
        case _:
            return type(kind).__name__.removesuffix("Type").lower()


def line(struct: type) -> str:
    """Return the line of a struct. In an array only the position of a field counts, so it has no name."""
    kind = inspect.type_info(struct)
    assert isinstance(kind, inspect.StructType)
    fields = [
        ("" if kind.array_like else f"{field.encode_name}: ") + type_text(field.type) + default(field)
        for field in kind.fields
    ]
    tag = f"{kind.tag_field}={kind.tag!r} " if kind.tag is not None else ""
    strict = "strict " if kind.forbid_unknown_fields else ""
    return f"{'array' if kind.array_like else 'object'} {tag}{strict}({', '.join(fields)})"


def default(field: inspect.Field) -> str:
    """Return the default of a field as text; empty for a required field."""
    if field.required:
        return ""
    if field.default_factory is not msgspec.NODEFAULT:
        return f" = {field.default_factory()!r}" if field.default_factory in (list, dict, set, tuple) else " = …"
    return " = …" if isinstance(field.default, msgspec.Struct) else f" = {field.default!r}"


def subclasses(kind: type) -> Iterator[type]:
    """Return all subclasses of a class, direct or not."""
    children: list[type] = kind.__subclasses__()
    for child in children:
        yield child
        yield from subclasses(child)


def page() -> str:
    """Return the list."""
    loaded = list(modules())
    commands = list(subclasses(Command))
    of_routes = [kind for route in ROUTES for kind in (route.body, route.query, route.response) if kind is not None]
    roots = [*KINDS, *commands, *of_routes, *(kind for module in loaded for kind in decoded_types(module))]
    found = {kind: line(kind) for kind in structs(inspect.multi_type_info(roots))}
    named = {f"command {stored_name(command)} {found.pop(command)}" for command in commands}
    return "\n".join([*sorted(set(found.values())), *sorted(named)])
