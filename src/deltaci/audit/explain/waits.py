"""Why a run, job or attempt waits now. A wait for other jobs is followed to the job where it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from deltaci.audit.explain import failures, outcomes, waits_for_workers
from deltaci.audit.explain.context import ExplainContext
from deltaci.audit.explain.formatting import actor_name, count, listed, moment, one_line, when
from deltaci.audit.explain.reasons import Clause
from deltaci.core import attempt as core_attempt
from deltaci.core import job as core_job
from deltaci.core import run as core_run
from deltaci.core import timers
from deltaci.core.attempt import Attempt
from deltaci.core.job import Job, satisfies
from deltaci.core.run import Run

SubjectClause = tuple[str, Clause]  # The subject of a sentence, and the rest of it.

MAX_REASONS: Final = 20
MAX_LINKS: Final = 5  # How many jobs of a chain are named.

POSITION: Final = "position"
RUNNING: Final = "running"
# If a job waits for several others, the most urgent wait is explained first: those that need a person come before
# others.
_DEFAULT_URGENCY: Final = 1
_URGENCIES: Final = {
    RUNNING: 0,
    waits_for_workers.BUSY: 2,
    waits_for_workers.CLAIMABLE: 2,
    "quota": 2,
    "waiting_for_group": 2,
    **dict.fromkeys(waits_for_workers.NEEDS_ACTION, 3),
    "waiting_for_approval": 3,
    "stalled": 3,
}


# -- attempts


def attempt_waits(context: ExplainContext, attempt: Attempt) -> list[Clause]:
    """Return clauses that say why the attempt makes no progress; empty while it runs and after its end."""
    if attempt.reassign_at:
        return _silent_worker_clauses(context, attempt)
    explain = _ATTEMPT_WAITS.get(attempt.state)
    return explain(context, attempt) if explain is not None else []


def _silent_worker_clauses(context: ExplainContext, attempt: Attempt) -> list[Clause]:
    """Return the clause that the attempt's worker sends no heartbeats, and when its lease ends."""
    lease = attempt.lease
    if lease is None:
        return []
    text = f"is on worker {one_line(lease.worker_id)}, which sends no heartbeat for it;"
    text += f" without one, its lease ends at {when(attempt.reassign_at, context.now)}"
    advice = "Then it is requeued for another worker."
    if attempt.lost_leases >= attempt.max_lost_leases:
        advice = "Then it fails, because its lease was lost too often."
    event = context.last_event(attempt.id, core_attempt.MARKED_FOR_REASSIGNMENT)
    return [Clause("worker_silent", text, attempt.id, event, advice)]


def _queued_clauses(context: ExplainContext, attempt: Attempt) -> list[Clause]:
    event = context.last_event(attempt.id)
    clause = waits_for_workers.worker_clause(context, attempt)
    clause = Clause(clause.code, clause.text, clause.about or attempt.id, event, clause.details)
    clauses: list[Clause] = []
    if attempt.fence_until > context.now:
        lease = attempt.ended_lease
        last_worker_text = f"worker {one_line(lease.worker_id)}" if lease is not None else "its last worker"
        text = f"waits until {when(attempt.fence_until, context.now)}, when its last lease ends"
        text += f": until then {last_worker_text}, which lost it, may still be running it"
        clauses.append(Clause("fence", text, attempt.id, event))
    elif attempt.run_at > context.now:
        text = f"is scheduled for {when(attempt.run_at, context.now)}"
        clauses.append(Clause("not_before", text, attempt.id, event))
    tenant = context.tenant
    holder_id = tenant.groups.get(attempt.group, "") if attempt.group else ""
    if holder_id and holder_id != attempt.id and not clauses:
        clauses.append(_group_clause(context, attempt, holder_id))
    if tenant.running_quota and tenant.running >= tenant.running_quota and not clauses:
        text = f"waits for the quota: {tenant.running} of at most {tenant.running_quota} jobs are running"
        details = "It is claimed when one of them ends, or when the quota is raised."
        clauses.append(Clause("quota", text, attempt.id, event, details))
    if not clauses or clause.code in waits_for_workers.NEEDS_ACTION:
        clauses.append(clause)
    ahead_count = tenant.ahead.get(attempt.id, 0)
    if ahead_count:
        clauses.append(Clause(POSITION, f"is behind {count(ahead_count, 'other attempt')} in the queue", attempt.id))
    return clauses


def _group_clause(context: ExplainContext, attempt: Attempt, holder_id: str) -> Clause:
    """Return the clause for an attempt whose concurrency group is held by the attempt `holder_id`.

    That id contains the ids of its job and run.
    """
    job_id = holder_id.rpartition(".")[0] or holder_id
    run_id, _, job_name = job_id.partition("/")
    job_text = f"job {one_line(job_name or job_id)}"
    if job_name and run_id != attempt.run_id:
        job_text += f" of run {one_line(run_id)}"
    event = context.last_event(attempt.id)
    fence_until = context.tenant.group_fences.get(attempt.group, 0)
    if fence_until > context.now:
        text = f"waits for group {one_line(attempt.group)} until {when(fence_until, context.now)}"
        text += f", when the last lease of {job_text} ends: until then its worker may still be running it"
        return Clause("waiting_for_group", text, job_id, event)
    text = f"waits for group {one_line(attempt.group)}, which {job_text} holds"
    return Clause("waiting_for_group", text, job_id, event, "It is claimed when that job has ended.")


def _unaccepted_lease_clauses(context: ExplainContext, attempt: Attempt) -> list[Clause]:
    lease = attempt.lease
    if lease is None:
        return []
    next_deadline = timers.next_due(attempt)
    deadline = next_deadline[0] if next_deadline is not None else lease.accept_by
    deadline_text = when(deadline, context.now)
    text = f"was assigned to worker {one_line(lease.worker_id)}, which has until {deadline_text} to accept it"
    return [Clause("waiting_for_acceptance", text, attempt.id, context.last_event(attempt.id))]


def _stale_clauses(context: ExplainContext, attempt: Attempt) -> list[Clause]:
    if not attempt.is_lost_too_often:
        return _queued_clauses(context, attempt)
    event = context.last_event(attempt.id)  # Stalled by an older version, which did not fail it.
    lease = attempt.ended_lease
    by_actor = f" by {actor_name(event.actor)}" if event is not None else ""
    text = (
        f"was taken from worker {one_line(lease.worker_id)}{by_actor}"
        if lease is not None
        else f"was taken away{by_actor}"
    )
    text += " and waits to be requeued"
    return [Clause("stalled", text, attempt.id, event, "Requeue it: it was lost too often and will fail.")]


def _stopping_clauses(context: ExplainContext, attempt: Attempt) -> list[Clause]:
    event = context.last_event(attempt.id, "cancel_requested")
    text = f"is being stopped{outcomes.stop_cause(context, attempt)}"
    next_deadline = timers.next_due(attempt)
    if attempt.lease is None or next_deadline is None:
        return [Clause("stopping", text, attempt.id, event)]
    text += f"; worker {one_line(attempt.lease.worker_id)} has not confirmed yet that it stopped"
    details = f"At {when(next_deadline[0], context.now)} it is ended without the worker."
    return [Clause("stopping", text, attempt.id, event, details)]


_ATTEMPT_WAITS: Final[dict[str, Callable[[ExplainContext, Attempt], list[Clause]]]] = {
    core_attempt.QUEUED: _queued_clauses,
    core_attempt.LEASED: _unaccepted_lease_clauses,
    core_attempt.STALE: _stale_clauses,
    core_attempt.CANCEL_REQUESTED: _stopping_clauses,
}


# -- jobs


def job_waits(context: ExplainContext, job: Job) -> list[Clause]:
    """Return clauses that say why the job makes no progress; empty while it runs and after its end."""
    if job.state == core_job.PENDING:
        return _waits_for_jobs(context, job)
    return waits_without_jobs(context, job)


def waits_without_jobs(context: ExplainContext, job: Job) -> list[Clause]:
    """Return clauses for what the job itself waits for, which is not the end of other jobs."""
    if job.state in (core_job.QUEUED, core_job.RUNNING):
        attempt = context.attempt_of(job)
        if attempt is not None:
            return attempt_waits(context, attempt)
        if job.state == core_job.QUEUED:
            return [Clause(waits_for_workers.CLAIMABLE, "waits for a worker", job.id, context.last_event(job.id))]
        return []
    explain = _JOB_WAITS.get(job.state)
    return [explain(context, job)] if explain is not None else []


def _retry_clause(context: ExplainContext, job: Job) -> Clause:
    event, attempt = context.last_event(job.id, "execution_failed"), context.attempt_of(job)
    text = f"waits for a retry: attempt {job.attempts + 1} of {job.spec.max_attempts} starts at"
    text += f" {when(job.next_run_at, context.now)}"
    if job.last_error is not None:
        attempt_event = context.last_event(attempt.id) if attempt is not None else None
        exit_code = attempt_event.metadata.get("exit_code") if attempt_event is not None else None
        text += f", because attempt {job.attempts} failed: {failures.describe_failure(job.last_error, exit_code)}"
    details = ""
    if attempt is not None and attempt.fence_until == job.next_run_at:
        details = "It waits that long because the last worker may still be running it until then."
    return Clause("retry_scheduled", text, job.id, event, details)


def _approval_clause(context: ExplainContext, job: Job) -> Clause:
    gate = job.spec.gate
    role_text = f" with the role {one_line(gate.role)}" if gate.role else ""
    approvers_text = f"a person{role_text}" if gate.approvers == 1 else f"{gate.approvers} different people{role_text}"
    if gate.not_by_starter and job.started_by:
        approvers_text += f" (not {one_line(job.started_by)}, who started the run)"
    text = f"waits for approval by {approvers_text}"
    if job.approve_by:
        text += f" until {when(job.approve_by, context.now)}"
    if gate.approvers > 1:
        approval_count = len(job.approvals)
        approvers_list_text = (
            f" ({listed([approval.person for approval in job.approvals], 8)})" if approval_count else ""
        )
        verb = "has" if approval_count == 1 else "have"
        text += f"; {approval_count} of {gate.approvers} {verb} approved{approvers_list_text}"
    details = "Without approval it fails then." if job.approve_by else "There is no deadline."
    return Clause("waiting_for_approval", text, job.id, context.last_event(job.id), details)


def _validation_clause(context: ExplainContext, job: Job) -> Clause:
    text = "has run, and its result is being validated"
    return Clause("waiting_for_validation", text, job.id, context.last_event(job.id))


_JOB_WAITS: Final[dict[str, Callable[[ExplainContext, Job], Clause]]] = {
    core_job.RETRYING: _retry_clause,
    core_job.WAITING_APPROVAL: _approval_clause,
    core_job.VALIDATING: _validation_clause,
}


def root_clause(context: ExplainContext, job: Job) -> Clause:
    """Return the clause for a job on which other jobs wait: why it has not finished.

    That is its own wait, or that it is running or has ended.
    """
    clauses = waits_without_jobs(context, job)
    if clauses:
        return clauses[0]
    if job.state in core_job.TERMINAL:
        return Clause(RUNNING, "has ended", job.id, context.last_event(job.id))
    attempt = context.attempt_of(job)
    if attempt is not None:
        return running_clause(context, attempt)
    return Clause(RUNNING, "is running", job.id, context.last_event(job.id))


def running_clause(context: ExplainContext, attempt: Attempt) -> Clause:
    """Return the clause that says on which worker the attempt runs, since when, and its time limit.

    For an attempt that has not begun to run: on which worker it is being started.
    """
    on_worker = f" on worker {one_line(attempt.lease.worker_id)}" if attempt.lease is not None else ""
    text = f"is being started{on_worker}"
    if attempt.started_at:
        text = f"has been running{on_worker} since {moment(attempt.started_at)}"
        text += f" with a time limit until {when(attempt.times_out_at, context.now)}"
    return Clause(RUNNING, text, attempt.id, context.last_event(attempt.id))


def is_running(context: ExplainContext, job: Job) -> bool:
    """Return whether a worker is running the job now."""
    attempt = context.attempt_of(job) if job.state == core_job.RUNNING else None
    return attempt is not None and attempt.state not in _ATTEMPT_WAITS and not attempt.reassign_at


# -- jobs that wait for others


class _WaitChain(msgspec.Struct, frozen=True):
    """The path from a waiting job to the job that explains its wait (`root_id`).

    At each step it continues to the blocking job with the greatest urgency. `urgency` is that of the root's reason,
    `next_id` is the next job on the path, and `length` is the number of steps.
    """

    urgency: int
    root_id: str
    next_id: str = ""
    length: int = 0


def _unsatisfied_jobs(context: ExplainContext) -> dict[str, Job]:
    """Return the jobs, by id, that have not ended in a way that lets the jobs that need them start."""
    return {job_id: job for job_id, job in context.jobs.items() if not satisfies(job)}


def _blocking_jobs(unsatisfied_job_by_id: dict[str, Job], job: Job) -> list[Job]:
    """Return the jobs for which the job waits: unsatisfied needs, and jobs in `after` that have not ended."""
    blocking_jobs = [unsatisfied_job_by_id[job_id] for job_id in job.needs if job_id in unsatisfied_job_by_id]
    if job.after:
        predecessors = (
            unsatisfied_job_by_id[job_id]
            for job_id in job.after
            if job_id in unsatisfied_job_by_id and job_id not in job.needs
        )
        blocking_jobs += [predecessor for predecessor in predecessors if predecessor.state not in core_job.TERMINAL]
    return blocking_jobs


def _wait_chains(context: ExplainContext, unsatisfied_job_by_id: dict[str, Job], job: Job) -> dict[str, _WaitChain]:
    """Return, by job id, the wait chain of this job and of every job for which it waits, directly or indirectly.

    A depth-first search without recursion, linear in the size of the plan.
    """
    chain_by_id: dict[str, _WaitChain] = {}
    blocking_jobs_by_id: dict[str, list[Job]] = {}
    stack = [(job, False)]
    while stack:
        visited_job, is_leaving = stack.pop()
        if is_leaving:
            # Of equal urgencies the first in the order of the plan.
            most_urgent_blocker = max(
                blocking_jobs_by_id[visited_job.id], key=lambda blocker: chain_by_id[blocker.id].urgency, default=None
            )
            if most_urgent_blocker is not None:
                next_chain = chain_by_id[most_urgent_blocker.id]
                chain_by_id[visited_job.id] = _WaitChain(
                    next_chain.urgency, next_chain.root_id, most_urgent_blocker.id, next_chain.length + 1
                )
        elif visited_job.id in chain_by_id:
            continue
        elif visited_job.state != core_job.PENDING:
            urgency = _URGENCIES.get(root_clause(context, visited_job).code, _DEFAULT_URGENCY)
            chain_by_id[visited_job.id] = _WaitChain(urgency, visited_job.id)
        else:
            # Marks it as visited: the search ends even with a cycle.
            chain_by_id[visited_job.id] = _WaitChain(-1, visited_job.id)
            blocking_jobs_by_id[visited_job.id] = _blocking_jobs(unsatisfied_job_by_id, visited_job)
            stack.append((visited_job, True))
            stack.extend(
                (blocker, False) for blocker in blocking_jobs_by_id[visited_job.id] if blocker.id not in chain_by_id
            )
    return chain_by_id


def _waits_for_jobs(context: ExplainContext, job: Job) -> list[Clause]:
    """Return up to `MAX_REASONS` clauses, one for each root job at the end of this job's wait chains.

    The most urgent come first (see `_URGENCIES`). Without such a root job, return one general clause.
    """
    unsatisfied_jobs = _unsatisfied_jobs(context)
    chain_by_id = _wait_chains(context, unsatisfied_jobs, job)
    blockers_by_root: dict[str, list[Job]] = {}
    for blocker in sorted(_blocking_jobs(unsatisfied_jobs, job), key=lambda blocker: -chain_by_id[blocker.id].urgency):
        blockers_by_root.setdefault(chain_by_id[blocker.id].root_id, []).append(blocker)
    clauses: list[Clause] = []
    for blockers in list(blockers_by_root.values())[:MAX_REASONS]:
        clause, other_count = _chain_clause(context, chain_by_id, blockers[0]), len(blockers) - 1
        if other_count:
            verb = "waits" if other_count == 1 else "wait"
            clause = clause.add_detail(f"{count(other_count, 'other job')} before it {verb} for the same reason.")
        clauses.append(clause)
    if clauses:
        return clauses
    text = f"waits for {count(job.unmet, 'other job')}" if job.unmet else "waits for its run to start"
    return [Clause("waiting_for_jobs", text, job.id, context.last_event(job.id))]


def _chain_clause(context: ExplainContext, chain_by_id: dict[str, _WaitChain], blocker: Job) -> Clause:
    """Return the clause that names the jobs of the chain from `blocker` to its root, and says what the root waits for.

    Of a long chain, the jobs in the middle are only counted.
    """
    chain = chain_by_id[blocker.id]
    job_names, link_id = [context.job_name(blocker.id)], blocker.id
    while chain_by_id[link_id].next_id and len(job_names) < MAX_LINKS:
        link_id = chain_by_id[link_id].next_id
        job_names.append(context.job_name(link_id))
    if chain.length >= MAX_LINKS:
        omitted_text = count(chain.length + 1 - MAX_LINKS, "other job")
        job_names[-1] = f"{omitted_text} in a chain, the last of which waits for {context.job_name(chain.root_id)}"
    root_wait = root_clause(context, context.jobs[chain.root_id])
    text = f"waits for {', which waits for '.join(job_names)}, which {root_wait.text}"
    return Clause("waiting_for_jobs", text, chain.root_id, root_wait.event, root_wait.details)


# -- runs


def run_waits(context: ExplainContext, run: Run) -> list[SubjectClause]:
    """Return why the run or some of its jobs make no progress, as subjects and clauses; empty after its end."""
    if core_run.is_over(run):
        return []
    subject = f"Run {one_line(run.id)}"
    if run.state in (core_run.CREATED, core_run.PLANNING):
        return [(subject, clause) for clause in _planning_clauses(context, run)]
    if run.state == core_run.VALIDATING:
        text = "waits for its final validation: all of its jobs have ended"
        return [(subject, Clause("waiting_for_validation", text, run.id, context.last_event(run.id)))]
    clauses = list(_waits_of_jobs(context))
    return [(subject, _decided_clause(context, run)), *clauses] if core_run.is_decided(run) else clauses


def _decided_clause(context: ExplainContext, run: Run) -> Clause:
    """Return the clause about a run that waits only for optional jobs. It names them and the end of the wait.

    A job that no worker has leased waits until `optional_until`; a leased one is awaited.
    """
    outcome = "fail" if run.tally.doomed else "be validated" if run.has_validation else "succeed"
    text = f"will {outcome} when its optional jobs have ended: every required job has"
    open_jobs = [job for job in context.jobs.values() if job.state not in core_job.TERMINAL]
    waiting_names = [
        job.spec.name for job in open_jobs if job.state != core_job.PENDING and not _is_leased(context, job)
    ]
    leased = [job.spec.name for job in open_jobs if _is_leased(context, job)]
    if waiting_names and run.optional_until:
        verb = "waits" if len(waiting_names) == 1 else "wait"
        text += f"; {listed(waiting_names)} {verb} until {when(run.optional_until, context.now)}"
    if leased:
        text += f"; {listed(leased)} {'is' if len(leased) == 1 else 'are'} running"
    advice = "What waits until then ends as NOT_NEEDED." if waiting_names and run.optional_until else ""
    return Clause("optional_jobs", text, run.id, context.last_event(run.id, core_run.OPTIONAL_WAIT_BEGAN), advice)


def _is_leased(context: ExplainContext, job: Job) -> bool:
    attempt = context.attempt_of(job) if job.attempts else None
    return attempt is not None and attempt.lease is not None


def _planning_clauses(context: ExplainContext, run: Run) -> Iterator[Clause]:
    event = context.last_event(run.id)
    if run.state == core_run.CREATED:
        yield Clause("planning", "waits for planning to start", run.id, event)
    elif not run.plan_by:
        event = context.last_event(run.id, "group_awaited") or event
        group_name = one_line(event.metadata.get("concurrency_group", "")) if event is not None else ""
        text = f"is planned and waits until no earlier run of its concurrency group {group_name} is active"
        yield Clause("waiting_for_group", text, run.id, event)
    else:
        text = f"is being planned until {when(run.plan_by, context.now)}"
        yield Clause("planning", text, run.id, event, "Without a plan by then it fails.")
    request_event = context.last_event(run.id, "cancel_requested")
    if run.cancel_reason:
        by_actor = f" by {actor_name(request_event.actor)}" if request_event is not None else ""
        yield Clause("stopping", f"was cancelled{by_actor} and stops as soon as it is planned", run.id, request_event)


def _waits_of_jobs(context: ExplainContext) -> Iterator[SubjectClause]:
    """Yield what the jobs of the run themselves wait for, with one clause for all jobs that wait for the same."""
    jobs_by_key: dict[tuple[str, str], list[Job]] = {}
    clause_by_key: dict[tuple[str, str], Clause] = {}
    for job in context.jobs.values():
        if job.state == core_job.PENDING or job.state in core_job.TERMINAL:
            continue
        for clause in waits_without_jobs(context, job):
            if clause.code != POSITION:
                clause_key = (clause.code, clause.text)
                jobs_by_key.setdefault(clause_key, []).append(job)
                clause_by_key.setdefault(clause_key, clause)
    clause_keys = sorted(jobs_by_key, key=lambda clause_key: -_URGENCIES.get(clause_key[0], _DEFAULT_URGENCY))
    for clause_key in clause_keys[:MAX_REASONS]:
        waiting_jobs, clause = jobs_by_key[clause_key], clause_by_key[clause_key]
        if len(waiting_jobs) > 1:
            other_names = listed([job.spec.name for job in waiting_jobs[1:]])
            clause = clause.add_detail(f"The same applies to {other_names}.")
        yield f"Job {one_line(waiting_jobs[0].spec.name)}", clause
    omitted_count = sum(len(jobs_by_key[clause_key]) for clause_key in clause_keys[MAX_REASONS:])
    if omitted_count:
        verb = "waits" if omitted_count == 1 else "wait"
        about = context.run.id if context.run else ""
        yield count(omitted_count, "more job"), Clause("more", f"{verb}; explain a job to see why", about)


__all__ = [
    "attempt_waits",
    "is_running",
    "job_waits",
    "root_clause",
    "run_waits",
    "running_clause",
    "waits_without_jobs",
]
