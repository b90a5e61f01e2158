"""Why? For a run, a job or an attempt: what it waits for now, and what led here, in sentences for a person.

Pure: it reads records and events, and what is known around them, and decides nothing. It never raises for what is
missing; it then says less. Give it all jobs, attempts and events of the run, the events in the order of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from deltaci.audit.explain import history, outcomes, waits
from deltaci.audit.explain.codes import CODES, ENDS
from deltaci.audit.explain.context import ExplainContext
from deltaci.audit.explain.formatting import capital, count, moment, shown
from deltaci.audit.explain.reasons import Clause, Explanation, Reason, TenantState
from deltaci.core import attempt as attempts_
from deltaci.core import job as jobs_
from deltaci.core import run as runs_
from deltaci.core.attempt import Attempt
from deltaci.core.events import ATTEMPT, JOB, RUN, Event
from deltaci.core.job import Job
from deltaci.core.run import Run
from deltaci.core.status.queue import job_status
from deltaci.core.status.steps import run_status, step_status

__all__ = [
    "CODES",
    "ENDS",
    "Explanation",
    "Reason",
    "TenantState",
    "explain_attempt",
    "explain_job",
    "explain_run",
    "format_lines",
]


def explain_run(
    run: Run, jobs: Iterable[Job], attempts: Iterable[Attempt], events: Sequence[Event], surroundings: TenantState
) -> Explanation:
    """Why the run stands as it does."""
    story = ExplainContext(run, jobs, attempts, events, surroundings)
    said = waits.run_waits(story, run)
    return Explanation(
        id=run.id,
        entity=RUN,
        state=run.state,
        status=run_status(run),
        summary=_run_summary(story, run, said),
        waiting=tuple(clause.of(subject) for subject, clause in said),
        history=history.run_history(story),
    )


def explain_job(
    job: Job,
    run: Run,
    jobs: Iterable[Job],
    attempts: Iterable[Attempt],
    events: Sequence[Event],
    surroundings: TenantState,
) -> Explanation:
    """Why the job stands as it does. `jobs` and `attempts` are those of its run."""
    story = ExplainContext(run, [*jobs, job], attempts, events, surroundings)
    name = f"Job {shown(job.spec.name)}"
    clauses = waits.job_waits(story, job)
    if job.state in jobs_.TERMINAL:
        summary = _sentence(name, outcomes.job_end(story, job))
    elif clauses:
        summary = _sentence(name, clauses[0])
    else:
        summary = _sentence(name, waits.at_root(story, job))
    return Explanation(
        id=job.id,
        entity=JOB,
        state=job.state,
        status=step_status(job),
        summary=summary,
        waiting=tuple(each.of(name) for each in clauses),
        history=history.job_history(story, job),
    )


def explain_attempt(
    attempt: Attempt,
    run: Run | None,
    jobs: Iterable[Job],
    attempts: Iterable[Attempt],
    events: Sequence[Event],
    surroundings: TenantState,
) -> Explanation:
    """Why the attempt stands as it does. One of the plain queue has no run and no jobs."""
    story = ExplainContext(run, jobs, [*attempts, attempt], events, surroundings)
    name = capital(story.attempt_name(attempt))
    clauses = waits.attempt_waits(story, attempt)
    if attempt.state in attempts_.TERMINAL:
        summary = _sentence(name, outcomes.attempt_end(story, attempt))
    else:
        summary = _sentence(name, clauses[0] if clauses else waits.under_way(story, attempt))
    return Explanation(
        id=attempt.id,
        entity=ATTEMPT,
        state=attempt.state,
        status=job_status(attempt),
        summary=summary,
        waiting=tuple(each.of(name) for each in clauses),
        history=history.attempt_history(story, attempt),
    )


def format_lines(explanation: Explanation) -> list[str]:
    """The explanation as people read it on a terminal."""
    found, waiting, title = [explanation.summary], explanation.waiting, "What it waits for:"
    if waiting and waiting[0].text.startswith(explanation.summary):
        # The whole reason, with what can be done, in place of its first sentence.
        found, waiting, title = [waiting[0].text], waiting[1:], "What else it waits for:"
    if waiting:
        found += ["", title, *(f"- {each.text}" for each in waiting)]
    if explanation.history:
        found += ["", "What happened:"]
        found += [f"- {moment(each.at)}: {each.text}" if each.at else f"- {each.text}" for each in explanation.history]
    return found


def _sentence(name: str, clause: Clause) -> str:
    return f"{name} {clause.text}."


def _run_summary(story: ExplainContext, run: Run, said: Sequence[waits.Said]) -> str:
    name = f"Run {shown(run.id)}"
    if runs_.is_over(run):
        return _sentence(name, outcomes.run_end(story, run))
    if said and said[0][0] == name:
        return _sentence(*said[0])
    jobs = story.jobs.values()
    over = sum(1 for each in jobs if each.state in jobs_.TERMINAL)
    running = sum(1 for each in jobs if waits.is_under_way(story, each))
    stand = f"{over} of {count(len(jobs), 'job')}"
    verb = "is" if over == 1 else "are"
    if run.state == runs_.CANCEL_REQUESTED:
        return f"{name} was{outcomes.run_cancel(story)}; {stand} {verb} over, and {len(jobs) - over} must still stop."
    if said and not running:
        subject, clause = said[0]
        return f"{name} waits, with {stand} over: {_sentence(_lower(subject), clause)}"
    return f"{name} goes on: {stand} {verb} over, and {running} {'is' if running == 1 else 'are'} under way."


def _lower(subject: str) -> str:
    return subject[:1].lower() + subject[1:]
