"""The view of document 002: the coarse status of runs and steps, which is the `status` field everywhere."""

from __future__ import annotations

from typing import Final

from deltaci.core import job, run
from deltaci.core.events import JOB, RUN
from deltaci.core.status.view import SAME, Edge, Extension, View

PENDING: Final = "PENDING"
RUNNING: Final = "RUNNING"
WAITING_APPROVAL: Final = "WAITING_APPROVAL"
SUCCEEDED: Final = "SUCCEEDED"
FAILED: Final = "FAILED"
CANCELED: Final = "CANCELED"

_OPEN: Final = (PENDING, RUNNING, WAITING_APPROVAL)

RUN_VIEW: Final = View(
    "002 run",
    "002",
    RUN,
    {
        run.CREATED: PENDING,
        run.PLANNING: PENDING,
        run.PLAN_FAILED: RUNNING,
        run.QUEUED: PENDING,
        run.RUNNING: RUNNING,
        run.WAITING_APPROVAL: WAITING_APPROVAL,
        run.VALIDATING: RUNNING,
        run.SUCCESS: SUCCEEDED,
        run.FAILED: FAILED,
        run.TIMEOUT: FAILED,
        run.CANCEL_REQUESTED: SAME,  # A process may still run.
        run.CANCELED: CANCELED,
        run.REPORTED: SAME,
    },
    (
        Edge(None, PENDING, "STP-D1"),
        Edge(PENDING, RUNNING, "STP-R1"),
        Edge(RUNNING, WAITING_APPROVAL, "STP-R2"),
        Edge(WAITING_APPROVAL, RUNNING, "STP-R3"),
        Edge(RUNNING, SUCCEEDED, "STP-R4"),
        Edge(WAITING_APPROVAL, SUCCEEDED, "STP-R5"),
        Edge(RUNNING, FAILED, "STP-R6"),
        Edge(WAITING_APPROVAL, FAILED, "STP-R7"),
        *(Edge(state, CANCELED, "STP-R8") for state in _OPEN),
    ),
)

STEP_VIEW: Final = View(
    "002 step",
    "002",
    JOB,
    {
        job.PENDING: PENDING,
        job.QUEUED: PENDING,
        job.RETRYING: PENDING,
        job.RUNNING: RUNNING,
        job.VALIDATING: RUNNING,
        job.WAITING_APPROVAL: WAITING_APPROVAL,
        job.SUCCEEDED: SUCCEEDED,
        job.FAILED: FAILED,
        job.CANCELED: CANCELED,
    },
    (
        Edge(None, PENDING, "STP-O1"),
        Edge(PENDING, RUNNING, "STP-S1"),
        Edge(RUNNING, SUCCEEDED, "STP-S2"),
        Edge(RUNNING, PENDING, "STP-S3"),
        Edge(RUNNING, FAILED, "STP-S4"),
        Edge(PENDING, WAITING_APPROVAL, "STP-S5"),
        Edge(WAITING_APPROVAL, SUCCEEDED, "STP-S6"),
        *(Edge(state, CANCELED, "STP-S7") for state in _OPEN),
    ),
    (Extension(WAITING_APPROVAL, FAILED, "002", "a rejected approval fails, as in document 002's table of runs"),),
)


def run_status(run_record: run.Run) -> str:
    """Return the status that document 002 gives to a run."""
    return RUN_VIEW.state_map[run.state_in_views(run_record)]


def step_status(job_record: job.Job) -> str:
    """Return the status that document 002 gives to a job."""
    return STEP_VIEW.state_map[job_record.state]


def step_attempts(job_record: job.Job) -> int:
    """Return the number of the job's attempts that a worker has claimed: the `attempts` of document 002."""
    return job_record.claimed
