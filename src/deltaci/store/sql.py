"""Statements and rows that both SQL stores share."""

from __future__ import annotations

from typing import Final

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
