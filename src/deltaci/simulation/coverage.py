"""Which steps of the machines no history has taken yet. The list is the core's own; the checker has another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from deltaci.core import lease
from deltaci.core.decide import MACHINES
from deltaci.simulation.checker.law import Edge

EVERY: Final[frozenset[Edge]] = frozenset(
    (machine.name, rule.source or None, to.state, to.trigger)
    for machine in MACHINES.values()
    for rule in machine.rules
    for to in rule.targets
) | frozenset(("lease", rule.source or None, to.state, "") for rule in lease.MACHINE.rules for to in rule.targets)


def unvisited(edges: Iterable[Edge]) -> list[str]:
    """In words, those that are missing."""
    missing = EVERY - frozenset(edges)
    return sorted(
        f"{kind} {source or '(birth)'} → {to}" + (f" ({word})" if word else "") for kind, source, to, word in missing
    )
