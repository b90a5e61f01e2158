"""Everything that the server serves over HTTP, as one OpenAPI document. `docs/openapi.json` is its output.

python -m deltaci.wire.openapi docs/openapi.json           write the document
python -m deltaci.wire.openapi --check docs/openapi.json   fail if it is not what the types say

A part of the server is a list of `Operation`s; `PARTS` names them all. Addresses, codes and bodies are taken from the
tables and types that run, so that nothing is said twice.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final

import msgspec

from deltaci.core.draw import write_or_compare
from deltaci.wire import answers
from deltaci.wire import messages as wire
from deltaci.wire.addresses import (
    ADDRESSES,
    DESCRIPTION,
    LEASE_HEADER,
    MAX_CACHE_KEY,
    MAX_LEASE_CHARS,
    MAX_OFFSET_DIGITS,
    MAX_PATH_BYTES,
    OFFSET_HEADER,
    REFUSALS,
    SHA256_HEADER,
    Address,
)

REFS: Final = "#/components/schemas/{name}"
JSON: Final = "application/json"
BYTES: Final = "application/octet-stream"

# Names of at most 200 bytes each, none of them empty, `.` or `..`.
PATH: Final = r"^(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]{1,200}(/(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]{1,200})*$"

Json = dict[str, Any]

CREDENTIAL: Final[tuple[Json, ...]] = ({"credential": []}, {"certificate": []})
_ALWAYS: Final[Json] = {"Cache-Control": {"required": True, "schema": {"const": "no-store"}}}
_RETRY: Final[Json] = {
    "Retry-After": {
        "required": True,
        "description": "seconds after which to try again",
        "schema": {"type": "integer", "minimum": 1},
    }
}
_HEADERS: Final[dict[int, Json]] = {
    401: {"WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}}},
    503: _RETRY,
}
_DIGEST: Final = {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}
EVERYWHERE: Final = ("bad_request", "too_large", "too_slow")  # What is no request at all is refused at every address.


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
    security: tuple[Json, ...] = CREDENTIAL


# What types cannot say: how fields must fit each other.
BETWEEN_FIELDS: Final[dict[str, Json]] = {
    "Complete": {
        "if": {"properties": {"status": {"const": "SUCCEEDED"}}},
        "then": {"properties": {"exit_code": {"const": 0}}, "required": ["exit_code"]},
    }
}


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
    ("POST", "lease"): _Body(id="lease", takes=wire.Lease, gives=answers.Granted),
    ("POST", "control"): _Body(id="control", takes=wire.Control, gives=answers.Wanted),
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
    ("POST", "hand-back"): _Body(id="handBack", gives=answers.HandedBack),
    ("GET", "log"): _Body(id="readLogSize", gives=answers.Size),
    ("POST", "log"): _Body(id="appendLog", takes=bytes, is_optional=True, gives=answers.Size),
    ("PUT", "artifacts"): _Body(id="keepArtifact", takes=bytes, is_optional=True, gives=answers.KeptArtifact),
    ("GET", "caches"): _Body(id="readCache", gives=bytes),
    ("PUT", "caches"): _Body(id="keepCache", takes=bytes, is_optional=True, gives=answers.KeptCache),
    ("GET", "secrets"): _Body(id="readSecrets", gives=dict[str, str]),
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
}
_LEASE_ID: Final = "$response.body#/leases/0/lease_id"
_UNDER_LEASE: Final = tuple(each for each in ADDRESSES if LEASE_HEADER in each.headers)


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
    for each in ADDRESSES:
        body = _BODIES[each.method, each.name]
        is_under_lease = each in _UNDER_LEASE
        yield Operation(
            method=each.method,
            path=each.path.replace("<", "{").replace(">", "}"),
            id=body.id,
            does=each.does,
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
        )


def _parameters(address: Address) -> Iterator[Json]:
    if address.rest:
        yield {"name": address.rest.strip("<>"), "in": "path", "required": True, **_REST[address.name]}
    for parameter in (_LEASE, _OFFSET, _SHA256):
        if str(parameter["name"]) in address.headers:
            yield parameter


# -- what describes itself


def _own_operations() -> Iterator[Operation]:
    yield Operation(
        method="GET",
        path=DESCRIPTION,
        id="describe",
        does="read this document",
        part="about",
        answer={"type": "object", "required": ["openapi", "paths"]},
        security=(),
    )


PARTS: Final[tuple[Operation, ...]] = (*_runner_operations(), *_own_operations())


# -- the document


def document(operations: Iterable[Operation] = PARTS) -> Json:
    """All of it."""
    types: dict[str, Any] = {"Problem": wire.Problem, "StaleLease": wire.StaleLease}
    paths: Json = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, types)
    _, schemas = msgspec.json.schema_components(types.values(), ref_template=REFS)
    for name, rule in BETWEEN_FIELDS.items():
        if name in schemas:
            schemas[name] |= rule
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Delta CI",
            "version": str(wire.VERSION),
            "description": "Generated from the types that are sent. The runner protocol is explained in "
            "docs/protocol.md, its rules are in docs/spec/runner-protocol.md.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "credential": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "what `register` and `renew` answer: short-lived, a secret",
                },
                "certificate": {
                    "type": "mutualTLS",
                    "description": "a client certificate with the URI deltaci:TENANT/RUNNER",
                },
            },
        },
    }


def _operation(each: Operation, types: dict[str, Any]) -> Json:
    shown: Json = {"operationId": each.id, "summary": each.does, "tags": [each.part], "security": list(each.security)}
    if each.parameters:
        shown["parameters"] = list(each.parameters)
    if each.body is not None:
        shown["requestBody"] = {"required": not each.is_body_optional, "content": _content(each.body, types)}
    good: Json = {"description": "done", "headers": {**_ALWAYS, **each.answer_headers}}
    good["content"] = _content(each.answer, types)
    if each.links:
        good["links"] = each.links
    shown["responses"] = {"200": good, **_refusals(each, types)}
    return shown


def _refusals(each: Operation, types: dict[str, Any]) -> Json:
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys((*EVERYWHERE, *each.codes)):
        by_status.setdefault(REFUSALS[code].status, []).append(code)
    if each.is_under_lease:
        by_status.setdefault(409, [])
    found: Json = {}
    for status, codes in sorted(by_status.items()):
        said = [f"`{code}`: {REFUSALS[code].means}" for code in codes]
        kinds: list[Any] = [{"allOf": [wire.Problem], "properties": {"code": {"enum": codes}}}] if codes else []
        if each.is_under_lease and status == 409:
            said.insert(0, "`StaleLease`: the lease is no longer good")
            kinds.insert(0, wire.StaleLease)
        schema = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        found[str(status)] = {
            "description": "; ".join(said),
            "headers": {**_ALWAYS, **_HEADERS.get(status, {})},
            "content": _content(schema, types),
        }
    return found


def _content(kind: Any, types: dict[str, Any]) -> Json:
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
    [schema], _ = msgspec.json.schema_components([kind], ref_template=REFS)
    return schema


def page() -> str:
    """The document as it is stored."""
    return json.dumps(document(), indent=1, ensure_ascii=False)


@cache
def described() -> bytes:
    """The document as it is served."""
    return wire.encode(document())


def main(arguments: list[str]) -> int:
    """Write the document, or compare it."""
    return write_or_compare(arguments, "deltaci.wire.openapi", "types", page())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
