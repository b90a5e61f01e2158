"""What happened, event by event, in sentences. Heartbeats and steps that say nothing new are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from deltaci.audit.explain import failures, outcomes
from deltaci.audit.explain.context import ExplainContext
from deltaci.audit.explain.formatting import capital, count, listed, moment, person, saying, shown
from deltaci.audit.explain.reasons import Reason, reason
from deltaci.core import attempt, ids, job, run
from deltaci.core.attempt import Attempt
from deltaci.core.events import ATTEMPT, JOB, ORCHESTRATOR, RUN, Event
from deltaci.core.failures import Failure
from deltaci.core.job import Job

MAX_ALIKE: Final = 10  # So many reasons of one kind are told one by one in the history of a run.

_KINDS: Final = frozenset({job.BLOCKED, job.NOT_NEEDED, job.RUN_CANCELED, job.RUN_TIMEOUT})

Told = tuple[str, str]  # The code and the text.
Teller = Callable[[ExplainContext, Event], Told | None]
Tellers = Mapping[tuple[str, str], Teller]  # By the kind of record and the word of the event.


def run_history(story: ExplainContext) -> tuple[Reason, ...]:
    """What happened to the run, and what of its jobs went another way than planned."""
    found: list[Reason] = []
    alike: dict[tuple[str, str, str, str], int] = {}
    for event in story.events:
        teller = _FOR_RUN.get((event.entity, event.trigger))
        if teller is None:
            continue
        # What there is too much of is counted, not told.
        why = event.metadata.get("reason", "")
        kind = (event.entity, event.trigger, event.to, why if why in _KINDS else "")
        known = alike.get(kind, 0)
        said = teller(story, event) if known < MAX_ALIKE else None
        if said is not None:
            found.append(reason(*said, event.entity_id, event))
        if said is not None or known >= MAX_ALIKE:
            alike[kind] = known + 1
    left = sum(max(0, number - MAX_ALIKE) for number in alike.values())
    if left:
        text = f"{count(left, 'more event')} of these kinds left out here; ask for a job to see all of its own."
        found.append(reason("more", text, story.run.id if story.run is not None else "", None))
    return tuple(found)


def job_history(story: ExplainContext, of: Job) -> tuple[Reason, ...]:
    """What happened to the job and its attempts."""
    own = {of.id, *(ids.attempt_id(of.id, index) for index in range(1, of.attempts + 1))}
    return _history(story, (event for event in story.events if event.entity_id in own), _FOR_JOB)


def attempt_history(story: ExplainContext, of: Attempt) -> tuple[Reason, ...]:
    """What happened to the attempt."""
    return _history(story, story.of.get(of.id, ()), _FOR_ATTEMPT)


def _history(story: ExplainContext, events: Iterable[Event], tellers: Tellers) -> tuple[Reason, ...]:
    found: list[Reason] = []
    for event in events:
        teller = tellers.get((event.entity, event.trigger))
        said = teller(story, event) if teller is not None else None
        if said is not None:
            found.append(reason(*said, event.entity_id, event))
    return tuple(found)


# -- attempts


def _attempt_name(story: ExplainContext, event: Event) -> str:
    known = story.attempts.get(event.entity_id)
    return capital(story.attempt_name(known)) if known is not None else f"Attempt {shown(event.entity_id)}"


def _lease(event: Event) -> tuple[str, int]:
    """Whose lease the event is about, and which one."""
    said = event.metadata.get("lease")
    held: dict[str, Any] = said if isinstance(said, dict) else {}
    return shown(str(held.get("worker_id", "unknown"))), int(held.get("number", 0))


def _enqueued(story: ExplainContext, event: Event) -> Told:
    later = event.metadata.get("run_at", 0)
    by = f" by {person(event.actor)}" if event.actor != ORCHESTRATOR else ""
    after = f", not to be taken before {moment(later)}" if isinstance(later, int) and later > event.at else ""
    return "enqueued", f"{_attempt_name(story, event)} was put into the queue{by}{after}."


def _claimed(story: ExplainContext, event: Event) -> Told:
    worker_id, number = _lease(event)
    what = _lower(story, event)
    if number == 1:
        return "claimed", f"Worker {worker_id} took {what} (lease {number})."
    before = [each for each in story.of[event.entity_id] if each.trigger == "stalled" and each.rev < event.rev]
    loser, _ = _lease(before[-1]) if before else ("", 0)
    gave = "had given it back" if before and before[-1].metadata.get("reason") == attempt.HANDED_BACK else "had lost it"
    after = f"worker {loser} {gave}" if loser else "it had been lost"
    return "claimed_again", f"Worker {worker_id} took {what} after {after} (lease {number})."


def _lower(story: ExplainContext, event: Event) -> str:
    known = story.attempts.get(event.entity_id)
    return story.attempt_name(known) if known is not None else f"attempt {shown(event.entity_id)}"


def _started(story: ExplainContext, event: Event) -> Told:
    return "started", f"{_attempt_name(story, event)} began to run."


_LOST: Final = {
    attempt.LEASE_EXPIRED: "Worker {worker} was silent for too long while it had {what}, and lost it",
    attempt.NOT_ACCEPTED: "Worker {worker} was given {what}, did not take it in time, and lost it",
    attempt.WORKER_LOST: "Worker {worker} stopped answering while it had {what}, and lost it",
    attempt.HANDED_BACK: "Worker {worker} gave {what} back",
    attempt.STALLED: "{by} took {what} away from worker {worker}",
}


def _stalled(story: ExplainContext, event: Event) -> Told:
    worker_id, number = _lease(event)
    why = str(event.metadata.get("reason", ""))
    text = _LOST.get(why, _LOST[attempt.STALLED]).format(
        worker=worker_id, what=_lower(story, event), by=person(event.actor, is_first=True)
    )
    text += f" (lease {number}, {shown(why)})."
    if why == attempt.HANDED_BACK:
        return "handed_back", f"{text} That is not counted against it."
    known = story.attempts.get(event.entity_id)
    lost = int(event.metadata.get("lost_leases", 0))
    if known is None:
        return "lease_lost", f"{text} That was loss {lost}."
    most = known.max_lost_leases
    allowed = (
        f"{'only ' if lost > most else ''}{most} {'is' if most == 1 else 'are'} allowed" if most else "none is allowed"
    )
    return "lease_lost", f"{text} That was loss {lost}, and {allowed}."


def _requeued(story: ExplainContext, event: Event) -> Told:
    later = event.metadata.get("run_at", 0)
    text = f"{_attempt_name(story, event)} went back into the queue"
    if isinstance(later, int) and later > event.at:
        return (
            "requeued",
            f"{text}, to be taken from {moment(later)} on: until then the lost worker may be at work on it.",
        )
    return "requeued", f"{text}, for any worker to take."


def _cancel_requested(story: ExplainContext, event: Event) -> Told | None:
    if "claims" in event.metadata:  # Nobody has it: its end follows at once and says the same.
        return None
    why, by_when = str(event.metadata.get("reason", "")), event.metadata.get("cancel_by", 0)
    by = "" if outcomes.is_by_run(story, why) else f" by {person(event.actor)}"
    until = f" Its worker has until {moment(by_when)} to stop." if isinstance(by_when, int) and by_when else ""
    return (
        "cancel_requested",
        f"{_attempt_name(story, event)} was asked to stop{by}{outcomes.because(story, why)}.{until}",
    )


def _attempt_ended(story: ExplainContext, event: Event) -> Told | None:
    known = story.attempts.get(event.entity_id)
    if known is None or known.state not in attempt.TERMINAL:
        return None
    end = outcomes.attempt_end(story, known).of(_attempt_name(story, event))
    return end.code, end.text


def _attempt_ended_badly(story: ExplainContext, event: Event) -> Told | None:
    """For the history of a run: only what its job's own event does not say."""
    if event.to == attempt.CANCELED:
        if not event.metadata.get("is_forced") or not event.metadata.get("lease"):
            return None
        worker_id, _ = _lease(event)
        return "forced", f"Worker {worker_id} did not stop {_lower(story, event)} in time: it was ended without it."
    if event.to == attempt.TIMED_OUT or event.from_ == attempt.STALE:
        return _attempt_ended(story, event)
    return None


# -- jobs


def _job_name(story: ExplainContext, event: Event) -> str:
    return f"Job {story.job_name(event.entity_id)}"


def _job_created(story: ExplainContext, event: Event) -> Told:
    known = story.jobs.get(event.entity_id)
    needs = listed([story.job_name(id) for id in known.needs], 8) if known is not None and known.needs else ""
    optional = "; its failure is allowed" if known is not None and not known.spec.is_required else ""
    text = f"{_job_name(story, event)} is part of the plan{f' and needs {needs}' if needs else ''}{optional}."
    return "planned", text


def _scheduled(story: ExplainContext, event: Event) -> Told:
    known = story.jobs.get(event.entity_id)
    after = "what it needs was done" if known is not None and known.needs else "its run was planned"
    if known is not None and known.after:
        after = "what comes before it was over"
    return "ready", f"{_job_name(story, event)} was put into the queue, as {after}."


def _approval_opened(story: ExplainContext, event: Event) -> Told:
    until = event.metadata.get("approve_by", 0)
    by = f", to be given by {moment(until)}" if isinstance(until, int) and until else ""
    return "approval_opened", f"{_job_name(story, event)} asked for an approval{by}."


def _approval_given(story: ExplainContext, event: Event) -> Told:
    done, needed = event.metadata.get("approvals", 1), event.metadata.get("needed", 1)
    text = f"{person(event.actor, is_first=True)} approved {story.job_name(event.entity_id)}"
    text += f"{saying(event.metadata.get('comment'))}. That was approval {done} of {needed}."
    return "approval_given", text


def _executed(story: ExplainContext, event: Event) -> Told | None:
    known = story.jobs.get(event.entity_id)
    if known is None or not known.spec.has_validation:
        return None
    return "validating", f"{_job_name(story, event)} was executed; then its result was validated."


def _execution_failed(story: ExplainContext, event: Event) -> Told:
    index = int(event.metadata.get("attempt_index", 1))
    allowed = int(event.metadata.get("max_retries", 0)) + 1
    failure, exit_code = _failure(story, event, index)
    if event.to == job.RETRYING:
        due = event.metadata.get("next_run_at", 0)
        text = f"Attempt {index} of {allowed} of {story.job_name(event.entity_id)} failed:"
        text += f" {failures.what(failure, exit_code)}. {failures.whose(failure)}.{_flaky(story, event, index)}"
        return (
            "retry_scheduled",
            f"{text} Such a failure may pass, so attempt {index + 1} was planned for {moment(int(due))}.",
        )
    text = f"Job {story.job_name(event.entity_id)} failed: {failures.what(failure, exit_code)}."
    known = story.jobs.get(event.entity_id)
    retry_on = known.spec.retry_on if known is not None else ()
    text += f" {failures.whose(failure)}.{_flaky(story, event, index)}"
    text += f" {failures.why_not_again(failure, index, allowed, retry_on)}"
    return "not_retried", f"{text}{_allowed(story, event)}"


def _flaky(story: ExplainContext, event: Event, index: int) -> str:
    """How many of the failed tests are known to be flaky, where some are."""
    known, record = story.jobs.get(event.entity_id), story.attempts.get(ids.attempt_id(event.entity_id, index))
    if known is None or record is None:
        return ""
    said = failures.known_flaky(record.report, story.around.flaky.get(known.spec.name))
    return f" {said}" if said else ""


def _allowed(story: ExplainContext, event: Event) -> str:
    known = story.jobs.get(event.entity_id)
    if known is None or known.spec.is_required or event.to != job.FAILED:
        return ""
    return " Its failure is allowed: the run goes on."


def _failure(story: ExplainContext, event: Event, index: int) -> tuple[Failure, object]:
    """What the job's event says of its attempt's failure, with what the attempt knows beyond that."""
    id = ids.attempt_id(event.entity_id, index)
    record, ended = story.attempts.get(id), story.last(id)
    failure = record.error if record is not None else None
    return failure or failures.told(event.metadata), ended.metadata.get("exit_code") if ended is not None else None


def _retried(story: ExplainContext, event: Event) -> Told:
    index = int(event.metadata.get("attempt_index", 1))
    return "retried", f"{_job_name(story, event)} was put into the queue again, for attempt {index}."


def _job_ended(story: ExplainContext, event: Event) -> Told | None:
    known = story.jobs.get(event.entity_id)
    if known is None or known.state not in job.TERMINAL:
        return None
    return _with_allowed(story, event, outcomes.job_end(story, known).of(_job_name(story, event)))


def _job_ended_in_run(story: ExplainContext, event: Event) -> Told | None:
    """For the history of a run: what another job's end has told already is not told again."""
    known = story.jobs.get(event.entity_id)
    if known is None or known.state not in job.TERMINAL:
        return None
    end = outcomes.job_end(story, known)
    return _with_allowed(story, event, end.briefly().of(_job_name(story, event)))


def _with_allowed(story: ExplainContext, event: Event, end: Reason) -> Told:
    return end.code, f"{end.text}{_allowed(story, event)}"


# -- runs


def _run_created(story: ExplainContext, event: Event) -> Told:
    known = story.run
    who = known.started_by if known is not None else ""
    by = f" by {shown(who)}" if who else f" by {person(event.actor)}" if event.actor != ORCHESTRATOR else ""
    text = f"Run {shown(event.entity_id)} was created{by}"
    if known is not None and known.rerun_of:
        text += f", as run {shown(known.rerun_of)} once more"
    if known is not None and known.origin.template:
        text += f", from template {shown(known.origin.template)} version {known.origin.template_version}"
    return "created", f"{text}."


def _planned(story: ExplainContext, event: Event) -> Told:
    return "planned", f"The plan has {count(int(event.metadata.get('jobs', 0)), 'job')}."


def _first_active(story: ExplainContext, event: Event) -> Told:
    id = str(event.metadata.get("job_id", ""))
    if id:
        return "started", f"The run began with {story.job_name(id)}."
    if event.metadata.get("cause") == "approval_opened":
        return "started", "The run began with an approval."
    return "started", "The run began."


def _gate_reached(story: ExplainContext, event: Event) -> Told:
    return "approval_opened", "Nothing could go on without an approval."


def _gate_passed(story: ExplainContext, event: Event) -> Told:
    return "resumed", "The run went on: nothing of it waited for an approval alone any more."


def _run_cancel(story: ExplainContext, event: Event) -> Told | None:
    if event.from_ == event.to:
        because = outcomes.given(str(event.metadata.get("reason", "")))
        who = person(event.actor, is_first=True)
        return "cancel_requested", f"{who} cancelled the run{because}. It was still being planned and stops after that."
    return "cancel_requested", f"The run was{outcomes.run_cancel(story)}."


def _run_ended(story: ExplainContext, event: Event) -> Told | None:
    known = story.run
    if known is None or not run.is_over(known):
        return None
    end = outcomes.run_end(story, known).of(f"Run {shown(known.id)}")
    return end.code, end.text


def _reported(_story: ExplainContext, event: Event) -> Told:
    """What the reporter says is told as it is: it tells whether the forge has the outcome, or what kept it from it."""
    told = event.metadata.get("told")
    if not told:
        return "reported", "The outcome was published."
    return "reported", f"The outcome was published. What its forge was told{saying(told)}."


# fmt: off
_OF_RUN: Final[dict[tuple[str, str], Teller]] = {
    (RUN, "created"): _run_created,
    (RUN, "plan_returned"): _planned,
    (RUN, "first_attempt_active"): _first_active,
    (RUN, "approval_gate_reached"): _gate_reached,
    (RUN, "approval_resolved"): _gate_passed,
    (RUN, "cancel_requested"): _run_cancel,
    (RUN, "statuses_published"): _reported,
    **{(RUN, word): _run_ended for word in (
        "run_finalized", "all_required_succeeded", "validation_failed", "required_job_failed", "run_timed_out",
        "cancel_finalized")},
}
_OF_JOB_ALWAYS: Final[dict[tuple[str, str], Teller]] = {
    (JOB, "approval_opened"): _approval_opened,
    (JOB, "approval_given"): _approval_given,
    (JOB, "execution_failed"): _execution_failed,
    (JOB, "approved"): _job_ended,
    (JOB, "rejected"): _job_ended,
    (JOB, "validation_failed"): _job_ended,
    (JOB, "user_cancelled"): _job_ended,
    (ATTEMPT, "stalled"): _stalled,
}
_OF_JOB: Final[dict[tuple[str, str], Teller]] = {
    **_OF_JOB_ALWAYS,
    (JOB, "created"): _job_created,
    (JOB, "scheduler_assigned"): _scheduled,
    (JOB, "execution_completed"): _executed,
    (JOB, "retry_delay_elapsed"): _retried,
    (JOB, "validation_passed"): _job_ended,
    (ATTEMPT, "claimed"): _claimed,
    (ATTEMPT, "started"): _started,
    (ATTEMPT, "requeued"): _requeued,
    (ATTEMPT, "cancel_requested"): _cancel_requested,
}
_FOR_RUN: Final = {
    **_OF_RUN,
    **_OF_JOB_ALWAYS,
    (JOB, "user_cancelled"): _job_ended_in_run,
    (ATTEMPT, "failed"): _attempt_ended_badly,
}
_FOR_JOB: Final = {**_OF_JOB, (ATTEMPT, "failed"): _attempt_ended_badly}
_FOR_ATTEMPT: Final[dict[tuple[str, str], Teller]] = {
    **{pair: teller for pair, teller in _OF_JOB.items() if pair[0] == ATTEMPT},
    (ATTEMPT, "enqueued"): _enqueued,
    (ATTEMPT, "succeeded"): _attempt_ended,
    (ATTEMPT, "failed"): _attempt_ended,
}
# fmt: on

__all__ = ["attempt_history", "job_history", "run_history"]
