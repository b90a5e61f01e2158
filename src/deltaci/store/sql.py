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
