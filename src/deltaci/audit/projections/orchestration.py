"""Document 000's eyes: runs, job attempts and leases, nearly word for word ours."""

from __future__ import annotations

from typing import Final

from deltaci.core import attempt, lease, run
from deltaci.core.events import ATTEMPT, LEASE, RUN
from deltaci.core.status.view import Edge, Extension, View

_SILENT: Final = "a runner can die, be cancelled or hang while uploading"

RUN_VIEW: Final = View(
    "000 run",
    "000",
    RUN,
    {state: state for state in run.MACHINE.states} | {run.WAITING_APPROVAL: run.RUNNING, run.VALIDATING: run.RUNNING},
    (
        Edge(None, run.CREATED, "ORC-R1"),
        Edge(run.CREATED, run.PLANNING, "ORC-R1"),
        Edge(run.PLANNING, run.QUEUED, "ORC-R2"),
        Edge(run.PLANNING, run.PLAN_FAILED, "ORC-R3"),
        Edge(run.PLAN_FAILED, run.FAILED, "ORC-R4"),
        Edge(run.QUEUED, run.RUNNING, "ORC-R5"),
        Edge(run.RUNNING, run.SUCCESS, "ORC-R6"),
        Edge(run.RUNNING, run.FAILED, "ORC-R7"),
        Edge(run.RUNNING, run.CANCEL_REQUESTED, "ORC-R8"),
        Edge(run.QUEUED, run.CANCEL_REQUESTED, "ORC-R8"),
        Edge(run.CANCEL_REQUESTED, run.CANCELED, "ORC-R9"),
        Edge(run.RUNNING, run.TIMEOUT, "ORC-R10"),
        *(Edge(state, run.REPORTED, "ORC-R11") for state in run.OVER),
    ),
)

_UNTIL_RUNNING: Final = (attempt.LEASED, attempt.STARTING, attempt.RUNNING)

ATTEMPT_VIEW: Final = View(
    "000 attempt",
    "000",
    ATTEMPT,
    {state: state for state in attempt.MACHINE.states} | {attempt.STALE: attempt.QUEUED},
    (
        Edge(None, attempt.QUEUED, "ORC-A1"),
        Edge(attempt.QUEUED, attempt.LEASED, "ORC-A2"),
        Edge(attempt.LEASED, attempt.STARTING, "ORC-A3"),
        Edge(attempt.STARTING, attempt.RUNNING, "ORC-A4"),
        Edge(attempt.RUNNING, attempt.UPLOADING, "ORC-A5"),
        Edge(attempt.UPLOADING, attempt.SUCCEEDED, "ORC-A6"),
        Edge(attempt.UPLOADING, attempt.FAILED, "ORC-A6"),
        *(Edge(state, attempt.QUEUED, "ORC-A7") for state in _UNTIL_RUNNING),
        Edge(attempt.RUNNING, attempt.TIMED_OUT, "ORC-A8"),
        *(Edge(state, attempt.CANCEL_REQUESTED, "ORC-A9") for state in (attempt.QUEUED, *_UNTIL_RUNNING)),
        Edge(attempt.CANCEL_REQUESTED, attempt.CANCELED, "ORC-A10"),
    ),
    (
        Extension(attempt.UPLOADING, attempt.QUEUED, "001", _SILENT),
        Extension(attempt.UPLOADING, attempt.CANCEL_REQUESTED, "001", _SILENT),
        Extension(attempt.UPLOADING, attempt.TIMED_OUT, "001", _SILENT),
        # STALE is shown as QUEUED, so STALE → FAILED is seen as QUEUED → FAILED.
        Extension(attempt.QUEUED, attempt.FAILED, "000", "an attempt that lost its lease is retried only if allowed"),
    ),
)

LEASE_VIEW: Final = View(
    "000 lease",
    "000",
    LEASE,
    {state: state for state in lease.MACHINE.states},
    (
        Edge(None, lease.GRANTED, "ORC-A2"),
        Edge(lease.GRANTED, lease.ACTIVE, "ORC-L1"),
        *(Edge(state, lease.EXPIRED, "ORC-L2") for state in (lease.GRANTED, lease.ACTIVE)),
        Edge(lease.ACTIVE, lease.COMPLETED, "ORC-L3"),
        Edge(lease.ACTIVE, lease.CANCELED, "ORC-L4"),
        *(Edge(state, lease.REVOKED, "ORC-L5") for state in (lease.GRANTED, lease.ACTIVE)),
    ),
)
