"""Who may decide an approval gate, and when enough people have. An approval is one person's, for one plan."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.core.events import USER

if TYPE_CHECKING:
    from deltaci.core.job import Approve, Job, Reject

MAX_APPROVERS: Final = 100


class Gate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who must approve: so many different people, with this role, and not the one who started the run."""

    role: str = ""
    approvers: int = 1
    not_by_starter: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether any one person will do."""
        return self == PLAIN_GATE


PLAIN_GATE: Final = Gate()


class Approval(msgspec.Struct, frozen=True, array_like=True):
    """One person's word for a gate."""

    person: str
    at: int
    comment: str = ""


def person_name(actor: str) -> str:
    """The name of the person who acts: `user:ada` is `ada`. Empty for everybody else."""
    kind, _, name = actor.partition(":")
    return name if kind == USER else ""


def check_gate(name: str, gate: Gate) -> None:
    """Refuse a gate that nobody could pass as it is written."""
    if not 1 <= gate.approvers <= MAX_APPROVERS:
        raise Refused(
            "bad_request",
            f"job {name!r} asks for {gate.approvers} approvers; a gate has 1 to {MAX_APPROVERS}",
        )


def creation_metadata(gate: Gate, started_by: str) -> dict[str, Any]:
    """What the birth of a gate tells beyond the ordinary, so that the log alone shows who may approve it."""
    told: dict[str, Any] = {}
    if gate.role:
        told["role"] = gate.role
    if gate.approvers != 1:
        told["approvers"] = gate.approvers
    if gate.not_by_starter:
        told.update(not_by_starter=True, started_by=started_by)
    return told


def refusal_reason(gate: Gate, person: str, roles: Collection[str], started_by: str, *, approves: bool) -> str:
    """Why this person may not approve, or reject, at such a gate, in a few words; empty: they may."""
    if not gate.is_plain and not person:
        return "it is decided by people with a name"
    if gate.role and gate.role not in roles:
        return f"it is decided by people with the role {gate.role!r}"
    if approves and gate.not_by_starter and person == started_by:
        return "it is approved by others than who started the run"
    return ""


def check_same_plan(job: Job, plan_hash: str) -> None:
    """Refuse a decision about another plan than this gate's. Who names no plan means the one that is there."""
    if plan_hash and plan_hash != job.plan_hash:
        raise Refused(
            "plan_changed",
            f"job {job.id} belongs to plan {job.plan_hash or '(without a hash)'}, not to {plan_hash}; "
            "read the run again and decide about the plan that it has",
        )


def check_decider(job: Job, command: Approve | Reject, *, approves: bool = False) -> None:
    """Refuse whoever may not decide this gate, and who decides about another plan.

    A starter who may not approve may still reject.
    """
    check_same_plan(job, command.plan_hash)
    why = refusal_reason(job.spec.gate, person_name(command.actor), command.roles, job.started_by, approves=approves)
    if why:
        roles = f"the role {', '.join(command.roles)}" if command.roles else "no role"
        does = "approve" if approves else "reject"
        raise Refused(
            "not_allowed",
            f"{command.actor}, with {roles}, may not {does} job {job.id}: {why}; "
            f"ask one of them ({_approval_count(job)})",
        )


def decision_metadata(job: Job, command: Approve | Reject, approvals: tuple[Approval, ...]) -> dict[str, Any]:
    """What a decision tells: its comment, the plan that it is about, and for more than a plain gate who approved."""
    about: dict[str, Any] = {"comment": command.comment}
    is_plain = job.spec.gate.is_plain
    if job.plan_hash and (command.plan_hash or not is_plain):
        about["plan_hash"] = job.plan_hash
    if not is_plain:
        about["approvers"] = [each.person for each in approvals]
    return about


def _approval_count(job: Job) -> str:
    return f"{len(job.approvals)} of {job.spec.gate.approvers} approvals are given"
