"""Explain the waits of all attempts, jobs and runs of a tenant, for the queue page.

The sentences have no subject, because the list names each record. Records that wait for the same can be grouped: by the
code of the reason, and where it matters by the required labels or the concurrency group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from deltaci.audit.explain import waits, waits_for_workers
from deltaci.audit.explain.context import ExplainContext
from deltaci.audit.explain.formatting import capitalized, count, listed
from deltaci.audit.explain.reasons import Clause, Reason
from deltaci.core import job as core_job
from deltaci.core.attempt import Attempt
from deltaci.core.ids import attempt_id
from deltaci.core.job import Job, satisfies
from deltaci.core.run import Run
from deltaci.core.timers import ready_at

# The ranks by which the list is ordered.
RANK_QUEUED: Final = 0
RANK_UNQUEUED: Final = 1  # A job that waits for people or a time, or a run that has no plan yet.
RANK_DEPENDENT: Final = 2  # A job that waits for other jobs of its run.

WAITING_FOR_JOBS: Final = "waiting_for_jobs"
MAX_NEEDS: Final = 4
MAX_KEY_CHARS: Final = 100

# Code -> sentence for one record and for several, where the sentences of the records of a group differ.
_GROUP_TEXTS: Final = {
    WAITING_FOR_JOBS: ("waits for other jobs of its run", "wait for other jobs of their runs"),
    "waiting_for_approval": ("waits for approval", "wait for approval"),
    "waiting_for_validation": ("waits for its result to be validated", "wait for their results to be validated"),
    "waiting_for_acceptance": ("waits for its worker to accept it", "wait for their workers to accept them"),
    "retry_scheduled": ("waits for a retry", "wait for a retry"),
    "not_before": ("is scheduled for later", "are scheduled for later"),
    "fence": (
        "waits until the worker that lost it must have stopped",
        "wait until the workers that lost them must have stopped",
    ),
    "planning": ("waits to be planned", "wait to be planned"),
    "stopping": ("is being stopped", "are being stopped"),
    "stalled": ("waits to be requeued by hand", "wait to be requeued by hand"),
}
_WORKER_CODES: Final = frozenset({*waits_for_workers.NEEDS_ACTION, waits_for_workers.BUSY, waits_for_workers.CLAIMABLE})
# Codes for which all records of a group name the same record to look at.
_SHARED_ABOUT_CODES: Final = frozenset(
    {waits_for_workers.ON_HOLD, waits_for_workers.UNRESPONSIVE, waits_for_workers.LEAVING, "waiting_for_group"}
)
_URGENT: Final = frozenset({*waits_for_workers.NEEDS_ACTION, "waiting_for_approval", "stalled"})


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """A record that waits, and clauses that say why, the most important one first.

    `group_key` is equal for records that wait for the same. Reasons are properties, because a list shows few of many
    waits and only those need their sentences.
    """

    record: Attempt | Job | Run
    rank: int
    since: int
    clauses: Sequence[Clause]
    group_key: str

    @property
    def code(self) -> str:
        """The code of the first reason."""
        return self.clauses[0].code

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The clauses as sentences. Those about workers are without details, because the group shows them once."""
        return tuple(
            _to_reason(clause.without_details() if is_about_workers(clause.code) else clause) for clause in self.clauses
        )

    @property
    def first_reason(self) -> Reason:
        """The most important clause as a sentence, with its details."""
        return _to_reason(self.clauses[0])

    @property
    def sort_key(self) -> tuple[int, int, int, str]:
        """The sort key for a list of waits: by rank, then queued attempts in the order of claims, others by age."""
        if isinstance(self.record, Attempt):
            return self.rank, -self.record.priority, ready_at(self.record) or self.since, self.record.id
        return self.rank, 0, self.since, self.record.id


class WaitGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Several records that wait for the same: how many they are, and one sentence that says what for."""

    key: str
    code: str
    text: str
    about: str
    count: int


def is_urgent(code: str) -> bool:
    """Return whether a record with this reason code waits until a person does something."""
    return code in _URGENT


def is_about_workers(code: str) -> bool:
    """Return whether the reason code is about workers: missing, busy, on hold, unresponsive or free ones."""
    return code in _WORKER_CODES


def current_attempts(jobs: Iterable[Job]) -> list[str]:
    """Return the ids of the latest attempts of the jobs that have not ended."""
    return [attempt_id(job.id, job.attempts) for job in jobs if job.attempts and job.state not in core_job.TERMINAL]


def is_leased(attempt: Attempt) -> bool:
    """Return whether a worker holds the attempt now."""
    return attempt.lease is not None


def leased_since(attempt: Attempt) -> int:
    """Return when a leased attempt started to run, or when it was claimed if it does not run yet."""
    return attempt.started_at or attempt.updated_at


def attempt_wait(context: ExplainContext, attempt: Attempt) -> Wait | None:
    """Return why no worker has the attempt, or None if a worker has it or it does not wait."""
    clauses = waits.attempt_waits(context, attempt) if not is_leased(attempt) else []
    if not clauses:
        return None
    code, group_name = clauses[0].code, ""
    if is_about_workers(code):
        group_name = attempt.queue_key
    elif code == "waiting_for_group":
        group_name = attempt.group
    return _make_wait(attempt, RANK_QUEUED, attempt.updated_at, clauses, group_name)


def wait_before_queue(context: ExplainContext, job: Job) -> Wait | None:
    """Return what the job waits for, or None if it runs or has ended.

    Return None as well if its latest attempt is known and queued or running: `attempt_wait` explains that.
    """
    if job.state in core_job.TERMINAL:
        return None
    if job.state == core_job.PENDING:
        return _make_wait(job, RANK_DEPENDENT, job.created_at, [_direct_needs_clause(context, job)])
    if context.attempt_of(job) is not None and job.state in (core_job.QUEUED, core_job.RUNNING):
        return None
    clauses = waits.waits_without_jobs(context, job)
    return _make_wait(job, RANK_UNQUEUED, job.updated_at, clauses) if clauses else None


def run_wait(context: ExplainContext, run: Run) -> Wait | None:
    """Return what the run itself waits for, or None if it does not wait. Pass a context without the run's jobs."""
    clauses = [clause for _, clause in waits.run_waits(context, run)]
    return _make_wait(run, RANK_UNQUEUED, run.updated_at, clauses) if clauses else None


def lease_reasons(context: ExplainContext, attempt: Attempt) -> tuple[Reason, ...]:
    """Return the reason why a leased attempt may not be running; empty if it is running.

    The worker has not accepted it yet, stopped answering, or is to stop it.
    """
    return tuple(_to_reason(clause) for clause in waits.attempt_waits(context, attempt))


def group_waits(waits: Sequence[Wait]) -> list[WaitGroup]:
    """Return the waits in groups with equal keys: urgent groups first, then by size, waits for other jobs last."""
    waits_by_key: dict[str, list[Wait]] = {}
    for wait in waits:
        waits_by_key.setdefault(wait.group_key, []).append(wait)
    wait_groups = [_make_group(member_waits) for member_waits in waits_by_key.values()]
    return sorted(
        wait_groups,
        key=lambda group: (not is_urgent(group.code), group.code == WAITING_FOR_JOBS, -group.count, group.key),
    )


def _make_group(member_waits: Sequence[Wait]) -> WaitGroup:
    first_wait = member_waits[0]
    group_texts = _GROUP_TEXTS.get(first_wait.code)
    text = (
        capitalized(group_texts[len(member_waits) > 1]) + "."
        if group_texts is not None
        else first_wait.first_reason.text
    )
    if group_texts is None and len(member_waits) > 1 and text.startswith("Waits "):
        text = "Wait " + text.removeprefix("Waits ")
    about = first_wait.first_reason.about if first_wait.code in _SHARED_ABOUT_CODES else ""
    return WaitGroup(key=first_wait.group_key, code=first_wait.code, text=text, about=about, count=len(member_waits))


def _make_wait(
    record: Attempt | Job | Run, rank: int, since: int, clauses: Sequence[Clause], group_name: str = ""
) -> Wait:
    code = clauses[0].code
    return Wait(
        record=record,
        rank=rank,
        since=since,
        clauses=clauses,
        group_key=f"{code}:{group_name[:MAX_KEY_CHARS]}" if group_name else code,
    )


def _to_reason(clause: Clause) -> Reason:
    """Return the clause as a capitalized sentence without a subject."""
    reason = clause.to_reason("")
    return msgspec.structs.replace(reason, text=capitalized(reason.text.strip()))


def _direct_needs_clause(context: ExplainContext, job: Job) -> Clause:
    """Return a clause that names the unfinished jobs for which this one waits directly.

    The job at the root of the wait is found only when the job is explained on its own.
    """
    predecessors = [
        context.jobs[predecessor_id] for predecessor_id in (*job.needs, *job.after) if predecessor_id in context.jobs
    ]
    open_jobs = [
        predecessor
        for predecessor in predecessors
        if not satisfies(predecessor) and predecessor.state not in core_job.TERMINAL
    ]
    if not open_jobs:
        text = f"waits for {count(job.unmet, 'other job')}" if job.unmet else "waits for its run to start"
        return Clause(WAITING_FOR_JOBS, text, job.id)
    joined_names = listed(list(dict.fromkeys(predecessor.spec.name for predecessor in open_jobs)), MAX_NEEDS)
    return Clause(WAITING_FOR_JOBS, f"waits for {joined_names}", open_jobs[0].id)
