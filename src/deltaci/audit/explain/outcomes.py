"""How something ended, and because of what, followed to where it began."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from deltaci.audit.explain import failures
from deltaci.audit.explain.context import ExplainContext
from deltaci.audit.explain.formatting import count, duration, listed, moment, person, saying, shown, times
from deltaci.audit.explain.reasons import Clause
from deltaci.core import attempt, job, run
from deltaci.core.attempt import Attempt
from deltaci.core.events import ORCHESTRATOR, Event
from deltaci.core.instants import SECOND
from deltaci.core.job import Job
from deltaci.core.run import Run

MAX_LINKS: Final = 5

# Reasons of a cancel that are no news beside who cancelled what.
_PLAIN: Final = frozenset({"", job.RUN_CANCELED, job.JOB_CANCELED, "CANCELED"})
_SUPERSEDED: Final = "SUPERSEDED"


def given(reason: str) -> str:
    """Why somebody cancelled, where they said so."""
    if reason in _PLAIN:
        return ""
    if reason == _SUPERSEDED:
        return ", because a newer run took its place"
    return saying(reason.removeprefix("“").removesuffix("”"))  # What could be taken for ours is quoted already.


# -- attempts


def attempt_end(story: ExplainContext, of: Attempt) -> Clause:
    """How the attempt ended."""
    event = story.last(of.id)
    on = f" on worker {shown(of.ended_lease.worker_id)}" if of.ended_lease is not None else ""
    if of.state == attempt.SUCCEEDED:
        return Clause("succeeded", f"succeeded{on}", of.id, event)
    if of.state == attempt.CANCELED:
        return _attempt_canceled(story, of, event)
    failure = of.error
    if of.state == attempt.TIMED_OUT:
        limit = duration(of.timeout_seconds * SECOND)
        text = f"was ended{on}, because it ran for longer than the {limit} that it may"
        return Clause("timed_out", text, of.id, event, "Give it more time with timeout_seconds, or make it faster.")
    if of.lost_leases > of.max_lost_leases:
        most = of.max_lost_leases
        allowed = f"only {count(most, 'loss')} {'is' if most == 1 else 'are'} allowed" if most else "none is allowed"
        text = f"was given up, because workers lost it {times(of.lost_leases)} and {allowed}"
        return Clause("lost_too_often", text, of.id, event)
    exit_code = event.metadata.get("exit_code") if event is not None else None
    if failure is None:
        return Clause("failed", f"failed{on}", of.id, event)
    text = f"failed{on}: {failures.what(failure, exit_code)}"
    return Clause("failed", text, of.id, event, f"{failures.whose(failure)}.")


def _attempt_canceled(story: ExplainContext, of: Attempt, event: Event | None) -> Clause:
    text = f"was cancelled{asked_by(story, of)}"
    lost = of.ended_lease
    if event is not None and event.metadata.get("is_forced") and lost is not None and event.metadata.get("lease"):
        advice = f"Worker {shown(lost.worker_id)} did not say in time that it stopped: it was ended without it."
        return Clause("forced", text, of.id, event, advice)
    return Clause("canceled", text, of.id, event)


def _by(story: ExplainContext, id: str) -> str:
    """Who asked for the stop of this record, as far as that is a person."""
    asked = story.last(id, "cancel_requested", "user_cancelled")
    return f" by {person(asked.actor)}" if asked is not None and asked.actor != ORCHESTRATOR else ""


def asked_by(story: ExplainContext, of: Attempt) -> str:
    """By whom and why the attempt is or was stopped."""
    known = story.jobs.get(of.job_id)
    if known is not None and (failed := _family_failure(story, known, of.cancel_reason)):
        return failed
    by = "" if is_by_run(story, of.cancel_reason) else _by(story, of.id)
    return f"{by}{because(story, of.cancel_reason)}"


def is_by_run(story: ExplainContext, reason: str) -> bool:
    """Whether it is the run's end that stopped a job, and not somebody who meant this job and used the same word."""
    told = _BY_RUN.get(reason)
    return told is not None and (story.run is None or (story.run.conclusion or story.run.state) in told[0])


def because(story: ExplainContext, reason: str) -> str:
    """Why a job or an attempt was stopped; what the run says of itself, where the run is the cause."""
    return _BY_RUN[reason][1](story) if is_by_run(story, reason) else given(reason)


def _with_run(story: ExplainContext) -> str:
    return f", as its whole run was{run_cancel(story)}"


def _after_timeout(story: ExplainContext) -> str:
    limit = f" of {duration(story.run.timeout_seconds * SECOND)}" if story.run is not None else ""
    return f", because the time{limit} for the whole run was over"


def _not_needed(story: ExplainContext) -> str:
    first = story.jobs.get(story.run.tally.first_doomed) if story.run is not None else None
    if first is None:
        return ", because its run had ended"
    return (
        f", because {shown(first.spec.name)} {_SHORT.get(first.state, 'ended')} and the run stops at the first failure"
    )


_SHORT: Final = {job.FAILED: "failed", job.CANCELED: "was cancelled", job.SUCCEEDED: "succeeded"}
# Why a run stops its jobs: how such a run stands, and what is said of it.
_BY_RUN: Final[dict[str, tuple[tuple[str, ...], Callable[[ExplainContext], str]]]] = {
    job.RUN_CANCELED: ((run.CANCEL_REQUESTED, run.CANCELED), _with_run),
    job.RUN_TIMEOUT: ((run.TIMEOUT,), _after_timeout),
    job.NOT_NEEDED: ((run.FAILED,), _not_needed),
}


# -- jobs


def job_end(story: ExplainContext, of: Job) -> Clause:
    """How the job ended; a blocked one is followed to the job that began it."""
    event = story.last(of.id)
    if of.state == job.SUCCEEDED:
        return _job_succeeded(of, event)
    if of.state == job.CANCELED:
        return _blocked(story, of, event) if _is_blocked(story, of) else _job_canceled(story, of, event)
    if of.spec.kind == job.APPROVAL:
        return _not_approved(of, event)
    # What a runner calls its failure is free: only the event tells whether it was the validation.
    if event.trigger == "validation_failed" if event is not None else of.reason == "VALIDATION_FAILED":
        said = saying(of.last_error.line) if of.last_error is not None else ""
        text = f"failed, because its result did not pass the validation{said}"
        return Clause("validation_failed", text, of.id, event)
    return not_retried(story, of, event)


def _not_approved(of: Job, event: Event | None) -> Clause:
    if of.reason == job.APPROVAL_EXPIRED:
        done = f"only {len(of.approvals)} of {of.spec.gate.approvers} people" if of.approvals else "nobody"
        text = f"failed, because {done} approved it by {moment(of.approve_by)}"
        return Clause("approval_expired", text, of.id, event)
    by = f" by {person(event.actor)}" if event is not None else ""
    said = saying(event.metadata.get("comment")) if event is not None else ""
    return Clause("rejected", f"was rejected{by}{said}", of.id, event)


def _job_succeeded(of: Job, event: Event | None) -> Clause:
    if of.spec.kind != job.APPROVAL:
        return Clause("succeeded", f"succeeded with attempt {of.attempts}", of.id, event)
    people = [each.person for each in of.approvals if each.person]
    by = f" by {listed(people, 8)}" if people else f" by {person(event.actor)}" if event is not None else ""
    said = saying(event.metadata.get("comment")) if event is not None else ""
    return Clause("approved", f"was approved{by}{said}", of.id, event)


def not_retried(story: ExplainContext, of: Job, event: Event | None) -> Clause:
    """The job's last failure, and why there was no other attempt."""
    last, failure = story.attempt_of(of), of.last_error
    if failure is None:
        return Clause("not_retried", "failed", of.id, event)
    ended = story.last(last.id) if last is not None else None
    exit_code = ended.metadata.get("exit_code") if ended is not None else None
    text = f"failed: {failures.what(failure, exit_code)}"
    known = failures.known_flaky(last.report if last is not None else None, story.around.flaky.get(of.spec.name))
    why = failures.why_not_again(failure, of.attempts, of.spec.max_attempts, of.spec.retry_on)
    return Clause(
        "not_retried", text, of.id, event, " ".join((f"{failures.whose(failure)}.", *filter(None, (known, why))))
    )


def _family_failure(story: ExplainContext, of: Job, reason: str) -> str:
    """Which failure ended the job's family before its own end, if that is why it was not needed."""
    if reason != job.NOT_NEEDED or not of.spec.family or (story.run is not None and story.run.is_fail_fast):
        return ""
    kin = (each for each in story.jobs.values() if each.spec.family == of.spec.family and job.fails_family(each))
    earlier = [each for each in kin if not of.completed_at or each.completed_at <= of.completed_at]
    first = min(earlier, key=lambda each: each.completed_at, default=None)
    if first is None:
        return ""
    return (
        f", because {shown(first.spec.name)} failed and the jobs of {shown(of.spec.family)} stop at the first failure"
    )


def _job_canceled(story: ExplainContext, of: Job, event: Event | None) -> Clause:
    if failed := _family_failure(story, of, of.reason):
        return Clause("not_needed", f"was not needed any more{failed}", of.id, event)
    if of.reason == job.NOT_NEEDED and is_by_run(story, of.reason):
        return Clause("not_needed", f"was not needed any more{because(story, of.reason)}", of.id, event)
    last = story.attempt_of(of)
    stopped = last if last is not None and last.state == attempt.CANCELED else None
    text = f"was cancelled{_by_whom(story, of, stopped)}{because(story, of.reason)}"
    return Clause("canceled", text, of.id, event)


def _by_whom(story: ExplainContext, of: Job, stopped: Attempt | None) -> str:
    if is_by_run(story, of.reason):
        return ""
    return _by(story, stopped.id if stopped is not None else of.id)


def _is_blocked(story: ExplainContext, of: Job) -> bool:
    """Whether a need kept the job from starting: nobody but us says so, and only of a job that has not begun."""
    if of.state != job.CANCELED or of.reason != job.BLOCKED:
        return False
    event = story.last(of.id)
    return event is None or (event.actor == ORCHESTRATOR and event.from_ == job.PENDING)


def _blocked(story: ExplainContext, of: Job, event: Event | None) -> Clause:
    path = [of]
    while _is_blocked(story, path[-1]) and len(path) <= len(story.jobs):
        cause = _cause(story, path[-1])
        if cause is None:
            break
        path.append(cause)
    root = path[-1]
    if _is_blocked(story, root):
        return Clause("blocked", "could not start, because a job that it needs did not succeed", of.id, event)
    names = [shown(each.spec.name) for each in path[1:]]
    if len(names) > MAX_LINKS:
        between = count(len(names) - MAX_LINKS, "other job")
        names = [*names[: MAX_LINKS - 1], f"{between} in a row, of which the last needs {names[-1]}"]
    end = job_end(story, root)
    text = f"could not start: it needs {', which needs '.join(names)}, which {end.text}"
    return Clause("blocked", text, root.id, event, end.advice)


def _cause(story: ExplainContext, blocked: Job) -> Job | None:
    """Which of its needs blocked the job: the one that was lost first."""
    needed = [story.jobs[id] for id in blocked.needs if id in story.jobs]
    lost = [each for each in needed if each.state in job.TERMINAL and not job.satisfies(each)]
    return min(lost, key=lambda each: each.completed_at, default=None)


# -- runs


def run_cancel(story: ExplainContext) -> str:
    """By whom the run was cancelled, and why."""
    of = story.run
    if of is None:
        return " cancelled"
    # The first: a cancel that was remembered during the planning is applied by us, but asked for by somebody else.
    asked = next((each for each in story.of.get(of.id, ()) if each.trigger == "cancel_requested"), None)
    return f" cancelled by {person(asked.actor)}{given(of.cancel_reason)}" if asked is not None else " cancelled"


def run_end(story: ExplainContext, of: Run) -> Clause:
    """How the run ended, whether or not that was reported."""
    word = of.conclusion or of.state
    event = story.last(of.id, *_ENDING[word]) if word in _ENDING else story.last(of.id)
    if word == run.SUCCESS:
        return _run_succeeded(story, of, event)
    if word == run.CANCELED:
        return Clause("canceled", f"was{run_cancel(story)}", of.id, event)
    if word == run.TIMEOUT:
        limit = duration(of.timeout_seconds * SECOND)
        text = f"was ended, because it ran for longer than the {limit} that it may"
        return Clause(
            "timed_out", text, of.id, event, "Give it more time with timeout_seconds, or make its jobs faster."
        )
    return _run_failed(story, of, event)


_ENDING: Final = {
    run.SUCCESS: ("all_required_succeeded",),
    run.FAILED: ("required_job_failed", "validation_failed", "run_finalized"),
    run.TIMEOUT: ("run_timed_out",),
    run.CANCELED: ("cancel_finalized",),
}


def _run_succeeded(story: ExplainContext, of: Run, event: Event | None) -> Clause:
    allowed = [each for each in story.jobs.values() if not each.spec.is_required and each.state != job.SUCCEEDED]
    if not story.jobs:
        return Clause("succeeded", "succeeded: there was nothing to do", of.id, event)
    if not allowed:
        total = len(story.jobs)
        said = "its only job" if total == 1 else f"all of its {total} jobs"
        return Clause("succeeded", f"succeeded: {said} did", of.id, event)
    text = f"succeeded: every job that it requires did, and {count(len(allowed), 'job')} that may fail did not"
    return Clause("succeeded", text, of.id, event)


def _run_failed(story: ExplainContext, of: Run, event: Event | None) -> Clause:
    if of.reason in ("PLAN_FAILED", "PLAN_TIMEOUT"):
        planned = story.last(of.id, "plan_failed")
        if of.reason == "PLAN_TIMEOUT":
            limit = duration(of.planning_seconds * SECOND)
            return Clause("plan_timed_out", f"failed, because there was no plan within {limit}", of.id, event)
        said = saying(planned.metadata.get("error")) if planned is not None else ""
        return Clause("plan_failed", f"failed, because it could not be planned{said}", of.id, event)
    if of.reason == "VALIDATION_FAILED":
        said = saying(event.metadata.get("details")) if event is not None else ""
        return Clause("validation_failed", f"failed, because its final validation did not pass{said}", of.id, event)
    first = story.jobs.get(of.tally.first_doomed)
    if first is None:
        return Clause("failed", "failed, because a job that it requires did not succeed", of.id, event)
    end = job_end(story, first)
    text = f"failed, because {shown(first.spec.name)}, which it requires, {end.text}"
    others = sum(1 for each in story.jobs.values() if job.dooms_run(each) and each.id != first.id)
    # What the rules say of it is told with that job; here it would only be said twice.
    advice = f"{count(others, 'other required job')} did not succeed either." if others else ""
    return Clause("failed", text, first.id, event, advice)
