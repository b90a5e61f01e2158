"""One change to one line of a legal `transitions.jsonl`: those that a validator must see, and those that it cannot.

What cannot be seen is as much a promise as what must be: whoever trusts the file should know where its proof ends.
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
    """A log with one change. `kind` is one of KINDS, or says why the change cannot be seen."""

    kind: str
    lines: list[Line]


def seen(lines: list[Line]) -> Iterator[Forgery]:
    """Every forgery that a validator must refuse."""
    for index, line in enumerate(lines):
        yield from _words(lines, index)
        yield from _numbers(lines, index)
        yield from _times(lines, index)
        if index + 1 < len(lines) and _is_bound(line, lines[index + 1]):
            yield Forgery("order", [*lines[:index], lines[index + 1], line, *lines[index + 2 :]])


def unseen(lines: list[Line]) -> Iterator[Forgery]:
    """Forgeries that leave a legal log: it could have happened like this."""
    for index, line in enumerate(lines):
        told = line["metadata"]
        if line["to_state"] == "running":
            other = {**told, "worker_id": "somebody"}
            yield _told("worker: no other line says who has a task", lines, index, other)
        if line["event_type"] == STREAM and "duration_seconds" in told:
            other = {**told, "duration_seconds": told["duration_seconds"] + 1}
            yield _told("time: how long a workstream took is not recounted", lines, index, other)
        if 0 < index < len(lines) - 1 and "duration_seconds" not in told and line["to_state"] != "running":
            following = lines[index + 1]["timestamp"]
            if line["timestamp"] < following:
                yield _with("time: later, but not after the next line", lines, index, timestamp=following)


def _words(lines: list[Line], index: int) -> Iterator[Forgery]:
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


def _numbers(lines: list[Line], index: int) -> Iterator[Forgery]:
    line, told = lines[index], lines[index]["metadata"]
    if "retry_count" in told:
        for change in (-1, 1):
            yield _told("retry_count", lines, index, {**told, "retry_count": told["retry_count"] + change})
        yield _told("retry_count", lines, index, {**told, "max_retries": told["max_retries"] + 1})
    if line["event_type"] == TASK and line["to_state"] != "running":
        yield _told("worker", lines, index, {**told, "worker_id": "w1"})
    if line["event_type"] == WORKER:
        following = next((each for each in lines[index + 1 :] if each["entity_id"] == line["entity_id"]), None)
        if following is not None or line["from_state"] != "initializing":
            yield _with("worker", lines, index, entity_id="somebody")
        if line["to_state"] == "busy":
            yield _told("worker", lines, index, {**told, "max_concurrent_tasks": told["tasks"] - 1})
        if line["from_state"] == "busy" and line["to_state"] in ("idle", "shutdown"):
            yield _told("worker", lines, index, {**told, "tasks": 1})


def _times(lines: list[Line], index: int) -> Iterator[Forgery]:
    line = lines[index]
    if index:
        yield _with("time", lines, index, timestamp=_moved(lines[index - 1]["timestamp"], -1))
    if index + 1 < len(lines):
        yield _with("time", lines, index, timestamp=_moved(lines[index + 1]["timestamp"], 1))
    if line["event_type"] == TASK and "duration_seconds" in line["metadata"]:
        yield _with("time", lines, index, timestamp=_moved(line["timestamp"], 1))
        told = line["metadata"]
        yield _told("time", lines, index, {**told, "duration_seconds": told["duration_seconds"] + 1})


def _is_bound(first: Line, second: Line) -> bool:
    """Whether the second of two neighbours can only stand after the first.

    Lines of the same moment about different things may stand either way, unless one is the other's reason.
    """
    if first["entity_id"] == second["entity_id"] or first["timestamp"] != second["timestamp"]:
        return True
    told, owner = second["metadata"], first["metadata"].get("workstream_id")
    if second["event_type"] == TASK and first["event_type"] == TASK:
        return first["entity_id"] in told.get("depends_on", ()) and second["to_state"] == "queued"
    if second["event_type"] == TASK and first["event_type"] == STREAM:
        return bool(first["entity_id"] == told["workstream_id"] and first["to_state"] == "ready")
    return bool(owner == second["entity_id"] and second["to_state"] == "validating" and first["to_state"] in OVER)


def _with(kind: str, lines: list[Line], index: int, **fields: Any) -> Forgery:
    return Forgery(kind, [*lines[:index], {**lines[index], **fields}, *lines[index + 1 :]])


def _told(kind: str, lines: list[Line], index: int, metadata: Line) -> Forgery:
    return _with(kind, lines, index, metadata=metadata)


def _moved(timestamp: str, seconds: int) -> str:
    return (datetime.fromisoformat(timestamp) + timedelta(seconds=seconds)).isoformat()
