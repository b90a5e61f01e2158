"""The canonical form of the log, as it is exported and verified.

One JSON object a line. A lease's change rides on its attempt's event; here it is listed on its own, right
behind that event, with the same `seq` and `rev`. Every time is UTC text with six decimals, so that texts
compare like times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from deltaci.core import lease
from deltaci.core.events import Event, to_json_line
from deltaci.core.ids import lease_name
from deltaci.core.instants import rfc3339

TIMES: Final = frozenset({"accept_by", "approve_by", "cancel_by", "expires_at", "next_run_at", "plan_by", "run_at"})

# (from, to) of a lease -> the word and the severity of its line.
LEASE_WORDS: Final = {
    (rule.source or None, to.state): (to.trigger, to.severity) for rule in lease.MACHINE.rules for to in rule.targets
} | {(lease.ACTIVE, lease.ACTIVE): ("lease_renewed", "info")}


def canonical_lines(events: Iterable[Event]) -> Iterator[bytes]:
    """The log as lines of text, without line ends."""
    return map(to_json_line, with_lease_events(events))


def with_lease_events(events: Iterable[Event]) -> Iterator[Event]:
    """The log with a line of its own for every lease's change, and with times that people can read."""
    for event in events:
        told = event.metadata.get("lease")
        yield _readable(event, event.metadata)
        if told:
            yield _lease_event(event, told)


def _readable(event: Event, metadata: dict[str, Any]) -> Event:
    return _replaced(event, metadata={key: _readable_value(key, value) for key, value in metadata.items()})


def _readable_value(key: str, value: Any) -> Any:
    if key in TIMES:
        return rfc3339(value) if value else None
    if key == "lease":
        return {name: _readable_value(name, part) for name, part in value.items()}
    return value


def _lease_event(event: Event, told: dict[str, Any]) -> Event:
    trigger, severity = LEASE_WORDS[told["from"], told["to"]]
    return _replaced(
        event,
        entity="lease",
        entity_id=lease_name(event.entity_id, told["number"]),
        from_=told["from"],
        to=told["to"],
        trigger=trigger,
        severity=severity,
        metadata={"worker_id": told["worker_id"]},
    )


def _replaced(event: Event, **changes: Any) -> Event:
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return Event(**{**fields, **changes})
