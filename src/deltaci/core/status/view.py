"""Views: our states and transitions in the vocabulary of one specification document.

A view is a table (the document's state for each of ours, the steps that the document allows, and the extensions that
it needs) and a pure function that projects a transition to steps. The caller keeps the state that an entity was last
projected to. A step is legal if the document allows it or the view lists it as an extension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from deltaci.core.events import Event

SAME: Final = "="  # The projected state stays: the document has no state for this change.
LEFT_OUT: Final = "-"  # The document has no such entity.


class Edge(msgspec.Struct, frozen=True):
    """A transition that the document allows.

    `cite` is the document's rule; `triggers` are the possible triggers, any if empty.
    """

    source: str | None
    target: str
    cite: str
    triggers: tuple[str, ...] = ()


class Extension(msgspec.Struct, frozen=True):
    """A transition that this document does not mention, but that another document demands."""

    source: str
    target: str
    demanded_by: str
    why: str


class Step(msgspec.Struct, frozen=True):
    """A transition in the document's vocabulary.

    `is_takeover` marks a step that the document forces, because it has no word for what ended the record.
    """

    source: str | None
    target: str
    trigger: str
    actor: str
    is_takeover: bool = False


class Change(msgspec.Struct, frozen=True):
    """The fields of an event that a projection reads; `source` and `target` are our states before and after it.

    `implied_by` names the command that implied the transition, `message` the message that confirmed a cancellation.
    """

    source: str | None
    target: str
    trigger: str
    actor: str
    implied_by: str = ""
    message: str = ""


def change_of(event: Event) -> Change:
    """Return the fields of an event that a projection reads."""
    metadata = event.metadata
    return Change(
        event.from_,
        event.to,
        event.trigger,
        event.actor,
        metadata.get("implied_by", ""),
        metadata.get("message", ""),
    )


Projection = Callable[["View", str | None, Change], tuple[tuple[Step, ...], str]]


def project_by_table(view: View, previous: str | None, change: Change) -> tuple[tuple[Step, ...], str]:
    """Return the steps of the document for a change, at most one, and the new projected state.

    `previous` is the projected state before. A change that keeps the projected state has no step.
    """
    target = view.state_map[change.target]
    if LEFT_OUT in (previous, target):
        return (), LEFT_OUT
    if target == SAME:
        return (), previous or ""
    if previous == target:
        return (), target
    return (Step(previous, target, change.trigger, change.actor),), target


class View(msgspec.Struct, frozen=True):
    """The states and transitions of one kind of record in the vocabulary of one document.

    `state_map` maps our states to those of the document.
    """

    name: str
    document: str
    entity: str
    state_map: Mapping[str, str]
    edges: tuple[Edge, ...]
    extensions: tuple[Extension, ...] = ()
    project: Projection = project_by_table

    def project_change(self, previous: str | None, change: Change) -> tuple[tuple[Step, ...], str]:
        """Return the steps of the document for a change of a record, and the record's projected state afterwards."""
        return self.project(self, previous, change)

    def allows(self, step: Step) -> Edge | Extension | None:
        """Return the edge or extension that makes the step legal, or None."""
        edge = self.edge(step.source, step.target)
        if edge is not None and (not edge.triggers or step.trigger in edge.triggers):
            return edge
        return next(
            (
                extension
                for extension in self.extensions
                if (extension.source, extension.target) == (step.source, step.target)
            ),
            None,
        )

    def edge(self, source: str | None, target: str) -> Edge | None:
        """Return the document's edge from one of its states to another, or None."""
        return next(
            (candidate for candidate in self.edges if (candidate.source, candidate.target) == (source, target)), None
        )

    @property
    def states(self) -> tuple[str, ...]:
        """The document's states, in the order in which its edges name them."""
        states = (state for edge in self.edges for state in (edge.source, edge.target) if state)
        return tuple(dict.fromkeys(states))

    @property
    def terminal(self) -> frozenset[str]:
        """The states of the document from which no edge leads to another state."""
        return frozenset(self.states) - {
            edge.source for edge in self.edges if edge.source != edge.target and edge.source
        }
