"""Explain in sentences why a run, job or attempt is in its state: its current waits, its outcome and its history.

The functions are pure. They read records, events and the current state of the tenant, and never raise for missing
input: an explanation based on less says less. Pass all jobs, attempts and events of the run, events in log order.
Imports `core` only. Start reading at `explain_run`, then `waits.py`, `outcomes.py` and `history.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from deltaci.audit.explain import history, outcomes, waits
from deltaci.audit.explain.codes import CODES, END_CODES
from deltaci.audit.explain.context import ExplainContext
from deltaci.audit.explain.formatting import capitalized, count, moment, one_line
from deltaci.audit.explain.reasons import Clause, Explanation, Reason, TenantState
from deltaci.core import attempt as core_attempt
from deltaci.core import job as core_job
from deltaci.core import run as core_run
from deltaci.core.attempt import Attempt
from deltaci.core.events import ATTEMPT, JOB, RUN, Event
from deltaci.core.job import Job
from deltaci.core.run import Run
from deltaci.core.status.queue import job_status
from deltaci.core.status.steps import run_status, step_status

__all__ = [
    "CODES",
    "END_CODES",
    "Explanation",
    "Reason",
    "TenantState",
    "explain_attempt",
    "explain_job",
    "explain_run",
    "format_lines",
]


def explain_run(
    run: Run, jobs: Iterable[Job], attempts: Iterable[Attempt], events: Sequence[Event], tenant: TenantState
) -> Explanation:
    """Return the explanation of a run's state: why it waits, how it ended, what happened."""
    context = ExplainContext(run, jobs, attempts, events, tenant)
    wait_clauses = waits.run_waits(context, run)
    return Explanation(
        id=run.id,
        entity=RUN,
        state=run.state,
        status=run_status(run),
        summary=_run_summary(context, run, wait_clauses),
        waiting=tuple(wait_clause.to_reason(subject) for subject, wait_clause in wait_clauses),
        history=history.run_history(context),
    )


def explain_job(
    job: Job,
    run: Run,
    jobs: Iterable[Job],
    attempts: Iterable[Attempt],
    events: Sequence[Event],
    tenant: TenantState,
) -> Explanation:
    """Return the explanation of a job's state. `jobs` and `attempts` are all those of its run."""
    context = ExplainContext(run, [*jobs, job], attempts, events, tenant)
    subject = f"Job {one_line(job.spec.name)}"
    wait_clauses = waits.job_waits(context, job)
    if job.state in core_job.TERMINAL:
        summary = _sentence(subject, outcomes.job_outcome(context, job))
    elif wait_clauses:
        summary = _sentence(subject, wait_clauses[0])
    else:
        summary = _sentence(subject, waits.root_clause(context, job))
    return Explanation(
        id=job.id,
        entity=JOB,
        state=job.state,
        status=step_status(job),
        summary=summary,
        waiting=tuple(wait_clause.to_reason(subject) for wait_clause in wait_clauses),
        history=history.job_history(context, job),
    )


def explain_attempt(
    attempt: Attempt,
    run: Run | None,
    jobs: Iterable[Job],
    attempts: Iterable[Attempt],
    events: Sequence[Event],
    tenant: TenantState,
) -> Explanation:
    """Return the explanation of an attempt's state. An attempt of the plain queue has no run and no jobs."""
    context = ExplainContext(run, jobs, [*attempts, attempt], events, tenant)
    subject = capitalized(context.attempt_name(attempt))
    wait_clauses = waits.attempt_waits(context, attempt)
    if attempt.state in core_attempt.TERMINAL:
        summary = _sentence(subject, outcomes.attempt_outcome(context, attempt))
    else:
        summary = _sentence(subject, wait_clauses[0] if wait_clauses else waits.running_clause(context, attempt))
    return Explanation(
        id=attempt.id,
        entity=ATTEMPT,
        state=attempt.state,
        status=job_status(attempt),
        summary=summary,
        waiting=tuple(wait_clause.to_reason(subject) for wait_clause in wait_clauses),
        history=history.attempt_history(context, attempt),
    )


def format_lines(explanation: Explanation) -> list[str]:
    """Return the explanation as lines of text for a terminal: the summary, the waits and the history."""
    text_lines, listed_reasons, waits_title = [explanation.summary], explanation.waiting, "What it waits for:"
    if listed_reasons and listed_reasons[0].text.startswith(explanation.summary):
        # The first reason starts with the summary and adds advice, so it replaces the summary.
        text_lines, listed_reasons, waits_title = (
            [listed_reasons[0].text],
            listed_reasons[1:],
            "What else it waits for:",
        )
    if listed_reasons:
        text_lines += ["", waits_title, *(f"- {history_reason.text}" for history_reason in listed_reasons)]
    if explanation.history:
        text_lines += ["", "What happened:"]
        text_lines += [
            f"- {moment(history_reason.at)}: {history_reason.text}" if history_reason.at else f"- {history_reason.text}"
            for history_reason in explanation.history
        ]
    return text_lines


def _sentence(subject: str, clause: Clause) -> str:
    return f"{subject} {clause.text}."


def _run_summary(context: ExplainContext, run: Run, subject_clauses: Sequence[waits.SubjectClause]) -> str:
    run_subject = f"Run {one_line(run.id)}"
    if core_run.is_over(run):
        return _sentence(run_subject, outcomes.run_outcome(context, run))
    if subject_clauses and subject_clauses[0][0] == run_subject:
        return _sentence(*subject_clauses[0])
    jobs = context.jobs.values()
    ended_count = sum(1 for job in jobs if job.state in core_job.TERMINAL)
    running_count = sum(1 for job in jobs if waits.is_running(context, job))
    progress_text = f"{ended_count} of {count(len(jobs), 'job')} {'has' if ended_count == 1 else 'have'} ended"
    if run.state == core_run.CANCEL_REQUESTED:
        unfinished_count = len(jobs) - ended_count
        cancellation_text = outcomes.run_canceled(context)
        return f"{run_subject} was{cancellation_text}; {progress_text}, and {unfinished_count} must still stop."
    if subject_clauses and not running_count:
        subject, clause = subject_clauses[0]
        return f"{run_subject} waits ({progress_text}): {_sentence(_lowercased(subject), clause)}"
    verb = "is" if running_count == 1 else "are"
    return f"{run_subject} is running: {progress_text}, and {running_count} {verb} running."


def _lowercased(subject: str) -> str:
    return subject[:1].lower() + subject[1:]
