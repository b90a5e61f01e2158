"""The OpenAPI document of everything that the server serves over HTTP.

Paths, error codes and bodies come from the route tables and types that the server itself uses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import msgspec

from deltaci.api.operations import JSON, ErrorFormat, Json, Operation, document
from deltaci.api.rest_operations import api_operations
from deltaci.protocol import messages as wire
from deltaci.protocol import responses
from deltaci.protocol.routes import (
    LEASE_HEADER,
    MAX_CACHE_KEY,
    MAX_LEASE_CHARS,
    MAX_OFFSET_DIGITS,
    MAX_PATH_BYTES,
    OFFSET_HEADER,
    OPENAPI_PATH,
    PROTOCOL_ROUTES,
    REFUSALS,
    SHA256_HEADER,
    ProtocolRoute,
)

# Path segments of at most 200 bytes each, none of them empty, `.` or `..`.
PATH: Final = r"^(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]{1,200}(/(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]{1,200})*$"

CREDENTIAL: Final[tuple[Json, ...]] = ({"credential": []}, {"certificate": []})
_DIGEST: Final = {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}

RUNNER_ERRORS: Final = ErrorFormat(
    body=wire.Problem,
    media_type=JSON,
    meanings={code: (refusal.status, refusal.meaning) for code, refusal in REFUSALS.items()},
    common_codes=("bad_request", "too_large", "too_slow"),
)


# -- the runner protocol


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    """The operation id, the body type and the response type of a route of the runner protocol."""

    id: str
    request: Any = None
    is_optional: bool = False
    response: Any


_ANY_MESSAGE: Final = wire.RunnerMessage
_ACKNOWLEDGEMENTS: Final = (wire.HeartbeatAck, wire.CompleteAck, wire.CancelAcked)
# An invalid element gets a `Problem` as its answer while the others are processed, so elements may be anything.
_BATCH: Final = {
    "type": "array",
    "maxItems": wire.MAX_BATCH,
    "items": {
        "description": "a body of `messages`; anything else is answered with a `Problem` in its place",
        "anyOf": [_ANY_MESSAGE, {}],
    },
}
_BODIES: Final[dict[tuple[str, str], _Body]] = {
    ("POST", "register"): _Body(id="register", request=wire.Registration, response=wire.Registered),
    ("POST", "renew"): _Body(id="renew", request=wire.Renewal, is_optional=True, response=wire.Registered),
    ("POST", "lease"): _Body(id="lease", request=wire.LeaseRequest, response=responses.LeaseResponse),
    ("POST", "leave"): _Body(id="leave", request=wire.LeaveRequest, response=responses.LeaveResponse),
    ("POST", "control"): _Body(id="control", request=wire.ControlRequest, response=responses.ControlResponse),
    ("POST", "messages"): _Body(id="say", request=_ANY_MESSAGE, response={"anyOf": [*_ACKNOWLEDGEMENTS]}),
    ("POST", "batch"): _Body(
        id="sayMany",
        request=_BATCH,
        response={
            "type": "array",
            "maxItems": wire.MAX_BATCH,
            "items": {"anyOf": [*_ACKNOWLEDGEMENTS, wire.StaleLease, wire.Problem]},
        },
    ),
    ("GET", "specs"): _Body(id="readSpec", response=wire.JobSpec),
    ("POST", "hand-back"): _Body(id="handBack", response=responses.HandBackResponse),
    ("GET", "log"): _Body(id="readLogSize", response=responses.LogSize),
    ("POST", "log"): _Body(id="appendLog", request=bytes, is_optional=True, response=responses.LogSize),
    ("PUT", "artifacts"): _Body(id="keepArtifact", request=bytes, is_optional=True, response=responses.StoredArtifact),
    ("GET", "caches"): _Body(id="readCache", response=bytes),
    ("PUT", "caches"): _Body(id="keepCache", request=bytes, is_optional=True, response=responses.StoredCache),
    ("GET", "secrets"): _Body(id="readSecrets", response=dict[str, str]),
    ("GET", "optional-secrets"): _Body(id="readOptionalSecrets", response=dict[str, str]),
    ("GET", "source-credential"): _Body(id="readSourceCredential", response=responses.SourceCredential),
    ("GET", "needs"): _Body(id="readNeeds", response=dict[str, responses.NeededJob]),
    ("GET", "run-artifacts"): _Body(id="listSharedArtifacts", response=list[responses.SharedArtifact]),
    ("GET", "run-artifact"): _Body(id="readSharedArtifact", response=bytes),
    ("GET", "tree"): _Body(id="readTree", response=responses.WorktreeStart),
    ("GET", "tree-bundle"): _Body(id="readTreeBundle", response=bytes),
    ("POST", "streams"): _Body(id="findStreamsOver", request=wire.EndedStreamsRequest, response=responses.EndedStreams),
    ("GET", "cache-keys"): _Body(id="findCache", response=responses.CacheMatch),
}
_LEASE: Final = {
    "name": LEASE_HEADER,
    "in": "header",
    "required": True,
    "description": "the id of the lease: a secret",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_LEASE_CHARS},
}
_OFFSET: Final = {
    "name": OFFSET_HEADER,
    "in": "header",
    "required": True,
    "description": "the offset of this chunk",
    "schema": {"type": "integer", "minimum": 0, "maximum": 10**MAX_OFFSET_DIGITS - 1},
}
_SHA256: Final = {
    "name": SHA256_HEADER,
    "in": "header",
    "description": "the digest of the body, in hex; the server checks it",
    "schema": _DIGEST,
}
_PATH_PARAMETERS: Final[dict[str, Json]] = {
    "specs": {"description": "as in `job_spec_ref`", "schema": {"type": "string", "minLength": 1}},
    "artifacts": {
        "description": "its path in the workspace; slashes may be escaped or not",
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_PATH_BYTES, "pattern": PATH},
    },
    "caches": {
        "description": "the key of the cache entry",
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_CACHE_KEY},
    },
    "cache-keys": {
        "description": "the prefix of the key",
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_CACHE_KEY},
    },
    "run-artifact": {"description": "as in `run-artifacts`", "schema": {"type": "string", "minLength": 1}},
}
_LEASE_ID: Final = "$response.body#/leases/0/lease_id"
_UNDER_LEASE: Final = tuple(route for route in PROTOCOL_ROUTES if LEASE_HEADER in route.headers)


def _links() -> Json:
    """Return the OpenAPI links from a granted lease to each operation that a runner may call under it."""
    lease_header = {f"header.{LEASE_HEADER}": _LEASE_ID}
    links: Json = {
        "say": {"operationId": "say", "requestBody": {"lease_id": _LEASE_ID, "runner_id": "$request.body#/runner_id"}}
    }
    for route in _UNDER_LEASE:
        operation_id = _BODIES[route.method, route.name].id
        spec_parameters = {"path.attempt": "$response.body#/leases/0/job_id"} if route.name == "specs" else {}
        links[operation_id] = {"operationId": operation_id, "parameters": {**lease_header, **spec_parameters}}
    return links


def _runner_operations() -> Iterator[Operation]:
    for route in PROTOCOL_ROUTES:
        body_type = _BODIES[route.method, route.name]
        yield Operation(
            method=route.method,
            path=route.path.replace("<", "{").replace(">", "}"),
            id=body_type.id,
            summary=route.summary,
            tag="runner protocol",
            parameters=tuple(_parameters(route)),
            body=body_type.request,
            is_body_optional=body_type.is_optional,
            response=body_type.response,
            response_headers={SHA256_HEADER: {"required": True, "schema": _DIGEST}}
            if body_type.response is bytes
            else {},
            links=_links() if route.name == "lease" else {},
            codes=route.codes,
            is_under_lease=route in _UNDER_LEASE or route.name == "messages",
            security=() if route.name == "register" else CREDENTIAL,
            errors=RUNNER_ERRORS,
        )


def _parameters(route: ProtocolRoute) -> Iterator[Json]:
    if route.path_parameter:
        yield {"name": route.path_parameter.strip("<>"), "in": "path", "required": True, **_PATH_PARAMETERS[route.name]}
    for header_parameter in (_LEASE, _OFFSET, _SHA256):
        if str(header_parameter["name"]) in route.headers:
            yield header_parameter


# -- the document itself


def _document_operations() -> Iterator[Operation]:
    yield Operation(
        method="GET",
        path=OPENAPI_PATH,
        id="describe",
        summary="read this document",
        tag="about",
        response={"type": "object", "required": ["openapi", "paths"]},
        errors=RUNNER_ERRORS,
    )


OPERATIONS: Final[tuple[Operation, ...]] = (*api_operations(), *_runner_operations(), *_document_operations())


# -- the document

INFO: Final[Json] = {
    "title": "Delta CI",
    "version": str(wire.PROTOCOL_VERSION),
    "description": "Generated from the types that the server uses. docs/api.md explains the API, "
    "docs/protocol.md the runner protocol.",
    "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
}
SECURITY: Final[Json] = {
    "key": {"type": "http", "scheme": "bearer", "description": "an API key: a secret"},
    "credential": {
        "type": "http",
        "scheme": "bearer",
        "description": "the credential that `register` and `renew` return: short-lived, a secret",
    },
    "certificate": {
        "type": "mutualTLS",
        "description": "a client certificate with the URI deltaci:TENANT/RUNNER",
    },
}


def openapi_document() -> Json:
    """Return the OpenAPI document of the whole server."""
    return document(OPERATIONS, INFO, SECURITY)


def openapi_text() -> str:
    """Return the OpenAPI document as indented JSON."""
    return json.dumps(openapi_document(), indent=1, ensure_ascii=False)


@cache
def openapi_bytes() -> bytes:
    """Return the OpenAPI document as JSON without indentation. It is encoded once."""
    return wire.encode(openapi_document())
