"""What happened to a run, job or attempt: one sentence per event, without events that add nothing, such as heartbeats.

Each table at the end maps (kind of entity, trigger of an event) to the function that describes the event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from deltaci.audit.explain import failures, outcomes
from deltaci.audit.explain.context import ExplainContext
from deltaci.audit.explain.formatting import (
    actor_name,
    capitalized,
    colon_quote,
    count,
    listed,
    moment,
    one_line,
)
from deltaci.audit.explain.reasons import Reason, make_reason
from deltaci.core import attempt as core_attempt
from deltaci.core import ids
from deltaci.core import job as core_job
from deltaci.core import run as core_run
from deltaci.core.attempt import Attempt
from deltaci.core.events import ATTEMPT, JOB, ORCHESTRATOR, RUN, Event
from deltaci.core.failures import Failure
from deltaci.core.job import Job

MAX_SIMILAR: Final = 10  # Events of one kind that are described one by one in the history of a run.

# Job reasons that make cancellations different kinds of events in the history of a run.
_DISTINCT_REASONS: Final = frozenset(
    {core_job.BLOCKED, core_job.NOT_NEEDED, core_job.RUN_CANCELED, core_job.RUN_TIMEOUT}
)

CodedText = tuple[str, str]  # The code and the sentence.
Describe = Callable[[ExplainContext, Event], CodedText | None]
DescribeTable = Mapping[tuple[str, str], Describe]  # (entity, trigger) -> function.


def run_history(context: ExplainContext) -> tuple[Reason, ...]:
    """Return one sentence for each notable event of the run and its jobs.

    The events of a job that runs normally are left out. Of many similar events, only the first are described.
    """
    history_reasons: list[Reason] = []
    count_by_kind: dict[tuple[str, str, str, str], int] = {}
    for event in context.events:
        describe = _RUN_TABLE.get((event.entity, event.trigger))
        if describe is None:
            continue
        # From MAX_SIMILAR on, events of the same kind are only counted.
        cancel_reason = event.metadata.get("reason", "")
        similarity_key = (
            event.entity,
            event.trigger,
            event.to,
            cancel_reason if cancel_reason in _DISTINCT_REASONS else "",
        )
        similar_count = count_by_kind.get(similarity_key, 0)
        description = describe(context, event) if similar_count < MAX_SIMILAR else None
        if description is not None:
            history_reasons.append(make_reason(*description, event.entity_id, event))
        if description is not None or similar_count >= MAX_SIMILAR:
            count_by_kind[similarity_key] = similar_count + 1
    omitted_count = sum(max(0, kind_count - MAX_SIMILAR) for kind_count in count_by_kind.values())
    if omitted_count:
        omitted_text = (
            f"Omitted: {count(omitted_count, 'more event')} of these kinds; explain a job to see all of its events."
        )
        history_reasons.append(
            make_reason("more", omitted_text, context.run.id if context.run is not None else "", None)
        )
    return tuple(history_reasons)


def job_history(context: ExplainContext, job: Job) -> tuple[Reason, ...]:
    """Return one sentence for each event of the job and its attempts."""
    record_ids = {job.id, *(ids.attempt_id(job.id, index) for index in range(1, job.attempts + 1))}
    return _history(context, (event for event in context.events if event.entity_id in record_ids), _JOB_TABLE)


def attempt_history(context: ExplainContext, attempt: Attempt) -> tuple[Reason, ...]:
    """Return one sentence for each event of the attempt."""
    return _history(context, context.events_by_id.get(attempt.id, ()), _ATTEMPT_TABLE)


def _history(context: ExplainContext, events: Iterable[Event], table: DescribeTable) -> tuple[Reason, ...]:
    reasons: list[Reason] = []
    for event in events:
        describe = table.get((event.entity, event.trigger))
        description = describe(context, event) if describe is not None else None
        if description is not None:
            reasons.append(make_reason(*description, event.entity_id, event))
    return tuple(reasons)


# -- attempts


def _attempt_name(context: ExplainContext, event: Event) -> str:
    """Return the attempt's name for use within a sentence."""
    attempt = context.attempts.get(event.entity_id)
    return context.attempt_name(attempt) if attempt is not None else f"attempt {one_line(event.entity_id)}"


def _attempt_subject(context: ExplainContext, event: Event) -> str:
    """Return the attempt's name for use at the start of a sentence."""
    return capitalized(_attempt_name(context, event))


def _lease_holder(event: Event) -> tuple[str, int]:
    """Return the id of the worker that holds or held the lease that the event changed, and the number of the lease."""
    lease_field = event.metadata.get("lease")
    lease_metadata: dict[str, Any] = lease_field if isinstance(lease_field, dict) else {}
    return one_line(str(lease_metadata.get("worker_id", "unknown"))), int(lease_metadata.get("number", 0))


def _attempt_enqueued(context: ExplainContext, event: Event) -> CodedText:
    run_at = event.metadata.get("run_at", 0)
    by_actor = f" by {actor_name(event.actor)}" if event.actor != ORCHESTRATOR else ""
    schedule_text = f", scheduled for {moment(run_at)}" if isinstance(run_at, int) and run_at > event.at else ""
    return "enqueued", f"{_attempt_subject(context, event)} was queued{by_actor}{schedule_text}."


def _attempt_claimed(context: ExplainContext, event: Event) -> CodedText:
    worker_id, lease_number = _lease_holder(event)
    attempt_name = _attempt_name(context, event)
    if lease_number == 1:
        return "claimed", f"Worker {worker_id} claimed {attempt_name} (lease {lease_number})."
    loss_events = [
        earlier_event
        for earlier_event in context.events_by_id[event.entity_id]
        if earlier_event.trigger == "stalled" and earlier_event.rev < event.rev
    ]
    previous_worker_id, _ = _lease_holder(loss_events[-1]) if loss_events else ("", 0)
    is_handed_back = bool(loss_events) and loss_events[-1].metadata.get("reason") == core_attempt.HANDED_BACK
    loss_text = "had handed it back" if is_handed_back else "had lost it"
    previous_lease_text = f"worker {previous_worker_id} {loss_text}" if previous_worker_id else "it had been lost"
    return (
        "claimed_again",
        f"Worker {worker_id} claimed {attempt_name} after {previous_lease_text} (lease {lease_number}).",
    )


def _attempt_started(context: ExplainContext, event: Event) -> CodedText:
    return "started", f"{_attempt_subject(context, event)} started."


_LOSS_TEXTS: Final = {
    core_attempt.LEASE_EXPIRED: "Worker {worker} lost {attempt}, because it sent no heartbeat in time",
    core_attempt.NOT_ACCEPTED: "Worker {worker} lost {attempt}, because it did not accept it in time",
    core_attempt.WORKER_LOST: "Worker {worker} lost {attempt}, because it stopped answering",
    core_attempt.HANDED_BACK: "Worker {worker} handed {attempt} back",
    core_attempt.STALLED: "{actor} took {attempt} away from worker {worker}",
}


def _attempt_stalled(context: ExplainContext, event: Event) -> CodedText:
    """Describe how a worker lost an attempt or handed it back, and whether that counts as a loss."""
    worker_id, lease_number = _lease_holder(event)
    reason = str(event.metadata.get("reason", ""))
    loss_text = _LOSS_TEXTS.get(reason, _LOSS_TEXTS[core_attempt.STALLED]).format(
        worker=worker_id, attempt=_attempt_name(context, event), actor=actor_name(event.actor, is_first=True)
    )
    loss_text += f" (lease {lease_number}, {one_line(reason)})."
    if reason == core_attempt.HANDED_BACK:
        return "handed_back", f"{loss_text} This does not count as a loss."
    attempt = context.attempts.get(event.entity_id)
    loss_count = int(event.metadata.get("lost_leases", 0))
    if attempt is None:
        return "lease_lost", f"{loss_text} That was loss {loss_count}."
    max_losses = attempt.max_lost_leases
    allowance_text = (
        f"{'only ' if loss_count > max_losses else ''}{max_losses} {'is' if max_losses == 1 else 'are'} allowed"
        if max_losses
        else "none is allowed"
    )
    loss_text += f" That was loss {loss_count}, and {allowance_text}."
    fence_until = event.metadata.get("fence_until", 0)
    if isinstance(fence_until, int) and fence_until and loss_count <= max_losses:
        loss_text += f" It can be claimed from {moment(fence_until)} on: until then the worker may still be running it."
    return "lease_lost", loss_text


def _attempt_marked(context: ExplainContext, event: Event) -> CodedText:
    """Describe that the worker stopped answering and when its lease ends."""
    worker_id, attempt_name = one_line(str(event.metadata["worker_id"])), _attempt_name(context, event)
    sentence_start = f"Worker {worker_id}, which has {attempt_name}, stopped answering; without a heartbeat"
    return (
        core_attempt.MARKED_FOR_REASSIGNMENT,
        f"{sentence_start} the lease ends at {moment(event.metadata['reassign_at'])}.",
    )


def _attempt_requeued(context: ExplainContext, event: Event) -> CodedText:
    run_at = event.metadata.get("run_at", 0)
    text = f"{_attempt_subject(context, event)} was requeued"
    if isinstance(run_at, int) and run_at > event.at:
        text += f" and can be claimed from {moment(run_at)} on: until then the lost worker may still be running it"
    return "requeued", f"{text}."


def _attempt_cancel_requested(context: ExplainContext, event: Event) -> CodedText | None:
    if "claims" in event.metadata:  # No worker had it, so the event of its end follows at once and says the same.
        return None
    reason, cancel_by = str(event.metadata.get("reason", "")), event.metadata.get("cancel_by", 0)
    by_actor = "" if outcomes.is_caused_by_run(context, reason) else f" by {actor_name(event.actor)}"
    deadline_text = (
        f" Its worker has until {moment(cancel_by)} to stop." if isinstance(cancel_by, int) and cancel_by else ""
    )
    text = f"{_attempt_subject(context, event)} was asked to stop{by_actor}"
    text += f"{outcomes.cancel_cause(context, reason)}.{deadline_text}"
    return "cancel_requested", text


def _attempt_ended(context: ExplainContext, event: Event) -> CodedText | None:
    """Describe the attempt's outcome. Return None if the attempt has not ended."""
    attempt = context.attempts.get(event.entity_id)
    if attempt is None or attempt.state not in core_attempt.TERMINAL:
        return None
    reason = outcomes.attempt_outcome(context, attempt).to_reason(_attempt_subject(context, event))
    return reason.code, reason.text


def _attempt_ended_abnormally(context: ExplainContext, event: Event) -> CodedText | None:
    """Describe the end of an attempt that timed out, was lost too often or had to be ended without its worker.

    Return None for other ends: the event of the attempt's job describes them.
    """
    if event.to == core_attempt.CANCELED:
        if not event.metadata.get("is_forced") or not event.metadata.get("lease"):
            return None
        worker_id, _ = _lease_holder(event)
        attempt_name = _attempt_name(context, event)
        return "forced", f"Worker {worker_id} did not stop {attempt_name} in time: it was ended without the worker."
    if event.to == core_attempt.TIMED_OUT or event.from_ == core_attempt.STALE:
        return _attempt_ended(context, event)
    return None


# -- jobs


def _job_subject(context: ExplainContext, event: Event) -> str:
    return f"Job {context.job_name(event.entity_id)}"


def _job_created(context: ExplainContext, event: Event) -> CodedText:
    job = context.jobs.get(event.entity_id)
    needed_names = (
        listed([context.job_name(need_id) for need_id in job.needs], 8) if job is not None and job.needs else ""
    )
    optional_text = "; its failure is allowed" if job is not None and not job.spec.is_required else ""
    needs_text = f" and needs {needed_names}" if needed_names else ""
    text = f"{_job_subject(context, event)} is part of the plan{needs_text}{optional_text}."
    return "planned", text


def _job_scheduled(context: ExplainContext, event: Event) -> CodedText:
    job = context.jobs.get(event.entity_id)
    cause = "the jobs that it needs were done" if job is not None and job.needs else "its run was planned"
    if job is not None and job.after:
        cause = "the jobs before it had ended"
    return "ready", f"{_job_subject(context, event)} was queued after {cause}."


def _job_approval_opened(context: ExplainContext, event: Event) -> CodedText:
    approve_by = event.metadata.get("approve_by", 0)
    deadline_text = f"; the deadline is {moment(approve_by)}" if isinstance(approve_by, int) and approve_by else ""
    return "approval_opened", f"{_job_subject(context, event)} asked for approval{deadline_text}."


def _job_approval_given(context: ExplainContext, event: Event) -> CodedText:
    approval_count, required_count = event.metadata.get("approvals", 1), event.metadata.get("needed", 1)
    text = f"{actor_name(event.actor, is_first=True)} approved {context.job_name(event.entity_id)}"
    text += f"{colon_quote(event.metadata.get('comment'))}. That was approval {approval_count} of {required_count}."
    return "approval_given", text


def _job_executed(context: ExplainContext, event: Event) -> CodedText | None:
    job = context.jobs.get(event.entity_id)
    if job is None or not job.spec.has_validation:
        return None
    return "validating", f"{_job_subject(context, event)} ran, and its result was then validated."


def _job_execution_failed(context: ExplainContext, event: Event) -> CodedText:
    attempt_index = int(event.metadata.get("attempt_index", 1))
    max_attempts = int(event.metadata.get("max_retries", 0)) + 1
    failure, exit_code = _attempt_failure(context, event, attempt_index)
    if event.to == core_job.RETRYING:
        next_run_at = event.metadata.get("next_run_at", 0)
        text = f"Attempt {attempt_index} of {max_attempts} of {context.job_name(event.entity_id)} failed:"
        text += f" {failures.describe_failure(failure, exit_code)}. {failures.describe_classification(failure)}."
        text += f"{_flaky_tests_sentence(context, event, attempt_index)} The failure may be temporary,"
        text += f" so attempt {attempt_index + 1} was scheduled for {moment(int(next_run_at))}."
        return "retry_scheduled", text
    text = f"{_job_subject(context, event)} failed: {failures.describe_failure(failure, exit_code)}."
    job = context.jobs.get(event.entity_id)
    retry_on = job.spec.retry_on if job is not None else ()
    text += f" {failures.describe_classification(failure)}.{_flaky_tests_sentence(context, event, attempt_index)}"
    text += f" {failures.why_not_retried(failure, attempt_index, max_attempts, retry_on)}"
    return "not_retried", f"{text}{_allowed_failure_sentence(context, event)}"


def _flaky_tests_sentence(context: ExplainContext, event: Event, attempt_index: int) -> str:
    """Return a sentence, after a space, on the failed tests of this attempt that are known to be flaky.

    Empty if there are none.
    """
    job, attempt = (
        context.jobs.get(event.entity_id),
        context.attempts.get(ids.attempt_id(event.entity_id, attempt_index)),
    )
    if job is None or attempt is None:
        return ""
    flaky_text = failures.describe_flaky_tests(attempt.report, context.tenant.flaky.get(job.spec.name))
    return f" {flaky_text}" if flaky_text else ""


def _allowed_failure_sentence(context: ExplainContext, event: Event) -> str:
    job = context.jobs.get(event.entity_id)
    if job is None or job.spec.is_required or event.to != core_job.FAILED:
        return ""
    return " Its failure is allowed, so the run continues."


def _attempt_failure(context: ExplainContext, event: Event, attempt_index: int) -> tuple[Failure, object]:
    """Return the failure of the job's attempt, from its record or else from the event, and its exit code, if known."""
    attempt_id = ids.attempt_id(event.entity_id, attempt_index)
    attempt, attempt_event = context.attempts.get(attempt_id), context.last_event(attempt_id)
    failure = attempt.error if attempt is not None else None
    exit_code = attempt_event.metadata.get("exit_code") if attempt_event is not None else None
    return failure or failures.failure_from_metadata(event.metadata), exit_code


def _job_retried(context: ExplainContext, event: Event) -> CodedText:
    attempt_index = int(event.metadata.get("attempt_index", 1))
    return "retried", f"{_job_subject(context, event)} was queued again for attempt {attempt_index}."


def _job_ended(context: ExplainContext, event: Event) -> CodedText | None:
    job = context.jobs.get(event.entity_id)
    if job is None or job.state not in core_job.TERMINAL:
        return None
    reason = outcomes.job_outcome(context, job).to_reason(_job_subject(context, event))
    return reason.code, f"{reason.text}{_allowed_failure_sentence(context, event)}"


def _job_ended_briefly(context: ExplainContext, event: Event) -> CodedText | None:
    """Describe the end of a job without details.

    The history of a run already has those details, from the job that caused this end.
    """
    job = context.jobs.get(event.entity_id)
    if job is None or job.state not in core_job.TERMINAL:
        return None
    reason = outcomes.job_outcome(context, job).without_details().to_reason(_job_subject(context, event))
    return reason.code, f"{reason.text}{_allowed_failure_sentence(context, event)}"


# -- runs


def _run_created(context: ExplainContext, event: Event) -> CodedText:
    run = context.run
    starter_name = run.started_by if run is not None else ""
    by_actor = (
        f" by {one_line(starter_name)}"
        if starter_name
        else f" by {actor_name(event.actor)}"
        if event.actor != ORCHESTRATOR
        else ""
    )
    text = f"Run {one_line(event.entity_id)} was created{by_actor}"
    if run is not None and run.rerun_of:
        text += f", as a rerun of run {one_line(run.rerun_of)}"
    if run is not None and run.origin.template:
        text += f", from template {one_line(run.origin.template)} version {run.origin.template_version}"
    return "created", f"{text}."


def _run_planned(context: ExplainContext, event: Event) -> CodedText:
    return "planned", f"The plan has {count(int(event.metadata.get('jobs', 0)), 'job')}."


def _run_started(context: ExplainContext, event: Event) -> CodedText:
    job_id = str(event.metadata.get("job_id", ""))
    if job_id:
        return "started", f"The run started with {context.job_name(job_id)}."
    if event.metadata.get("cause") == "approval_opened":
        return "started", "The run started with an approval."
    return "started", "The run started."


def _run_approval_awaited(context: ExplainContext, event: Event) -> CodedText:
    return "approval_opened", "No job could continue without an approval."


def _run_approval_resolved(context: ExplainContext, event: Event) -> CodedText:
    return "resumed", "The run resumed, because it no longer waited only for approvals."


def _run_optional_wait_began(context: ExplainContext, event: Event) -> CodedText | None:
    if "job_id" in event.metadata:  # A job began to wait later; its own events say so.
        return None
    until_text = moment(int(event.metadata["optional_until"]))
    text = f"Every required job had ended. Jobs that may fail had until {until_text} to be claimed or decided."
    return "optional_wait_began", text


def _run_optional_wait_ended(context: ExplainContext, event: Event) -> CodedText | None:
    if event.metadata.get("cause") == core_run.WAIT_OVER:
        return "optional_wait_ended", "The wait for jobs that may fail was over."
    queue_key_texts = [queue_key or "any" for queue_key in event.metadata["queue_keys"]]
    text = f"The run did not wait for jobs for which no worker was registered: labels {listed(queue_key_texts, 8)}."
    return "optional_wait_ended", text


def _run_cancel_requested(context: ExplainContext, event: Event) -> CodedText | None:
    if event.from_ == event.to:
        reason_text = outcomes.reason_given(str(event.metadata.get("reason", "")))
        text = f"{actor_name(event.actor, is_first=True)} cancelled the run{reason_text}."
        return "cancel_requested", f"{text} It was still being planned and stops after that."
    return "cancel_requested", f"The run was{outcomes.run_canceled(context)}."


def _run_ended(context: ExplainContext, event: Event) -> CodedText | None:
    run = context.run
    if run is None or not core_run.is_over(run):
        return None
    reason = outcomes.run_outcome(context, run).to_reason(f"Run {one_line(run.id)}")
    return reason.code, reason.text


def _run_reported(_context: ExplainContext, event: Event) -> CodedText:
    """Describe the report, with what the forge received or the error that kept the forge from receiving it."""
    report_result = event.metadata.get("told")
    if not report_result:
        return "reported", "The outcome was published."
    return "reported", f"The outcome was published. Result at the forge{colon_quote(report_result)}."


# fmt: off
_RUN_EVENTS: Final[dict[tuple[str, str], Describe]] = {
    (RUN, "created"): _run_created,
    (RUN, "plan_returned"): _run_planned,
    (RUN, "first_attempt_active"): _run_started,
    (RUN, "approval_gate_reached"): _run_approval_awaited,
    (RUN, "approval_resolved"): _run_approval_resolved,
    (RUN, core_run.OPTIONAL_WAIT_BEGAN): _run_optional_wait_began,
    (RUN, core_run.OPTIONAL_WAIT_ENDED): _run_optional_wait_ended,
    (RUN, "cancel_requested"): _run_cancel_requested,
    (RUN, "statuses_published"): _run_reported,
    **{(RUN, trigger): _run_ended for trigger in (
        "run_finalized", "all_required_succeeded", "validation_failed", "required_job_failed", "run_timed_out",
        "cancel_finalized")},
}
# Events of jobs and attempts that the history of their run contains, too.
_NOTABLE_JOB_EVENTS: Final[dict[tuple[str, str], Describe]] = {
    (JOB, "approval_opened"): _job_approval_opened,
    (JOB, "approval_given"): _job_approval_given,
    (JOB, "execution_failed"): _job_execution_failed,
    (JOB, "approved"): _job_ended,
    (JOB, "rejected"): _job_ended,
    (JOB, "approval_expired"): _job_ended,
    (JOB, "validation_failed"): _job_ended,
    (JOB, "user_cancelled"): _job_ended,
    (ATTEMPT, core_attempt.MARKED_FOR_REASSIGNMENT): _attempt_marked,
    (ATTEMPT, "stalled"): _attempt_stalled,
}
_JOB_EVENTS: Final[dict[tuple[str, str], Describe]] = {
    **_NOTABLE_JOB_EVENTS,
    (JOB, "created"): _job_created,
    (JOB, "scheduler_assigned"): _job_scheduled,
    (JOB, "execution_completed"): _job_executed,
    (JOB, "retry_delay_elapsed"): _job_retried,
    (JOB, "validation_passed"): _job_ended,
    (ATTEMPT, "claimed"): _attempt_claimed,
    (ATTEMPT, "started"): _attempt_started,
    (ATTEMPT, "requeued"): _attempt_requeued,
    (ATTEMPT, "cancel_requested"): _attempt_cancel_requested,
}
_RUN_TABLE: Final = {
    **_RUN_EVENTS,
    **_NOTABLE_JOB_EVENTS,
    (JOB, "user_cancelled"): _job_ended_briefly,
    (ATTEMPT, "failed"): _attempt_ended_abnormally,
}
_JOB_TABLE: Final = {**_JOB_EVENTS, (ATTEMPT, "failed"): _attempt_ended_abnormally}
_ATTEMPT_TABLE: Final[dict[tuple[str, str], Describe]] = {
    **{key: describe for key, describe in _JOB_EVENTS.items() if key[0] == ATTEMPT},
    (ATTEMPT, "enqueued"): _attempt_enqueued,
    (ATTEMPT, "succeeded"): _attempt_ended,
    (ATTEMPT, "failed"): _attempt_ended,
}
# fmt: on

__all__ = ["attempt_history", "job_history", "run_history"]
