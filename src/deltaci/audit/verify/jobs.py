"""What must hold for a job, line by line."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from deltaci.audit.verify import gates
from deltaci.audit.verify.attempts import Check
from deltaci.audit.verify.log_lines import EPOCH, Job, JobTold, Line
from deltaci.core import attempt, job
from deltaci.core.backoff import backoff_seconds

if TYPE_CHECKING:
    from deltaci.audit.verify.canonical import CanonicalVerifier

_MICROSECOND: Final = timedelta(microseconds=1)


def is_met(of: Job) -> bool:
    """Whether who waits for it may go on."""
    return of.state == job.SUCCEEDED or (of.state == job.FAILED and not of.is_required)


def is_lost(of: Job) -> bool:
    """Whether who waits for it never can."""
    return of.state in (job.FAILED, job.CANCELED) and not is_met(of)


def ends_family(of: Job) -> bool:
    """Whether its failure is the end of the rest of its family."""
    return of.is_family_fail_fast and of.is_required and of.state == job.FAILED


def count(of: Job, before: str | None) -> None:
    """Keep the run's counters and the counters of those who wait."""
    now, owner = of.state or "", of.run
    if now == before:
        return
    owner.open += (before is None) - (now in job.TERMINAL)
    owner.active += (now in job.ACTIVE) - (before in job.ACTIVE)
    owner.waiting += (now == job.WAITING_APPROVAL) - (before == job.WAITING_APPROVAL)
    owner.has_run = owner.has_run or now == job.RUNNING
    owner.doomed += of.is_required and now in (job.FAILED, job.CANCELED)
    if is_met(of):
        for waiting in owner.dependents.get(of.id, ()):
            waiting.unmet -= 1
    if now in job.TERMINAL:
        for waiting in owner.followers.get(of.id, ()):
            waiting.unmet -= 1


def born(log: CanonicalVerifier, of: Job, line: Line, told: JobTold) -> None:
    """A job is born while its run is planned, with everything that binds it later."""
    if line.from_ is not None:
        return
    if told.kind is None or told.needs is None or told.is_required is None:
        log.bad("MOD-E1", f"job {of.id} is born without kind, needs or is_required", "all of them")
        return
    if of.run.state != "PLANNING":
        log.bad("ORC-R2", f"job {of.id} is born while its run is {of.run.state}", "a run in PLANNING")
    of.is_task, of.is_required, of.needs = told.kind == job.TASK, told.is_required, told.needs
    of.after = told.after or []
    of.unmet = len({*told.needs, *of.after})
    of.family, of.is_family_fail_fast = told.family or "", bool(told.is_family_fail_fast)
    of.group, of.retry_on = told.group or "", list[str](told.retry_on or ())
    if of.is_task:
        if told.max_attempts is None or told.base_delay_seconds is None or told.max_delay_seconds is None:
            log.bad("MOD-E1", f"task {of.id} is born without max_attempts or its delays", "all of them")
            return
        of.max_attempts, of.base, of.cap = told.max_attempts, told.base_delay_seconds, told.max_delay_seconds
        of.jitter, of.has_validation = told.jitter or 0.0, bool(told.has_validation)
    elif told.max_attempts is not None:
        log.bad(
            "STP-W1", f"approval {of.id} is born with max_attempts {told.max_attempts}", "an approval has no attempt"
        )
    gates.born(log, of, told)
    of.run.jobs[of.id] = of
    for need in told.needs:
        of.run.dependents.setdefault(need, []).append(of)
    for earlier in dict.fromkeys(of.after):
        if earlier not in told.needs:
            of.run.followers.setdefault(earlier, []).append(of)
    if of.family:
        of.run.families.setdefault(of.family, []).append(of)


def opened(log: CanonicalVerifier, of: Job, line: Line, told: JobTold) -> None:
    """A job is set going only when everything that it needs is met, and only as what it is."""
    if line.from_ != job.PENDING:
        return
    if of.unmet:
        open_ = [need for need in of.needs if need not in of.run.jobs or not is_met(of.run.jobs[need])]
        if open_:
            log.bad("WST-TI6", f"job {of.id} is {line.to} while it needs {', '.join(open_)}", "every need met")
        else:
            early = [each for each in of.after if each not in of.run.jobs or not _is_over(of.run.jobs[each])]
            log.bad("MOD-D1", f"job {of.id} is {line.to}, but comes after {', '.join(early)}", "each of these over")
    if of.is_task != (line.to == job.QUEUED):
        log.bad(
            "STP-W1",
            f"job {of.id} is {'a task' if of.is_task else 'an approval'} and goes to {line.to}",
            "what fits its kind",
        )
    if of.run.state not in ("QUEUED", "RUNNING", "WAITING_APPROVAL"):
        log.bad("ORC-C1", f"job {of.id} is set going while its run is {of.run.state}", "no new work in a run that ends")


def queued(log: CanonicalVerifier, of: Job, line: Line, told: JobTold) -> None:
    """One attempt more, within the limit, and not before its time."""
    of.attempts += 1
    if told.attempt_index != of.attempts:
        log.bad("ORC-Y3", f"job {of.id} goes on with attempt {told.attempt_index}", f"attempt {of.attempts}")
    if of.attempts > of.max_attempts:
        log.bad("WST-TI4", f"job {of.id} makes attempt {of.attempts}", f"at most {of.max_attempts}")
    if line.from_ == job.RETRYING and line.at < of.next_run_at:
        log.bad("STP-E3", f"job {of.id} is retried before {of.next_run_at.isoformat()}", "when its backoff is over")


def begun(log: CanonicalVerifier, of: Job, line: Line, told: JobTold) -> None:
    """A job runs because a worker was granted its attempt."""
    current = of.attempt
    if current is None or current.state != attempt.LEASED or told.worker_id != current.worker_id:
        found = (
            f"job {of.id} is begun by {told.worker_id} while its attempt is {current.state if current else 'missing'}"
        )
        log.bad("STP-S1", found, f"its attempt LEASED to {current.worker_id if current else 'a worker'}")
    elif bool(told.is_reclaim) != (line.from_ == job.RUNNING):
        log.bad(
            "STP-S8",
            f"job {of.id}: {line.from_} → RUNNING with is_reclaim={told.is_reclaim}",
            "true for a reclaim only",
        )


def validating(log: CanonicalVerifier, of: Job, line: Line, told: JobTold) -> None:
    """A job is validated when its attempt succeeded."""
    if of.attempt is None or of.attempt.state != attempt.SUCCEEDED or told.attempt_index != of.attempts:
        log.bad("WST-TG3", f"job {of.id} is validated without a successful attempt", "its attempt SUCCEEDED")


def validated(log: CanonicalVerifier, of: Job, line: Line, told: JobTold) -> None:
    """A rule that its runner found broken fails it, and is named; without rules of its own nothing else does."""
    if line.from_ != job.VALIDATING:
        return
    verdict = of.attempt.verdict if of.attempt is not None and of.attempt.is_invalid else None
    if verdict is not None and line.to != job.FAILED:
        log.bad("WST-TG8", f"job {of.id} goes to {line.to} although a rule failed", "FAILED")
    elif verdict is not None and told.details != (verdict.details or None):
        log.bad("WST-TA9", f"job {of.id} fails with {told.details!r}", f"the verdict's {verdict.details!r}")
    elif verdict is None and line.to == job.FAILED and not of.has_validation:
        log.bad("WST-TG9", f"job {of.id} fails its validation, but no rule failed", "SUCCEEDED")


def attempt_failed(log: CanonicalVerifier, of: Job, line: Line, told: JobTold) -> None:
    """Retried while the failure is worth it and attempts remain, failed otherwise; and it says why."""
    if line.from_ != job.RUNNING:
        return
    current = of.attempt
    if current is None or current.state not in (attempt.FAILED, attempt.TIMED_OUT) or current.error is None:
        log.bad("WST-T5", f"job {of.id} goes to {line.to} without a failed attempt", "its attempt FAILED or TIMED_OUT")
        return
    error = current.error
    if (told.failure_class, told.rule, told.code) != (
        error.failure_class,
        error.rule,
        error.code,
    ) or told.line != error.line:
        log.bad(
            "MOD-F3", f"job {of.id} gives another reason than its attempt", f"{error.failure_class} by {error.rule}"
        )
    is_named = not of.retry_on or error.failure_class in of.retry_on
    is_worth = error.is_retryable and is_named and of.attempts < of.max_attempts
    if is_worth != (line.to == job.RETRYING):
        rule = "WST-TG5" if is_worth else "WST-TG4"
        found = (
            f"job {of.id} goes to {line.to} after {of.attempts} of {of.max_attempts} attempts, {error.failure_class}"
        )
        log.bad(rule, found, "RETRYING" if is_worth else "FAILED")
    retries = of.attempts if line.to == job.RETRYING else of.attempts - 1
    if (told.retry_count, told.max_retries, told.attempt_index) != (retries, of.max_attempts - 1, of.attempts):
        found = f"job {of.id} counts {told.retry_count} of {told.max_retries} retries at attempt {told.attempt_index}"
        log.bad("WST-TI4", found, f"{retries} of {of.max_attempts - 1} at attempt {of.attempts}")
    if line.to == job.RETRYING:
        _backoff(log, of, line, told)


def _backoff(log: CanonicalVerifier, of: Job, line: Line, told: JobTold) -> None:
    wait = timedelta(seconds=backoff_seconds(of.attempts, of.base, of.cap))
    fence = of.attempt.fence if of.attempt else EPOCH
    first = max(line.at + wait, fence)
    last = max(line.at + wait * (1 + of.jitter) + _MICROSECOND, fence)
    of.next_run_at = told.next_run_at or EPOCH
    if not first <= of.next_run_at <= last:
        log.bad(
            "STP-E3",
            f"job {of.id} is retried at {of.next_run_at.isoformat()}",
            f"{first.isoformat()}: now + 2^attempts * base",
        )


_RUN_REASONS: Final = {
    job.RUN_CANCELED: ("CANCEL_REQUESTED",),
    job.NOT_NEEDED: ("FAILED", "REPORTED"),
    job.RUN_TIMEOUT: ("TIMEOUT", "REPORTED"),
}


def canceled(log: CanonicalVerifier, of: Job, line: Line, told: JobTold) -> None:
    """A cancelled job says why, and the reason is true."""
    current = of.attempt
    if not told.reason:
        log.bad("MOD-6", f"job {of.id} is cancelled without a reason", "BLOCKED, NOT_NEEDED or who cancelled it")
    if line.from_ in (job.QUEUED, job.RUNNING) and (current is None or current.state != attempt.CANCELED):
        found = f"job {of.id} is cancelled while its attempt is {current.state if current else 'missing'}"
        log.bad("ORC-J3", found, "its attempt CANCELED first")
    elif line.from_ in (job.QUEUED, job.RUNNING) and current is not None and current.cancel_reason != told.reason:
        log.bad("ORC-J3", f"job {of.id} is cancelled for {told.reason}", current.cancel_reason)
    if told.reason == job.BLOCKED and not any(is_lost(of.run.jobs[n]) for n in of.needs if n in of.run.jobs):
        log.bad("MOD-6", f"job {of.id} is BLOCKED, but nothing that it needs was lost", "a failed or cancelled need")
    if told.reason in _RUN_REASONS and line.from_ not in (job.QUEUED, job.RUNNING):
        wanted = _RUN_REASONS[told.reason]
        is_family = told.reason == job.NOT_NEEDED and any(map(ends_family, of.run.families.get(of.family, ())))
        if of.run.state not in wanted and not is_family:
            log.bad("MOD-6", f"job {of.id} is {told.reason} while its run is {of.run.state}", " or ".join(wanted))


CHECKS: Final[dict[str, tuple[Check, ...]]] = {
    job.PENDING: (born,),
    job.QUEUED: (opened, queued),
    job.WAITING_APPROVAL: (opened, gates.decided),
    job.RUNNING: (begun,),
    job.VALIDATING: (validating,),
    job.RETRYING: (attempt_failed,),
    job.SUCCEEDED: (validated, gates.decided),
    job.FAILED: (attempt_failed, validated, gates.decided),
    job.CANCELED: (validated, canceled),
}

# What the newest attempt of a job in this state may be, once its transaction is over.
_ATTEMPT_OF: Final = {
    job.QUEUED: (attempt.QUEUED,),
    job.RUNNING: (attempt.QUEUED, *attempt.HELD, attempt.STALE, attempt.CANCEL_REQUESTED),
    job.VALIDATING: (attempt.SUCCEEDED,),
    job.RETRYING: (attempt.FAILED, attempt.TIMED_OUT),
    job.SUCCEEDED: (attempt.SUCCEEDED,),
    job.FAILED: (attempt.FAILED, attempt.TIMED_OUT, attempt.SUCCEEDED),
}


def settle(log: CanonicalVerifier, of: Job) -> None:
    """After the transaction: the attempt fits, nothing waits that could go on, nothing hopes that is lost."""
    state = of.state or ""
    if of.is_task and state in _ATTEMPT_OF:
        newest = of.attempt
        if newest is None or newest.state not in _ATTEMPT_OF[state] or newest.id != f"{of.id}.{of.attempts}":
            found = f"job {of.id} is {state} and its attempt {newest.state if newest else 'missing'}"
            log.bad("ORC-J2", found, f"attempt {of.attempts} {' or '.join(_ATTEMPT_OF[state])}")
    if state == job.VALIDATING and not of.has_validation:
        log.bad("WST-T8", f"job {of.id} stays VALIDATING, but has no rules", "SUCCEEDED in the same transaction")
    elif state == job.VALIDATING and of.attempt is not None and of.attempt.is_invalid:
        log.bad("WST-T9", f"job {of.id} stays VALIDATING, but a rule failed", "FAILED in the same transaction")
    if state == job.PENDING:
        _settle_pending(log, of)
    if state in job.TERMINAL:
        for waiting in (*of.run.dependents.get(of.id, ()), *of.run.followers.get(of.id, ())):
            _settle_pending(log, waiting)
    if ends_family(of):
        _settle_family(log, of)


def _settle_family(log: CanonicalVerifier, of: Job) -> None:
    for each in of.run.families.get(of.family, ()):
        is_asked = each.attempt is not None and each.attempt.state == attempt.CANCEL_REQUESTED
        if not _is_over(each) and not is_asked:
            found = f"job {each.id} stays {each.state} although {of.id} of its family failed"
            log.bad("MOD-D2", found, "CANCELED, or asked to stop")


def _is_over(of: Job) -> bool:
    return of.state in job.TERMINAL


def _settle_pending(log: CanonicalVerifier, of: Job) -> None:
    if of.state != job.PENDING:
        return
    if any(is_lost(of.run.jobs[need]) for need in of.needs if need in of.run.jobs):
        log.bad("MOD-6", f"job {of.id} stays PENDING although what it needs is lost", "CANCELED as BLOCKED")
    elif of.run.state in ("QUEUED", "RUNNING", "WAITING_APPROVAL") and not of.unmet:
        log.bad("WST-T1", f"job {of.id} stays PENDING although all that it needs is met", "QUEUED or WAITING_APPROVAL")
    elif of.run.state not in ("PLANNING", "QUEUED", "RUNNING", "WAITING_APPROVAL"):
        log.bad("ORC-C1", f"job {of.id} stays PENDING in a run that is {of.run.state}", "CANCELED")
