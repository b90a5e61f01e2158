"""What a batch implies beyond its records: changed list memberships, and tenants that may have capacity again."""

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
    """Return how the changed runs and workers move between lists, given the states before from the events."""
    listed = [record for record in changed.values() if type(record) is not Attempt and type(record) is not Job]
    if not listed:
        return []
    states_before: dict[str, str] = {}
    for event in events:
        if event.entity in (RUN, WORKER):
            states_before.setdefault(event.entity_id, event.from_ or ABSENT)
    changes: list[ListChange] = []
    for record in listed:
        if record.id in states_before:
            added, removed = list_changes(record, states_before[record.id])
            if added or removed:
                changes.append(ListChange(record.id, record.created_at, added, removed))
    return changes


def freed_tenants(changed: Iterable[Record], limited_tenants: set[str]) -> frozenset[str]:
    """Return the tenants that may claim more now: a lease ended, and the tenant is limited or the attempt has a group.

    Only a hint: some of these leases may have ended in an earlier batch.
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
    """Return the distinct queue keys of attempts that a claim skipped, in order."""
    return tuple({stored.record.queue_key: None for stored in skipped if isinstance(stored.record, Attempt)})
