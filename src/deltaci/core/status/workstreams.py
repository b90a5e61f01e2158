"""The views of document 003 on tasks, workstreams and workers, with its states in lower case and its triggers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from deltaci.core import job, run, worker
from deltaci.core.events import JOB, RUN, WORKER
from deltaci.core.status.view import LEFT_OUT, SAME, Change, Edge, Extension, Step, View, project_by_table

_CANCEL_REASON: Final = "cancellation reaches a task in any state"


def _project_task(view: View, previous: str | None, change: Change) -> tuple[tuple[Step, ...], str]:
    """Project a job. A task that is reclaimed stays in its state, and the step names its new worker."""
    if (change.source, change.target) == (job.RUNNING, job.RUNNING):
        return (Step("running", "running", change.trigger, change.actor),), "running"
    return project_by_table(view, previous, change)


TASK_VIEW: Final = View(
    "003 task",
    "003",
    JOB,
    {
        job.PENDING: "pending",
        job.QUEUED: "queued",
        job.RUNNING: "running",
        job.VALIDATING: "validating",
        job.RETRYING: "retrying",
        job.WAITING_APPROVAL: LEFT_OUT,
        job.SUCCEEDED: "completed",
        job.FAILED: "failed",
        job.CANCELED: "cancelled",
    },
    (
        Edge(None, "pending", "WST-TI1", ("created",)),
        Edge("pending", "queued", "WST-T1", ("scheduler_assigned",)),
        Edge("queued", "running", "WST-T2", ("worker_started",)),
        Edge("running", "running", "MOD-V1", ("worker_started",)),
        Edge("running", "validating", "WST-T3", ("execution_completed",)),
        Edge("running", "retrying", "WST-T4", ("execution_failed",)),
        Edge("running", "failed", "WST-T5", ("execution_failed",)),
        Edge("running", "cancelled", "WST-T6", ("user_cancelled",)),
        Edge("retrying", "queued", "WST-T7", ("retry_delay_elapsed",)),
        Edge("validating", "completed", "WST-T8", ("validation_passed",)),
        Edge("validating", "failed", "WST-T9", ("validation_failed",)),
    ),
    tuple(
        Extension(state, "cancelled", "000, 002", _CANCEL_REASON)
        for state in ("pending", "queued", "retrying", "validating")
    ),
    _project_task,
)

# Document 003's triggers for the steps of a workstream; the events of our runs have those of document 000.
WORKSTREAM_TRIGGERS: Final = {
    ("planned", "ready"): "all_tasks_created",
    ("ready", "executing"): "first_task_started",
    ("executing", "validating"): "all_tasks_completed",
    ("executing", "failed"): "critical_task_failed",
    ("validating", "completed"): "validation_passed",
    ("validating", "failed"): "validation_failed",
    ("planned", "cancelled"): "user_cancelled",
    ("ready", "cancelled"): "user_cancelled",
    ("executing", "cancelled"): "user_cancelled",
    ("validating", "cancelled"): "user_cancelled",
    ("planned", "failed"): "planning_failed",
}

WORKSTREAM_VIEW: Final = View(
    "003 workstream",
    "003",
    RUN,
    {
        run.CREATED: "planned",
        run.PLANNING: "planned",
        run.PLAN_FAILED: "failed",
        run.QUEUED: "ready",
        run.RUNNING: "executing",
        run.WAITING_APPROVAL: "executing",
        run.VALIDATING: "validating",
        run.SUCCESS: "completed",
        run.FAILED: "failed",
        run.TIMEOUT: "failed",
        run.CANCEL_REQUESTED: SAME,
        run.CANCELED: "cancelled",
        run.REPORTED: SAME,
    },
    (
        Edge(None, "planned", "WST-W1"),
        Edge("planned", "ready", "WST-W1"),
        Edge("ready", "executing", "WST-W2"),
        Edge("executing", "validating", "WST-W3"),
        Edge("executing", "failed", "WST-W4"),
        Edge("validating", "completed", "WST-W5"),
        Edge("validating", "failed", "WST-W6"),
        Edge("planned", "cancelled", "WST-W7"),
        Edge("ready", "cancelled", "WST-W8"),
        Edge("executing", "cancelled", "WST-W9"),
    ),
    (
        Extension("planned", "failed", "000", "planning can fail"),
        Extension("validating", "cancelled", "000", "a run can be cancelled while it is validated"),
    ),
)

WORKER_VIEW: Final = View(
    "003 worker",
    "003",
    WORKER,
    {state: state.lower() for state in worker.MACHINE.states},
    (
        Edge(None, "initializing", "WST-K1", ("registered",)),
        Edge("initializing", "idle", "WST-K1", ("registration_complete",)),
        Edge("idle", "busy", "WST-K2", ("task_assigned",)),
        Edge("busy", "idle", "WST-K3", ("task_completed",)),
        Edge("busy", "unresponsive", "WST-K4", ("health_check_timeout",)),
        Edge("unresponsive", "idle", "WST-K5", ("health_check_recovered",)),
        Edge("unresponsive", "shutdown", "WST-K6", ("max_timeout_exceeded",)),
        Edge("idle", "shutdown", "WST-K7", ("shutdown_requested",)),
        Edge("busy", "shutdown", "WST-K8", ("shutdown_requested",)),
    ),
)


def derive_workstream_state(tasks: Iterable[tuple[str, bool]]) -> str:
    """Return the state that document 003 derives for a workstream from its tasks.

    Each task is its state and whether it is critical.
    """
    task_list = list(tasks)
    states = [state for state, _ in task_list]
    if "running" in states:
        return "executing"
    if all(state == "completed" for state in states):
        return "validating"
    if any(state == "failed" and is_critical for state, is_critical in task_list):
        return "failed"
    if all(state in ("pending", "queued") for state in states):
        return "ready"
    return "executing"


def task_state(job_record: job.Job) -> str:
    """Return the state that document 003 gives to a job; empty for an approval, which is not a task."""
    state = TASK_VIEW.state_map[job_record.state]
    return "" if job_record.spec.kind == job.APPROVAL or state == LEFT_OUT else state


def workstream_state(run_record: run.Run) -> str:
    """Return the state that document 003 gives to a run as a workstream."""
    return WORKSTREAM_VIEW.state_map[run.state_in_views(run_record)]


def worker_state(worker_record: worker.Worker) -> str:
    """Return the state that document 003 gives to a worker."""
    return WORKER_VIEW.state_map[worker_record.state]
