"""Export events as the canonical log: one JSON object per line.

The event of an attempt carries the change of its lease. In the log, that change has its own line right after the event,
with the same `seq` and `rev`. Times are in UTC with six decimals, so that they sort as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from deltaci.core import lease
from deltaci.core.events import Event, to_json_line
from deltaci.core.ids import lease_name
from deltaci.core.instants import rfc3339

TIME_KEYS: Final = frozenset(
    {
        *("accept_by", "approve_by", "cancel_by", "expires_at", "fence_until", "next_run_at", "optional_until"),
        *("plan_by", "reassign_at", "run_at"),
    }
)

# (from, to) of a lease -> the trigger and the severity of its line.
LEASE_WORDS: Final = {
    (rule.source or None, to.state): (to.trigger, to.severity) for rule in lease.MACHINE.rules for to in rule.targets
} | {(lease.ACTIVE, lease.ACTIVE): ("lease_renewed", "info")}


def canonical_lines(events: Iterable[Event]) -> Iterator[bytes]:
    """Yield each line of the canonical log as JSON, without a newline."""
    return map(to_json_line, canonical_events(events))


def canonical_events(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events of the canonical log: each event with its times as RFC 3339 text, followed by that of its lease.

    Only an event of an attempt that changed the attempt's lease is followed by an event of the lease.
    """
    for event in events:
        lease_change = event.metadata.get("lease")
        yield _with_formatted_times(event)
        if lease_change:
            yield _lease_event(event, lease_change)


def _with_formatted_times(event: Event) -> Event:
    return _replace(
        event,
        metadata={
            metadata_key: _format_times(metadata_key, metadata_value)
            for metadata_key, metadata_value in event.metadata.items()
        },
    )


def _format_times(key: str, value: Any) -> Any:
    if key in TIME_KEYS:
        return rfc3339(value) if value else None
    if key == "lease":
        return {member_name: _format_times(member_name, member) for member_name, member in value.items()}
    return value


def _lease_event(event: Event, lease_change: dict[str, Any]) -> Event:
    lease_trigger, severity = LEASE_WORDS[lease_change["from"], lease_change["to"]]
    return _replace(
        event,
        entity="lease",
        entity_id=lease_name(event.entity_id, lease_change["number"]),
        from_=lease_change["from"],
        to=lease_change["to"],
        trigger=lease_trigger,
        severity=severity,
        metadata={"worker_id": lease_change["worker_id"], **_implied(event)},
    )


def _implied(event: Event) -> dict[str, str]:
    implied_by = event.metadata.get("implied_by")
    return {"implied_by": implied_by} if implied_by else {}


def _replace(event: Event, **changes: Any) -> Event:
    event_fields = {field_name: getattr(event, field_name) for field_name in event.__struct_fields__}
    return Event(**{**event_fields, **changes})
