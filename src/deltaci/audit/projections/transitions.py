"""Export events as document 003's `transitions.jsonl`: the transitions of tasks, workstreams and workers.

The creation of a record is not a transition. Its properties (needs, retry limit, ...) are added to the metadata of the
record's first transition, so that a reader of the file alone can check them. Records that were created before the first
exported event are left out, because these properties are unknown. Where workers are listed, a task names a worker that
is not, because it never registered or did so before the first exported event, as `unlisted_worker_id`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from deltaci.core import job as core_job
from deltaci.core import run as core_run
from deltaci.core import worker as core_worker
from deltaci.core.events import JOB, RUN, USER, WORKER, Event, actor_kind
from deltaci.core.instants import SECOND, rfc3339
from deltaci.core.status.view import LEFT_OUT, View, change_of
from deltaci.core.status.workstreams import TASK_VIEW, WORKER_VIEW, WORKSTREAM_TRIGGERS, WORKSTREAM_VIEW

_VIEWS: Final[dict[str, View]] = {JOB: TASK_VIEW, RUN: WORKSTREAM_VIEW, WORKER: WORKER_VIEW}
_TYPES: Final = {JOB: "task_state_transition", RUN: "workstream_state_transition", WORKER: "worker_state_transition"}
_TERMINAL: Final = {JOB: core_job.TERMINAL, RUN: core_run.TERMINAL, WORKER: core_worker.TERMINAL}
_COPIED_KEYS: Final = (
    "implied_by",
    "worker_id",
    "lost_worker_id",
    "retry_count",
    "max_retries",
    "failure_class",
    "rule",
    "code",
    "reason",
    "details",
    "tasks",
)
_WORKER_KEYS: Final = ("labels", "max_concurrent_tasks", "hold")
# In the first line of every worker. Version 1 had none, named unlisted workers like others and left out reclaims.
EXPORT_VERSION: Final = 2
_ORCHESTRATOR_REASONS: Final = (core_job.BLOCKED, core_job.NOT_NEEDED, core_job.RUN_TIMEOUT)
_CREATION_KEYS: Final = ("kind", "needs", "is_required", "max_attempts")


class EntityState(msgspec.Struct, array_like=True):
    """What the exporter must remember of one job, run or worker to export its later events.

    It is part of stored snapshots. `state` is the state in document 003.
    """

    state: str | None = None
    properties: dict[str, Any] = {}
    has_ended: bool = False
    started_at: int = 0
    task_ids: list[str] = []
    reclaims: int = 0


class ExporterState(msgspec.Struct):
    """The state of an exporter after some event, from which a new exporter can continue.

    Stored in snapshots.
    """

    last_at: int = msgspec.field(default=0, name="now")
    live: dict[str, EntityState] = {}
    has_workers: bool = False


class TransitionsExporter:
    """Converts the events of a log, in order, to transitions of document 003.

    Keeps state for entities that have not ended, and for ended tasks until their run ends. Servers that write
    concurrently may commit slightly out of order, but the timestamps in the file never go back.
    """

    def __init__(self, state: ExporterState | None = None) -> None:
        state = state if state is not None else ExporterState()
        self._latest_event_at = state.last_at
        self._live_entities = state.live
        self._has_workers = state.has_workers

    @property
    def state(self) -> ExporterState:
        """The current state of the exporter, not a copy: encode it before exporting the next event."""
        return ExporterState(self._latest_event_at, self._live_entities, self._has_workers)

    def export(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        """Yield the transitions for these events, which must follow those of the previous call in the log."""
        for event in events:
            self._latest_event_at = max(self._latest_event_at, event.at)
            if event.entity in _VIEWS:
                yield from self._export(event)

    def _export(self, event: Event) -> Iterator[dict[str, Any]]:
        entity_state = self._live_entities.get(event.entity_id)
        if entity_state is None:
            if event.from_ is not None or (event.entity == JOB and event.run_id not in self._live_entities):
                return
            entity_state = self._create(event)
        old_state = entity_state.state
        steps, entity_state.state = _VIEWS[event.entity].project_change(old_state, change_of(event))
        if event.entity == WORKER and not steps:
            # The document has no such transition, so the new capabilities are added to the worker's next one.
            entity_state.properties.update(
                {
                    metadata_key: event.metadata[metadata_key]
                    for metadata_key in _WORKER_KEYS
                    if metadata_key in event.metadata
                }
            )
        if event.to == core_job.RUNNING and not entity_state.started_at:
            entity_state.started_at = self._latest_event_at
        if steps and old_state is not None:
            yield self._transition(event, entity_state, old_state, steps[-1].target)
        entity_state.has_ended = event.to in _TERMINAL[event.entity]
        if entity_state.has_ended:
            self._forget(event, entity_state)

    def _forget(self, event: Event, entity_state: EntityState) -> None:
        """Drop an entity that has ended, and the ended tasks of a run with it.

        A task is kept until its run ends, because other tasks may need it.
        """
        if event.entity == JOB and event.run_id in self._live_entities:
            return
        del self._live_entities[event.entity_id]
        for task_id in entity_state.task_ids:
            if self._live_entities[task_id].has_ended:
                del self._live_entities[task_id]

    def _create(self, event: Event) -> EntityState:
        entity_state = self._live_entities[event.entity_id] = EntityState()
        if event.entity == WORKER:
            self._has_workers = True
            entity_state.properties["export_version"] = EXPORT_VERSION
        if event.entity == JOB:
            entity_state.properties = {
                metadata_key: event.metadata[metadata_key]
                for metadata_key in _CREATION_KEYS
                if metadata_key in event.metadata
            }
            if event.metadata.get("kind") == core_job.APPROVAL:
                entity_state.state = LEFT_OUT
            self._live_entities[event.run_id].task_ids.append(event.entity_id)
        return entity_state

    def _transition(self, event: Event, entity_state: EntityState, source: str, target: str) -> dict[str, Any]:
        metadata = {
            metadata_key: event.metadata[metadata_key]
            for metadata_key in _COPIED_KEYS
            if event.metadata.get(metadata_key) not in (None, "")
        }
        trigger = event.trigger
        if event.entity == JOB:
            metadata["workstream_id"] = event.run_id
            entity_state.reclaims += source == target
            if entity_state.reclaims:
                metadata["reclaim_count"] = entity_state.reclaims
            worker_id = metadata.get("worker_id")
            if worker_id is not None and self._is_unlisted(worker_id):
                metadata["unlisted_worker_id"] = metadata.pop("worker_id")
            elif (
                worker_id in self._live_entities and "max_concurrent_tasks" in self._live_entities[worker_id].properties
            ):
                # Its new capacity has no line yet, because the document has no such transition.
                metadata["max_concurrent_tasks"] = self._live_entities[worker_id].properties["max_concurrent_tasks"]
            if source == "pending":
                metadata.update(self._task_properties(entity_state))
        elif event.entity == RUN:
            trigger = WORKSTREAM_TRIGGERS[source, target]
            metadata.update(self._workstream_metadata(event, entity_state, target))
        else:
            metadata.update(entity_state.properties)
            metadata.update(
                {
                    metadata_key: event.metadata[metadata_key]
                    for metadata_key in _WORKER_KEYS
                    if metadata_key in event.metadata
                }
            )
            entity_state.properties = {}
        if event.to in (core_job.TERMINAL | set(core_run.OVER)) and entity_state.started_at:
            metadata["duration_seconds"] = (self._latest_event_at - entity_state.started_at) / SECOND
        if takeover := _takeover(event, trigger, metadata):
            metadata["takeover"] = takeover
        return {
            "timestamp": rfc3339(self._latest_event_at),
            "event_type": _TYPES[event.entity],
            "severity": event.severity,
            "entity_id": event.entity_id,
            "from_state": source,
            "to_state": target,
            "trigger": trigger,
            "metadata": metadata,
        }

    def _is_unlisted(self, worker_id: str) -> bool:
        # A worker `host` may run tasks as `host/1`, without a registration for each.
        possible_ids = (worker_id, worker_id.partition("/")[0])
        return self._has_workers and not any(possible_id in self._live_entities for possible_id in possible_ids)

    def _task_properties(self, entity_state: EntityState) -> dict[str, Any]:
        properties = entity_state.properties
        return {
            "depends_on": [need_id for need_id in properties["needs"] if self._must_complete(need_id)],
            "critical": properties["is_required"],
            "max_retries": properties["max_attempts"] - 1,
        }

    def _must_complete(self, job_id: str) -> bool:
        """Return whether the job with this id is a required task. The export names only such needs as dependencies."""
        properties = self._live_entities[job_id].properties
        return bool(properties["kind"] == core_job.TASK and properties["is_required"])

    def _workstream_metadata(self, event: Event, entity_state: EntityState, target: str) -> dict[str, Any]:
        if target == "ready":
            return {
                "task_count": sum(
                    self._live_entities[task_id].properties["kind"] == core_job.TASK
                    for task_id in entity_state.task_ids
                )
            }
        job_id = event.metadata.get("job_id", "")
        if target == "executing":
            return {"cause": event.metadata["cause"]}  # It may be an opened approval: then no task runs yet.
        if target == "failed" and job_id and self._live_entities[job_id].properties["kind"] == core_job.APPROVAL:
            return {"approval_gate": True}
        return {"task_id": job_id} if job_id else {}


def _takeover(event: Event, trigger: str, metadata: dict[str, Any]) -> dict[str, str]:
    """Return who caused a transition that the document attributes to another actor, and why; empty if it is right."""
    reason = str(metadata.get("reason", ""))
    if trigger == "first_task_started":
        reason = str(metadata["cause"])
        return {} if reason == "job_started" else {"by": event.actor, "reason": reason}
    if trigger == "user_cancelled":
        is_by_user = actor_kind(event.actor) == USER or reason not in _ORCHESTRATOR_REASONS
        return {} if is_by_user else {"by": event.actor, "reason": reason}
    if trigger == "critical_task_failed" and (metadata.get("approval_gate") or event.to == core_run.TIMEOUT):
        return {"by": event.actor, "reason": reason}
    return {}
