"""Draws the runner protocol from the very types and tables that run. `docs/protocol.md` is its output."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
from msgspec import inspect

from deltaci.protocol import messages as wire
from deltaci.protocol.examples import DOCUMENT_EXAMPLES, OWN_EXAMPLES
from deltaci.protocol.routes import PROTOCOL_ROUTES, REFUSALS, ROOT
from deltaci.protocol.schema_names import schema, schema_name
from scripts.docgen.pages import table

Kinds = tuple[type[msgspec.Struct], ...]

FROM_RUNNER: Final[Kinds] = (wire.LeaseRequest, wire.AckLease, wire.Heartbeat, wire.Complete, wire.CancelAck)
FROM_SERVER: Final[Kinds] = (
    wire.LeaseGranted,
    wire.HeartbeatAck,
    wire.CompleteAck,
    wire.CancelAcked,
    wire.CancelRequested,
    wire.StaleLease,
)
AROUND: Final[Kinds] = (
    wire.Registration,
    wire.Renewal,
    wire.LeaveRequest,
    wire.Registered,
    wire.Dispatch,
    wire.ControlRequest,
    wire.EndedStreamsRequest,
    wire.Problem,
)
PARTS: Final[Kinds] = (
    wire.JobSpec,
    wire.Step,
    wire.ArtifactRule,
    wire.CacheRule,
    wire.Limits,
    wire.Progress,
    wire.LogCursor,
    wire.Artifact,
    wire.Timings,
    wire.Source,
    wire.Service,
    wire.ValidationRule,
    wire.NumberRule,
    wire.RuleResult,
    wire.Worktree,
    wire.StepResult,
    wire.TestTotals,
    wire.FailedTest,
)

_HEAD: Final = f"""# The runner protocol

Generated from the types that are sent by `make fix`; do not edit.
The rules behind it are on [`docs/spec/runner-protocol.md`](spec/runner-protocol.md).
This is version {wire.PROTOCOL_VERSION}; the version is part of every address.

Everything is JSON in UTF-8 over HTTP, except the bytes of logs, artifacts and caches. Everything is strict: a field
that is not listed, a word that is not in its list or a number out of its range is refused with 422 and the place where
it was found. A field that is not required may be left out, which means its default. Times are UTC, as in
`2026-01-04T08:00:00Z`, and need their zone. A whole number may be written `2` or `2.0`. Fields whose meaning begins
with “extension” are additions to document 001. Word of work and of cancels may also come over NATS, see
[`docs/nats.md`](nats.md); everything else is as here. For programs, all of it is in
[api-contract.txt](reference/api-contract.txt); a server returns the OpenAPI document at `GET /openapi.json`.

`lease_id`, `cancel_token`, registration tokens and credentials are secrets: keep them out of logs and addresses.
"""
_REFUSALS_HEAD: Final = """# Refusals

A refused request changes nothing. Its body is a `Problem`; 409 under a lease that is no longer good has a
`StaleLease`. Any code that is not listed comes with 409.
"""
_LIVES: Final = f"""# Sequences

## A job's life

```mermaid
sequenceDiagram
    participant R as Runner
    participant S as Server
    R->>S: POST {ROOT}register (Registration)
    S-->>R: 200 Registered
    R->>S: POST {ROOT}lease (Lease, wait_seconds=30)
    Note over S: waits until there is work that fits
    S-->>R: 200 leases: [LeaseGranted]
    R->>S: POST {ROOT}messages (AckLease), within the accept window
    S-->>R: 200 HeartbeatAck
    opt job_spec_ref instead of job_spec
        R->>S: GET {ROOT}specs/… (Delta-Lease)
        S-->>R: 200 JobSpec
    end
    loop every heartbeat_interval_seconds
        R->>S: POST {ROOT}log (Delta-Lease, Delta-Offset, bytes)
        S-->>R: 200 size
        R->>S: POST {ROOT}messages (Heartbeat)
        S-->>R: 200 HeartbeatAck (extend_lease=true)
    end
    R->>S: POST {ROOT}messages (Complete)
    S-->>R: 200 CompleteAck (accepted=true)
    Note over R: stops heartbeating
```

## A cancel

```mermaid
sequenceDiagram
    participant P as Person
    participant S as Server
    participant R as Runner
    R->>S: POST {ROOT}control (Control, wait_seconds=30), while it has a lease
    P->>S: cancel the run
    par at once, where there is a push channel
        S-->>R: 200 cancels: [CancelRequested (deadline_seconds=30)]
    and with the next heartbeat, always
        R->>S: Heartbeat
        S-->>R: HeartbeatAck (cancel_requested=true, cancel_deadline_seconds=30)
    end
    Note over R: stops the job, gracefully as long as there is time
    alt it stopped
        R->>S: CancelAck
        S-->>R: CancelAcked (accepted=true)
    else the result was on its way already
        R->>S: Complete
        S-->>R: CompleteAck (accepted=false, reason=CANCEL_REQUESTED)
    else the deadline passed
        Note over S: canceled without the runner, its lease revoked
        R->>S: CancelAck
        S-->>R: 409 StaleLease (LEASE_REVOKED)
    end
```

## A stale lease

```mermaid
sequenceDiagram
    participant A as Runner A
    participant S as Server
    participant B as Runner B
    S-->>A: LeaseGranted
    A->>S: AckLease
    Note over A,S: the network is cut for longer than lease_ttl_seconds
    Note over S: the lease expired, the attempt is queued again
    B->>S: Lease
    S-->>B: LeaseGranted, a new lease
    A->>S: Complete
    S-->>A: 409 StaleLease (LEASE_EXPIRED)
    Note over A: stops, releases what it has, does not complete again
    B->>S: Complete
    S-->>B: 200 CompleteAck (accepted=true)
    A->>S: Heartbeat, from a network that delivers late
    S-->>A: 409 StaleLease (LEASE_REPLACED, extend_lease=false, stale=true)
```
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD, "# Addresses\n", _addresses(), _REFUSALS_HEAD, _refusals(), _LIVES]
    parts += ["# What a runner sends\n", *map(_message, FROM_RUNNER)]
    parts += ["# What the server sends\n", *map(_message, FROM_SERVER)]
    parts += ["# Around the messages\n", *map(_message, AROUND)]
    parts += ["# Parts of messages\n", *map(_part, PARTS)]
    return "\n".join(parts)


def _addresses() -> str:
    head = ("method and path", "does", "headers", "body", "200", "may be refused with")
    rows = (
        (f"`{each.method} {each.path}`", each.summary, each.headers, each.body, each.response, ", ".join(each.codes))
        for each in PROTOCOL_ROUTES
    )
    return "\n".join(table(head, rows))


def _refusals() -> str:
    rows = ((f"`{code}`", str(each.status), each.meaning) for code, each in REFUSALS.items())
    return "\n".join(table(("code", "status", "means"), rows))


def _message(kind: type[msgspec.Struct]) -> str:
    name = schema_name(kind)
    shown = json.dumps(schema(kind), indent=2, ensure_ascii=False)
    origin = "Example, from document 001:" if name in DOCUMENT_EXAMPLES else "Example:"
    return "\n".join(
        (
            _part(kind),
            f"{origin}\n\n```json\n{_example(kind)}\n```\n",
            f"<details><summary>JSON Schema of {name}</summary>\n\n```json\n{shown}\n```\n\n</details>\n",
        )
    )


def _example(kind: type[msgspec.Struct]) -> str:
    """The example as our types read and write it."""
    name = schema_name(kind)
    text = DOCUMENT_EXAMPLES[name] if name in DOCUMENT_EXAMPLES else OWN_EXAMPLES[name]
    return msgspec.json.format(wire.encode(msgspec.json.decode(text, type=kind)), indent=2).decode()


def _part(kind: type[msgspec.Struct]) -> str:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    rows = [("`type`", f'"{info.tag}"', "yes", "which message it is")] if info.tag is not None else []
    rows += [_field(field) for field in info.fields]
    lines = [f"## {schema_name(kind)}", "", " ".join((kind.__doc__ or "").split()), ""]
    return "\n".join([*lines, *table(("field", "type", "required", "meaning"), rows)])


def _field(field: inspect.Field) -> tuple[str, str, str, str]:
    kind, meaning = field.type, ""
    if isinstance(kind, inspect.Metadata):
        meaning = str((kind.extra_json_schema or {}).get("description", ""))
        kind = kind.type
    return f"`{field.name}`", _type(kind), "yes" if field.required else f"no{_default(field)}", meaning


def _default(field: inspect.Field) -> str:
    default: Any = field.default
    if default in (None, "", msgspec.UNSET, msgspec.NODEFAULT) or isinstance(default, msgspec.Struct):
        return ""
    return f"; default {json.dumps(default)}"


def _type(kind: inspect.Type) -> str:
    """A type with its range, as people read it."""
    match kind:
        case inspect.Metadata():
            return _type(kind.type)
        case inspect.UnionType():
            shown = (part for part in kind.types if not isinstance(part, inspect.NoneType))
            return " or ".join(dict.fromkeys(map(_type, shown)))
        case inspect.StructType():
            return f"[`{schema_name(kind.cls)}`](#{schema_name(kind.cls).lower()})"
        case inspect.ListType():
            most = f", at most {kind.max_length}" if kind.max_length is not None else ""
            return f"list of {_type(kind.item_type)}{most}"
        case inspect.DictType():
            return f"object of {_type(kind.value_type)}, each by a name"
        case inspect.LiteralType():
            return " or ".join(f'"{word}"' for word in kind.values)
        case inspect.StrType():
            return f"text{_length(kind)}"
        case inspect.IntType():
            return f"whole number{_range(kind)}"
        case inspect.FloatType():
            return f"number{_range(kind)}"
        case inspect.BoolType():
            return "true or false"
        case inspect.DateTimeType():
            return "time with its zone"
    return "any JSON"


def _length(kind: inspect.StrType) -> str:
    if kind.max_length is None:
        return ""
    ascii_only = ", printable ASCII" if kind.pattern else ""
    return f" of {kind.min_length or 0} to {kind.max_length} characters{ascii_only}"


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    return f" {kind.ge} to {kind.le}" if kind.ge is not None else ""
