"""Build an OpenAPI document from a table of operations, whose request and response types are the types in use."""

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
    """How a part of the server reports errors.

    `body` is the type of the response body; `meanings` has the status and the meaning of each error code.
    """

    body: Any
    media_type: str
    meanings: Mapping[str, tuple[int, str]]
    common_codes: tuple[str, ...]  # Error codes that every operation may return.
    headers: Json = {}  # The headers of every response, errors included.


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path of the API, with all that the OpenAPI document says about it.

    Bodies are Python types, JSON schemas, or `bytes`.
    """

    method: str
    path: str
    id: str
    summary: str
    tag: str
    parameters: tuple[Json, ...] = ()
    body: Any = None
    is_body_optional: bool = False
    response: Any
    response_headers: Json = {}
    links: Json = {}
    codes: tuple[str, ...] = ()
    is_under_lease: bool = False
    security: tuple[Json, ...] = ()
    status: int = 200
    other_statuses: tuple[int, ...] = ()  # Further statuses with the same response.
    other_media: Json = {}  # The same response in other media types.
    errors: ErrorFormat
    former_id: str = ""  # A deprecated operation id of the same operation.


# Constraints between fields, which types cannot express.
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


def document(operations: Iterable[Operation], info_object: Json, security: Json) -> Json:
    """Return the OpenAPI document that describes these operations.

    `security` has the authentication schemes by name.
    """
    types: dict[str, Any] = {}
    operations_by_path: Json = {}
    for operation in operations:
        operations_by_path.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, types)
    _, schemas = schema_components(types.values(), ref_template=REFS)
    for schema_name, constraint in FIELD_CONSTRAINTS.items():
        if schema_name in schemas:
            schemas[schema_name] |= constraint
    return {
        "openapi": "3.1.0",
        "info": info_object,
        "servers": [{"url": "/"}],
        "paths": operations_by_path,
        "components": {"schemas": schemas, "securitySchemes": security},
    }


def _operation(operation: Operation, types: dict[str, Any]) -> Json:
    """Return the OpenAPI object of an operation, and add the structs that it uses to `types`."""
    operation_object: Json = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "security": list(operation.security),
    }
    if operation.former_id:
        operation_object["x-former-operation-id"] = operation.former_id
    if operation.parameters:
        operation_object["parameters"] = [_schema(parameter, types) for parameter in operation.parameters]
    if operation.body is not None:
        operation_object["requestBody"] = {
            "required": not operation.is_body_optional,
            "content": _content(operation.body, types),
        }
    headers = {**_ALWAYS, **operation.errors.headers, **operation.response_headers}
    success_response: Json = {"description": "done", "headers": headers}
    success_response["content"] = {**_content(operation.response, types), **_schema(operation.other_media, types)}
    if operation.links:
        success_response["links"] = operation.links
    success_responses = {str(status): success_response for status in (operation.status, *operation.other_statuses)}
    operation_object["responses"] = {**success_responses, **_error_responses(operation, types)}
    return operation_object


def _error_responses(operation: Operation, types: dict[str, Any]) -> Json:
    """Return the OpenAPI responses of an operation for each error status."""
    errors = operation.errors
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys((*errors.common_codes, *operation.codes)):
        by_status.setdefault(errors.meanings[code][0], []).append(code)
    if operation.is_under_lease:
        by_status.setdefault(409, [])
    responses: Json = {}
    for status, codes in sorted(by_status.items()):
        descriptions = [f"`{code}`: {errors.meanings[code][1]}" for code in codes]
        body_schemas: list[Any] = [{"allOf": [errors.body], "properties": {"code": {"enum": codes}}}] if codes else []
        if operation.is_under_lease and status == 409:
            descriptions.insert(0, "`StaleLease`: the lease is no longer valid")
            body_schemas.insert(0, wire.StaleLease)
        schema = body_schemas[0] if len(body_schemas) == 1 else {"anyOf": body_schemas}
        responses[str(status)] = {
            "description": "; ".join(descriptions),
            "headers": {**_ALWAYS, **errors.headers, **_HEADERS.get(status, {})},
            "content": {errors.media_type: {"schema": _schema(schema, types)}},
        }
    return responses


def _content(body_type: Any, types: dict[str, Any]) -> Json:
    """Return the OpenAPI content of a body of this type: binary for `bytes`, else JSON."""
    if body_type is None:
        return {}
    if body_type is bytes:
        return {BYTES: {"schema": {"type": "string", "format": "binary"}}}
    return {JSON: {"schema": _schema(body_type, types)}}


def _schema(type_or_schema: Any, types: dict[str, Any]) -> Any:
    """Return the JSON schema of a type, with a reference in place of every struct. Add these structs to `types`.

    A schema may be given as well, with types in it.
    """
    if isinstance(type_or_schema, dict):
        return {keyword: _schema(keyword_value, types) for keyword, keyword_value in type_or_schema.items()}
    if isinstance(type_or_schema, list | tuple):
        return [_schema(keyword_value, types) for keyword_value in type_or_schema]
    if type_or_schema is None or isinstance(type_or_schema, str | int | float):
        return type_or_schema
    types[str(type_or_schema)] = type_or_schema
    [schema], _ = schema_components([type_or_schema], ref_template=REFS)
    return schema
