"""What follows from how long a worker was not heard. Pure: times come in, an order comes out, or none.

A worker is heard whenever it speaks, to whichever server. Silence counts from the last time that it was heard, and not
from before somebody could have heard it: a server that just started, or stood still, knows of no silence yet.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from deltaci.core import worker
from deltaci.core.instants import SECOND
from deltaci.core.machine import Command
from deltaci.core.worker import Worker

HEALTH_SECONDS: Final = 20  # Between two checks that a silent worker misses.
MISSED: Final = 3  # So many in a row, and a busy one is unresponsive.
MAX_SILENT_SECONDS: Final = 600  # And after so long it is gone.
PROBATION_SECONDS: Final = 900  # After so long one that is quarantined is tried once more: it may be the only one.


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How patient the fleet is."""

    health_seconds: float = HEALTH_SECONDS
    missed: int = MISSED
    max_silent_seconds: float = MAX_SILENT_SECONDS
    probation_seconds: float = PROBATION_SECONDS

    @property
    def silent(self) -> int:
        """The silence, in instants, by which a worker has missed too many checks."""
        return round(self.missed * self.health_seconds * SECOND)

    @property
    def gone(self) -> int:
        """The silence after which it does not come back in this life; never less than the other."""
        return max(self.silent, round(self.max_silent_seconds * SECOND))


def silence(record: Worker, heard_at: int, since: int, now: int) -> int:
    """For how long it was not heard, as far as anybody can tell. `since` is from when on we could have heard it."""
    born = record.created_at if record.created_at <= now else 0  # A clock that went back knows of no later time.
    return now - max(heard_at, since, born)


def order(record: Worker, heard_at: int, since: int, now: int, limits: Limits) -> Command | None:
    """What is to be said to this worker's record, if anything.

    Each follows from a rule of the machine: who is busy may miss checks, who is unresponsive may be given up, or
    recover, and who is idle may be presumed gone. Who was quarantined for long enough is tried once more.
    """
    quiet = silence(record, heard_at, since, now)
    is_served = now - record.held_at >= round(limits.probation_seconds * SECOND)
    named: dict[str, Any] = {"id": record.id, "expected_rev": record.rev}
    if worker.is_unresponsive(record) and heard_at > record.updated_at and quiet < limits.silent:
        return worker.Recover(**named)
    if quiet >= limits.silent and worker.MACHINE.changes(record.state, worker.MissHealthChecks):
        return worker.MissHealthChecks(**named)
    if quiet < limits.silent and worker.is_quarantined(record) and is_served:
        return worker.Resume(**named)
    if quiet >= limits.gone and worker.MACHINE.changes(record.state, worker.GiveUp):
        return worker.GiveUp(**named)
    if quiet >= limits.gone and worker.MACHINE.changes(record.state, worker.Shutdown):
        return worker.Shutdown(**named, reason=worker.PRESUMED_GONE)
    return None
