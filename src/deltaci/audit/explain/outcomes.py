"""How a run, job or attempt ended, and why. Causes are followed through the plan to the job where they began."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from deltaci.audit.explain import failures
from deltaci.audit.explain.context import ExplainContext
from deltaci.audit.explain.formatting import actor_name, colon_quote, count, duration, listed, moment, one_line, times
from deltaci.audit.explain.reasons import Clause
from deltaci.core import attempt as core_attempt
from deltaci.core import job as core_job
from deltaci.core import run as core_run
from deltaci.core.attempt import Attempt
from deltaci.core.events import ORCHESTRATOR, Event
from deltaci.core.instants import SECOND
from deltaci.core.job import Job
from deltaci.core.run import Run
from deltaci.core.worker import required_labels

MAX_LINKS: Final = 5  # How many jobs of a chain are named.

# Cancel reasons that add nothing to "was cancelled by".
_UNINFORMATIVE: Final = frozenset({"", core_job.RUN_CANCELED, core_job.JOB_CANCELED, "CANCELED"})
_SUPERSEDED: Final = "SUPERSEDED"


def reason_given(reason: str) -> str:
    """Return the reason of a cancel request as the end of a sentence.

    Return an empty string for a reason that adds nothing, such as RUN_CANCELED.
    """
    if reason in _UNINFORMATIVE:
        return ""
    if reason == _SUPERSEDED:
        return ", because a newer run took its place"
    # A text equal to one of our reasons is stored quoted.
    return colon_quote(reason.removeprefix("“").removesuffix("”"))


# -- attempts


def attempt_outcome(context: ExplainContext, attempt: Attempt) -> Clause:
    """Return the clause that says how the attempt ended, and why."""
    event = context.last_event(attempt.id)
    on_worker = f" on worker {one_line(attempt.ended_lease.worker_id)}" if attempt.ended_lease is not None else ""
    if attempt.state == core_attempt.SUCCEEDED:
        return Clause("succeeded", f"succeeded{on_worker}", attempt.id, event)
    if attempt.state == core_attempt.CANCELED:
        return _attempt_canceled(context, attempt, event)
    failure = attempt.error
    if attempt.state == core_attempt.TIMED_OUT:
        time_limit = duration(attempt.timeout_seconds * SECOND)
        text = f"was stopped{on_worker}, because it exceeded its time limit of {time_limit}"
        return Clause("timed_out", text, attempt.id, event, "Raise timeout_seconds, or make it faster.")
    if attempt.lost_leases > attempt.max_lost_leases:
        max_losses = attempt.max_lost_leases
        verb = "is" if max_losses == 1 else "are"
        allowance_text = f"only {count(max_losses, 'loss')} {verb} allowed" if max_losses else "none is allowed"
        text = f"failed, because workers lost it {times(attempt.lost_leases)} and {allowance_text}"
        return Clause("lost_too_often", text, attempt.id, event)
    exit_code = event.metadata.get("exit_code") if event is not None else None
    if failure is None:
        return Clause("failed", f"failed{on_worker}", attempt.id, event)
    text = f"failed{on_worker}: {failures.describe_failure(failure, exit_code)}"
    return Clause("failed", text, attempt.id, event, f"{failures.describe_classification(failure)}.")


def _attempt_canceled(context: ExplainContext, attempt: Attempt, event: Event | None) -> Clause:
    text = f"was cancelled{stop_cause(context, attempt)}"
    lease = attempt.ended_lease
    if event is not None and event.metadata.get("is_forced") and lease is not None and event.metadata.get("lease"):
        details = f"Worker {one_line(lease.worker_id)} did not confirm in time that it stopped:"
        details += " the attempt was ended without it."
        return Clause("forced", text, attempt.id, event, details)
    return Clause("canceled", text, attempt.id, event)


def _by_requester(context: ExplainContext, record_id: str) -> str:
    """Return ` by NAME` for the last cancel request of the record.

    Return an empty string if there is none or the orchestrator made it.
    """
    request_event = context.last_event(record_id, "cancel_requested", "user_cancelled")
    return (
        f" by {actor_name(request_event.actor)}"
        if request_event is not None and request_event.actor != ORCHESTRATOR
        else ""
    )


def stop_cause(context: ExplainContext, attempt: Attempt) -> str:
    """Return by whom and why the attempt was cancelled or is being stopped, as the end of a sentence."""
    job = context.jobs.get(attempt.job_id)
    if job is not None and (cause := _not_needed(context, job, attempt.cancel_reason)):
        return cause
    by_actor = "" if is_caused_by_run(context, attempt.cancel_reason) else _by_requester(context, attempt.id)
    return f"{by_actor}{cancel_cause(context, attempt.cancel_reason)}"


def is_caused_by_run(context: ExplainContext, reason: str) -> bool:
    """Return whether a job or attempt with this cancel reason was cancelled because its run ended.

    A person's cancel request may have the same text as reason; then the state of the run does not match it.
    """
    states_and_text = _RUN_CAUSES.get(reason)
    if states_and_text is None:
        return False
    states, _ = states_and_text
    return context.run is None or (context.run.conclusion or context.run.state) in states


def cancel_cause(context: ExplainContext, reason: str) -> str:
    """Return why a job or attempt was cancelled, as the end of a sentence: the end of its run, or the given reason."""
    return _RUN_CAUSES[reason][1](context) if is_caused_by_run(context, reason) else reason_given(reason)


def _run_canceled_cause(context: ExplainContext) -> str:
    return f", because its run was{run_canceled(context)}"


def _run_timeout_cause(context: ExplainContext) -> str:
    limit_text = f" of {duration(context.run.timeout_seconds * SECOND)}" if context.run is not None else ""
    return f", because its run exceeded the time limit{limit_text}"


def _not_needed_cause(context: ExplainContext) -> str:
    doomed_job = context.jobs.get(context.run.tally.first_doomed) if context.run is not None else None
    if doomed_job is None:
        return ", because its run had ended"
    outcome_verb = _OUTCOME_VERBS.get(doomed_job.state, "ended")
    return f", because {one_line(doomed_job.spec.name)} {outcome_verb} and the run stops at the first failure"


_OUTCOME_VERBS: Final = {
    core_job.FAILED: "failed",
    core_job.CANCELED: "was cancelled",
    core_job.SUCCEEDED: "succeeded",
}
# Reason for which a run stops its jobs -> states of such a run, and the cause as the end of a sentence.
_RUN_CAUSES: Final[dict[str, tuple[tuple[str, ...], Callable[[ExplainContext], str]]]] = {
    core_job.RUN_CANCELED: ((core_run.CANCEL_REQUESTED, core_run.CANCELED), _run_canceled_cause),
    core_job.RUN_TIMEOUT: ((core_run.TIMEOUT,), _run_timeout_cause),
    core_job.NOT_NEEDED: ((core_run.FAILED,), _not_needed_cause),
}


# -- jobs


def job_outcome(context: ExplainContext, job: Job) -> Clause:
    """Return the clause that says how the job ended, and why.

    For a blocked job, it names the job that blocked it and says how that job ended.
    """
    event = context.last_event(job.id)
    if job.state == core_job.SUCCEEDED:
        return _job_succeeded(job, event)
    if job.state == core_job.CANCELED:
        return _blocked(context, job, event) if _is_blocked(context, job) else _job_canceled(context, job, event)
    if job.spec.kind == core_job.APPROVAL:
        return _not_approved(job, event)
    # A runner chooses the code of its failure, so only the event's trigger proves a failed validation.
    if event.trigger == "validation_failed" if event is not None else job.reason == "VALIDATION_FAILED":
        details_text = colon_quote(job.last_error.line) if job.last_error is not None else ""
        text = f"failed, because its result did not pass the validation{details_text}"
        return Clause("validation_failed", text, job.id, event)
    return _not_retried(context, job, event)


def _not_approved(job: Job, event: Event | None) -> Clause:
    if job.reason == core_job.APPROVAL_EXPIRED:
        approvers_text = f"only {len(job.approvals)} of {job.spec.gate.approvers} people" if job.approvals else "nobody"
        text = f"failed, because {approvers_text} approved it by {moment(job.approve_by)}"
        return Clause("approval_expired", text, job.id, event)
    by_actor = f" by {actor_name(event.actor)}" if event is not None else ""
    comment_text = colon_quote(event.metadata.get("comment")) if event is not None else ""
    return Clause("rejected", f"was rejected{by_actor}{comment_text}", job.id, event)


def _job_succeeded(job: Job, event: Event | None) -> Clause:
    if job.spec.kind != core_job.APPROVAL:
        return Clause("succeeded", f"succeeded with attempt {job.attempts}", job.id, event)
    people = [approval.person for approval in job.approvals if approval.person]
    by_actor = f" by {listed(people, 8)}" if people else f" by {actor_name(event.actor)}" if event is not None else ""
    comment_text = colon_quote(event.metadata.get("comment")) if event is not None else ""
    return Clause("approved", f"was approved{by_actor}{comment_text}", job.id, event)


def _not_retried(context: ExplainContext, job: Job, event: Event | None) -> Clause:
    """Return the clause with the job's last failure and, as details, its class and why it was not tried again."""
    attempt, failure = context.attempt_of(job), job.last_error
    if failure is None:
        return Clause("not_retried", "failed", job.id, event)
    attempt_event = context.last_event(attempt.id) if attempt is not None else None
    exit_code = attempt_event.metadata.get("exit_code") if attempt_event is not None else None
    text = f"failed: {failures.describe_failure(failure, exit_code)}"
    report = attempt.report if attempt is not None else None
    flaky_text = failures.describe_flaky_tests(report, context.tenant.flaky.get(job.spec.name))
    no_retry_reason = failures.why_not_retried(failure, job.attempts, job.spec.max_attempts, job.spec.retry_on)
    details = " ".join((f"{failures.describe_classification(failure)}.", *filter(None, (flaky_text, no_retry_reason))))
    return Clause("not_retried", text, job.id, event, details)


def _family_failure_cause(context: ExplainContext, job: Job, reason: str) -> str:
    """Return which failed job of its family caused the job to be cancelled, as the end of a sentence.

    Return an empty string if that is not why it was cancelled.
    """
    is_fail_fast_run = context.run is not None and context.run.is_fail_fast
    if reason != core_job.NOT_NEEDED or not job.spec.family or is_fail_fast_run:
        return ""
    failed_members = (
        family_member
        for family_member in context.jobs.values()
        if family_member.spec.family == job.spec.family and core_job.fails_family(family_member)
    )
    earlier_failed_members = [
        family_member
        for family_member in failed_members
        if not job.completed_at or family_member.completed_at <= job.completed_at
    ]
    first_failed_member = min(
        earlier_failed_members, key=lambda family_member: family_member.completed_at, default=None
    )
    if first_failed_member is None:
        return ""
    failed_name = one_line(first_failed_member.spec.name)
    return f", because {failed_name} failed and the jobs of {one_line(job.spec.family)} stop at the first failure"


def _not_needed(context: ExplainContext, job: Job, reason: str) -> str:
    """Return why the job was not needed although its run had not failed, as the end of a sentence, or ""."""
    return _family_failure_cause(context, job, reason) or _wait_ended(context, job, reason)


def _wait_ended(context: ExplainContext, job: Job, reason: str) -> str:
    run = context.run
    if run is None or reason != core_job.NOT_NEEDED or not job.completed_at:
        return ""
    for event in context.events_by_id.get(run.id, ()):
        if event.trigger != core_run.OPTIONAL_WAIT_ENDED or event.at != job.completed_at:
            continue
        required = required_labels(job.spec.queue_key)
        if event.metadata["cause"] == core_run.NO_WORKER and job.spec.queue_key in event.metadata["queue_keys"]:
            labels_text = f" with {listed(sorted(required), 8)}" if required else ""
            return f", because every required job had ended and no worker{labels_text} was registered"
        if event.metadata["cause"] == core_run.WAIT_OVER:
            wait = duration(run.optional_wait_seconds * SECOND)
            missing = "nobody decided it" if job.spec.kind == core_job.APPROVAL else "no worker took it"
            return f", because every required job had ended and {missing} within {wait}"
    return ""


def _job_canceled(context: ExplainContext, job: Job, event: Event | None) -> Clause:
    if cause := _not_needed(context, job, job.reason):
        return Clause("not_needed", f"was no longer needed{cause}", job.id, event)
    if job.reason == core_job.NOT_NEEDED and is_caused_by_run(context, job.reason):
        return Clause("not_needed", f"was no longer needed{cancel_cause(context, job.reason)}", job.id, event)
    attempt = context.attempt_of(job)
    canceled_attempt = attempt if attempt is not None and attempt.state == core_attempt.CANCELED else None
    text = f"was cancelled{_by_canceler(context, job, canceled_attempt)}{cancel_cause(context, job.reason)}"
    return Clause("canceled", text, job.id, event)


def _by_canceler(context: ExplainContext, job: Job, canceled_attempt: Attempt | None) -> str:
    if is_caused_by_run(context, job.reason):
        return ""
    return _by_requester(context, canceled_attempt.id if canceled_attempt is not None else job.id)


def _is_blocked(context: ExplainContext, job: Job) -> bool:
    """Return whether the job was cancelled because a job that it needs did not succeed.

    A person's cancel request may also have the reason BLOCKED; that does not count.
    """
    if job.state != core_job.CANCELED or job.reason != core_job.BLOCKED:
        return False
    event = context.last_event(job.id)
    return event is None or (event.actor == ORCHESTRATOR and event.from_ == core_job.PENDING)


def _blocked(context: ExplainContext, job: Job, event: Event | None) -> Clause:
    job_chain = [job]
    while _is_blocked(context, job_chain[-1]) and len(job_chain) <= len(context.jobs):
        blocker = _blocking_need(context, job_chain[-1])
        if blocker is None:
            break
        job_chain.append(blocker)
    root_blocker = job_chain[-1]
    if _is_blocked(context, root_blocker):
        return Clause("blocked", "could not start, because a job that it needs did not succeed", job.id, event)
    job_names = [one_line(link.spec.name) for link in job_chain[1:]]
    if len(job_names) > MAX_LINKS:
        omitted_text = count(len(job_names) - MAX_LINKS, "other job")
        job_names = [*job_names[: MAX_LINKS - 1], f"{omitted_text} in a chain, the last of which needs {job_names[-1]}"]
    outcome = job_outcome(context, root_blocker)
    text = f"could not start: it needs {', which needs '.join(job_names)}, which {outcome.text}"
    return Clause("blocked", text, root_blocker.id, event, outcome.details)


def _blocking_need(context: ExplainContext, blocked_job: Job) -> Job | None:
    """Return the need that was the first to fail or to be cancelled, or None.

    A need that is allowed to fail does not block the job, so its failure does not count.
    """
    needs = [context.jobs[id] for id in blocked_job.needs if id in context.jobs]
    unsuccessful_needs = [need for need in needs if need.state in core_job.TERMINAL and not core_job.satisfies(need)]
    return min(unsuccessful_needs, key=lambda need: need.completed_at, default=None)


# -- runs


def run_canceled(context: ExplainContext) -> str:
    """Return ` cancelled by NAME` with the reason, to append to "was". Who and why are left out if unknown."""
    run = context.run
    if run is None:
        return " cancelled"
    # The first request: one that came during planning is applied later by the orchestrator.
    cancel_events = (event for event in context.events_by_id.get(run.id, ()) if event.trigger == "cancel_requested")
    request_event = next(cancel_events, None)
    if request_event is None:
        return " cancelled"
    return f" cancelled by {actor_name(request_event.actor)}{reason_given(run.cancel_reason)}"


def run_outcome(context: ExplainContext, run: Run) -> Clause:
    """Return the clause that says how the run ended, and why.

    A run that was reported to its forge keeps its outcome.
    """
    final_state = run.conclusion or run.state
    event = context.last_event(run.id, *_FINAL_TRIGGERS.get(final_state, ()))
    if final_state == core_run.SUCCESS:
        return _run_succeeded(context, run, event)
    if final_state == core_run.CANCELED:
        return Clause("canceled", f"was{run_canceled(context)}", run.id, event)
    if final_state == core_run.TIMEOUT:
        if not run.started_at:
            text = f"was stopped, because none of its jobs started within {duration(core_run.START_SECONDS * SECOND)}"
            return Clause("timed_out", text, run.id, event, "Start a worker that matches its first jobs.")
        time_limit = duration(run.timeout_seconds * SECOND)
        text = f"was stopped, because it exceeded its time limit of {time_limit}"
        return Clause("timed_out", text, run.id, event, "Raise timeout_seconds, or make its jobs faster.")
    return _run_failed(context, run, event)


_FINAL_TRIGGERS: Final = {
    core_run.SUCCESS: ("all_required_succeeded",),
    core_run.FAILED: ("required_job_failed", "validation_failed", "run_finalized"),
    core_run.TIMEOUT: ("run_timed_out",),
    core_run.CANCELED: ("cancel_finalized",),
}


def _run_succeeded(context: ExplainContext, run: Run, event: Event | None) -> Clause:
    jobs = context.jobs.values()
    unsuccessful_jobs = [job for job in jobs if not job.spec.is_required and job.state != core_job.SUCCEEDED]
    if not context.jobs:
        return Clause("succeeded", "succeeded: there was nothing to do", run.id, event)
    if not unsuccessful_jobs:
        job_count = len(context.jobs)
        subject = "its only job" if job_count == 1 else f"all of its {job_count} jobs"
        return Clause("succeeded", f"succeeded: {subject} succeeded", run.id, event)
    text = f"succeeded: every required job succeeded, and {count(len(unsuccessful_jobs), 'job')} that may fail did not"
    return Clause("succeeded", text, run.id, event)


def _run_failed(context: ExplainContext, run: Run, event: Event | None) -> Clause:
    if run.reason in ("PLAN_FAILED", "PLAN_TIMEOUT"):
        plan_event = context.last_event(run.id, "plan_failed")
        if run.reason == "PLAN_TIMEOUT":
            time_limit = duration(run.planning_seconds * SECOND)
            return Clause("plan_timed_out", f"failed, because there was no plan within {time_limit}", run.id, event)
        error_text = colon_quote(plan_event.metadata.get("error")) if plan_event is not None else ""
        return Clause("plan_failed", f"failed, because it could not be planned{error_text}", run.id, event)
    if run.reason == "VALIDATION_FAILED":
        details_text = colon_quote(event.metadata.get("details")) if event is not None else ""
        text = f"failed, because its final validation did not pass{details_text}"
        return Clause("validation_failed", text, run.id, event)
    first_doomed = context.jobs.get(run.tally.first_doomed)
    if first_doomed is None:
        return Clause("failed", "failed, because a required job did not succeed", run.id, event)
    outcome = job_outcome(context, first_doomed)
    text = f"failed, because required job {one_line(first_doomed.spec.name)} {outcome.text}"
    other_doomed_count = sum(
        1 for job in context.jobs.values() if core_job.dooms_run(job) and job.id != first_doomed.id
    )
    # The job's own history has its failure rule and other advice, so it is not repeated here.
    details = f"{count(other_doomed_count, 'other required job')} did not succeed either." if other_doomed_count else ""
    return Clause("failed", text, first_doomed.id, event, details)
