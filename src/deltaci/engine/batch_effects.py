"""What follows from the records that a batch changed: changed list memberships, and tenants with freed capacity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from deltaci.core.attempt import Attempt
from deltaci.core.events import RUN, WORKER, Event
from deltaci.core.job import Job
from deltaci.core.listing import list_changes
from deltaci.core.machine import ABSENT, Record
from deltaci.storage.port import ListChange, StoredRecord

NO_TENANTS: Final[frozenset[str]] = frozenset()


def batch_list_changes(changed: Mapping[str, Record], events: Sequence[Event]) -> list[ListChange]:
    """Return which lists the changed runs and workers join and leave.

    The first event of a record tells its state before the batch.
    """
    runs_and_workers = [
        record for record in changed.values() if type(record) is not Attempt and type(record) is not Job
    ]
    if not runs_and_workers:
        return []
    states_before: dict[str, str] = {}
    for event in events:
        if event.entity in (RUN, WORKER):
            states_before.setdefault(event.entity_id, event.from_ or ABSENT)
    changes: list[ListChange] = []
    for record in runs_and_workers:
        if record.id in states_before:
            joined, left = list_changes(record, states_before[record.id])
            if joined or left:
                changes.append(ListChange(record.id, record.created_at, joined, left))
    return changes


def freed_tenants(changed: Iterable[Record], limited_tenants: set[str]) -> frozenset[str]:
    """Return the tenants that may claim more now, because one of their leases ended.

    Only tenants with a limit, and attempts with a concurrency group, count. This is only a hint: some of these leases
    may have ended in an earlier batch.
    """
    tenants: set[str] | None = None
    for record in changed:
        if (
            type(record) is Attempt
            and record.lease is None
            and record.ended_lease is not None
            and (record.group or record.tenant in limited_tenants)
        ):
            tenants = tenants or set()
            tenants.add(record.tenant)
    return frozenset(tenants) if tenants is not None else NO_TENANTS


def skipped_queue_keys(skipped: Iterable[StoredRecord]) -> tuple[str, ...]:
    """Return the queue keys of the attempts that a claim skipped, without duplicates, in order."""
    return tuple({stored.record.queue_key: None for stored in skipped if isinstance(stored.record, Attempt)})
