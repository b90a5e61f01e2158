"""Logs each stored record that cannot be decoded once, and lets the engine continue with all others.

The bytes may be damaged, or written by a newer version that runs beside this one. So the record is not changed; only
the time at which it is read again is postponed.
"""

from __future__ import annotations

import logging
from typing import Final

from deltaci.core.errors import Refused
from deltaci.core.machine import Record
from deltaci.storage.port import FindDue, FindReady, Postpone, StoredRecord, Transaction, UnreadableRecord

MAX_REPORTED_IDS: Final = 10_000

LOGGER: Final = logging.getLogger(__name__)


class UnreadableRecordHandler:
    """Logs unreadable records, and postpones unreadable results of queries.

    Each record is logged once, or again after MAX_REPORTED_IDS others.
    """

    def __init__(self) -> None:
        self._reported_ids: set[str] = set()

    def report(self, record: UnreadableRecord) -> None:
        """Log an error about the record, unless its id is remembered as logged."""
        if record.id in self._reported_ids:
            return
        if len(self._reported_ids) >= MAX_REPORTED_IDS:
            self._reported_ids.clear()
        self._reported_ids.add(record.id)
        LOGGER.error(
            "record %s is stored but cannot be read (%s); it is left alone and the others go on: "
            "restore it, or run the version that wrote it",
            record.id,
            record.problem,
        )

    def find_readable(self, query: FindReady | FindDue, retry_at: int) -> Transaction[list[StoredRecord]]:
        """Return the readable results of the query.

        The query is repeated until all of its results are readable; unreadable records are logged and postponed until
        `retry_at`.
        """
        while True:
            stored_records: list[StoredRecord] = yield query
            unreadable = [
                stored_record.record
                for stored_record in stored_records
                if isinstance(stored_record.record, UnreadableRecord)
            ]
            if not unreadable:
                return stored_records
            for record in unreadable:
                self.report(record)
            yield Postpone(tuple(record.id for record in unreadable), retry_at)


def unreadable_refusal(record: Record | None) -> Refused | None:
    """Return the `Refused` for a request about this record if the record is unreadable, else None."""
    if not isinstance(record, UnreadableRecord):
        return None
    return Refused(
        "unreadable",
        f"{record.id!r} is stored but cannot be read ({record.problem}); "
        "restore it, or use the version that wrote it; until then it is left alone",
    )
