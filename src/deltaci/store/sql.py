"""Statements and rows that both SQL stores share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from deltaci.core.attempt import Attempt
from deltaci.core.events import Event
from deltaci.core.machine import Record
from deltaci.store.codec import KIND_OF, encode, select
from deltaci.store.port import Put

# The queues that hold something, one probe of the index for each, however long they are.
QUEUE_KEYS: Final = """
    WITH RECURSIVE keys (key) AS (
        SELECT min(queue_key) FROM records WHERE ready_at IS NOT NULL
        UNION ALL
        SELECT (SELECT min(queue_key) FROM records WHERE ready_at IS NOT NULL AND queue_key > key)
        FROM keys WHERE key IS NOT NULL
    )
    SELECT key FROM keys WHERE key IS NOT NULL
"""

# Pages of the log. A chunk that holds the wanted seq in its middle ends behind it, so comparing ends is enough.
PAGE: Final = 200
CHUNKS: Final = "SELECT last_seq, count, body FROM chunks WHERE last_seq > {after} ORDER BY last_seq LIMIT {limit}"
CHUNKS_OF: Final = (
    "SELECT c.last_seq, c.count, c.body FROM chunk_scopes s JOIN chunks c ON c.last_seq = s.last_seq "
    "WHERE s.scope = {scope} AND s.last_seq > {after} ORDER BY s.last_seq LIMIT {limit}"
)


async def read_events(
    page: Callable[[int], Awaitable[Sequence[Any]]], after: int, limit: int, entity_id: str, run_id: str
) -> list[Event]:
    """The wanted events, read page by page; `page` gives the rows of the log that end behind a seq."""
    found: list[Event] = []
    seen = after
    while len(found) < limit:
        rows = await page(seen)
        found += select(((row[0], row[1], row[2]) for row in rows), after, limit - len(found), entity_id, run_id)
        if len(rows) < PAGE:
            break
        seen = rows[-1][0]
    return found


def scope_of(entity_id: str, record: Record | None) -> str:
    """Under which name the events of an entity are found: its run's, or its own."""
    return (record.run_id or entity_id) if record is not None else entity_id


def new_row(put: Put) -> tuple[Any, ...]:
    """The columns of a record that is new."""
    record = put.record
    key, priority = (record.queue_key, record.priority) if isinstance(record, Attempt) else ("", 0)
    return record.id, KIND_OF[type(record)], record.run_id, key, priority, put.ready_at, put.due_at, encode(record)
