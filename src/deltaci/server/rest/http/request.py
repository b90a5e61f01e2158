"""One request to the API as its handler sees it: who asks, for what, with which parts of the server at hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from deltaci.api.routes import Route
from deltaci.controllers.flaky import FlakyTests
from deltaci.controllers.merge_queue.records import QueueView
from deltaci.controllers.repositories import Repositories
from deltaci.controllers.workstreams.records import Workstream
from deltaci.core.errors import Refused
from deltaci.core.events import USER
from deltaci.core.machine import Record
from deltaci.engine.engine import Engine
from deltaci.engine.unreadable_records import unreadable_refusal
from deltaci.fleet.incarnations import Incarnations
from deltaci.fleet.liveness import Fleet
from deltaci.pipeline.workstream.model import Workstream as WorkstreamFile
from deltaci.server.auth.callers import Caller, Keys
from deltaci.server.auth.credentials import Signer
from deltaci.server.disk import Disk
from deltaci.server.failure_rules import FailureRules
from deltaci.server.log_index import LogIndexes
from deltaci.server.request import Request
from deltaci.server.rest.event_streams import Streams
from deltaci.server.secrets import Secrets
from deltaci.server.tenants import Tenants
from deltaci.server.test_reports import TestReports
from deltaci.storage.blobs.logs import LogStore
from deltaci.storage.blobs.store import BlobStore
from deltaci.storage.port import Store

Send = Callable[[dict[str, Any]], Awaitable[None]]


class WorkstreamDesk(Protocol):
    """Who starts workstreams and knows what waits to be merged."""

    async def create(
        self, tenant: str, stream: WorkstreamFile, *, id: str, by: str, request_id: str, asked: str = ""
    ) -> Workstream:
        """Begin it under this id, with the fingerprint of the request, if it has one. Refused if it cannot be."""
        ...

    async def queues(self, tenant: str) -> Sequence[QueueView]:
        """All merge queues of the tenant that something waits in."""
        ...


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What handlers work with."""

    store: Store
    engine: Engine
    logs: LogStore
    blobs: BlobStore
    disk: Disk
    signer: Signer
    keys: Keys
    tenants: Tenants
    streams: Streams
    secrets: Secrets
    rules: FailureRules
    flaky: FlakyTests
    reports: TestReports
    repositories: Repositories
    fleet: Fleet
    lives: Incarnations
    log_indexes: LogIndexes = msgspec.field(default_factory=LogIndexes)
    workstreams: WorkstreamDesk | None = None


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `params`, `query` and `body` were read by the types that the route names."""

    route: Route
    who: Caller
    params: dict[str, Any]
    query: Any
    body: Any
    request: Request
    parts: Parts
    again: Callable[[], Awaitable[Caller]]  # Who asks, looked at once more: a stream may outlast a key.
    once: str = ""  # In place of the idempotency key of the request, for who asks in this process.

    @property
    def actor(self) -> str:
        """Who acts, as events name it."""
        return f"{USER}:{self.who.person}"


@runtime_checkable
class Sent(Protocol):
    """An answer that sends itself, part by part."""

    async def send(self, send: Send) -> None:
        """All of it."""
        ...


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with headers of its own, or with another status than the route's."""

    value: Any
    status: int | None = None
    headers: dict[str, str] = {}


Handler = Callable[[Call], Awaitable[Any]]


def missing(what: str, id: str) -> Refused:
    """The same words for what never was and for what is another tenant's."""
    return Refused("not_found", f"there is no {what} {id[:200]!r}")


def own(call: Call, record: Record | None, what: str, id: str) -> Record:
    """The record, if it is there and the caller's. One way for both refusals, so that nothing tells them apart."""
    if record is None or record.tenant != call.who.tenant:
        unread = unreadable_refusal(record)
        raise unread if unread is not None else missing(what, id)
    return record
