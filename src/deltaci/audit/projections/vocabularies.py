"""Convert the log of a run to the vocabulary of one specification document.

A vocabulary is the set of a document's views, one per kind of record. The canonical vocabulary has no views: it shows
every event with our own state names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from deltaci.audit.projections import orchestration
from deltaci.audit.projections.canonical import canonical_events
from deltaci.audit.projections.job_events import takeover
from deltaci.core import job as core_job
from deltaci.core.events import ATTEMPT, ENTITIES, JOB, LEASE, RESOURCE, RUN, WORKER, Event
from deltaci.core.status import queue, steps, workstreams
from deltaci.core.status.view import LEFT_OUT, Edge, Extension, Step, View, change_of


class Vocabulary(msgspec.Struct, frozen=True):
    """The views of one document, at most one for each kind of record. `document` is its number."""

    name: str
    document: str
    views: tuple[View, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The document's names for the kinds of records in the log of a run."""
        return tuple(map(kind_of, self.views)) or tuple(
            entity for entity in ENTITIES if entity not in (WORKER, RESOURCE)
        )


class ProjectedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A transition in the document's vocabulary, and the event from which it is derived.

    `rule` is the document's rule that allows it. If it is an extension of the document, `rule` is empty and `why` has
    the reason.
    """

    event: Event
    kind: str
    source: str | None
    target: str
    trigger: str
    actor: str
    rule: str = ""
    why: str = ""
    takeover: dict[str, str] = {}  # Who caused a step that the document forces, and why.


CANONICAL: Final = Vocabulary("canonical", "")
VOCABULARIES: Final = {
    vocabulary.name: vocabulary
    for vocabulary in (
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
    """Return the document's name for the kind of record that the view shows, such as `step` for a job."""
    return view.name.rpartition(" ")[2]


class VocabularyProjector:
    """Converts the events of a log to the steps of one vocabulary.

    It must get the log from its first event on: the state of a record in a view depends on its earlier events.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._views = {view.entity: view for view in vocabulary.views}
        self._state_by_entity: dict[str, str | None] = {}

    def project(self, events: Iterable[Event]) -> Iterator[ProjectedStep]:
        """Yield the steps for these events, which must follow those of the previous call in the log."""
        for event in canonical_events(events):
            if not self._views:
                yield _canonical_step(event)
            elif (view := self._views.get(event.entity)) is not None:
                yield from _project(view, event, self._state_by_entity)


def project_log(vocabulary: Vocabulary, events: Iterable[Event]) -> Iterator[ProjectedStep]:
    """Yield the steps for the events of a whole log."""
    return VocabularyProjector(vocabulary).project(events)


def job_of(event: Event) -> str:
    """Return the name of the job that the event is about, or an empty string for an event of the run."""
    if event.entity == RUN:
        return ""
    job_name = event.entity_id.removeprefix(f"{event.run_id}/")
    if event.entity == LEASE:
        job_name = job_name.rpartition("#")[0]
    return job_name.rpartition(".")[0] if event.entity in (ATTEMPT, LEASE) else job_name


def _canonical_step(event: Event) -> ProjectedStep:
    return ProjectedStep(
        event=event,
        kind=event.entity,
        source=event.from_,
        target=event.to,
        trigger=event.trigger,
        actor=event.actor,
    )


def _project(view: View, event: Event, state_by_entity: dict[str, str | None]) -> Iterator[ProjectedStep]:
    old_state = state_by_entity.get(event.entity_id)
    steps, state_by_entity[event.entity_id] = view.project_change(old_state, change_of(event))
    if view is workstreams.TASK_VIEW and event.entity == JOB and event.metadata.get("kind") == core_job.APPROVAL:
        state_by_entity[event.entity_id] = LEFT_OUT  # An approval is not a task, even before it waits for approval.
        return
    for step in steps:
        allowed_by = view.allows(step)
        yield ProjectedStep(
            event=event,
            kind=kind_of(view),
            source=step.source,
            target=step.target,
            trigger=_trigger(view, step),
            actor=step.actor,
            rule=allowed_by.cite if isinstance(allowed_by, Edge) else "",
            why=allowed_by.why if isinstance(allowed_by, Extension) else "",
            takeover=takeover(event) if step.is_takeover else {},
        )


def _trigger(view: View, step: Step) -> str:
    """Return the trigger that the document gives to the step. Document 003 has its own triggers for workstreams."""
    if view is not workstreams.WORKSTREAM_VIEW or step.source is None:
        return step.trigger
    return workstreams.WORKSTREAM_TRIGGERS[step.source, step.target]
