"""The addresses of `/api/v1` as operations of the OpenAPI document, from the table that routes them."""

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

FAMILY: Final = ErrorFormat(
    problem=api.ApiProblem,
    media="application/problem+json",
    means={code: (each.status, each.title) for code, each in REFUSALS.items()},
    everywhere=EVERY_REQUEST,
    headers={
        REQUEST_ID_HEADER: {"description": "names the request in the server's log", "schema": _TEXT},
    },
)
_IDEMPOTENCY: Final[Json] = {
    "name": IDEMPOTENCY_HEADER,
    "in": "header",
    "description": "the same key with the same request makes one run, however often it is sent",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARS, "pattern": "^[!-~]([ -~]*[!-~])?$"},
}
_LAST_EVENT: Final[Json] = {
    "name": LAST_EVENT_HEADER,
    "in": "header",
    "description": "go on after this event; wins over `after`; empty: there was none",
    "schema": {"type": "string", "pattern": f"^[0-9]{{0,{MAX_SEQ_DIGITS}}}$"},
}
_RANGE: Final[Json] = {
    "name": "Range",
    "in": "header",
    "description": "one range of bytes, e.g. `bytes=1000-`; anything else is answered with all of it",
    "schema": {"type": "string"},
}
_LINKED: Final = ("readRun", "cancelRun", "approveRun", "rejectRun", "explainRun", "readPlan", "listJobs", "rerunRun")


def api_operations() -> Iterator[Operation]:
    """Every address, one operation for each method."""
    for route in ROUTES:
        is_json = route.answers in ("json", "events")
        yield Operation(
            method=route.method,
            path=ROOT + route.path.replace("*}", "}"),
            id=route.id,
            does=route.does,
            part="api",
            parameters=tuple(_parameters(route)),
            body=route.body,
            is_body_optional=route.is_body_optional,
            answer=route.answer if is_json else None,
            media=_media(route),
            answer_headers=_answer_headers(route),
            links=_links() if route.id == "startRun" else {},
            codes=error_codes(route),
            security=({"key": []},),
            status=route.status,
            also=_also(route),
            family=FAMILY,
        )


def _parameters(route: Route) -> Iterator[Json]:
    for name in route.names:
        yield {"name": name, "in": "path", "required": True, "schema": PARAMETERS[name]}
    if route.query is not None:
        for field in msgspec.structs.fields(route.query):
            yield {"name": field.encode_name, "in": "query", "schema": _field(route.query, field.encode_name)}
    if route.is_repeatable:
        yield _IDEMPOTENCY
    if route.answers == "events":
        yield _LAST_EVENT
    if route.answers in ("log", "file"):
        yield _RANGE


def _field(query: Any, name: str) -> Any:
    """The schema of one field of a query, without the `null` that stands for its absence."""
    [_], schemas = msgspec.json.schema_components([query])
    schema: Json = dict(schemas[query.__name__]["properties"][name])
    if "anyOf" in schema:
        [kind] = [each for each in schema.pop("anyOf") if each != {"type": "null"}]
        schema = {**kind, **schema}
    if "enum" in schema:
        schema["enum"] = [each for each in schema["enum"] if each is not None]
    if schema.get("default", 0) is None:
        del schema["default"]
    return schema


def _media(route: Route) -> Json:
    match route.answers:
        case "events":
            return {EVENT_STREAM: {"schema": _TEXT}}
        case "log":
            return {PLAIN: {"schema": _TEXT}}
        case "file":
            return {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return {}


def _also(route: Route) -> tuple[int, ...]:
    if route.is_repeatable:
        return (200,)
    return (206,) if route.answers in ("log", "file") else ()


def _answer_headers(route: Route) -> Json:
    if route.is_repeatable:
        return {
            "Location": {"required": True, "description": "where the run is", "schema": _TEXT},
            REPLAYED_HEADER: {"description": "`true` for a repeat", "schema": {"const": "true"}},
        }
    if route.answers == "log":
        return {LEASE_NUMBER_HEADER: {"required": True, "schema": _TEXT}}
    return {}


def _links() -> Json:
    """A run leads to what can be asked about it."""
    return {id: {"operationId": id, "parameters": {"path.run": "$response.body#/id"}} for id in _LINKED}
