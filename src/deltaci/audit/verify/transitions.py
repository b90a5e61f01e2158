"""Verify a `transitions.jsonl`, the format of document 003.

The log may come from another implementation, so metadata is optional: checks of retries, dependencies, workers and
workstreams apply where it is present. Our own export always has it. Metadata whose meaning document 003 does not define
is not judged, unless it is in our own export.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec

from deltaci.audit.verify.log_lines import EPOCH, Count, Name, Timestamp
from deltaci.audit.verify.report import RecentIds, Report
from deltaci.core.json_values import short_repr
from deltaci.core.status.view import Step, View
from deltaci.core.status.workstreams import TASK_VIEW, WORKER_VIEW, WORKSTREAM_TRIGGERS, WORKSTREAM_VIEW

TASK, WORKSTREAM, WORKER = "task_state_transition", "workstream_state_transition", "worker_state_transition"
_VIEWS: Final[dict[str, View]] = {TASK: TASK_VIEW, WORKSTREAM: WORKSTREAM_VIEW, WORKER: WORKER_VIEW}
_INITIAL: Final = {TASK: "pending", WORKSTREAM: "planned", WORKER: "initializing"}
_KIND_NAMES: Final = {TASK: "task", WORKSTREAM: "workstream", WORKER: "worker"}
_TERMINAL: Final = {
    TASK: frozenset({"completed", "failed", "cancelled"}),
    WORKSTREAM: frozenset({"completed", "failed", "cancelled"}),
    WORKER: frozenset({"shutdown"}),
}


def _expected_severity(kind: str, target: str) -> str:
    if kind == WORKSTREAM and target == "failed":
        return "critical"
    if (kind == TASK and target == "failed") or target == "unresponsive":
        return "error"
    return "warning" if target == "retrying" else "info"


class _TransitionLine(msgspec.Struct, forbid_unknown_fields=True):
    timestamp: Timestamp
    event_type: Literal["task_state_transition", "workstream_state_transition", "worker_state_transition"]
    severity: Literal["info", "warning", "error", "critical"]
    entity_id: Name
    from_state: Name
    to_state: Name
    trigger: Name
    metadata: _Metadata


class _Metadata(msgspec.Struct, kw_only=True):
    """The metadata that the checks use. Other fields are allowed and ignored."""

    workstream_id: str | None = None
    depends_on: list[str] | None = None
    critical: bool | None = None
    max_retries: Count | None = None
    retry_count: Count | None = None
    worker_id: str | None = None
    task_count: Count | None = None
    approval_gate: bool | None = None
    cause: str | None = None
    reason: str | None = None
    duration_seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    max_concurrent_tasks: Count | None = None
    labels: Any = None
    export_version: Any = None
    reclaim_count: Any = None
    tasks: Any = None


@dataclass(slots=True, eq=False)
class _TrackedEntity:
    id: str
    kind: str
    state: str
    is_critical: bool = True
    retries: int = 0
    max_retries: int | None = None
    started_at: datetime | None = None
    workstream: str = ""
    task_count: int | None = None
    slots: int | None = None
    max_slots: int = 0
    tasks: dict[str, _TrackedEntity] = field(default_factory=dict)
    worker: _TrackedEntity | None = None
    reclaims: int = 0
    running_ids: set[str] = field(default_factory=set)
    is_native: bool = False


_decode = msgspec.json.Decoder(_TransitionLine).decode


class TransitionsVerifier:
    """Verifies one log of transitions, line by line."""

    def __init__(self) -> None:
        self.report = Report("transitions (document 003)")
        self.live: dict[str, _TrackedEntity] = {}
        self.recent = RecentIds()
        self.lists_workers = False  # Every worker with a task has its lines in the log.
        self.is_native = False  # The log is an export of Delta CI, version 2 or later.
        self.unlisted_workers = RecentIds()  # Workers of tasks that started before any worker's first line.
        self.line_number = 0
        self.last_timestamp = EPOCH

    def flag(self, rule: str, problem: str, legal_text: str) -> None:
        """Report that the current line breaks a rule, with the problem and the legal alternative as text."""
        self.report.add(self.line_number, rule, problem, legal_text)

    def feed(self, number: int, raw_event: bytes) -> None:
        """Verify one line."""
        self.line_number = number
        try:
            event = _decode(raw_event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.flag("WST-V3", f"the line cannot be read: {error}", "one JSON object with document 003's fields")
            return
        if event.timestamp < self.last_timestamp:
            self.flag(
                "WST-V4",
                f"{event.timestamp.isoformat()} after {self.last_timestamp.isoformat()}",
                "a time that does not go back",
            )
        self.last_timestamp = max(self.last_timestamp, event.timestamp)
        entity = self.live.get(event.entity_id)
        if entity is None:
            if event.entity_id in self.recent:
                entity_name = f"{_KIND_NAMES[event.event_type]} {event.entity_id}"
                problem = f"{entity_name} has ended and goes {event.from_state} → {event.to_state}"
                self.flag("WST-TI2", problem, "nothing")
                return
            entity = self.live[event.entity_id] = _TrackedEntity(
                event.entity_id, event.event_type, _INITIAL[event.event_type]
            )
            self.report.entity_count += 1
        elif entity.kind != event.event_type:
            self.flag(
                "WST-E2",
                f"{event.entity_id} is a {_KIND_NAMES[entity.kind]} and has a {event.event_type}",
                "one kind for one id",
            )
            return
        self._check_transition(entity, event)
        if event.event_type == TASK:
            self._check_task(entity, event)
        elif event.event_type == WORKSTREAM:
            self._check_workstream(entity, event)
        else:
            self._check_worker(entity, event)
        entity.state = event.to_state
        self._forget(entity)

    def end(self) -> Report:
        """Check the last state of each workstream that has not ended, and return the report."""
        for entity in self.live.values():
            if entity.kind == WORKSTREAM and entity.state == "ready" and self._has_started_task(entity):
                self.flag("WST-WD1", f"workstream {entity.id} is ready while a task runs", "executing")
        return self.report

    def _check_transition(self, entity: _TrackedEntity, event: _TransitionLine) -> None:
        kind, view = event.event_type, _VIEWS[event.event_type]
        entity_name = f"{_KIND_NAMES[kind]} {entity.id}"
        if event.from_state != entity.state:
            rule = "WST-TI2" if entity.state in _TERMINAL[kind] else "WST-TI1"
            self.flag(
                rule,
                f"{entity_name} is {entity.state} and goes {event.from_state} → {event.to_state}",
                f"from {entity.state}",
            )
        step = Step(event.from_state, event.to_state, event.trigger, "")
        expected_trigger = WORKSTREAM_TRIGGERS.get((event.from_state, event.to_state)) if kind == WORKSTREAM else None
        if view.allows(step) is None:
            legal_transitions = [
                f"{edge.target} by {' or '.join(edge.triggers)}" if edge.triggers else edge.target
                for edge in view.edges
                if edge.source == event.from_state
            ]
            problem = f"{entity_name}: {event.from_state} → {event.to_state} by {event.trigger}"
            self.flag("WST-V1", problem, ", ".join(legal_transitions) or "nothing: the state is terminal")
        elif expected_trigger is not None and expected_trigger != event.trigger:
            self.flag(
                "WST-V1", f"{entity_name}: {event.from_state} → {event.to_state} by {event.trigger}", expected_trigger
            )
        elif kind == TASK and event.to_state == "cancelled" and event.trigger != "user_cancelled":
            self.flag("WST-V1", f"{entity_name}: {event.from_state} → cancelled by {event.trigger}", "user_cancelled")
        severity = _expected_severity(kind, event.to_state)
        if event.severity != severity:
            self.flag(
                "WST-E3",
                f"{entity_name}: {event.from_state} → {event.to_state} has severity {event.severity}",
                severity,
            )

    def _check_task(self, task: _TrackedEntity, event: _TransitionLine) -> None:
        metadata = event.metadata
        self._check_workstream_membership(task, event)
        if event.from_state == "pending":
            task.is_critical = metadata.critical is not False
            task.max_retries = metadata.max_retries
            for need_id in metadata.depends_on or () if event.to_state == "queued" else ():
                needed_task = self.live.get(need_id)
                if needed_task is None or needed_task.state != "completed":
                    needed_state = needed_task.state if needed_task else "not started"
                    problem = f"task {task.id} is queued while {need_id} is {needed_state}"
                    self.flag("WST-TI6", problem, f"{need_id} completed")
        max_retries = metadata.max_retries if metadata.max_retries is not None else task.max_retries
        if task.max_retries is not None and max_retries != task.max_retries:
            self.flag("WST-TI4", f"task {task.id} has max_retries {max_retries}", str(task.max_retries))
        if event.to_state == "retrying":
            task.retries += 1
            if max_retries is not None and task.retries > max_retries:
                self.flag("WST-TI4", f"task {task.id} starts retry {task.retries}", f"at most {max_retries}")
        if metadata.retry_count is not None and metadata.retry_count != task.retries:
            self.flag("WST-TI4", f"task {task.id} counts {metadata.retry_count} retries", str(task.retries))
        if event.from_state == event.to_state == "running":
            task.reclaims += 1
        if self.is_native and (metadata.reclaim_count or 0) != task.reclaims:
            self.flag("WST-V5", f"task {task.id} counts {metadata.reclaim_count or 0} reclaims", str(task.reclaims))
        if event.to_state == "running":
            task.started_at = task.started_at or event.timestamp
            self._assign_worker(task, metadata)
            return
        self._release_worker(task)
        if metadata.worker_id:
            self.flag(
                "WST-TI3",
                f"task {task.id} is {event.to_state} and has worker {metadata.worker_id}",
                "a worker only while running",
            )

    def _assign_worker(self, task: _TrackedEntity, metadata: _Metadata) -> None:
        """Check that the worker of a task that starts is registered and has a free slot."""
        self._release_worker(task)
        worker_id = metadata.worker_id
        if not worker_id:
            return
        # A worker `host` may run tasks as `host/1`, without a registration for each.
        worker = self.live.get(worker_id) or self.live.get(worker_id.partition("/")[0])
        if worker is None or worker.kind != WORKER or worker.state == "initializing":
            if worker_id in self.recent or self.lists_workers:
                reason = "shut down" if worker_id in self.recent else "not registered"
                self.flag("WST-TG2", f"task {task.id} starts on worker {worker_id}, which is {reason}", "a live worker")
            else:  # The log may be that of one run, without workers, or in version 1 of our export.
                self.unlisted_workers.add(worker_id)
            return
        task.worker = worker
        worker.running_ids.add(task.id)
        self._set_slots(worker, metadata)
        # Our export does not show that a worker with several slots lost one of its leases; version 1 shows no update.
        is_counted = worker.slots is not None and ((self.is_native and worker.max_slots == 1) or not worker.is_native)
        if is_counted and worker.slots is not None and len(worker.running_ids) > worker.slots:
            self.flag(
                "WST-KI1",
                f"worker {worker.id} runs {', '.join(sorted(worker.running_ids))}",
                f"at most {worker.slots} at a time",
            )

    @staticmethod
    def _set_slots(worker: _TrackedEntity, metadata: _Metadata) -> None:
        if metadata.max_concurrent_tasks is not None:
            worker.slots = metadata.max_concurrent_tasks
            worker.max_slots = max(worker.max_slots, worker.slots)

    @staticmethod
    def _release_worker(task: _TrackedEntity) -> None:
        if task.worker is not None:
            task.worker.running_ids.discard(task.id)
            task.worker = None

    def _check_workstream_membership(self, task: _TrackedEntity, event: _TransitionLine) -> None:
        workstream_id = event.metadata.workstream_id
        if not workstream_id:
            return
        if task.workstream and task.workstream != workstream_id:
            self.flag(
                "WST-WI1", f"task {task.id} moves from workstream {task.workstream} to {workstream_id}", task.workstream
            )
        task.workstream = workstream_id
        workstream = self.live.get(workstream_id)
        if workstream is None or workstream.kind != WORKSTREAM:
            if event.to_state != "cancelled":
                self.flag(
                    "WST-WI1",
                    f"task {task.id} changes in workstream {workstream_id}, which has ended or is unknown",
                    "a live workstream",
                )
            return
        workstream.tasks[task.id] = task
        if workstream.task_count is not None and len(workstream.tasks) > workstream.task_count:
            self.flag(
                "WST-WG1", f"workstream {workstream_id} has {len(workstream.tasks)} tasks", f"{workstream.task_count}"
            )
        if workstream.state == "planned":
            self.flag(
                "WST-WG1", f"task {task.id} changes while its workstream is planned", "a workstream that is ready"
            )
        if workstream.state in _TERMINAL[WORKSTREAM] and event.to_state != "cancelled":
            self.flag(
                "WST-WI1",
                f"task {task.id} goes to {event.to_state} in a workstream that is {workstream.state}",
                "cancelled",
            )
        if workstream.state == "ready" and event.from_state not in ("pending", "queued"):
            self.flag("WST-WD5", f"task {task.id} changes while its workstream is ready", "executing")

    @staticmethod
    def _has_started_task(workstream: _TrackedEntity) -> bool:
        return any(task.started_at is not None for task in workstream.tasks.values())

    def _check_workstream(self, workstream: _TrackedEntity, event: _TransitionLine) -> None:
        metadata, tasks = event.metadata, list(workstream.tasks.values())
        workstream_name = f"workstream {workstream.id}"
        lost_ids = [task.id for task in tasks if task.is_critical and task.state in ("failed", "cancelled")]
        if event.to_state == "ready":
            workstream.task_count = metadata.task_count
        if workstream.task_count is None:
            return
        if (
            event.to_state == "executing"
            and metadata.cause in (None, "job_started")
            and not self._has_started_task(workstream)
        ):
            self.flag("WST-WG2", f"{workstream_name} is executing, but no task runs", "a running task")
        if event.to_state in ("validating", "completed"):
            ended_count = sum(task.state in _TERMINAL[TASK] for task in tasks)
            if lost_ids or ended_count != workstream.task_count:
                problem = (
                    f"{workstream_name} is {event.to_state} with {ended_count} of {workstream.task_count} tasks ended"
                )
                problem += f" and {len(lost_ids)} lost"
                self.flag("WST-WI2", problem, "every required task completed")
        is_excused = metadata.approval_gate or metadata.reason == "RUN_TIMEOUT" or event.from_state != "executing"
        if event.to_state == "failed" and not lost_ids and not is_excused:
            self.flag("WST-WG4", f"{workstream_name} fails, but no critical task did", "a critical task that failed")

    def _check_worker(self, worker: _TrackedEntity, event: _TransitionLine) -> None:
        metadata = event.metadata
        if event.from_state == "initializing" and worker.id in self.unlisted_workers:
            self.flag("WST-TG2", f"worker {worker.id} registers after a task started on it", "registered before")
        self._set_slots(worker, metadata)
        worker.is_native = worker.is_native or metadata.labels is not None
        self.is_native = self.is_native or metadata.export_version is not None
        self.lists_workers = self.lists_workers or self.is_native or not worker.is_native
        if event.to_state != "busy":
            worker.running_ids.clear()  # Its tasks have ended, or are marked for reassignment.
        if not worker.is_native:
            return
        tasks = metadata.tasks or 0
        if not isinstance(tasks, int) or tasks < 0:
            self.flag("WST-V3", f"worker {worker.id} has tasks {short_repr(tasks)}", "a number of tasks")
            return
        if event.to_state == "busy" and worker.slots is not None and tasks > worker.slots:
            self.flag("WST-KI1", f"worker {worker.id} has {tasks} tasks", f"at most {worker.slots}")
        if event.from_state == "busy" and event.to_state in ("idle", "shutdown") and tasks:
            self.flag("WST-KG3", f"worker {worker.id} is {event.to_state} with {tasks} tasks", "no task left")

    def _forget(self, entity: _TrackedEntity) -> None:
        """Drop the entity if it has ended. A task is kept until its workstream and all tasks of that have ended."""
        if entity.state not in _TERMINAL[entity.kind]:
            return
        if entity.kind == WORKER:
            self._drop(entity.id)
            return
        workstream = entity if entity.kind == WORKSTREAM else self.live.get(entity.workstream)
        if workstream is None:
            if entity.workstream:
                self._drop(entity.id)
            return
        if workstream.state in _TERMINAL[WORKSTREAM] and all(
            task.state in _TERMINAL[TASK] for task in workstream.tasks.values()
        ):
            for entity_id in (*workstream.tasks, workstream.id):
                self._drop(entity_id)

    def _drop(self, entity_id: str) -> None:
        if self.live.pop(entity_id, None) is not None:
            self.recent.add(entity_id)
