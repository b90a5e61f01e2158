"""One OpenAPI document from tables of operations: what an operation takes and gives are types that run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from deltaci.protocol import messages as wire
from deltaci.protocol.schema_names import schema_components

REFS: Final = "#/components/schemas/{name}"
JSON: Final = "application/json"
BYTES: Final = "application/octet-stream"

Json = dict[str, Any]

_RETRY: Final[Json] = {
    "Retry-After": {
        "required": True,
        "description": "seconds after which to try again",
        "schema": {"type": "integer", "minimum": 1},
    }
}
_ALWAYS: Final[Json] = {"Cache-Control": {"required": True, "schema": {"const": "no-store"}}}
_HEADERS: Final[dict[int, Json]] = {
    401: {"WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}}},
    429: _RETRY,
    503: _RETRY,
}


class ErrorFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How a part of the server refuses: in which shape, with which status and meaning for each code."""

    problem: Any
    media: str
    means: Mapping[str, tuple[int, str]]
    everywhere: tuple[str, ...]  # What is no request at all is refused with these at every address.
    headers: Json = {}  # With every answer, refusals included.


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one address. Bodies are types of ours, schemas, or `bytes`."""

    method: str
    path: str
    id: str
    does: str
    part: str
    parameters: tuple[Json, ...] = ()
    body: Any = None
    is_body_optional: bool = False
    answer: Any
    answer_headers: Json = {}
    links: Json = {}
    codes: tuple[str, ...] = ()
    is_under_lease: bool = False
    security: tuple[Json, ...] = ()
    status: int = 200
    also: tuple[int, ...] = ()  # Other statuses with the same answer.
    media: Json = {}  # The answer in other forms.
    family: ErrorFormat


# What types cannot say: how fields must fit each other.
FIELD_CONSTRAINTS: Final[dict[str, Json]] = {
    "Complete": {
        "if": {"properties": {"status": {"const": "SUCCEEDED"}}},
        "then": {"properties": {"exit_code": {"const": 0}}, "required": ["exit_code"]},
    },
    "RunInput": {
        "oneOf": [
            {
                "required": ["template"],
                "properties": {"template": {"type": "string"}, "plan": {"type": "null"}, "file": {"maxLength": 0}},
            },
            {
                "required": ["plan"],
                "properties": {
                    "plan": {"type": "object"},
                    "template": {"type": "null"},
                    "version": {"type": "null"},
                    "inputs": {"maxProperties": 0},
                    "file": {"maxLength": 0},
                },
            },
            {
                "required": ["repository"],
                "properties": {
                    "repository": {"minLength": 1},
                    "plan": {"type": "null"},
                    "template": {"type": "null"},
                    "version": {"type": "null"},
                    "commit": {"pattern": "^([0-9a-f]{40}|[0-9a-f]{64})?$(?!\\n)"},
                },
            },
        ]
    },
    "JobInput": {
        "oneOf": [
            {
                "required": ["work"],
                "properties": {
                    "kind": {"const": "task"},
                    "work": {"type": "object"},
                    "approval": {"type": "null"},
                },
            },
            {
                "required": ["kind"],
                "properties": {
                    "kind": {"const": "approval"},
                    "work": {"type": "null"},
                    "runs_on": {"maxItems": 0},
                    "group": {"maxLength": 0},
                },
            },
        ]
    },
}


def document(operations: Iterable[Operation], info: Json, security: Json) -> Json:
    """All of it. `security` are the schemes by which callers are known."""
    types: dict[str, Any] = {}
    paths: Json = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, types)
    _, schemas = schema_components(types.values(), ref_template=REFS)
    for name, rule in FIELD_CONSTRAINTS.items():
        if name in schemas:
            schemas[name] |= rule
    return {
        "openapi": "3.1.0",
        "info": info,
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": security},
    }


def _operation(each: Operation, types: dict[str, Any]) -> Json:
    shown: Json = {"operationId": each.id, "summary": each.does, "tags": [each.part], "security": list(each.security)}
    if each.parameters:
        shown["parameters"] = [_schema(parameter, types) for parameter in each.parameters]
    if each.body is not None:
        shown["requestBody"] = {"required": not each.is_body_optional, "content": _content(each.body, types)}
    good: Json = {"description": "done", "headers": {**_ALWAYS, **each.family.headers, **each.answer_headers}}
    good["content"] = {**_content(each.answer, types), **_schema(each.media, types)}
    if each.links:
        good["links"] = each.links
    shown["responses"] = {**{str(status): good for status in (each.status, *each.also)}, **_refusals(each, types)}
    return shown


def _refusals(each: Operation, types: dict[str, Any]) -> Json:
    family = each.family
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys((*family.everywhere, *each.codes)):
        by_status.setdefault(family.means[code][0], []).append(code)
    if each.is_under_lease:
        by_status.setdefault(409, [])
    found: Json = {}
    for status, codes in sorted(by_status.items()):
        said = [f"`{code}`: {family.means[code][1]}" for code in codes]
        kinds: list[Any] = [{"allOf": [family.problem], "properties": {"code": {"enum": codes}}}] if codes else []
        if each.is_under_lease and status == 409:
            said.insert(0, "`StaleLease`: the lease is no longer good")
            kinds.insert(0, wire.StaleLease)
        schema = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        found[str(status)] = {
            "description": "; ".join(said),
            "headers": {**_ALWAYS, **family.headers, **_HEADERS.get(status, {})},
            "content": {family.media: {"schema": _schema(schema, types)}},
        }
    return found


def _content(kind: Any, types: dict[str, Any]) -> Json:
    if kind is None:
        return {}
    if kind is bytes:
        return {BYTES: {"schema": {"type": "string", "format": "binary"}}}
    return {JSON: {"schema": _schema(kind, types)}}


def _schema(kind: Any, types: dict[str, Any]) -> Any:
    """A schema in which every type of ours is a reference, and is remembered in `types`."""
    if isinstance(kind, dict):
        return {name: _schema(value, types) for name, value in kind.items()}
    if isinstance(kind, list | tuple):
        return [_schema(value, types) for value in kind]
    if kind is None or isinstance(kind, str | int | float):
        return kind
    types[str(kind)] = kind
    [schema], _ = schema_components([kind], ref_template=REFS)
    return schema
