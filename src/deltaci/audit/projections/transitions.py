"""The log as document 003's `transitions.jsonl`: tasks, workstreams and workers.

Births are not transitions; what a task was born with is told with its first one, so that a reader of the
file alone can check dependencies and the retry limit. What was born before the first event that is exported is left
out: nobody could tell how it began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from deltaci.core import job, run, worker
from deltaci.core.events import JOB, RUN, WORKER, Event
from deltaci.core.instants import SECOND, rfc3339
from deltaci.core.status.view import LEFT_OUT, Change, View
from deltaci.core.status.workstreams import TASK_VIEW, WORKER_VIEW, WORKSTREAM_TRIGGERS, WORKSTREAM_VIEW

_VIEWS: Final[dict[str, View]] = {JOB: TASK_VIEW, RUN: WORKSTREAM_VIEW, WORKER: WORKER_VIEW}
_TYPES: Final = {JOB: "task_state_transition", RUN: "workstream_state_transition", WORKER: "worker_state_transition"}
_OVER: Final = {JOB: job.TERMINAL, RUN: run.TERMINAL, WORKER: worker.TERMINAL}
_TOLD: Final = (
    "worker_id",
    "retry_count",
    "max_retries",
    "failure_class",
    "rule",
    "code",
    "reason",
    "details",
    "tasks",
)
_OFFERED: Final = ("labels", "max_concurrent_tasks", "hold")
_BORN_WITH: Final = ("kind", "needs", "is_required", "max_attempts")


class Remembered(msgspec.Struct, array_like=True):
    """What must be known of one that is not over."""

    shown: str | None = None
    birth: dict[str, Any] = {}
    is_over: bool = False
    started_at: int = 0
    tasks: list[str] = []


class ExporterState(msgspec.Struct):
    """All that an exporter knows after some event: with it, another one goes on from there."""

    now: int = 0
    live: dict[str, Remembered] = {}


class TransitionsExporter:
    """Turns our events into document 003's. Remembers only what is not over.

    Servers that write side by side may commit a little out of order; the file's own time never goes back.
    """

    def __init__(self, memory: ExporterState | None = None) -> None:
        self._now = memory.now if memory is not None else 0
        self._live = memory.live if memory is not None else {}

    @property
    def memory(self) -> ExporterState:
        """What it knows now: for whoever writes it down before the next event."""
        return ExporterState(self._now, self._live)

    def export(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        """Every transition that document 003 sees, in order."""
        for event in events:
            self._now = max(self._now, event.at)
            if event.entity in _VIEWS:
                yield from self._export(event)

    def _export(self, event: Event) -> Iterator[dict[str, Any]]:
        entity = self._live.get(event.entity_id)
        if entity is None:
            if event.from_ is not None or (event.entity == JOB and event.run_id not in self._live):
                return
            entity = self._born(event)
        before = entity.shown
        steps, entity.shown = _VIEWS[event.entity].project_change(
            before, Change(event.from_, event.to, event.trigger, event.actor)
        )
        if event.entity == WORKER and not steps:
            # The document does not see it, but its reader needs to know it: it is told with the next step.
            entity.birth.update({key: event.metadata[key] for key in _OFFERED if key in event.metadata})
        if event.to == job.RUNNING and not entity.started_at:
            entity.started_at = self._now
        if steps and before is not None:
            yield self._line(event, entity, before, steps[-1].target)
        entity.is_over = event.to in _OVER[event.entity]
        if entity.is_over:
            self._forget(event, entity)

    def _forget(self, event: Event, entity: Remembered) -> None:
        """A task is remembered as long as its run, whose other tasks may need it."""
        if event.entity == JOB and event.run_id in self._live:
            return
        del self._live[event.entity_id]
        for task in entity.tasks:
            if self._live[task].is_over:
                del self._live[task]

    def _born(self, event: Event) -> Remembered:
        entity = self._live[event.entity_id] = Remembered()
        if event.entity == JOB:
            entity.birth = {key: event.metadata[key] for key in _BORN_WITH if key in event.metadata}
            if event.metadata.get("kind") == job.APPROVAL:
                entity.shown = LEFT_OUT
            self._live[event.run_id].tasks.append(event.entity_id)
        return entity

    def _line(self, event: Event, entity: Remembered, source: str, target: str) -> dict[str, Any]:
        metadata = {key: event.metadata[key] for key in _TOLD if event.metadata.get(key) not in (None, "")}
        trigger = event.trigger
        if event.entity == JOB:
            metadata["workstream_id"] = event.run_id
            if source == "pending":
                metadata.update(self._facts(entity))
        elif event.entity == RUN:
            trigger = WORKSTREAM_TRIGGERS[source, target]
            metadata.update(self._run_facts(event, entity, target))
        else:
            metadata.update(entity.birth)
            metadata.update({key: event.metadata[key] for key in _OFFERED if key in event.metadata})
            entity.birth = {}
        if event.to in (job.TERMINAL | set(run.OVER)) and entity.started_at:
            metadata["duration_seconds"] = (self._now - entity.started_at) / SECOND
        return {
            "timestamp": rfc3339(self._now),
            "event_type": _TYPES[event.entity],
            "severity": event.severity,
            "entity_id": event.entity_id,
            "from_state": source,
            "to_state": target,
            "trigger": trigger,
            "metadata": metadata,
        }

    def _facts(self, entity: Remembered) -> dict[str, Any]:
        birth = entity.birth
        return {
            "depends_on": [id for id in birth["needs"] if self._is_binding(id)],
            "critical": birth["is_required"],
            "max_retries": birth["max_attempts"] - 1,
        }

    def _is_binding(self, id: str) -> bool:
        """A need that must be completed: a task, and one that may not fail."""
        birth = self._live[id].birth
        return bool(birth["kind"] == job.TASK and birth["is_required"])

    def _run_facts(self, event: Event, entity: Remembered, target: str) -> dict[str, Any]:
        if target == "ready":
            return {"task_count": sum(self._live[id].birth["kind"] == job.TASK for id in entity.tasks)}
        cause = event.metadata.get("job_id", "")
        if target == "executing":
            return {"cause": event.metadata["cause"]}  # An open approval is progress too, though no task runs yet.
        if target == "failed" and cause and self._live[cause].birth["kind"] == job.APPROVAL:
            return {"approval_gate": True}
        return {"task_id": cause} if cause else {}
