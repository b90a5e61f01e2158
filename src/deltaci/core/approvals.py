"""Approval gates: who may approve or reject one, and when enough people have approved.

An approval is given by one person for one plan.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.core.events import USER

if TYPE_CHECKING:
    from deltaci.core.job import Approve, Job, Reject

MAX_APPROVERS: Final = 100
EXPIRY_SECONDS: Final = 30 * 86_400  # Of a gate that names no other time.


class Gate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The requirements of an approval gate: `approvers` different people must approve, each with `role` if it is set.

    With `not_by_starter`, the person who started the run cannot be one of them.
    """

    role: str = ""
    approvers: int = 1
    not_by_starter: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the gate has the default requirements: one approval, by any person."""
        return self == PLAIN_GATE


PLAIN_GATE: Final = Gate()


class Approval(msgspec.Struct, frozen=True, array_like=True):
    """The approval of a gate by one person."""

    person: str
    at: int
    comment: str = ""


def person_name(actor: str) -> str:
    """Return the name of the person behind an actor, such as `ada` for `user:ada`; empty for other kinds of actors."""
    kind, _, name = actor.partition(":")
    return name if kind == USER else ""


def check_gate(job_name: str, gate: Gate) -> None:
    """Refuse a gate of the job `job_name` unless it requires 1 to MAX_APPROVERS approvers."""
    if not 1 <= gate.approvers <= MAX_APPROVERS:
        raise Refused(
            "bad_request",
            f"job {job_name!r} asks for {gate.approvers} approvers; a gate has 1 to {MAX_APPROVERS}",
        )


def creation_metadata(gate: Gate, started_by: str) -> dict[str, Any]:
    """Return the requirements of the gate that are not the default, for the event that creates its job.

    Thus the log alone shows who may approve.
    """
    event_metadata: dict[str, Any] = {}
    if gate.role:
        event_metadata["role"] = gate.role
    if gate.approvers != 1:
        event_metadata["approvers"] = gate.approvers
    if gate.not_by_starter:
        event_metadata.update(not_by_starter=True, started_by=started_by)
    return event_metadata


def refusal_reason(gate: Gate, person: str, roles: Collection[str], started_by: str, *, approves: bool) -> str:
    """Return a short text that says why this person may not approve or reject at this gate; empty if they may."""
    if not gate.is_plain and not person:
        return "it is decided by people with a name"
    if gate.role and gate.role not in roles:
        return f"it is decided by people with the role {gate.role!r}"
    if approves and gate.not_by_starter and person == started_by:
        return "it is approved by others than who started the run"
    return ""


def check_same_plan(job: Job, plan_hash: str) -> None:
    """Refuse an approval or rejection of another plan than the gate's. An empty `plan_hash` means the gate's plan."""
    if plan_hash and plan_hash != job.plan_hash:
        raise Refused(
            "plan_changed",
            f"job {job.id} belongs to plan {job.plan_hash or '(without a hash)'}, not to {plan_hash}; "
            "read the run again and decide about the plan that it has",
        )


def check_decider(job: Job, command: Approve | Reject, *, approves: bool = False) -> None:
    """Refuse an approval or rejection by a person who may not make it, or of another plan than the gate's.

    With `not_by_starter`, the person who started the run may not approve, but may reject.
    """
    check_same_plan(job, command.plan_hash)
    refusal_text = refusal_reason(
        job.spec.gate, person_name(command.actor), command.roles, job.started_by, approves=approves
    )
    if refusal_text:
        roles_text = f"the role {', '.join(command.roles)}" if command.roles else "no role"
        verb = "approve" if approves else "reject"
        raise Refused(
            "not_allowed",
            f"{command.actor}, with {roles_text}, may not {verb} job {job.id}: {refusal_text}; "
            f"ask one of them ({_approval_progress(job)})",
        )


def decision_metadata(job: Job, command: Approve | Reject, approvals: tuple[Approval, ...]) -> dict[str, Any]:
    """Return the event metadata of an approval or rejection: the comment, the plan hash and the approvers so far.

    The approvers are omitted for a plain gate, and so is the plan hash unless the command names one.
    """
    event_metadata: dict[str, Any] = {"comment": command.comment}
    is_plain = job.spec.gate.is_plain
    if job.plan_hash and (command.plan_hash or not is_plain):
        event_metadata["plan_hash"] = job.plan_hash
    if not is_plain:
        event_metadata["approvers"] = [approval.person for approval in approvals]
    return event_metadata


def _approval_progress(job: Job) -> str:
    return f"{len(job.approvals)} of {job.spec.gate.approvers} approvals are given"
