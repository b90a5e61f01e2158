"""The routes of `/api/v1` as operations of the OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from deltaci.api.operations import ErrorFormat, Json, Operation
from deltaci.api.routes import (
    EVERY_REQUEST,
    IDEMPOTENCY_HEADER,
    LAST_EVENT_HEADER,
    LEASE_NUMBER_HEADER,
    MAX_KEY_CHARS,
    MAX_SEQ_DIGITS,
    PARAMETERS,
    REFUSALS,
    REPLAYED_HEADER,
    REQUEST_ID_HEADER,
    ROOT,
    ROUTES,
    Route,
    error_codes,
)
from deltaci.api.schemas import records as api

EVENT_STREAM: Final = "text/event-stream"
PLAIN: Final = "text/plain"
_TEXT: Final[Json] = {"type": "string"}

ERRORS: Final = ErrorFormat(
    body=api.ApiProblem,
    media_type="application/problem+json",
    meanings={code: (refusal.status, refusal.title) for code, refusal in REFUSALS.items()},
    common_codes=EVERY_REQUEST,
    headers={
        REQUEST_ID_HEADER: {"description": "the id of the request in the server's log", "schema": _TEXT},
    },
)
_IDEMPOTENCY: Final[Json] = {
    "name": IDEMPOTENCY_HEADER,
    "in": "header",
    "description": "repeated requests with the same key create one run",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARS, "pattern": "^[!-~]([ -~]*[!-~])?$"},
}
_LAST_EVENT: Final[Json] = {
    "name": LAST_EVENT_HEADER,
    "in": "header",
    "description": "continue after this event; overrides `after`; empty: from the beginning",
    "schema": {"type": "string", "pattern": f"^[0-9]{{0,{MAX_SEQ_DIGITS}}}$"},
}
_RANGE: Final[Json] = {
    "name": "Range",
    "in": "header",
    "description": "one byte range, e.g. `bytes=1000-`; any other value returns everything",
    "schema": {"type": "string"},
}
_LINKED: Final = ("readRun", "cancelRun", "approveRun", "rejectRun", "explainRun", "readPlan", "listJobs", "rerunRun")


def api_operations() -> Iterator[Operation]:
    """Yield the OpenAPI operation of each route of `/api/v1`."""
    for route in ROUTES:
        is_json = route.response_kind in ("json", "events")
        yield Operation(
            method=route.method,
            path=ROOT + route.path.replace("*}", "}"),
            id=route.id,
            summary=route.summary,
            tag="api",
            parameters=tuple(_parameters(route)),
            body=route.body,
            is_body_optional=route.is_body_optional,
            response=route.response if is_json else None,
            other_media=_other_media(route),
            response_headers=_response_headers(route),
            links=_links() if route.id == "startRun" else {},
            codes=error_codes(route),
            security=({"key": []},),
            status=route.status,
            other_statuses=_other_statuses(route),
            errors=ERRORS,
            former_id=route.former_id,
        )


def _parameters(route: Route) -> Iterator[Json]:
    """Yield the OpenAPI parameters of a route: those in the path, in the query and in headers."""
    for parameter_name in route.path_parameters:
        yield {"name": parameter_name, "in": "path", "required": True, "schema": PARAMETERS[parameter_name]}
    if route.query is not None:
        for field in msgspec.structs.fields(route.query):
            yield {
                "name": field.encode_name,
                "in": "query",
                "schema": _query_field_schema(route.query, field.encode_name),
            }
    if route.is_repeatable:
        yield _IDEMPOTENCY
    if route.response_kind == "events":
        yield _LAST_EVENT
    if route.response_kind in ("log", "file"):
        yield _RANGE


def _query_field_schema(query: Any, field_name: str) -> Any:
    """Return the JSON schema of one field of a query type, without `null`, which a query cannot contain."""
    [_], schemas = msgspec.json.schema_components([query])
    schema: Json = dict(schemas[query.__name__]["properties"][field_name])
    if "anyOf" in schema:
        [non_null_schema] = [
            schema_option for schema_option in schema.pop("anyOf") if schema_option != {"type": "null"}
        ]
        schema = {**non_null_schema, **schema}
    if "enum" in schema:
        schema["enum"] = [schema_option for schema_option in schema["enum"] if schema_option is not None]
    if schema.get("default", 0) is None:
        del schema["default"]
    return schema


def _other_media(route: Route) -> Json:
    match route.response_kind:
        case "events":
            return {EVENT_STREAM: {"schema": _TEXT}}
        case "log":
            return {PLAIN: {"schema": _TEXT}}
        case "file":
            return {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return {}


def _other_statuses(route: Route) -> tuple[int, ...]:
    if route.is_repeatable:
        return (200,)
    return (206,) if route.response_kind in ("log", "file") else ()


def _response_headers(route: Route) -> Json:
    if route.is_repeatable:
        return {
            "Location": {"required": True, "description": "the path of the run", "schema": _TEXT},
            REPLAYED_HEADER: {"description": "`true` for a repeat", "schema": {"const": "true"}},
        }
    if route.response_kind == "log":
        return {LEASE_NUMBER_HEADER: {"required": True, "schema": _TEXT}}
    return {}


def _links() -> Json:
    """Return the OpenAPI links from a new run to the operations on it."""
    return {
        operation_id: {"operationId": operation_id, "parameters": {"path.run": "$response.body#/id"}}
        for operation_id in _LINKED
    }
