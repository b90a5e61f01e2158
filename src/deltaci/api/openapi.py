"""Everything that the server serves over HTTP, as one OpenAPI document. `docs/openapi.json` is its output.
A part of the server is a list of `Operation`s; `PARTS` names them all. Addresses, codes and bodies are taken from the
tables and types that run, so that nothing is said twice.
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

# Names of at most 200 bytes each, none of them empty, `.` or `..`.
PATH: Final = r"^(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]{1,200}(/(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]{1,200})*$"

CREDENTIAL: Final[tuple[Json, ...]] = ({"credential": []}, {"certificate": []})
_DIGEST: Final = {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}

RUNNER_ERRORS: Final = ErrorFormat(
    problem=wire.Problem,
    media=JSON,
    means={code: (each.status, each.meaning) for code, each in REFUSALS.items()},
    everywhere=("bad_request", "too_large", "too_slow"),
)


# -- the runner protocol


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    """What an address of the runner protocol takes and gives, by type."""

    id: str
    takes: Any = None
    is_optional: bool = False
    gives: Any


_ANY_MESSAGE: Final = wire.RunnerMessage
_HEARD: Final = (wire.HeartbeatAck, wire.CompleteAck, wire.CancelAcked)
# One that is none is refused in its place, and the others are heard: so the list itself may hold anything.
_MANY: Final = {
    "type": "array",
    "maxItems": wire.MAX_BATCH,
    "items": {
        "description": "what `messages` takes; whatever else it is, is answered by a `Problem` in its place",
        "anyOf": [_ANY_MESSAGE, {}],
    },
}
_BODIES: Final[dict[tuple[str, str], _Body]] = {
    ("POST", "register"): _Body(id="register", takes=wire.Registration, gives=wire.Registered),
    ("POST", "renew"): _Body(id="renew", takes=wire.Renewal, is_optional=True, gives=wire.Registered),
    ("POST", "lease"): _Body(id="lease", takes=wire.LeaseRequest, gives=responses.LeaseResponse),
    ("POST", "leave"): _Body(id="leave", takes=wire.LeaveRequest, gives=responses.LeaveResponse),
    ("POST", "control"): _Body(id="control", takes=wire.ControlRequest, gives=responses.ControlResponse),
    ("POST", "messages"): _Body(id="say", takes=_ANY_MESSAGE, gives={"anyOf": [*_HEARD]}),
    ("POST", "batch"): _Body(
        id="sayMany",
        takes=_MANY,
        gives={
            "type": "array",
            "maxItems": wire.MAX_BATCH,
            "items": {"anyOf": [*_HEARD, wire.StaleLease, wire.Problem]},
        },
    ),
    ("GET", "specs"): _Body(id="readSpec", gives=wire.JobSpec),
    ("POST", "hand-back"): _Body(id="handBack", gives=responses.HandBackResponse),
    ("GET", "log"): _Body(id="readLogSize", gives=responses.LogSize),
    ("POST", "log"): _Body(id="appendLog", takes=bytes, is_optional=True, gives=responses.LogSize),
    ("PUT", "artifacts"): _Body(id="keepArtifact", takes=bytes, is_optional=True, gives=responses.StoredArtifact),
    ("GET", "caches"): _Body(id="readCache", gives=bytes),
    ("PUT", "caches"): _Body(id="keepCache", takes=bytes, is_optional=True, gives=responses.StoredCache),
    ("GET", "secrets"): _Body(id="readSecrets", gives=dict[str, str]),
    ("GET", "optional-secrets"): _Body(id="readOptionalSecrets", gives=dict[str, str]),
    ("GET", "source-credential"): _Body(id="readSourceCredential", gives=responses.SourceCredential),
    ("GET", "needs"): _Body(id="readNeeds", gives=dict[str, responses.NeededJob]),
    ("GET", "run-artifacts"): _Body(id="listSharedArtifacts", gives=list[responses.SharedArtifact]),
    ("GET", "run-artifact"): _Body(id="readSharedArtifact", gives=bytes),
    ("GET", "tree"): _Body(id="readTree", gives=responses.WorktreeStart),
    ("GET", "tree-bundle"): _Body(id="readTreeBundle", gives=bytes),
    ("POST", "streams"): _Body(id="findStreamsOver", takes=wire.EndedStreamsRequest, gives=responses.EndedStreams),
    ("GET", "cache-keys"): _Body(id="findCache", gives=responses.CacheMatch),
}
_LEASE: Final = {
    "name": LEASE_HEADER,
    "in": "header",
    "required": True,
    "description": "the lease under which it is asked: a secret",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_LEASE_CHARS},
}
_OFFSET: Final = {
    "name": OFFSET_HEADER,
    "in": "header",
    "required": True,
    "description": "the byte at which this part begins",
    "schema": {"type": "integer", "minimum": 0, "maximum": 10**MAX_OFFSET_DIGITS - 1},
}
_SHA256: Final = {
    "name": SHA256_HEADER,
    "in": "header",
    "description": "the digest of the body, in hex: another body is refused",
    "schema": _DIGEST,
}
_REST: Final[dict[str, Json]] = {
    "specs": {"description": "as `job_spec_ref` spells it", "schema": {"type": "string", "minLength": 1}},
    "artifacts": {
        "description": "its path in the workspace; slashes may be escaped or not",
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_PATH_BYTES, "pattern": PATH},
    },
    "caches": {
        "description": "the cache's key",
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_CACHE_KEY},
    },
    "cache-keys": {
        "description": "what the key begins with",
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_CACHE_KEY},
    },
    "run-artifact": {"description": "as `run-artifacts` spells it", "schema": {"type": "string", "minLength": 1}},
}
_LEASE_ID: Final = "$response.body#/leases/0/lease_id"
_UNDER_LEASE: Final = tuple(each for each in PROTOCOL_ROUTES if LEASE_HEADER in each.headers)


def _links() -> Json:
    """A lease leads to everything that is asked under it."""
    named = {f"header.{LEASE_HEADER}": _LEASE_ID}
    found: Json = {
        "say": {"operationId": "say", "requestBody": {"lease_id": _LEASE_ID, "runner_id": "$request.body#/runner_id"}}
    }
    for each in _UNDER_LEASE:
        id = _BODIES[each.method, each.name].id
        spec = {"path.attempt": "$response.body#/leases/0/job_id"} if each.name == "specs" else {}
        found[id] = {"operationId": id, "parameters": {**named, **spec}}
    return found


def _runner_operations() -> Iterator[Operation]:
    for each in PROTOCOL_ROUTES:
        body = _BODIES[each.method, each.name]
        is_under_lease = each in _UNDER_LEASE
        yield Operation(
            method=each.method,
            path=each.path.replace("<", "{").replace(">", "}"),
            id=body.id,
            does=each.summary,
            part="runner protocol",
            parameters=tuple(_parameters(each)),
            body=body.takes,
            is_body_optional=body.is_optional,
            answer=body.gives,
            answer_headers={SHA256_HEADER: {"required": True, "schema": _DIGEST}} if body.gives is bytes else {},
            links=_links() if each.name == "lease" else {},
            codes=each.codes,
            is_under_lease=is_under_lease or each.name == "messages",
            security=() if each.name == "register" else CREDENTIAL,
            family=RUNNER_ERRORS,
        )


def _parameters(address: ProtocolRoute) -> Iterator[Json]:
    if address.path_parameter:
        yield {"name": address.path_parameter.strip("<>"), "in": "path", "required": True, **_REST[address.name]}
    for parameter in (_LEASE, _OFFSET, _SHA256):
        if str(parameter["name"]) in address.headers:
            yield parameter


# -- what describes itself


def _own_operations() -> Iterator[Operation]:
    yield Operation(
        method="GET",
        path=OPENAPI_PATH,
        id="describe",
        does="read this document",
        part="about",
        answer={"type": "object", "required": ["openapi", "paths"]},
        family=RUNNER_ERRORS,
    )


OPERATIONS: Final[tuple[Operation, ...]] = (*api_operations(), *_runner_operations(), *_own_operations())


# -- the document

INFO: Final[Json] = {
    "title": "Delta CI",
    "version": str(wire.PROTOCOL_VERSION),
    "description": "Generated from the types that are sent. docs/api.md explains the API for people and programs, "
    "docs/protocol.md the runner protocol.",
    "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
}
SECURITY: Final[Json] = {
    "key": {"type": "http", "scheme": "bearer", "description": "an API key: a secret"},
    "credential": {
        "type": "http",
        "scheme": "bearer",
        "description": "what `register` and `renew` answer: short-lived, a secret",
    },
    "certificate": {
        "type": "mutualTLS",
        "description": "a client certificate with the URI deltaci:TENANT/RUNNER",
    },
}


def openapi_document() -> Json:
    """All of it."""
    return document(OPERATIONS, INFO, SECURITY)


def openapi_text() -> str:
    """The document as it is stored."""
    return json.dumps(openapi_document(), indent=1, ensure_ascii=False)


@cache
def openapi_bytes() -> bytes:
    """The document as it is served."""
    return wire.encode(openapi_document())
