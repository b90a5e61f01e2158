"""Is this `transitions.jsonl` legal? Document 003's own format, whoever wrote it.

Only what the line says can be checked, so the checks on retries, dependencies and workstreams apply where
the metadata tells enough; ours always does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec

from deltaci.audit.verify.log_lines import EPOCH, Count, Moment, Name
from deltaci.audit.verify.report import Recent, Report
from deltaci.core.status.view import Step, View
from deltaci.core.status.workstreams import TASK_VIEW, WORKER_VIEW, WORKSTREAM_TRIGGERS, WORKSTREAM_VIEW

TASK, WORKSTREAM, WORKER = "task_state_transition", "workstream_state_transition", "worker_state_transition"
_VIEWS: Final[dict[str, View]] = {TASK: TASK_VIEW, WORKSTREAM: WORKSTREAM_VIEW, WORKER: WORKER_VIEW}
_FIRST: Final = {TASK: "pending", WORKSTREAM: "planned", WORKER: "initializing"}
_KIND: Final = {TASK: "task", WORKSTREAM: "workstream", WORKER: "worker"}
_TERMINAL: Final = {
    TASK: frozenset({"completed", "failed", "cancelled"}),
    WORKSTREAM: frozenset({"completed", "failed", "cancelled"}),
    WORKER: frozenset({"shutdown"}),
}


def _severity(kind: str, source: str, target: str) -> str:
    if kind == WORKSTREAM and target == "failed":
        return "critical"
    if (kind == TASK and target == "failed") or target == "unresponsive":
        return "error"
    return "warning" if target == "retrying" else "info"


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    timestamp: Moment
    event_type: Literal["task_state_transition", "workstream_state_transition", "worker_state_transition"]
    severity: Literal["info", "warning", "error", "critical"]
    entity_id: Name
    from_state: Name
    to_state: Name
    trigger: Name
    metadata: _Told


class _Told(msgspec.Struct, kw_only=True):
    """What we use of the metadata; a producer may write more."""

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
    tasks: Count | None = None


@dataclass(slots=True, eq=False)
class _Entity:
    id: str
    kind: str
    state: str
    is_critical: bool = True
    retries: int = 0
    max_retries: int | None = None
    started_at: datetime | None = None
    workstream: str = ""
    task_count: int | None = None
    places: int | None = None
    tasks: dict[str, _Entity] = field(default_factory=dict)


_decode = msgspec.json.Decoder(_Line).decode


class TransitionsVerifier:
    """A verification under way."""

    def __init__(self) -> None:
        self.report = Report("transitions (document 003)")
        self.live: dict[str, _Entity] = {}
        self.recent = Recent()
        self.number = 0
        self.moment = EPOCH

    def bad(self, rule: str, found: str, legal: str) -> None:
        """Note that the current line breaks a rule."""
        self.report.add(self.number, rule, found, legal)

    def feed(self, number: int, raw: bytes) -> None:
        """Check one line."""
        self.number = number
        try:
            line = _decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.bad("WST-V3", f"the line cannot be read: {error}", "one JSON object with document 003's fields")
            return
        if line.timestamp < self.moment:
            self.bad(
                "WST-V4",
                f"{line.timestamp.isoformat()} after {self.moment.isoformat()}",
                "a time that does not go back",
            )
        self.moment = max(self.moment, line.timestamp)
        entity = self.live.get(line.entity_id)
        if entity is None:
            if line.entity_id in self.recent:
                found = (
                    f"{_KIND[line.event_type]} {line.entity_id} is over and goes {line.from_state} → {line.to_state}"
                )
                self.bad("WST-TI2", found, "nothing")
                return
            entity = self.live[line.entity_id] = _Entity(line.entity_id, line.event_type, _FIRST[line.event_type])
            self.report.entities += 1
        elif entity.kind != line.event_type:
            self.bad(
                "WST-E2",
                f"{line.entity_id} is a {_KIND[entity.kind]} and has a {line.event_type}",
                "one kind for one id",
            )
            return
        self._transition(entity, line)
        if line.event_type == TASK:
            self._task(entity, line)
        elif line.event_type == WORKSTREAM:
            self._workstream(entity, line)
        else:
            self._worker(entity, line)
        entity.state = line.to_state
        self._forget(entity)

    def end(self) -> Report:
        """The log is over."""
        for entity in self.live.values():
            if entity.kind == WORKSTREAM and entity.state == "ready" and self._started(entity):
                self.bad("WST-WD1", f"workstream {entity.id} is ready while a task runs", "executing")
        return self.report

    def _transition(self, entity: _Entity, line: _Line) -> None:
        kind, view = line.event_type, _VIEWS[line.event_type]
        name = f"{_KIND[kind]} {entity.id}"
        if line.from_state != entity.state:
            rule = "WST-TI2" if entity.state in _TERMINAL[kind] else "WST-TI1"
            self.bad(
                rule, f"{name} is {entity.state} and goes {line.from_state} → {line.to_state}", f"from {entity.state}"
            )
        step = Step(line.from_state, line.to_state, line.trigger, "")
        wanted = WORKSTREAM_TRIGGERS.get((line.from_state, line.to_state)) if kind == WORKSTREAM else None
        if view.allows(step) is None:
            legal = [
                f"{each.target} by {' or '.join(each.triggers)}" if each.triggers else each.target
                for each in view.edges
                if each.source == line.from_state
            ]
            found = f"{name}: {line.from_state} → {line.to_state} by {line.trigger}"
            self.bad("WST-V1", found, ", ".join(legal) or "nothing: it is over")
        elif wanted is not None and wanted != line.trigger:
            self.bad("WST-V1", f"{name}: {line.from_state} → {line.to_state} by {line.trigger}", wanted)
        elif kind == TASK and line.to_state == "cancelled" and line.trigger != "user_cancelled":
            self.bad("WST-V1", f"{name}: {line.from_state} → cancelled by {line.trigger}", "user_cancelled")
        severity = _severity(kind, line.from_state, line.to_state)
        if line.severity != severity:
            self.bad("WST-E3", f"{name}: {line.from_state} → {line.to_state} has severity {line.severity}", severity)

    def _task(self, task: _Entity, line: _Line) -> None:
        told = line.metadata
        self._belong(task, line)
        if line.from_state == "pending":
            task.is_critical = told.critical is not False
            task.max_retries = told.max_retries
            for need in told.depends_on or () if line.to_state == "queued" else ():
                known = self.live.get(need)
                if known is None or known.state != "completed":
                    found = f"task {task.id} is queued while {need} is {known.state if known else 'not started'}"
                    self.bad("WST-TI6", found, f"{need} completed")
        limit = told.max_retries if told.max_retries is not None else task.max_retries
        if task.max_retries is not None and limit != task.max_retries:
            self.bad("WST-TI4", f"task {task.id} has max_retries {limit}", str(task.max_retries))
        if line.to_state == "retrying":
            task.retries += 1
            if limit is not None and task.retries > limit:
                self.bad("WST-TI4", f"task {task.id} makes retry {task.retries}", f"at most {limit}")
        if told.retry_count is not None and told.retry_count != task.retries:
            self.bad("WST-TI4", f"task {task.id} counts {told.retry_count} retries", str(task.retries))
        if line.to_state == "running":
            task.started_at = task.started_at or line.timestamp
        elif told.worker_id:
            self.bad(
                "WST-TI3",
                f"task {task.id} is {line.to_state} and has worker {told.worker_id}",
                "a worker only while running",
            )
        if told.duration_seconds is not None:
            spent = (line.timestamp - task.started_at).total_seconds() if task.started_at else 0.0
            if abs(told.duration_seconds - spent) > 1e-3:
                self.bad("WST-TI5", f"task {task.id} took {told.duration_seconds} s", f"{spent} s since it started")

    def _belong(self, task: _Entity, line: _Line) -> None:
        id = line.metadata.workstream_id
        if not id:
            return
        if task.workstream and task.workstream != id:
            self.bad("WST-WI1", f"task {task.id} moves from workstream {task.workstream} to {id}", task.workstream)
        task.workstream = id
        owner = self.live.get(id)
        if owner is None or owner.kind != WORKSTREAM:
            if line.to_state != "cancelled":
                self.bad(
                    "WST-WI1",
                    f"task {task.id} goes on in workstream {id}, which is over or unknown",
                    "a live workstream",
                )
            return
        owner.tasks[task.id] = task
        if owner.task_count is not None and len(owner.tasks) > owner.task_count:
            self.bad("WST-WG1", f"workstream {id} has {len(owner.tasks)} tasks", f"{owner.task_count}")
        if owner.state == "planned":
            self.bad("WST-WG1", f"task {task.id} goes on while its workstream is planned", "a workstream that is ready")
        if owner.state in _TERMINAL[WORKSTREAM] and line.to_state != "cancelled":
            self.bad(
                "WST-WI1", f"task {task.id} goes to {line.to_state} in a workstream that is {owner.state}", "cancelled"
            )
        if owner.state == "ready" and line.from_state not in ("pending", "queued"):
            self.bad("WST-WD5", f"task {task.id} goes on while its workstream is ready", "executing")

    @staticmethod
    def _started(workstream: _Entity) -> bool:
        return any(task.started_at is not None for task in workstream.tasks.values())

    def _workstream(self, stream: _Entity, line: _Line) -> None:
        told, tasks = line.metadata, list(stream.tasks.values())
        name = f"workstream {stream.id}"
        lost = [task.id for task in tasks if task.is_critical and task.state in ("failed", "cancelled")]
        if line.to_state == "ready":
            stream.task_count = told.task_count
        if stream.task_count is None:
            return
        if line.to_state == "executing" and told.cause in (None, "job_started") and not self._started(stream):
            self.bad("WST-WG2", f"{name} is executing, but no task runs", "a task that runs")
        if line.to_state in ("validating", "completed"):
            ended = sum(task.state in _TERMINAL[TASK] for task in tasks)
            if lost or ended != stream.task_count:
                found = f"{name} is {line.to_state} with {ended} of {stream.task_count} tasks over and {len(lost)} lost"
                self.bad("WST-WI2", found, "every required task completed")
        is_excused = told.approval_gate or told.reason == "RUN_TIMEOUT" or line.from_state != "executing"
        if line.to_state == "failed" and not lost and not is_excused:
            self.bad("WST-WG4", f"{name} fails, but no critical task did", "a critical task that failed")

    def _worker(self, worker: _Entity, line: _Line) -> None:
        told = line.metadata
        if told.max_concurrent_tasks is not None:
            worker.places = told.max_concurrent_tasks
        if line.to_state == "busy" and worker.places is not None and (told.tasks or 0) > worker.places:
            self.bad("WST-KI1", f"worker {worker.id} has {told.tasks} tasks", f"at most {worker.places}")
        if line.from_state == "busy" and line.to_state in ("idle", "shutdown") and told.tasks:
            self.bad("WST-KG3", f"worker {worker.id} is {line.to_state} with {told.tasks} tasks", "no task left")

    def _forget(self, entity: _Entity) -> None:
        """Remember a workstream until it and all its tasks are over, a worker until it is gone."""
        if entity.state not in _TERMINAL[entity.kind]:
            return
        if entity.kind == WORKER:
            self._drop(entity.id)
            return
        owner = entity if entity.kind == WORKSTREAM else self.live.get(entity.workstream)
        if owner is None:
            if entity.workstream:
                self._drop(entity.id)
            return
        if owner.state in _TERMINAL[WORKSTREAM] and all(t.state in _TERMINAL[TASK] for t in owner.tasks.values()):
            for id in (*owner.tasks, owner.id):
                self._drop(id)

    def _drop(self, id: str) -> None:
        if self.live.pop(id, None) is not None:
            self.recent.add(id)
