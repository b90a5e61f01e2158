"""What must hold for a run, line by line."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from deltaci.audit.verify.attempts import Check
from deltaci.audit.verify.log_lines import Line, Run, RunTold
from deltaci.core import attempt, job, run

if TYPE_CHECKING:
    from deltaci.audit.verify.canonical import CanonicalVerifier


def identity(log: CanonicalVerifier, of: Run, line: Line, told: RunTold) -> None:
    """A run's event belongs to the run itself."""
    if line.run_id != of.id:
        log.bad("MOD-E1", f"run {of.id} has run_id {line.run_id!r}", repr(of.id))


def born(log: CanonicalVerifier, of: Run, line: Line, told: RunTold) -> None:
    """A run is born with what binds it later; a cancel that comes too early is remembered."""
    if line.from_ is None:
        if told.is_fail_fast is None or told.has_validation is None or told.timeout_seconds is None:
            log.bad(
                "MOD-E1", f"run {of.id} is born without is_fail_fast, has_validation or timeout_seconds", "all of them"
            )
            return
        of.is_fail_fast, of.has_validation = told.is_fail_fast, told.has_validation
        of.timeout = timedelta(seconds=min(told.timeout_seconds, 10**9))
    else:
        remembered(log, of, line, told)


def remembered(log: CanonicalVerifier, of: Run, line: Line, told: RunTold) -> None:
    """A cancel before the plan is remembered once."""
    if line.from_ == line.to:
        if of.cancel_reason or not told.reason or not told.is_remembered:
            log.bad("MOD-3", f"run {of.id} remembers a cancel again, or without a reason", "once, with its reason")
        of.cancel_reason = told.reason or "?"


def planning(log: CanonicalVerifier, of: Run, line: Line, told: RunTold) -> None:
    """Planning has a deadline."""
    if line.from_ == run.CREATED:
        if told.plan_by is None or told.plan_by <= line.at:
            log.bad("ORC-R3", f"run {of.id} is planned without a deadline ahead", "plan_by")
        of.plan_by = told.plan_by or line.at
    else:
        remembered(log, of, line, told)


def planned(log: CanonicalVerifier, of: Run, line: Line, told: RunTold) -> None:
    """All jobs exist, none was forgotten, and the plan came in time."""
    of.plan_hash = told.plan_hash or ""
    if told.is_fail_fast is not None:
        of.is_fail_fast = told.is_fail_fast
    if told.timeout_seconds is not None:
        of.timeout = timedelta(seconds=min(told.timeout_seconds, 10**9))
    if line.at >= of.plan_by:
        log.bad("ORC-R3", f"the plan of run {of.id} came late", f"PLAN_FAILED, from {of.plan_by.isoformat()} on")
    if told.jobs != len(of.jobs):
        log.bad("WST-WG1", f"run {of.id} is planned with {told.jobs} jobs", f"{len(of.jobs)}, as many as were born")
    for each in of.jobs.values():
        unknown = [need for need in (*each.needs, *each.after) if need not in of.jobs]
        if unknown:
            log.bad("WST-TG1", f"job {each.id} waits for {', '.join(unknown)}", "jobs of its run")


def active(log: CanonicalVerifier, of: Run, line: Line, told: RunTold) -> None:
    """A run starts with its first claim or its first open approval, and goes on when one can progress."""
    if line.from_ == run.QUEUED:
        of.started_at = line.at
        causes = {"job_started": of.has_run, "approval_opened": of.waiting > 0 and not of.has_run}
        causes["nothing_to_run"] = not of.open or (of.is_fail_fast and of.doomed > 0)
        if not causes.get(told.cause or ""):
            log.bad(
                "ORC-R5", f"run {of.id} is RUNNING, but none of its jobs is", "a job under way, or an open approval"
            )
    elif of.waiting and not of.active:
        log.bad("MOD-8", f"run {of.id} goes on while it only waits for approval", "WAITING_APPROVAL")


def waiting(log: CanonicalVerifier, of: Run, line: Line, told: RunTold) -> None:
    """A run waits exactly while a job waits and no other can progress."""
    if not of.waiting or of.active:
        log.bad(
            "MOD-8",
            f"run {of.id} waits with {of.waiting} jobs waiting and {of.active} going on",
            "one waiting, none going on",
        )


def done(log: CanonicalVerifier, of: Run, line: Line, told: RunTold) -> None:
    """Every job is over and no required one was lost."""
    if of.open or of.doomed:
        log.bad(
            "ORC-RF1",
            f"run {of.id} is {line.to} with {of.open} jobs open and {of.doomed} lost",
            "all required jobs SUCCEEDED",
        )


def failed(log: CanonicalVerifier, of: Run, line: Line, told: RunTold) -> None:
    """A required job was lost, and nothing else can progress unless the run fails fast."""
    if line.from_ not in (run.RUNNING, run.WAITING_APPROVAL):
        return
    if not of.doomed or (of.open and not of.is_fail_fast):
        log.bad(
            "MOD-7", f"run {of.id} fails with {of.doomed} jobs lost and {of.open} open", "a lost job, and no other open"
        )
    lost = of.jobs.get(told.job_id or "")
    if lost is None or not lost.is_required or lost.state not in (job.FAILED, job.CANCELED):
        log.bad("ORC-R7", f"run {of.id} fails for job {told.job_id!r}", "a required job that was lost")


def timed_out(log: CanonicalVerifier, of: Run, line: Line, told: RunTold) -> None:
    """Not before its time is over."""
    if line.at < of.started_at + of.timeout:
        log.bad("ORC-R10", f"run {of.id} times out early", f"not before {(of.started_at + of.timeout).isoformat()}")


def cancel_requested(log: CanonicalVerifier, of: Run, line: Line, told: RunTold) -> None:
    """A cancel has a reason; a remembered one keeps its own."""
    if line.from_ != line.to:
        if not told.reason or (of.cancel_reason and told.reason != of.cancel_reason):
            log.bad("ORC-R8", f"run {of.id} is to be cancelled for {told.reason!r}", of.cancel_reason or "a reason")
        of.cancel_reason = told.reason or "?"


def canceled(log: CanonicalVerifier, of: Run, line: Line, told: RunTold) -> None:
    """Every job is over."""
    if of.open:
        log.bad("ORC-RF3", f"run {of.id} is CANCELED with {of.open} jobs open", "every job over")
    if told.reason != of.cancel_reason:
        log.bad("ORC-RF3", f"run {of.id} is CANCELED for {told.reason!r}", repr(of.cancel_reason))


def ending(log: CanonicalVerifier, of: Run, line: Line, told: RunTold) -> None:
    """From here on nothing of the run goes on: see `_settle_rest`."""
    of.is_ending = line.from_ != line.to


def reported(log: CanonicalVerifier, of: Run, line: Line, told: RunTold) -> None:
    """The conclusion keeps the outcome."""
    if told.conclusion != line.from_:
        log.bad("MOD-9", f"run {of.id} is reported as {told.conclusion}", str(line.from_))


CHECKS: Final[dict[str, tuple[Check, ...]]] = {
    run.CREATED: (identity, born),
    run.PLANNING: (identity, planning),
    run.PLAN_FAILED: (identity,),
    run.QUEUED: (identity, planned),
    run.RUNNING: (identity, active),
    run.WAITING_APPROVAL: (identity, waiting),
    run.VALIDATING: (identity, done),
    run.SUCCESS: (identity, done),
    run.FAILED: (identity, failed, ending),
    run.TIMEOUT: (identity, timed_out, ending),
    run.CANCEL_REQUESTED: (identity, cancel_requested, ending),
    run.CANCELED: (identity, canceled),
    run.REPORTED: (identity, reported),
}


def settle(log: CanonicalVerifier, of: Run) -> None:
    """After the transaction: the run stands as its jobs do, and whoever it no longer needs was told."""
    state, wrong = of.state, ""
    if of.is_ending:
        of.is_ending = False
        _settle_rest(log, of)
    if state == run.CANCEL_REQUESTED and not of.open:
        wrong = "CANCELED, since every job is over"
    elif state == run.PLAN_FAILED:
        wrong = "FAILED, since there is no plan"
    elif state == run.VALIDATING and not of.has_validation:
        wrong = "SUCCESS, since there is nothing to validate"
    elif state in (run.QUEUED, run.RUNNING, run.WAITING_APPROVAL):
        if of.cancel_reason:
            wrong = "CANCEL_REQUESTED, since a cancel is remembered"
        elif of.doomed and (of.is_fail_fast or not of.open):
            wrong = "FAILED, since a required job was lost"
        elif not of.open:
            wrong = "VALIDATING, since every job is over"
        elif (of.waiting > 0 and not of.active) != (state == run.WAITING_APPROVAL):
            wrong = "RUNNING" if state == run.WAITING_APPROVAL else "WAITING_APPROVAL, since only people can go on"
        elif state == run.QUEUED and of.has_run:
            wrong = "RUNNING, since a job runs"
    if wrong:
        log.bad(
            "WST-WI1",
            f"run {of.id} stays {state} with {of.open} open, {of.active} active, {of.waiting} waiting jobs",
            wrong,
        )


def _settle_rest(log: CanonicalVerifier, of: Run) -> None:
    """When a run ends, every job is over or was asked to stop."""
    for each in of.jobs.values():
        if each.state not in job.TERMINAL and (each.attempt is None or each.attempt.state != attempt.CANCEL_REQUESTED):
            log.bad(
                "ORC-C1", f"job {each.id} stays {each.state} when its run is {of.state}", "CANCELED, or asked to stop"
            )
