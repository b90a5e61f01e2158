"""A run's log in the words of one document: every kind of record that the document knows, in one list.

A vocabulary is the views of one document together. Our own words are one, too: there nothing is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from deltaci.audit.projections import orchestration
from deltaci.audit.projections.canonical import with_lease_events
from deltaci.core import job
from deltaci.core.events import ATTEMPT, ENTITIES, JOB, LEASE, RUN, WORKER, Event
from deltaci.core.status import queue, steps, workstreams
from deltaci.core.status.view import LEFT_OUT, Change, Edge, Extension, Step, View


class Vocabulary(msgspec.Struct, frozen=True):
    """The words of one document. Ours has no views."""

    name: str
    document: str
    views: tuple[View, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the document calls the records of a run's log."""
        return tuple(map(kind_of, self.views)) or tuple(each for each in ENTITIES if each != WORKER)


class ProjectedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step as the document sees it. `rule` allows it; where none does, `why` another document demands it."""

    event: Event
    kind: str
    source: str | None
    target: str
    word: str
    actor: str
    rule: str = ""
    why: str = ""


CANONICAL: Final = Vocabulary("canonical", "")
VOCABULARIES: Final = {
    each.name: each
    for each in (
        CANONICAL,
        Vocabulary(
            "orchestration", "000", (orchestration.RUN_VIEW, orchestration.ATTEMPT_VIEW, orchestration.LEASE_VIEW)
        ),
        Vocabulary("steps", "002", (steps.RUN_VIEW, steps.STEP_VIEW)),
        Vocabulary("workstreams", "003", (workstreams.WORKSTREAM_VIEW, workstreams.TASK_VIEW)),
        Vocabulary("queue", "004", (queue.JOB_VIEW,)),
    )
}


def kind_of(view: View) -> str:
    """What the document calls what it sees: a step is our job."""
    return view.name.rpartition(" ")[2]


class VocabularyProjector:
    """Tells a log in these words, from its beginning on: how a record is shown depends on all that came before."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._views = {view.entity: view for view in vocabulary.views}
        self._shown: dict[str, str | None] = {}

    def see(self, events: Iterable[Event]) -> Iterator[ProjectedStep]:
        """The next events of the log."""
        for event in with_lease_events(events):
            if not self._views:
                yield _as_it_is(event)
            elif (view := self._views.get(event.entity)) is not None:
                yield from _projected(view, event, self._shown)


def project_log(vocabulary: Vocabulary, events: Iterable[Event]) -> Iterator[ProjectedStep]:
    """A whole log in these words."""
    return VocabularyProjector(vocabulary).see(events)


def job_of(event: Event) -> str:
    """The name of the job that the event is about; empty for one of the run itself."""
    if event.entity == RUN:
        return ""
    name = event.entity_id.removeprefix(f"{event.run_id}/")
    if event.entity == LEASE:
        name = name.rpartition("#")[0]
    return name.rpartition(".")[0] if event.entity in (ATTEMPT, LEASE) else name


def _as_it_is(event: Event) -> ProjectedStep:
    return ProjectedStep(
        event=event,
        kind=event.entity,
        source=event.from_,
        target=event.to,
        word=event.trigger,
        actor=event.actor,
    )


def _projected(view: View, event: Event, shown: dict[str, str | None]) -> Iterator[ProjectedStep]:
    before = shown.get(event.entity_id)
    change = Change(event.from_, event.to, event.trigger, event.actor)
    steps, shown[event.entity_id] = view.project_change(before, change)
    if view is workstreams.TASK_VIEW and event.entity == JOB and event.metadata.get("kind") == job.APPROVAL:
        shown[event.entity_id] = LEFT_OUT  # An approval is no task, also before it waits.
        return
    for step in steps:
        allowed = view.allows(step)
        yield ProjectedStep(
            event=event,
            kind=kind_of(view),
            source=step.source,
            target=step.target,
            word=_word(view, step),
            actor=step.actor,
            rule=allowed.cite if isinstance(allowed, Edge) else "",
            why=allowed.why if isinstance(allowed, Extension) else "",
        )


def _word(view: View, step: Step) -> str:
    """Document 003 has words of its own for what happens to a workstream."""
    if view is not workstreams.WORKSTREAM_VIEW or step.source is None:
        return step.trigger
    return workstreams.WORKSTREAM_TRIGGERS[step.source, step.target]
