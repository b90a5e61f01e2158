"""What a batch means beyond its records: on which lists they are now, and who has room for more leases."""

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
    """How the runs and workers among these moved between lists, by the events of the batch."""
    listed = [record for record in changed.values() if type(record) is not Attempt and type(record) is not Job]
    if not listed:
        return []
    before: dict[str, str] = {}
    for event in events:
        if event.entity in (RUN, WORKER):
            before.setdefault(event.entity_id, event.from_ or ABSENT)
    found: list[ListChange] = []
    for record in listed:
        if record.id in before:
            joined, left = list_changes(record, before[record.id])
            if joined or left:
                found.append(ListChange(record.id, record.created_at, joined, left))
    return found


def freed_tenants(changed: Iterable[Record], limited: set[str]) -> frozenset[str]:
    """Which tenants may have room for more leases now: they are limited, or have a group that nobody has any more.

    Only a hint: some of these leases may have ended before.
    """
    found: set[str] | None = None
    for record in changed:
        if (
            type(record) is Attempt
            and record.lease is None
            and record.ended_lease is not None
            and (record.group or record.tenant in limited)
        ):
            found = found or set()
            found.add(record.tenant)
    return frozenset(found) if found is not None else NO_TENANTS


def skipped_queue_keys(refused: Iterable[StoredRecord]) -> tuple[str, ...]:
    """The queues of what was ready and not given to whoever asked."""
    return tuple({each.record.queue_key: None for each in refused if isinstance(each.record, Attempt)})
