"""List the transitions of the state machines that no history has made yet.

The list of all transitions is the core's own; the checker has an independent one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from deltaci.core import lease
from deltaci.core.decide import MACHINES
from deltaci.core.events import RESOURCE
from deltaci.simulation.checker.transitions import Edge

ALL_EDGES: Final[frozenset[Edge]] = frozenset(
    (machine.name, rule.source or None, to.state, to.trigger)
    for machine in MACHINES.values()
    if machine.name != RESOURCE  # Histories change no administrative objects.
    for rule in machine.rules
    for to in rule.targets
) | frozenset(("lease", rule.source or None, to.state, "") for rule in lease.MACHINE.rules for to in rule.targets)


def unvisited(edges: Iterable[Edge]) -> list[str]:
    """Return all transitions that are not among `edges`, each as one line of text."""
    unvisited_edges = ALL_EDGES - frozenset(edges)
    return sorted(
        f"{entity} {from_state or '(created)'} → {to_state}" + (f" ({trigger})" if trigger else "")
        for entity, from_state, to_state, trigger in unvisited_edges
    )
