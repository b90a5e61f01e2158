"""The view of document 004: an attempt as a job of the queue.

Document 004 has no cancel and no timeout. When the orchestrator ends an attempt itself, this view shows a takeover: the
job is stalled, claimed by the orchestrator, started and failed.
"""

from __future__ import annotations

from typing import Any, Final

from deltaci.core import attempt
from deltaci.core.errors import InvariantBroken
from deltaci.core.events import ATTEMPT, ORCHESTRATOR, actor_kind
from deltaci.core.events import RUNNER as BY_RUNNER
from deltaci.core.status.view import Change, Edge, Step, View

QUEUED: Final = "queued"
CLAIMED: Final = "claimed"
RUNNING: Final = "running"
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
STALLED: Final = "stalled"

# The projected state "claimed", with the orchestrator as owner.
_CLAIMED_BY_ORCHESTRATOR: Final = "claimed by the orchestrator"

# The document has no event for these triggers, and the worker sent no heartbeat.
_NO_HEARTBEAT: Final = (attempt.UPLOAD_BEGAN, attempt.MARKED_FOR_REASSIGNMENT)

_STATES: Final = {
    attempt.QUEUED: QUEUED,
    attempt.LEASED: CLAIMED,
    attempt.STARTING: CLAIMED,
    attempt.RUNNING: RUNNING,
    attempt.UPLOADING: RUNNING,
    attempt.STALE: STALLED,
    attempt.SUCCEEDED: SUCCEEDED,
    attempt.FAILED: FAILED,
    attempt.TIMED_OUT: FAILED,
    attempt.CANCELED: FAILED,
}


def _project(_view: View, previous: str | None, change: Change) -> tuple[tuple[Step, ...], str]:
    status_before, actor, target_state = (
        CLAIMED if previous == _CLAIMED_BY_ORCHESTRATOR else previous,
        change.actor,
        change.target,
    )
    if target_state == attempt.CANCEL_REQUESTED:
        if change.source == attempt.CANCEL_REQUESTED and not change.implied_by:
            return (Step(status_before, status_before or CLAIMED, "heartbeat", actor),), previous or CLAIMED
        if status_before in (QUEUED, STALLED):
            return (_takeover_step(status_before, CLAIMED, "claimed"),), _CLAIMED_BY_ORCHESTRATOR
        return (), previous or ""
    target_status = _STATES[target_state]
    if target_status == status_before and (change.implied_by or change.trigger in _NO_HEARTBEAT):
        return (), target_status
    if target_status == FAILED and actor_kind(actor) != BY_RUNNER:
        return _takeover_steps(previous), FAILED
    if target_state == attempt.CANCELED and status_before == CLAIMED:
        return _failure_steps(actor), FAILED
    trigger = "heartbeat" if change.trigger == attempt.ACKNOWLEDGED else change.trigger
    is_takeover = target_state == attempt.CANCELED
    return (Step(status_before, target_status, trigger, actor, is_takeover),), target_status


def _takeover_step(source: str | None, target: str, trigger: str, actor: str = ORCHESTRATOR) -> Step:
    return Step(source, target, trigger, actor, is_takeover=True)


def _failure_steps(actor: str = ORCHESTRATOR) -> tuple[Step, ...]:
    return _takeover_step(CLAIMED, RUNNING, "started", actor), _takeover_step(RUNNING, FAILED, "failed", actor)


def _takeover_steps(previous: str | None) -> tuple[Step, ...]:
    if previous == _CLAIMED_BY_ORCHESTRATOR:
        return _failure_steps()
    claim_step = _takeover_step(STALLED, CLAIMED, "claimed")
    if previous == STALLED:
        return (claim_step, *_failure_steps())
    return (_takeover_step(previous, STALLED, "stalled"), claim_step, *_failure_steps())


JOB_VIEW: Final = View(
    "004 job",
    "004",
    ATTEMPT,
    _STATES,
    (
        Edge(None, QUEUED, "QUE-T1", ("enqueued",)),
        Edge(QUEUED, CLAIMED, "QUE-T2", ("claimed",)),
        Edge(STALLED, CLAIMED, "QUE-T3", ("claimed",)),
        Edge(CLAIMED, RUNNING, "QUE-T4", ("started",)),
        Edge(CLAIMED, CLAIMED, "QUE-T5", ("heartbeat",)),
        Edge(RUNNING, RUNNING, "QUE-T6", ("heartbeat",)),
        Edge(RUNNING, SUCCEEDED, "QUE-T7", ("succeeded",)),
        Edge(RUNNING, FAILED, "QUE-T8", ("failed",)),
        Edge(CLAIMED, STALLED, "QUE-T9", ("stalled",)),
        Edge(RUNNING, STALLED, "QUE-T10", ("stalled",)),
        Edge(STALLED, QUEUED, "QUE-T11", ("requeued",)),
    ),
    project=_project,
)


def job_status(attempt_record: attempt.Attempt) -> str:
    """Return the status that document 004 gives to an attempt."""
    if attempt_record.state == attempt.CANCEL_REQUESTED:
        return RUNNING if attempt_record.started_at else CLAIMED
    return _STATES.get(attempt_record.state, QUEUED)


def check_invariants(attempt_record: attempt.Attempt) -> None:
    """Raise `InvariantBroken` if the attempt violates the invariants of document 004.

    Exactly the claimed and running ones have a lease, the succeeded ones a result, and the failed ones an error.
    """
    status = job_status(attempt_record)
    is_owned = status in (CLAIMED, RUNNING)
    value_by_field: dict[str, Any] = {
        "lease": attempt_record.lease,
        "result": attempt_record.result,
        "error": attempt_record.error,
    }
    presence_by_field = {"lease": is_owned, "result": status == SUCCEEDED, "error": status == FAILED}
    for field, is_expected in presence_by_field.items():
        if (value_by_field[field] is not None) != is_expected:
            verb = "needs" if is_expected else "must not have"
            raise InvariantBroken(f"attempt {attempt_record.id} is {status} and {verb} a {field}")
