"""What a handler of the REST API gets and returns: the request, the components of the server, and the responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from deltaci.api.routes import Route
from deltaci.controllers.flaky import FlakyTestTracker
from deltaci.controllers.merge_queue.records import QueueView
from deltaci.controllers.repositories.controller import RepositoryController
from deltaci.controllers.workstreams.records import Workstream
from deltaci.core.errors import Refused
from deltaci.core.events import USER
from deltaci.core.machine import Record
from deltaci.engine.engine import Engine
from deltaci.engine.unreadable_records import unreadable_refusal
from deltaci.fleet.incarnations import Incarnations
from deltaci.fleet.liveness import Fleet
from deltaci.pipeline.workstream.model import Workstream as WorkstreamFile
from deltaci.server.auth.callers import ApiKeys, Caller
from deltaci.server.auth.credentials import Signer
from deltaci.server.disk import DiskThreads
from deltaci.server.failure_rules import FailureRules
from deltaci.server.log_index import LogIndexes
from deltaci.server.request import Request
from deltaci.server.rest.streams.event_streams import EventStreams
from deltaci.server.secret_changes import SecretChanges
from deltaci.server.secrets import Secrets
from deltaci.server.tenants import Tenants
from deltaci.server.test_reports import TestReports
from deltaci.storage.blobs.logs import LogStore
from deltaci.storage.blobs.store import BlobStore
from deltaci.storage.port import Store

Send = Callable[[dict[str, Any]], Awaitable[None]]


class WorkstreamService(Protocol):
    """The controllers of workstreams and merge queues, as handlers use them."""

    async def create(
        self, tenant: str, stream: WorkstreamFile, *, id: str, by: str, request_id: str, fingerprint: str = ""
    ) -> Workstream:
        """Create a workstream with this id. `fingerprint` is that of a request with an idempotency key, else empty.

        Raise Refused if it cannot be created.
        """
        ...

    async def queues(self, tenant: str) -> Sequence[QueueView]:
        """Return the merge queues of the tenant that are not empty."""
        ...


class AppState(msgspec.Struct, frozen=True, kw_only=True):
    """The components of the server that handlers use."""

    store: Store
    engine: Engine
    logs: LogStore
    blobs: BlobStore
    disk: DiskThreads
    signer: Signer
    keys: ApiKeys
    tenants: Tenants
    streams: EventStreams
    secrets: Secrets
    secret_changes: SecretChanges
    failure_rules: FailureRules
    flaky: FlakyTestTracker
    test_reports: TestReports
    repositories: RepositoryController
    fleet: Fleet
    incarnations: Incarnations
    log_indexes: LogIndexes = msgspec.field(default_factory=LogIndexes)
    workstreams: WorkstreamService | None = None


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated request. `params`, `query` and `body` have the types that the route declares."""

    route: Route
    caller: Caller
    params: dict[str, Any]
    query: Any
    body: Any
    request: Request
    app: AppState
    # Authenticates the request again and returns its caller: a stream may outlast the API key that opened it.
    reauthenticate: Callable[[], Awaitable[Caller]]
    idempotency_key: str = ""  # Replaces the header for a call from the web interface.

    @property
    def actor(self) -> str:
        """Return the actor that events of this request name."""
        return f"{USER}:{self.caller.person}"


@runtime_checkable
class StreamingResponse(Protocol):
    """A response that writes its own status, headers and body."""

    async def send(self, send: Send) -> None:
        """Send the whole response."""
        ...


class JsonResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON response with additional headers, or with another status than the one of the route."""

    value: Any
    status: int | None = None
    headers: dict[str, str] = {}


Handler = Callable[[Call], Awaitable[Any]]


def not_found(kind: str, object_id: str) -> Refused:
    """Return the error for an object that does not exist or belongs to another tenant."""
    return Refused("not_found", f"there is no {kind} {object_id[:200]!r}")


def check_owner(call: Call, record: Record | None, kind: str, object_id: str) -> Record:
    """Return the record. Raise `not_found` if it is None or belongs to another tenant.

    A record that this version of the server cannot decode raises its own error.
    """
    if record is None or record.tenant != call.caller.tenant:
        refusal = unreadable_refusal(record)
        raise refusal if refusal is not None else not_found(kind, object_id)
    return record
