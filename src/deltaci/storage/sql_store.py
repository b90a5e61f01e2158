"""The reads that are the same in every SQL database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from deltaci.core.events import Event
from deltaci.core.machine import Record
from deltaci.core.resource import Resource
from deltaci.storage import resources
from deltaci.storage.codec import decode_record
from deltaci.storage.document_backends import FIND, FIRST, LIST
from deltaci.storage.list_index import SqlListReader
from deltaci.storage.port import (
    Document,
    ListQuery,
    ReadyAttempt,
    RecordPage,
    ResourceQuery,
    is_storable_text,
)
from deltaci.storage.sql import (
    FIRST_QUEUED,
    FIRST_READY,
    GROUP_HOLDER,
    NEXT_QUEUE,
    NEXT_QUEUE_OF_TENANT,
    LogReader,
)


class SqlStore(ABC):
    """The base class of the SQL stores. `mark` is the character before the number of a query parameter: `$` or `?`."""

    def __init__(self, mark: str) -> None:
        marks = [f"{mark}{mark_number}" for mark_number in range(1, 5)]
        self._list_reader = SqlListReader(self._fetch, mark, self.find_all)
        self._log_reader = LogReader(self._fetch, marks)
        self._find_document, self._list_documents, self._first_documents = (
            sql.format(m=mark) for sql in (FIND, LIST, FIRST)
        )
        self._find_key, self._list_resources = (sql.format(m=mark) for sql in (resources.FIND_KEY, resources.LIST))
        self._next_queue, self._first_ready = NEXT_QUEUE.format(*marks), FIRST_READY.format(*marks)
        self._next_queue_of_tenant = NEXT_QUEUE_OF_TENANT.format(*marks)
        self._first_queued = FIRST_QUEUED.format(*marks)
        self._group_holder = GROUP_HOLDER.format(*marks)

    @abstractmethod
    async def _fetch(self, sql: str, *values: Any) -> list[Any]:
        """Return the rows of a query outside of transactions."""

    @abstractmethod
    async def find(self, id: str) -> Record | None:
        """Return the record, also if it is finished, or None."""

    @abstractmethod
    async def find_all(self, ids: Sequence[str]) -> list[Record]:
        """Return these records, also finished ones, in this order, without ids that do not exist."""

    @abstractmethod
    async def now(self) -> int:
        """Return the time of the store's clock, in microseconds."""

    async def page(self, query: ListQuery) -> RecordPage:
        """Return one page of the records that are on all lists of the query, newest first."""
        return await self._list_reader.page(query)

    async def count(self, tenant: str, list: str, limit: int) -> int:
        """Return how many records are on this list, up to `limit`."""
        return await self._list_reader.count(tenant, list, limit)

    async def find_api_key(self, name: str) -> Record | None:
        """Return the API key with this name, of any tenant, or None."""
        rows = await self._fetch(self._find_key, name) if is_storable_text(name) else []
        return decode_record(rows[0][0], rows[0][1], rows[0][4]) if rows else None

    async def list_resources(self, query: ResourceQuery) -> list[Resource]:
        """Return one page of resources. Resources that cannot be decoded are left out."""
        parameters = resources.list_parameters(query)
        return resources.select_page(query, await self._fetch(self._list_resources, *parameters)) if parameters else []

    async def administrative_events(self, tenant: str, before: int, limit: int) -> list[Event]:
        """Return up to `limit` of the tenant's administrative events with a `seq` below `before`, the newest first."""
        return await self._log_reader.administrative_events(tenant, before, limit)

    async def find_document(self, kind: str, name: str, tenant: str) -> Document | None:
        """Return the document with this name, or None."""
        if not is_storable_text(name):
            return None
        rows = await self._fetch(self._find_document, kind, tenant, name)
        return Document(*rows[0]) if rows else None

    async def first_documents(self, kind: str, limit: int) -> list[Document]:
        """Return up to `limit` documents of this kind, of all tenants, by tenant and name."""
        return [Document(*row) for row in await self._fetch(self._first_documents, kind, limit)]

    async def list_documents(
        self, kind: str, tenant: str, *, after: str = "", limit: int = 100, prefix: str = ""
    ) -> list[Document]:
        """Return up to `limit` of the tenant's documents with this name prefix, by name, after the name `after`."""
        if not is_storable_text(prefix):
            return []
        after = after if is_storable_text(after) else ""
        rows = await self._fetch(self._list_documents, kind, tenant, after, prefix, limit)
        return list(takewhile(lambda document: document.name.startswith(prefix), (Document(*row) for row in rows)))

    async def events(self, after: int, limit: int, *, entity_id: str = "", run_id: str = "") -> list[Event]:
        """Return up to `limit` committed events with a `seq` above `after`, in order.

        Without an entity or run, the events of all records.
        """
        return await self._log_reader.events(after, limit, entity_id, run_id, self.find)

    async def ready_attempts(self, before: int, limit: int) -> list[ReadyAttempt]:
        """Return up to `limit` claimable attempts of each queue of each tenant that became ready by `before`."""
        attempts: list[ReadyAttempt] = []
        tenant = queue_key = ""
        while queues := await self._fetch(self._next_queue, tenant, queue_key):
            tenant, queue_key = queues[0]
            rows = await self._fetch(self._first_ready, tenant, queue_key, before, limit)
            attempts += [ReadyAttempt(tenant, queue_key, id, ready_at) for id, ready_at in rows]
        return attempts

    async def queued_attempts(self, tenant: str, limit: int, queues: int) -> list[ReadyAttempt]:
        """Return up to `limit` attempts of each of the tenant's first `queues` queues, also those not yet claimable."""
        attempts: list[ReadyAttempt] = []
        queue_keys: list[str] = [""]  # The queue without required labels, the first by name.
        while queue_keys and queues:
            rows = await self._fetch(self._first_queued, tenant, queue_keys[0], limit)
            attempts += [ReadyAttempt(tenant, queue_keys[0], id, ready_at) for id, ready_at in rows]
            queues -= bool(rows)
            queue_keys = [
                queue_key for (queue_key,) in await self._fetch(self._next_queue_of_tenant, tenant, queue_keys[0])
            ]
        return attempts

    async def group_holder(self, tenant: str, group: str) -> str:
        """Return the id of the attempt that holds this concurrency group, or an empty string if none does."""
        rows = await self._fetch(self._group_holder, tenant, group, await self.now())
        return str(rows[0][0]) if rows else ""

    async def last_seq(self) -> int:
        """Return the `seq` of the newest committed event, 0 if there is none."""
        return int((await self._fetch("SELECT seq FROM log_head"))[0][0])
