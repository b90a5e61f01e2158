"""The API contract: one sorted line for each operation, parameter, header, body, field and error code of the HTTP API.

Made from the OpenAPI document, without descriptions, so that a change of the API is visible in review.

    GET /api/v1/runs listRuns                                   an operation and its id
    GET /api/v1/runs query limit? integer 1..200 = 50           a parameter; `?` marks what may be left out
    GET /api/v1/runs 200 application/json Runs                  a response
    GET /api/v1/runs error bad_cursor 400                       an error code
    Run.state RUNNING|QUEUED|…                                  a field of a type
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from deltaci.api import openapi

Json = Mapping[str, Any]

REFERENCE: Final = "#/components/schemas/"
# Keywords that bound a value, in the order in which they are printed.
BOUNDS: Final = ("minimum", "exclusiveMinimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "pattern")


def page() -> str:
    """Return the text of docs/reference/api-contract.txt."""
    return "".join(f"{line}\n" for line in contract(openapi.openapi_document()))


def contract(document: Json) -> list[str]:
    """Return the sorted lines for an OpenAPI document."""
    return sorted({*_operations(document["paths"]), *_types(document["components"]["schemas"])})


def _operations(paths: Json) -> Iterator[str]:
    for path, methods in paths.items():
        for method, operation in methods.items():
            start = f"{method.upper()} {path}"
            deprecated = " deprecated" if operation.get("deprecated") else ""
            yield f"{start} {operation['operationId']}{deprecated}"
            for parameter in operation.get("parameters", ()):
                optional = "" if parameter.get("required") else "?"
                yield f"{start} {parameter['in']} {parameter['name']}{optional} {_type(parameter['schema'])}"
            if body := operation.get("requestBody"):
                optional = "" if body.get("required") else "?"
                for media_type, content in body["content"].items():
                    yield f"{start} body{optional} {media_type} {_type(content.get('schema', {}))}"
            yield from _responses(start, operation["responses"])


def _responses(start: str, responses: Json) -> Iterator[str]:
    for status, response in responses.items():
        headers = response.get("headers", {}) if status.startswith("2") else {}
        for name, header in headers.items():
            optional = "" if header.get("required") else "?"
            yield f"{start} {status} header {name}{optional} {_type(header.get('schema', {}))}"
        for media_type, content in response.get("content", {}).items():
            schema = content.get("schema", {})
            codes = schema.get("properties", {}).get("code", {}).get("enum", ())
            yield from (f"{start} error {code} {status}" for code in codes)
            if not codes:
                yield f"{start} {status} {media_type} {_type(schema)}"


def _types(schemas: Json) -> Iterator[str]:
    for name, schema in schemas.items():
        yield f"{name} {_type({key: value for key, value in schema.items() if key != 'properties'})}"
        yield from _fields(name, schema)


def _fields(name: str, schema: Json) -> Iterator[str]:
    required = schema.get("required", ())
    for field, value in schema.get("properties", {}).items():
        yield f"{name}.{field}{'' if field in required else '?'} {_type(value)}"


def _type(schema: Any) -> str:
    """Return a schema as one short text."""
    if not isinstance(schema, Mapping):
        return str(schema).lower()
    if reference := schema.get("$ref"):
        return str(reference).removeprefix(REFERENCE)
    parts = [_shape(schema)]
    parts += [f"{key}={schema[key]}" for key in BOUNDS if key in schema]
    if "format" in schema:
        parts.append(schema["format"])
    if "default" in schema:
        parts.append(f"= {schema['default']!r}")
    if schema.get("additionalProperties") is False:
        parts.append("closed")
    return " ".join(part for part in parts if part)


def _shape(schema: Json) -> str:
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return "(" + {"allOf": " & "}.get(key, " | ").join(sorted(_type(option) for option in schema[key])) + ")"
    if "const" in schema:
        return repr(schema["const"])
    if "enum" in schema:
        return "|".join(sorted(str(option) for option in schema["enum"]))
    kind = schema.get("type", "")
    name = "|".join(sorted(kind)) if isinstance(kind, list) else str(kind)
    if "items" in schema:
        return f"{name}<{_type(schema['items'])}>"
    if "properties" in schema:
        fields = sorted(_fields("", schema))
        return f"{name}{{{', '.join(field.removeprefix('.') for field in fields)}}}"
    values = schema.get("additionalProperties")
    return f"{name}<{_type(values)}>" if isinstance(values, Mapping) else name
