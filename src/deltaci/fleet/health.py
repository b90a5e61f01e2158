"""Decide what follows from how long a worker has been silent. Pure: times in, at most one command out.

Every message of a worker, to any server, counts as a sign of life. Silence is measured from the last one, but not from
a time when no message could be received: a server that has just started or was suspended knows of no silence yet.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from deltaci.core import worker
from deltaci.core.instants import SECOND
from deltaci.core.machine import Command
from deltaci.core.worker import Worker

HEALTH_SECONDS: Final = 20  # A worker that sends nothing for so long has missed one health check.
MAX_MISSED_CHECKS: Final = 3  # A worker that misses so many in a row is silent; a busy one becomes unresponsive.
MAX_SILENT_SECONDS: Final = 600  # A worker that is silent for so long is shut down, if it holds no lease.
PROBATION_SECONDS: Final = 900  # A quarantined worker is tried again after so long: it may be the only one.


class HealthLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long a worker may be silent before it is unresponsive or shut down, and how long a quarantine lasts."""

    health_seconds: float = HEALTH_SECONDS
    max_missed_checks: int = MAX_MISSED_CHECKS
    max_silent_seconds: float = MAX_SILENT_SECONDS
    probation_seconds: float = PROBATION_SECONDS

    @property
    def unresponsive_after(self) -> int:
        """The silence in microseconds after which a worker has missed too many health checks."""
        return round(self.max_missed_checks * self.health_seconds * SECOND)

    @property
    def shut_down_after(self) -> int:
        """The silence in microseconds after which a worker is shut down; at least `unresponsive_after`."""
        return max(self.unresponsive_after, round(self.max_silent_seconds * SECOND))


def silence(worker_record: Worker, last_seen_at: int, observed_since: int, now: int) -> int:
    """Return for how many microseconds a worker has certainly sent no message.

    Silence is counted from the latest of: its last message, its registration, and `observed_since`, the time since
    which this server has been able to notice messages.
    """
    created_at = (
        worker_record.created_at if worker_record.created_at <= now else 0
    )  # In the future only if the clock went back.
    return now - max(last_seen_at, observed_since, created_at)


def next_command(
    worker_record: Worker, last_seen_at: int, observed_since: int, now: int, limits: HealthLimits
) -> Command | None:
    """Return the command that is due for a worker, or None.

    `Recover` is due for an unresponsive worker that has sent a message since, `MissHealthChecks` for a silent one,
    `Resume` for a quarantined one after its probation, and `GiveUp` or `Shutdown` after a very long silence. A worker
    that holds a lease is not given up.
    """
    silent_for = silence(worker_record, last_seen_at, observed_since, now)
    is_probation_over = now - worker_record.held_at >= round(limits.probation_seconds * SECOND)
    command_fields: dict[str, Any] = {"id": worker_record.id, "expected_rev": worker_record.rev}
    is_responsive = silent_for < limits.unresponsive_after
    if worker.is_unresponsive(worker_record) and last_seen_at > worker_record.updated_at and is_responsive:
        return worker.Recover(**command_fields)
    if not is_responsive and worker.MACHINE.changes(worker_record.state, worker.MissHealthChecks):
        return worker.MissHealthChecks(**command_fields)
    if is_responsive and worker.is_quarantined(worker_record) and is_probation_over:
        return worker.Resume(**command_fields)
    if silent_for >= limits.shut_down_after and worker.is_unresponsive_without_lease(worker_record):
        return worker.GiveUp(**command_fields)
    if silent_for >= limits.shut_down_after and worker.MACHINE.changes(worker_record.state, worker.Shutdown):
        return worker.Shutdown(**command_fields, reason=worker.PRESUMED_GONE)
    return None
