"""Read exported logs and alter them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from deltaci.audit.verify import verify
from tests.support.lab import Lab

Line = dict[str, Any]


def decoded(lines: Iterable[bytes]) -> list[Line]:
    """Decode the lines of a log."""
    return [msgspec.json.decode(line) for line in lines]


def violations(lines: Iterable[Line]) -> list[tuple[int, str]]:
    """Return the line numbers and rules of the verifier's violations."""
    report = verify([msgspec.json.encode(line) for line in lines])
    return [(violation.line, violation.rule) for violation in report.violations]


def altered(lines: Iterable[bytes], change: Callable[[list[Line]], object]) -> set[str]:
    """Return the rules that a log breaks after a change."""
    log = decoded(lines)
    change(log)
    return {rule for _, rule in violations(log)}


def line_of(lab: Lab, entity_id: str, to: str) -> int:
    """Return the index of the line at which the entity enters this state."""
    log = decoded(lab.canonical())
    return next(n for n, line in enumerate(log) if (line["entity_id"], line["to"]) == (entity_id, to))


def exported(lab: Lab, id: str) -> list[Line]:
    """Return the lines of one entity in the export of document 003."""
    return [line for line in decoded(lab.transitions()) if line["entity_id"] == id]


def last_step(lab: Lab, id: str) -> tuple[str, str, str, str]:
    """Return the latest transition of an entity in the export of document 003."""
    line = exported(lab, id)[-1]
    return line["from_state"], line["to_state"], line["trigger"], line["severity"]
