"""Check approval gates: who may approve or reject one, how many people must, and that each is counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaci.audit.verify.log_lines import EventLine, JobMetadata
from deltaci.audit.verify.tracked import TrackedJob
from deltaci.core import job as core_job
from deltaci.core.approvals import MAX_APPROVERS, person_name
from deltaci.core.events import USER, actor_kind

if TYPE_CHECKING:
    from deltaci.audit.verify.canonical import CanonicalVerifier


def check_created(verifier: CanonicalVerifier, job: TrackedJob, metadata: JobMetadata) -> None:
    """Report a new gate whose requirements are inconsistent, or a task that has any; store them in the tracked job."""
    job.is_plain_gate = (metadata.role, metadata.approvers, metadata.not_by_starter) == (None, None, None)
    if job.is_task and not job.is_plain_gate:
        verifier.flag("MOD-G1", f"task {job.id} has the settings of a gate", "a gate for an approval only")
    if metadata.approvers is not None:
        if not isinstance(metadata.approvers, int) or not 1 < metadata.approvers <= MAX_APPROVERS:
            verifier.flag(
                "MOD-G1",
                f"gate {job.id} needs {metadata.approvers} approvers",
                f"2 to {MAX_APPROVERS}, or absent for 1",
            )
        else:
            job.required_approver_count = metadata.approvers
    if bool(metadata.not_by_starter) != (metadata.started_by is not None) or metadata.not_by_starter is False:
        verifier.flag("MOD-G3", f"gate {job.id} has only one of not_by_starter and started_by", "both or neither")
    job.excluded_approver = metadata.started_by or None


def check_decision(verifier: CanonicalVerifier, job: TrackedJob, event: EventLine, metadata: JobMetadata) -> None:
    """Report an approval, rejection or expiry of a gate that breaks a rule.

    The rules: only an approval job is decided; only a person rejects; the decision is about the current plan; the
    approver may approve, and counts once; the gate succeeds with the last required approval; the event lists the
    approvers so far.
    """
    if event.from_ != core_job.WAITING_APPROVAL or event.to == core_job.CANCELED:
        return
    if job.is_task:
        verifier.flag("STP-P1", f"task {job.id} is decided by a person", "a decision about an approval only")
    if event.trigger in ("rejected", "approval_expired") and (metadata.reason == core_job.REJECTED) != (
        actor_kind(event.actor) == USER
    ):
        verifier.flag(
            "MOD-8", f"{event.actor} ends approval {job.id} as {metadata.reason}", "REJECTED by a person only"
        )
    if metadata.plan_hash is not None and metadata.plan_hash != job.run.plan_hash:
        verifier.flag(
            "MOD-G4",
            f"gate {job.id} is decided for plan {metadata.plan_hash}",
            job.run.plan_hash or "a run with a plan hash",
        )
    if event.trigger in ("approved", "approval_given"):
        _check_approval(verifier, job, event, metadata)
    expected_approvers = job.approved_by if not job.is_plain_gate and actor_kind(event.actor) == USER else None
    if metadata.approvers != expected_approvers:
        verifier.flag("MOD-G2", f"gate {job.id} lists the approvers {metadata.approvers}", str(expected_approvers))


def _check_approval(verifier: CanonicalVerifier, job: TrackedJob, event: EventLine, metadata: JobMetadata) -> None:
    approver = person_name(event.actor)
    if not job.is_plain_gate and not approver:
        verifier.flag("MOD-G1", f"gate {job.id} is approved by {event.actor}", "a person with a name")
    if job.excluded_approver is not None and approver == job.excluded_approver:
        verifier.flag("MOD-G3", f"gate {job.id} is approved by {approver}, who started the run", "another person")
    if approver in job.approved_by:
        verifier.flag("MOD-G2", f"gate {job.id} is approved by {approver} again", "one approval of each person")
    job.approved_by.append(approver)
    approval_count = len(job.approved_by)
    if (approval_count >= job.required_approver_count) != (event.to == core_job.SUCCEEDED):
        verifier.flag(
            "MOD-G2",
            f"gate {job.id} is {event.to} with {approval_count} of {job.required_approver_count} approvals",
            "SUCCEEDED exactly with the last one",
        )
    expected_counts = (None, None) if event.to == core_job.SUCCEEDED else (approval_count, job.required_approver_count)
    if (metadata.approvals, metadata.needed) != expected_counts:
        verifier.flag(
            "MOD-G2",
            f"gate {job.id} counts {metadata.approvals} of {metadata.needed} approvals",
            f"{expected_counts[0]} of {expected_counts[1]}",
        )
