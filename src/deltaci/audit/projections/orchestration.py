"""The views of document 000: runs, job attempts and leases. Their states are nearly the same as ours."""

from __future__ import annotations

from typing import Final

from msgspec import structs

from deltaci.core import attempt as core_attempt
from deltaci.core import lease
from deltaci.core import run as core_run
from deltaci.core.events import ATTEMPT, LEASE, RUN, RUNNER, actor_kind
from deltaci.core.status.view import Change, Edge, Extension, Step, View, project_by_table

_WHILE_UPLOADING: Final = "a runner can die, be cancelled or hang while uploading"

RUN_VIEW: Final = View(
    "000 run",
    "000",
    RUN,
    {state: state for state in core_run.MACHINE.states}
    | {core_run.WAITING_APPROVAL: core_run.RUNNING, core_run.VALIDATING: core_run.RUNNING},
    (
        Edge(None, core_run.CREATED, "ORC-R1"),
        Edge(core_run.CREATED, core_run.PLANNING, "ORC-R1"),
        Edge(core_run.PLANNING, core_run.QUEUED, "ORC-R2"),
        Edge(core_run.PLANNING, core_run.PLAN_FAILED, "ORC-R3"),
        Edge(core_run.PLAN_FAILED, core_run.FAILED, "ORC-R4"),
        Edge(core_run.QUEUED, core_run.RUNNING, "ORC-R5"),
        Edge(core_run.RUNNING, core_run.SUCCESS, "ORC-R6"),
        Edge(core_run.RUNNING, core_run.FAILED, "ORC-R7"),
        Edge(core_run.RUNNING, core_run.CANCEL_REQUESTED, "ORC-R8"),
        Edge(core_run.QUEUED, core_run.CANCEL_REQUESTED, "ORC-R8"),
        Edge(core_run.CANCEL_REQUESTED, core_run.CANCELED, "ORC-R9"),
        Edge(core_run.RUNNING, core_run.TIMEOUT, "ORC-R10"),
        *(Edge(state, core_run.REPORTED, "ORC-R11") for state in core_run.OVER),
    ),
)


def _project_attempt(view: View, previous: str | None, change: Change) -> tuple[tuple[Step, ...], str]:
    """Project an attempt, whose events have document 004's types, to the words of documents 000 and 001."""
    steps, state = project_by_table(view, previous, change)
    return tuple(structs.replace(step, trigger=_attempt_trigger(step, change)) for step in steps), state


def _attempt_trigger(step: Step, change: Change) -> str:
    if change.implied_by:
        return "implied"
    if step.target == core_attempt.STARTING:
        return "AckLease"
    if step.target == core_attempt.TIMED_OUT:
        return "timed_out"
    if step.target == core_attempt.CANCELED:
        if actor_kind(change.actor) != RUNNER:
            return "cancel_forced"
        return "Complete" if change.message in ("Complete", "Finish") else "CancelAck"
    return step.trigger


_BEFORE_UPLOADING: Final = (core_attempt.LEASED, core_attempt.STARTING, core_attempt.RUNNING)

ATTEMPT_VIEW: Final = View(
    "000 attempt",
    "000",
    ATTEMPT,
    {state: state for state in core_attempt.MACHINE.states} | {core_attempt.STALE: core_attempt.QUEUED},
    (
        Edge(None, core_attempt.QUEUED, "ORC-A1"),
        Edge(core_attempt.QUEUED, core_attempt.LEASED, "ORC-A2"),
        Edge(core_attempt.LEASED, core_attempt.STARTING, "ORC-A3"),
        Edge(core_attempt.STARTING, core_attempt.RUNNING, "ORC-A4"),
        Edge(core_attempt.RUNNING, core_attempt.UPLOADING, "ORC-A5"),
        Edge(core_attempt.UPLOADING, core_attempt.SUCCEEDED, "ORC-A6"),
        Edge(core_attempt.UPLOADING, core_attempt.FAILED, "ORC-A6"),
        *(Edge(state, core_attempt.QUEUED, "ORC-A7") for state in _BEFORE_UPLOADING),
        Edge(core_attempt.RUNNING, core_attempt.TIMED_OUT, "ORC-A8"),
        *(Edge(state, core_attempt.CANCEL_REQUESTED, "ORC-A9") for state in (core_attempt.QUEUED, *_BEFORE_UPLOADING)),
        Edge(core_attempt.CANCEL_REQUESTED, core_attempt.CANCELED, "ORC-A10"),
    ),
    (
        Extension(core_attempt.UPLOADING, core_attempt.QUEUED, "001", _WHILE_UPLOADING),
        Extension(core_attempt.UPLOADING, core_attempt.CANCEL_REQUESTED, "001", _WHILE_UPLOADING),
        Extension(core_attempt.UPLOADING, core_attempt.TIMED_OUT, "001", _WHILE_UPLOADING),
        # The view shows STALE as QUEUED, and so STALE → FAILED as QUEUED → FAILED.
        Extension(
            core_attempt.QUEUED, core_attempt.FAILED, "000", "an attempt that lost its lease is retried only if allowed"
        ),
    ),
    _project_attempt,
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
