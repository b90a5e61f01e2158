"""What must hold for an approval gate: who may decide it, and how many must."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaci.audit.verify.log_lines import Job, JobTold, Line
from deltaci.core import job
from deltaci.core.approvals import MAX_APPROVERS, person
from deltaci.core.events import USER, actor_kind

if TYPE_CHECKING:
    from deltaci.audit.verify.canonical import CanonicalVerifier


def born(log: CanonicalVerifier, of: Job, told: JobTold) -> None:
    """A gate is born with whatever makes it more than a plain one; a task has nothing of that."""
    of.is_plain = (told.role, told.approvers, told.not_by_starter) == (None, None, None)
    if of.is_task and not of.is_plain:
        log.bad("MOD-G1", f"task {of.id} is born with a gate", "a gate for an approval only")
    if told.approvers is not None:
        if not isinstance(told.approvers, int) or not 1 < told.approvers <= MAX_APPROVERS:
            log.bad(
                "MOD-G1", f"gate {of.id} asks for approvers {told.approvers}", f"2 to {MAX_APPROVERS}, or none told"
            )
        else:
            of.approvers = told.approvers
    if bool(told.not_by_starter) != (told.started_by is not None) or told.not_by_starter is False:
        log.bad("MOD-G3", f"gate {of.id} tells not_by_starter without started_by, or the other way round", "both")
    of.barred = told.started_by or None


def decided(log: CanonicalVerifier, of: Job, line: Line, told: JobTold) -> None:
    """An approval gate is decided by people who may, each of them counted once, for the plan of its run."""
    if line.from_ != job.WAITING_APPROVAL or line.to == job.CANCELED:
        return
    if of.is_task:
        log.bad("STP-P1", f"task {of.id} is decided by a person", "an approval that waits")
    if line.trigger == "rejected" and (told.reason == job.REJECTED) != (actor_kind(line.actor) == USER):
        log.bad("MOD-8", f"{line.actor} ends the approval {of.id} as {told.reason}", "REJECTED by a person only")
    if told.plan_hash is not None and told.plan_hash != of.run.plan_hash:
        log.bad("MOD-G4", f"gate {of.id} is decided for plan {told.plan_hash}", of.run.plan_hash or "a run with a hash")
    if line.trigger in ("approved", "approval_given"):
        _approved(log, of, line, told)
    wanted = of.approved_by if not of.is_plain and actor_kind(line.actor) == USER else None
    if told.approvers != wanted:
        log.bad("MOD-G2", f"gate {of.id} tells the approvers {told.approvers}", str(wanted))


def _approved(log: CanonicalVerifier, of: Job, line: Line, told: JobTold) -> None:
    who = person(line.actor)
    if not of.is_plain and not who:
        log.bad("MOD-G1", f"gate {of.id} is approved by {line.actor}", "a person with a name")
    if of.barred is not None and who == of.barred:
        log.bad("MOD-G3", f"gate {of.id} is approved by {who}, who started the run", "anybody else")
    if who in of.approved_by:
        log.bad("MOD-G2", f"gate {of.id} is approved by {who} again", "somebody who has not yet")
    of.approved_by.append(who)
    given = len(of.approved_by)
    if (given >= of.approvers) != (line.to == job.SUCCEEDED):
        log.bad("MOD-G2", f"gate {of.id} is {line.to} with {given} of {of.approvers} approvals", "SUCCEEDED with all")
    counts = (None, None) if line.to == job.SUCCEEDED else (given, of.approvers)
    if (told.approvals, told.needed) != counts:
        log.bad(
            "MOD-G2", f"gate {of.id} counts {told.approvals} of {told.needed} approvals", f"{counts[0]} of {counts[1]}"
        )
