"""Statements and rows that both SQL stores share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from deltaci.core.attempt import Attempt
from deltaci.core.events import Event
from deltaci.core.machine import Record
from deltaci.storage.codec import KIND_OF, encode, select_events
from deltaci.storage.port import Put, ReadyAttempt, UnreadableRecord

# The tenant's queues that hold something, one probe of the index for each, however long they are.
QUEUE_KEYS: Final = """
    WITH RECURSIVE keys (key) AS (
        SELECT min(queue_key) FROM records WHERE ready_at IS NOT NULL AND tenant = {0}
        UNION ALL
        SELECT (SELECT min(queue_key) FROM records WHERE ready_at IS NOT NULL AND tenant = {0} AND queue_key > key)
        FROM keys WHERE key IS NOT NULL
    )
    SELECT key FROM keys WHERE key IS NOT NULL
"""

# Who has a group: of this tenant, with this name, at this time. By a live lease, or after one that was lost.
GROUP_HOLDER: Final = (
    "SELECT id FROM records WHERE tenant = {0} AND group_name = {1} AND due_at IS NOT NULL "
    "UNION ALL SELECT id FROM records WHERE tenant = {0} AND group_name = {1} AND ready_at > {2} LIMIT 1"
)
# Whether nobody has the group of `r`. What has no group is not looked after any further. A database might gather all
# groups at once for an EXISTS; this is two probes of small indexes.
GROUP_IS_FREE: Final = f"(r.group_name IS NULL OR ({GROUP_HOLDER.format('r.tenant', 'r.group_name', '{0}')}) IS NULL)"

POSTPONE: Final = (
    "UPDATE records SET ready_at = CASE WHEN ready_at IS NULL THEN NULL ELSE {0} END, "
    "due_at = CASE WHEN due_at IS NULL THEN NULL ELSE {0} END WHERE id = {1}"
)

# The next queue that holds something, of whatever tenant; and the first of one queue, in the order of claims.
NEXT_QUEUE: Final = (
    "SELECT tenant, queue_key FROM records WHERE ready_at IS NOT NULL AND (tenant, queue_key) > ({0}, {1}) "
    "ORDER BY tenant, queue_key LIMIT 1"
)
FIRST_READY: Final = (
    "SELECT id, ready_at FROM records r WHERE tenant = {0} AND queue_key = {1} AND ready_at <= {2} "
    f"AND {GROUP_IS_FREE.format('{2}')} ORDER BY priority DESC, ready_at, id LIMIT {{3}}"
)
# The same of one tenant, with what nobody may claim yet.
NEXT_QUEUE_OF_TENANT: Final = (
    "SELECT queue_key FROM records WHERE ready_at IS NOT NULL AND tenant = {0} AND queue_key > {1} "
    "ORDER BY queue_key LIMIT 1"
)
FIRST_QUEUED: Final = (
    "SELECT id, ready_at FROM records WHERE ready_at IS NOT NULL AND tenant = {0} AND queue_key = {1} "
    "ORDER BY priority DESC, ready_at, id LIMIT {2}"
)

# Pages of the log. A chunk that holds the wanted seq in its middle ends behind it, so comparing ends is enough.
PAGE: Final = 200
CHUNKS: Final = "SELECT last_seq, count, body FROM chunks WHERE last_seq > {0} ORDER BY last_seq LIMIT {1}"
CHUNKS_OF_SCOPE: Final = (
    "SELECT c.last_seq, c.count, c.body FROM chunk_scopes s JOIN chunks c ON c.last_seq = s.last_seq "
    "WHERE s.scope = {0} AND s.last_seq > {1} ORDER BY s.last_seq LIMIT {2}"
)


class LogReader:
    """Reads the log with a database's own `fetch` and its own marks for the first, second and third value."""

    def __init__(self, fetch: Callable[..., Awaitable[Sequence[Any]]], marks: tuple[str, str, str]) -> None:
        self._fetch = fetch
        self._all = CHUNKS.format(*marks)
        self._of = CHUNKS_OF_SCOPE.format(*marks)

    async def events(
        self, after: int, limit: int, entity_id: str, run_id: str, find: Callable[[str], Awaitable[Record | None]]
    ) -> list[Event]:
        """The wanted events; `find` tells under which name those of an entity are: its run's, or its own."""
        if run_id or not entity_id:
            return await self._read(run_id, after, limit, entity_id, run_id)
        record = await find(entity_id)
        if record is not None and not isinstance(record, UnreadableRecord):
            return await self._read(record.run_id or entity_id, after, limit, entity_id, "")
        # Dropped already, or unreadable; the log may know it all the same. What belongs to a run is named after it.
        found = await self._read(entity_id, after, limit, entity_id, "")
        owner, separator, _ = entity_id.partition("/")
        return found if found or not separator else await self._read(owner, after, limit, entity_id, "")

    async def _read(self, scope: str, after: int, limit: int, entity_id: str, run_id: str) -> list[Event]:
        found: list[Event] = []
        seen = after
        while len(found) < limit:
            rows = await (self._fetch(self._of, scope, seen, PAGE) if scope else self._fetch(self._all, seen, PAGE))
            found += select_events(
                ((row[0], row[1], row[2]) for row in rows), after, limit - len(found), entity_id, run_id
            )
            if len(rows) < PAGE:
                break
            seen = rows[-1][0]
        return found


class ReadyAttemptReader:
    """Reads what waits to be claimed, queue by queue, and locks nothing."""

    def __init__(self, fetch: Callable[..., Awaitable[Sequence[Any]]], marks: tuple[str, str, str, str]) -> None:
        self._fetch = fetch
        self._next = NEXT_QUEUE.format(*marks)
        self._first = FIRST_READY.format(*marks)
        self._next_of = NEXT_QUEUE_OF_TENANT.format(*marks)
        self._queued = FIRST_QUEUED.format(*marks)

    async def waiting(self, before: int, limit: int) -> list[ReadyAttempt]:
        """Of every queue of every tenant the first that are ready since before then."""
        found: list[ReadyAttempt] = []
        tenant = key = ""
        while queues := await self._fetch(self._next, tenant, key):
            tenant, key = queues[0]
            rows = await self._fetch(self._first, tenant, key, before, limit)
            found += [ReadyAttempt(tenant, key, id, ready_at) for id, ready_at in rows]
        return found

    async def queued(self, tenant: str, limit: int, queues: int) -> list[ReadyAttempt]:
        """Of so many queues of this tenant the first, whether they may be claimed now or not."""
        found: list[ReadyAttempt] = []
        keys: list[str] = [""]  # The queue of what needs no label; nothing comes before it.
        while keys and queues:
            rows = await self._fetch(self._queued, tenant, keys[0], limit)
            found += [ReadyAttempt(tenant, keys[0], id, ready_at) for id, ready_at in rows]
            queues -= bool(rows)
            keys = [key for (key,) in await self._fetch(self._next_of, tenant, keys[0])]
        return found


def group_name(record: Record) -> str | None:
    """The group that it is in, if any."""
    return (record.group or None) if isinstance(record, Attempt) else None


def insert_values(put: Put) -> tuple[Any, ...]:
    """The columns of a record that is new."""
    record = put.record
    key, priority = (record.queue_key, record.priority) if isinstance(record, Attempt) else ("", 0)
    return (
        *(record.id, KIND_OF[type(record)], record.run_id, key, priority),
        *(put.ready_at, put.due_at, encode(record), record.tenant, group_name(record)),
    )
