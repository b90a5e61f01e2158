"""Changes to one line of a legal `transitions.jsonl`: those that a validator must detect, and those that it cannot.

The second list is tested too, because it documents what a valid file does not prove.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

Line = dict[str, Any]

TASK, STREAM, WORKER = "task_state_transition", "workstream_state_transition", "worker_state_transition"
STATES: Final = {
    TASK: ("pending", "queued", "running", "validating", "completed", "failed", "retrying", "cancelled"),
    STREAM: ("planned", "ready", "executing", "validating", "completed", "failed", "cancelled"),
    WORKER: ("initializing", "idle", "busy", "unresponsive", "shutdown"),
}
TRIGGERS: Final = (
    *("scheduler_assigned", "worker_started", "execution_completed", "execution_failed", "user_cancelled"),
    *("retry_delay_elapsed", "validation_passed", "validation_failed", "all_tasks_created", "first_task_started"),
    *("all_tasks_completed", "critical_task_failed", "registration_complete", "task_assigned", "task_completed"),
    *("health_check_timeout", "health_check_recovered", "max_timeout_exceeded", "shutdown_requested"),
)
SEVERITIES: Final = ("info", "warning", "error", "critical")
OVER: Final = ("completed", "failed", "cancelled")
KINDS: Final = ("state", "trigger", "severity", "order", "retry_count", "worker", "time")


class Forgery(NamedTuple):
    """A log with one change. `kind` is one of KINDS, or the reason why the change cannot be detected."""

    kind: str
    lines: list[Line]


def detectable(lines: list[Line]) -> Iterator[Forgery]:
    """Yield the forgeries that a validator must reject."""
    for index, line in enumerate(lines):
        yield from _changed_names(lines, index)
        yield from _changed_numbers(lines, index)
        yield from _changed_times(lines, index)
        if line["event_type"] == TASK and line["to_state"] == "running" and _has_worker_before(lines, index):
            yield _with_metadata("worker", lines, index, {**line["metadata"], "worker_id": "another"})
        if index + 1 < len(lines) and _must_precede(line, lines[index + 1]):
            yield Forgery("order", [*lines[:index], lines[index + 1], line, *lines[index + 2 :]])


def undetectable(lines: list[Line]) -> Iterator[Forgery]:
    """Yield the forgeries that leave a legal log."""
    for index, line in enumerate(lines):
        metadata = line["metadata"]
        if "duration_seconds" in metadata:
            other = {**metadata, "duration_seconds": metadata["duration_seconds"] + 1}
            yield _with_metadata("time: document 003 does not define how a duration is counted", lines, index, other)
        if 0 < index < len(lines) - 1 and "duration_seconds" not in metadata and line["to_state"] != "running":
            following = lines[index + 1]["timestamp"]
            if line["timestamp"] < following:
                yield _with("time: later, but not after the next line", lines, index, timestamp=following)


def _changed_names(lines: list[Line], index: int) -> Iterator[Forgery]:
    line = lines[index]
    for state in STATES[line["event_type"]]:
        for field in ("from_state", "to_state"):
            if line[field] != state:
                yield _with("state", lines, index, **{field: state})
    for trigger in TRIGGERS:
        if line["trigger"] != trigger:
            yield _with("trigger", lines, index, trigger=trigger)
    for severity in SEVERITIES:
        if line["severity"] != severity:
            yield _with("severity", lines, index, severity=severity)


def _changed_numbers(lines: list[Line], index: int) -> Iterator[Forgery]:
    line, metadata = lines[index], lines[index]["metadata"]
    if "retry_count" in metadata:
        for change in (-1, 1):
            yield _with_metadata(
                "retry_count", lines, index, {**metadata, "retry_count": metadata["retry_count"] + change}
            )
        yield _with_metadata("retry_count", lines, index, {**metadata, "max_retries": metadata["max_retries"] + 1})
    if line["event_type"] == TASK and line["to_state"] != "running":
        yield _with_metadata("worker", lines, index, {**metadata, "worker_id": "w1"})
    if line["event_type"] == WORKER:
        following = next((other for other in lines[index + 1 :] if other["entity_id"] == line["entity_id"]), None)
        if following is not None or line["from_state"] != "initializing":
            yield _with("worker", lines, index, entity_id="another")
        if line["to_state"] == "busy":
            yield _with_metadata("worker", lines, index, {**metadata, "max_concurrent_tasks": metadata["tasks"] - 1})
        if line["from_state"] == "busy" and line["to_state"] in ("idle", "shutdown"):
            yield _with_metadata("worker", lines, index, {**metadata, "tasks": 1})


def _changed_times(lines: list[Line], index: int) -> Iterator[Forgery]:
    if index:
        yield _with("time", lines, index, timestamp=_shifted(lines[index - 1]["timestamp"], -1))
    if index + 1 < len(lines):
        yield _with("time", lines, index, timestamp=_shifted(lines[index + 1]["timestamp"], 1))


def _has_worker_before(lines: list[Line], index: int) -> bool:
    return any("export_version" in line["metadata"] for line in lines[:index])


def _must_precede(first: Line, second: Line) -> bool:
    """Return whether two neighbouring lines must have this order.

    Lines of different entities with the same time may have either order, unless one causes the other.
    """
    if first["entity_id"] == second["entity_id"] or first["timestamp"] != second["timestamp"]:
        return True
    metadata, workstream_id = second["metadata"], first["metadata"].get("workstream_id")
    if second["event_type"] == TASK and first["event_type"] == TASK:
        return first["entity_id"] in metadata.get("depends_on", ()) and second["to_state"] == "queued"
    if second["event_type"] == TASK and first["event_type"] == STREAM:
        # A task may be cancelled after its workstream was: the validator has forgotten that workstream by then.
        is_cancelled = second["to_state"] == "cancelled"
        return bool(
            first["entity_id"] == metadata["workstream_id"] and first["to_state"] == "ready" and not is_cancelled
        )
    return bool(
        workstream_id == second["entity_id"] and second["to_state"] == "validating" and first["to_state"] in OVER
    )


def _with(kind: str, lines: list[Line], index: int, **fields: Any) -> Forgery:
    return Forgery(kind, [*lines[:index], {**lines[index], **fields}, *lines[index + 1 :]])


def _with_metadata(kind: str, lines: list[Line], index: int, metadata: Line) -> Forgery:
    return _with(kind, lines, index, metadata=metadata)


def _shifted(timestamp: str, seconds: int) -> str:
    return (datetime.fromisoformat(timestamp) + timedelta(seconds=seconds)).isoformat()
