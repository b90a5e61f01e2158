"""The times when each worker was last seen by any server, by the clock of the store.

Each server publishes one document with the workers that it has seen lately, and reads those of the others. It writes
its document only when it has seen a worker since the last time, and drops old entries, so silent workers cost nothing.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from deltaci.core.listing import ALL_TENANTS
from deltaci.fleet.health import HealthLimits
from deltaci.storage.port import Conflict, Document, Store

KIND: Final = "heard"
MAX_SERVERS: Final = 200

WorkerKey = tuple[str, str]  # A tenant, and the name of its worker.


class SeenWorkers(msgspec.Struct, frozen=True, array_like=True):
    """The names of a tenant's workers that were last seen at time `at`. A server's document is a list of these."""

    at: int
    tenant: str
    names: list[str]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[SeenWorkers]).decode


class Heartbeats:
    """Records when workers were last seen by this server, and exchanges these times with the other servers.

    Messages are recorded without a time. The next call of `publish` gives them its time, so that a recorded time may be
    too late, but never too early.
    """

    def __init__(self, store: Store, limits: HealthLimits) -> None:
        self._store = store
        self._limits = limits
        self._server_id = secrets.token_hex(8)
        self._document_version = 0
        self._unpublished: set[WorkerKey] = set()
        self._open_requests_by_worker: Counter[WorkerKey] = Counter()
        self._published_by_worker: dict[WorkerKey, int] = {}
        self._last_seen_by_worker: dict[WorkerKey, int] = {}
        self._versions_by_server: dict[str, int] = {}

    def record(self, tenant: str, worker_name: str) -> None:
        """Record that this server received a message of a worker."""
        self._unpublished.add((tenant, worker_name))

    @contextmanager
    def connected(self, tenant: str, worker_name: str) -> Iterator[None]:
        """Count a worker as seen while this context is open. Used while a request of it waits for its response."""
        worker_key = (tenant, worker_name)
        self._open_requests_by_worker[worker_key] += 1
        try:
            yield
        finally:
            self._unpublished.add(worker_key)
            self._open_requests_by_worker[worker_key] -= 1
            if not self._open_requests_by_worker[worker_key]:
                del self._open_requests_by_worker[worker_key]

    def last_seen_at(self, worker_key: WorkerKey) -> int:
        """Return the time when a worker was last seen by any server, or 0 if that is unknown or long ago."""
        return self._last_seen_by_worker.get(worker_key, 0)

    async def publish(self, now: int) -> None:
        """Record `now` as the time of all messages since the last call.

        Store this server's document if there were any.
        """
        seen_keys = self._unpublished | self._open_requests_by_worker.keys()
        self._unpublished = set()
        for worker_key in seen_keys:
            self._last_seen_by_worker[worker_key] = self._published_by_worker[worker_key] = now
        self._forget_old(now)
        if seen_keys:
            await self._write_heartbeats()

    def _forget_old(self, now: int) -> None:
        """Forget the times of workers that were not seen for long, and limit times in the future to `now`."""
        limits = self._limits
        for times_by_worker, max_age in (
            (self._published_by_worker, limits.unresponsive_after),
            (self._last_seen_by_worker, limits.shut_down_after),
        ):
            for worker_key in [
                worker_key for worker_key, seen_at in times_by_worker.items() if seen_at <= now - max_age
            ]:
                del times_by_worker[worker_key]
            for worker_key in [worker_key for worker_key, seen_at in times_by_worker.items() if seen_at > now]:
                times_by_worker[worker_key] = now  # The store's clock went back.

    async def _write_heartbeats(self) -> None:
        """Store this server's document: the workers that it has seen, grouped by time and tenant."""
        names_by_group: dict[tuple[int, str], list[str]] = {}
        for (tenant, worker_name), seen_at in self._published_by_worker.items():
            names_by_group.setdefault((seen_at, tenant), []).append(worker_name)
        body = _encode(
            [SeenWorkers(seen_at, tenant, worker_names) for (seen_at, tenant), worker_names in names_by_group.items()]
        )
        try:
            await self._put(body)
        except Conflict:
            # The last write of this server succeeded, but its response was lost.
            stored_document = await self._store.find_document(KIND, self._server_id, ALL_TENANTS)
            self._document_version = stored_document.version if stored_document is not None else 0
            await self._put(body)

    async def _put(self, body: bytes) -> None:
        await self._store.put_documents([Document(KIND, ALL_TENANTS, self._server_id, self._document_version, 0, body)])
        self._document_version += 1

    async def read_others(self, now: int) -> None:
        """Read the changed documents of the other servers, and delete those of servers that ended long ago."""
        current_versions: dict[str, int] = {}
        for document in await self._store.list_documents(KIND, ALL_TENANTS, limit=MAX_SERVERS):
            if document.name == self._server_id:
                continue
            if document.at <= now - 2 * self._limits.shut_down_after:
                await self._store.delete_document(KIND, ALL_TENANTS, document.name, document.version)
                continue
            current_versions[document.name] = document.version
            if self._versions_by_server.get(document.name) != document.version:
                self._merge(document.body, now)
        self._versions_by_server = current_versions

    def _merge(self, body: bytes, now: int) -> None:
        """Take over from another server's document the times that are later than the known ones."""
        try:
            entries = _decode(body)
        except msgspec.DecodeError:
            return  # A server of another version wrote it; that server checks the workers that it has seen itself.
        for entry in entries:
            for name in entry.names:
                worker_key = (entry.tenant, name)
                self._last_seen_by_worker[worker_key] = max(
                    min(entry.at, now), self._last_seen_by_worker.get(worker_key, 0)
                )
