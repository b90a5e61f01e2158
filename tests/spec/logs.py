"""Shared helpers of the tests in this folder: read exported logs and alter them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from deltaci.audit.verify import verify
from tests.lab import Lab

Line = dict[str, Any]


def decoded(lines: Iterable[bytes]) -> list[Line]:
    """The lines as objects."""
    return [msgspec.json.decode(line) for line in lines]


def violations(lines: Iterable[Line]) -> list[tuple[int, str]]:
    """Where the verifier finds which rule broken."""
    found = verify([msgspec.json.encode(line) for line in lines]).violations
    return [(each.line, each.rule) for each in found]


def altered(lines: Iterable[bytes], change: Callable[[list[Line]], object]) -> set[str]:
    """The rules that a log breaks once it was tampered with."""
    log = decoded(lines)
    change(log)
    return {rule for _, rule in violations(log)}


def line_of(lab: Lab, entity_id: str, to: str) -> int:
    """Where the canonical log says that this entity came to this state."""
    log = decoded(lab.canonical())
    return next(n for n, line in enumerate(log) if (line["entity_id"], line["to"]) == (entity_id, to))


def exported(lab: Lab, id: str) -> list[Line]:
    """What document 003 reads about one entity."""
    return [line for line in decoded(lab.transitions()) if line["entity_id"] == id]


def last_step(lab: Lab, id: str) -> tuple[str, str, str, str]:
    """The newest transition of an entity, as document 003 reads it."""
    line = exported(lab, id)[-1]
    return line["from_state"], line["to_state"], line["trigger"], line["severity"]
