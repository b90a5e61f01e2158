"""SQL statements, readers and column values that the SQLite and PostgreSQL stores share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from msgspec.structs import astuple

from deltaci.core.attempt import Attempt
from deltaci.core.events import Event
from deltaci.core.ids import administration_id
from deltaci.core.machine import Record
from deltaci.core.results import JobResult, ResultKey
from deltaci.storage.codec import KIND_OF, encode, latest_administrative, select_events
from deltaci.storage.port import Put, UnreadableRecord

# The tenant's queues with ready attempts: one index probe per queue, independent of its length.
QUEUE_KEYS: Final = """
    WITH RECURSIVE keys (key) AS (
        SELECT min(queue_key) FROM records WHERE ready_at IS NOT NULL AND tenant = {0}
        UNION ALL
        SELECT (SELECT min(queue_key) FROM records WHERE ready_at IS NOT NULL AND tenant = {0} AND queue_key > key)
        FROM keys WHERE key IS NOT NULL
    )
    SELECT key FROM keys WHERE key IS NOT NULL
"""

# The attempt that holds a group of a tenant at a time: by a live lease, after a lost one until it is ready again, or
# after its end until its runner must have stopped.
GROUP_HOLDER: Final = (
    "SELECT id FROM records WHERE tenant = {0} AND group_name = {1} AND due_at IS NOT NULL "
    "UNION ALL SELECT id FROM records WHERE tenant = {0} AND group_name = {1} AND ready_at > {2} "
    "UNION ALL SELECT attempt_id FROM group_fences WHERE tenant = {0} AND group_name = {1} AND fence_until > {2} "
    "LIMIT 1"
)
# Whether the group of `r` is free. Without EXISTS, for which a database might read all groups at once; this is three
# probes of small indexes.
GROUP_IS_FREE: Final = f"(r.group_name IS NULL OR ({GROUP_HOLDER.format('r.tenant', 'r.group_name', '{0}')}) IS NULL)"

ON_LIST: Final = "WHERE id IN (SELECT id FROM listed WHERE tenant = {0} AND list = {1})"

# The parameters are the fields of a GroupFence.
PUT_GROUP_FENCE: Final = (
    "INSERT INTO group_fences VALUES ({0}, {1}, {2}, {3}) ON CONFLICT (tenant, group_name) DO UPDATE "
    "SET fence_until = excluded.fence_until, attempt_id = excluded.attempt_id "
    "WHERE group_fences.fence_until < excluded.fence_until"
)
DELETE_GROUP_FENCES: Final = "DELETE FROM group_fences WHERE fence_until < {0}"

# The parameters are the columns of a job result. A result that ended later stays.
JOB_RESULT_CONFLICT: Final = (
    "ON CONFLICT (tenant, project, trust, job, inputs) DO UPDATE SET state = excluded.state, "
    "commit_id = excluded.commit_id, run_id = excluded.run_id, ended_at = excluded.ended_at "
    "WHERE job_results.ended_at <= excluded.ended_at"
)
JOB_RESULT_COLUMNS: Final = "r.tenant, r.project, r.trust, r.job, r.inputs, r.state, r.commit_id, r.run_id, r.ended_at"
JOB_RESULT_KEY: Final = "tenant = {0} AND project = {1} AND trust = {2} AND job = {3} AND inputs = {4}"

POSTPONE: Final = (
    "UPDATE records SET ready_at = CASE WHEN ready_at IS NULL THEN NULL ELSE {0} END, "
    "due_at = CASE WHEN due_at IS NULL THEN NULL ELSE {0} END WHERE id = {1}"
)

# The next queue with ready attempts, of any tenant; and the first attempts of one queue, in the order of claims.
NEXT_QUEUE: Final = (
    "SELECT tenant, queue_key FROM records WHERE ready_at IS NOT NULL AND (tenant, queue_key) > ({0}, {1}) "
    "ORDER BY tenant, queue_key LIMIT 1"
)
FIRST_READY: Final = (
    "SELECT id, ready_at FROM records r WHERE tenant = {0} AND queue_key = {1} AND ready_at <= {2} "
    f"AND {GROUP_IS_FREE.format('{2}')} ORDER BY priority DESC, ready_at, id LIMIT {{3}}"
)
# The same for one tenant, with attempts that cannot be claimed yet.
NEXT_QUEUE_OF_TENANT: Final = (
    "SELECT queue_key FROM records WHERE ready_at IS NOT NULL AND tenant = {0} AND queue_key > {1} "
    "ORDER BY queue_key LIMIT 1"
)
FIRST_QUEUED: Final = (
    "SELECT id, ready_at FROM records WHERE ready_at IS NOT NULL AND tenant = {0} AND queue_key = {1} "
    "ORDER BY priority DESC, ready_at, id LIMIT {2}"
)

# Pages of the log. `last_seq` is the seq of a chunk's last event, so `last_seq > seq` also finds a chunk that begins
# before that seq and ends after it.
PAGE: Final = 200
CHUNKS: Final = "SELECT last_seq, count, body FROM chunks WHERE last_seq > {0} ORDER BY last_seq LIMIT {1}"
CHUNKS_OF_SCOPE: Final = (
    "SELECT c.last_seq, c.count, c.body FROM chunk_scopes s JOIN chunks c ON c.last_seq = s.last_seq "
    "WHERE s.scope = {0} AND s.last_seq > {1} ORDER BY s.last_seq LIMIT {2}"
)
# The same, backwards from a seq. The first chunk that ends at this seq or later may begin before it.
LATEST_OF_SCOPE: Final = (
    "SELECT c.last_seq, c.count, c.body FROM chunk_scopes s JOIN chunks c ON c.last_seq = s.last_seq "
    "WHERE s.scope = {0} AND s.last_seq <= coalesce("
    "(SELECT min(n.last_seq) FROM chunk_scopes n WHERE n.scope = {0} AND n.last_seq >= {1}), {1}) "
    "ORDER BY s.last_seq DESC LIMIT {2}"
)


class LogReader:
    """Reads events from a database through `fetch`, which runs a query.

    `marks` are the first three parameter marks of the database, such as `$1`.
    """

    def __init__(self, fetch: Callable[..., Awaitable[Sequence[Any]]], marks: Sequence[str]) -> None:
        self._fetch = fetch
        self._chunks_sql = CHUNKS.format(*marks)
        self._scope_chunks_sql = CHUNKS_OF_SCOPE.format(*marks)
        self._latest_chunks_sql = LATEST_OF_SCOPE.format(*marks)

    async def events(
        self, after: int, limit: int, entity_id: str, run_id: str, find: Callable[[str], Awaitable[Record | None]]
    ) -> list[Event]:
        """Return up to `limit` events with a `seq` above `after`, of all records or of one entity or run.

        `find` loads the entity, whose run id selects the rows to read.
        """
        if run_id or not entity_id:
            return await self._read(run_id, after, limit, entity_id, run_id)
        record = await find(entity_id)
        if record is not None and not isinstance(record, UnreadableRecord):
            return await self._read(record.run_id or entity_id, after, limit, entity_id, "")
        # The record is deleted or unreadable, but the log may have its events. Its id may begin with a run id.
        events = await self._read(entity_id, after, limit, entity_id, "")
        run_scope, separator, _ = entity_id.partition("/")
        return events if events or not separator else await self._read(run_scope, after, limit, entity_id, "")

    async def administrative_events(self, tenant: str, before: int, limit: int) -> list[Event]:
        """Return up to `limit` of the tenant's administrative events with a `seq` below `before`, the newest first."""
        # Every chunk of this scope has at least one such event; only those of the first may all be too late.
        rows = await self._fetch(self._latest_chunks_sql, administration_id(tenant), before, limit + 1)
        return latest_administrative(((row[0], row[1], row[2]) for row in rows), tenant, before, limit)

    async def _read(self, scope: str, after: int, limit: int, entity_id: str, run_id: str) -> list[Event]:
        """Read rows of the log, of one scope or of all, until `limit` events match; return these events."""
        events: list[Event] = []
        last_seq = after
        while len(events) < limit:
            rows = await (
                self._fetch(self._scope_chunks_sql, scope, last_seq, PAGE)
                if scope
                else self._fetch(self._chunks_sql, last_seq, PAGE)
            )
            events += select_events(
                ((row[0], row[1], row[2]) for row in rows), after, limit - len(events), entity_id, run_id
            )
            if len(rows) < PAGE:
                break
            last_seq = rows[-1][0]
        return events


def group_name(record: Record) -> str | None:
    """Return the record's concurrency group, or None if it has none."""
    return (record.group or None) if isinstance(record, Attempt) else None


def job_result_row(result: JobResult) -> tuple[Any, ...]:
    """Return the column values of a result in the table `job_results`."""
    return (*astuple(result.key), result.state, result.commit, result.run_id, result.at)


def job_result_of(row: Sequence[Any]) -> JobResult:
    """Return the result with these column values."""
    return JobResult(ResultKey(*row[:5]), *row[5:])


def insert_values(put: Put) -> tuple[Any, ...]:
    """Return the column values of a new row of the table `records`."""
    record = put.record
    queue_key, priority = (record.queue_key, record.priority) if isinstance(record, Attempt) else ("", 0)
    return (
        *(record.id, KIND_OF[type(record)], record.run_id, queue_key, priority),
        *(put.ready_at, put.due_at, encode(record), record.tenant, group_name(record)),
    )
