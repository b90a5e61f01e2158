"""What the engine does about a stored record that cannot be read: say so once, and go on with everybody else's work.

Its bytes may be damaged, or written by a newer version that runs beside this one. So nothing of it is changed but
when to look at it again.
"""

from __future__ import annotations

import logging
from typing import Final

from deltaci.core.errors import Refused
from deltaci.core.machine import Record
from deltaci.storage.port import FindDue, FindReady, Postpone, StoredRecord, Transaction, UnreadableRecord

MAX_REPORTED_IDS: Final = 10_000

LOGGER: Final = logging.getLogger(__name__)


class UnreadableRecordReporter:
    """Which records were reported already: one line in the log for each, not one for each look."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, record: UnreadableRecord) -> None:
        """Report it, unless that was done."""
        if record.id in self._told:
            return
        if len(self._told) >= MAX_REPORTED_IDS:
            self._told.clear()
        self._told.add(record.id)
        LOGGER.error(
            "record %s is stored but cannot be read (%s); it is left alone and the others go on: "
            "restore it, or run the version that wrote it",
            record.id,
            record.problem,
        )

    def readable(self, request: FindReady | FindDue, until: int) -> Transaction[list[StoredRecord]]:
        """What this finds and can be read. The rest is put aside until then, and its places go to others."""
        while True:
            held: list[StoredRecord] = yield request
            broken = [each.record for each in held if isinstance(each.record, UnreadableRecord)]
            if not broken:
                return held
            for record in broken:
                self.tell(record)
            yield Postpone(tuple(record.id for record in broken), until)


def unreadable_refusal(record: Record | None) -> Refused | None:
    """The answer to whoever asks for a record that cannot be read; None for all others."""
    if not isinstance(record, UnreadableRecord):
        return None
    return Refused(
        "unreadable",
        f"{record.id!r} is stored but cannot be read ({record.problem}); "
        "restore it, or use the version that wrote it; until then it is left alone",
    )
