"""The administrative log: what people changed, with the values before and after.

It has the events of resources, and a person's actions on workers.
"""

from __future__ import annotations

from typing import Any

import msgspec

from deltaci.core.events import RESOURCE, Event
from deltaci.core.ids import worker_name


class AdministrativeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One administrative event. `before` and `after` are None if the object did not, or does not, exist."""

    seq: int
    at: int
    kind: str
    name: str
    action: str
    actor: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    is_sealed_changed: bool


def administrative_entry(event: Event) -> AdministrativeEntry:
    """Return the entry for an administrative event."""
    metadata = event.metadata
    if event.entity == RESOURCE:
        kind, name, before, after = metadata["kind"], metadata["name"], metadata["before"], metadata["after"]
    else:
        kind, name = event.entity, worker_name(event.entity_id)
        before, after = {"state": event.from_}, {"state": event.to}
        if "hold" in metadata:
            before["hold"], after["hold"] = metadata.get("was", ""), metadata["hold"]
        if "reason" in metadata:
            after["reason"] = metadata["reason"]
    return AdministrativeEntry(
        seq=event.seq,
        at=event.at,
        kind=kind,
        name=name,
        action=event.trigger,
        actor=event.actor,
        before=before,
        after=after,
        is_sealed_changed="is_sealed_changed" in metadata,
    )


def changed_fields(before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[tuple[str, Any, Any]]:
    """Return the path of each field that differs, such as `policies.fork_role`, with its values before and after.

    A value is None where the field does not exist. Empty values of a new or deleted object are left out.
    """
    fields_before, fields_after = _flat(before or {}), _flat(after or {})
    paths = [path for path in {**fields_before, **fields_after} if fields_before.get(path) != fields_after.get(path)]
    return [
        (path, fields_before.get(path), fields_after.get(path))
        for path in paths
        if (before is not None and after is not None) or fields_before.get(path) or fields_after.get(path)
    ]


def _flat(body: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in body.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat
