"""What the engine does about a stored record that cannot be read: say so once, and go on with everybody else's work.

Its bytes may be damaged, or written by a newer version that runs beside this one. So nothing of it is changed but
when to look at it again.
"""

from __future__ import annotations

import logging
from typing import Final

from deltaci.core.errors import Refused
from deltaci.core.machine import Record
from deltaci.storage.port import FindDue, FindReady, Held, PutAside, Transaction, Unreadable

MAX_TOLD: Final = 10_000

LOGGER: Final = logging.getLogger(__name__)


class Reports:
    """Which records were reported already: one line in the log for each, not one for each look."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, record: Unreadable) -> None:
        """Report it, unless that was done."""
        if record.id in self._told:
            return
        if len(self._told) >= MAX_TOLD:
            self._told.clear()
        self._told.add(record.id)
        LOGGER.error(
            "record %s is stored but cannot be read (%s); it is left alone and the others go on: "
            "restore it, or run the version that wrote it",
            record.id,
            record.problem,
        )

    def readable(self, request: FindReady | FindDue, until: int) -> Transaction[list[Held]]:
        """What this finds and can be read. The rest is put aside until then, and its places go to others."""
        while True:
            held: list[Held] = yield request
            broken = [each.record for each in held if isinstance(each.record, Unreadable)]
            if not broken:
                return held
            for record in broken:
                self.tell(record)
            yield PutAside(tuple(record.id for record in broken), until)


def refusal(record: Record | None) -> Refused | None:
    """The answer to whoever asks for a record that cannot be read; None for all others."""
    if not isinstance(record, Unreadable):
        return None
    return Refused(
        "unreadable",
        f"{record.id!r} is stored but cannot be read ({record.problem}); "
        "restore it, or use the version that wrote it; until then it is left alone",
    )
