"""A view: our records and events in the words of one document, and the proof that the document allows them.

A view is data (which state is shown as what, which steps the document allows, which few it must be
extended by) and one pure function that projects an event. Whoever projects keeps what an entity was last
shown as; a step is legal when the document allows it or the view lists it as an extension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

SAME: Final = "="  # Shown as before: the document has no word for this change.
LEFT_OUT: Final = "-"  # The document does not know this entity at all.


class Edge(msgspec.Struct, frozen=True):
    """A step that the document allows, the rule that says so, and the words it may carry."""

    source: str | None
    target: str
    cite: str
    triggers: tuple[str, ...] = ()


class Extension(msgspec.Struct, frozen=True):
    """A step that the document is silent on and another one demands."""

    source: str
    target: str
    demanded_by: str
    why: str


class Step(msgspec.Struct, frozen=True):
    """One step in the document's words. `actor` is who the document sees acting."""

    source: str | None
    target: str
    trigger: str
    actor: str


class Change(msgspec.Struct, frozen=True):
    """What a projection needs to know of an event."""

    source: str | None
    target: str
    trigger: str
    actor: str


Projection = Callable[["View", str | None, Change], tuple[tuple[Step, ...], str]]


def project_by_table(view: View, shown: str | None, change: Change) -> tuple[tuple[Step, ...], str]:
    """Show every state as the view's table says; a change that is not visible is no step."""
    target = view.state_map[change.target]
    if LEFT_OUT in (shown, target):
        return (), LEFT_OUT
    if target == SAME:
        return (), shown or ""
    if shown == target:
        return (), target
    return (Step(shown, target, change.trigger, change.actor),), target


class View(msgspec.Struct, frozen=True):
    """One document's eyes on one kind of record."""

    name: str
    document: str
    entity: str
    state_map: Mapping[str, str]
    edges: tuple[Edge, ...]
    extensions: tuple[Extension, ...] = ()
    project: Projection = project_by_table

    def project_change(self, shown: str | None, change: Change) -> tuple[tuple[Step, ...], str]:
        """The steps that the document sees, and what the entity is shown as afterwards."""
        return self.project(self, shown, change)

    def allows(self, step: Step) -> Edge | Extension | None:
        """The edge or the extension that makes the step legal, if there is one."""
        edge = self.edge(step.source, step.target)
        if edge is not None and (not edge.triggers or step.trigger in edge.triggers):
            return edge
        return next((e for e in self.extensions if (e.source, e.target) == (step.source, step.target)), None)

    def edge(self, source: str | None, target: str) -> Edge | None:
        """The document's own edge between two of its states."""
        return next((e for e in self.edges if (e.source, e.target) == (source, target)), None)

    @property
    def states(self) -> tuple[str, ...]:
        """The document's states, in the order in which its edges name them."""
        named = (state for edge in self.edges for state in (edge.source, edge.target) if state)
        return tuple(dict.fromkeys(named))

    @property
    def terminal(self) -> frozenset[str]:
        """The states that the document lets nobody leave."""
        return frozenset(self.states) - {e.source for e in self.edges if e.source != e.target and e.source}
