"""Why something does not go on now, followed from job to job to where the wait begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from deltaci.audit.explain import failures, outcomes, workers
from deltaci.audit.explain.context import ExplainContext
from deltaci.audit.explain.formatting import count, listed, moment, person, shown, when
from deltaci.audit.explain.reasons import Clause
from deltaci.core import attempt, job, run, timers
from deltaci.core.attempt import Attempt
from deltaci.core.job import Job, satisfies
from deltaci.core.run import Run

Said = tuple[str, Clause]  # Of whom, and what.

MAX_REASONS: Final = 20
MAX_LINKS: Final = 5  # So much of a chain of jobs is told name by name.

POSITION: Final = "position"
RUNNING: Final = "running"
# Who should be told of first, where a job waits for several others: what needs somebody, before what passes by itself.
_WEIGHT: Final = {
    RUNNING: 0,
    workers.BUSY: 2,
    workers.TURN: 2,
    "quota": 2,
    "waiting_for_group": 2,
    **dict.fromkeys(workers.TROUBLE, 3),
    "waiting_for_approval": 3,
    "stalled": 3,
}


# -- attempts


def attempt_waits(story: ExplainContext, of: Attempt) -> list[Clause]:
    """Why the attempt does not go on; nothing while a runner has it, or when it is over."""
    told = _ATTEMPT.get(of.state)
    return told(story, of) if told is not None else []


def _queued(story: ExplainContext, of: Attempt) -> list[Clause]:
    event = story.last(of.id)
    by_worker = workers.why_not_taken(story, of)
    by_worker = Clause(by_worker.code, by_worker.text, by_worker.about or of.id, event, by_worker.advice)
    found: list[Clause] = []
    if of.fence_until > story.now:
        lost = of.ended_lease
        by = f"worker {shown(lost.worker_id)}" if lost is not None else "its last worker"
        text = f"may not be taken before {when(of.fence_until, story.now)}: until then {by}, which lost it, may still"
        found.append(Clause("fence", f"{text} be at work on it", of.id, event))
    elif of.run_at > story.now:
        text = f"is meant for {when(of.run_at, story.now)} and waits until then"
        found.append(Clause("not_before", text, of.id, event))
    around = story.around
    holder = around.groups.get(of.group, "") if of.group else ""
    if holder and holder != of.id and not found:
        found.append(_group(story, of, holder))
    if around.running_quota and around.running >= around.running_quota and not found:
        text = f"waits for the quota: {around.running} of {around.running_quota} jobs that may run at once do run"
        advice = "It is taken when one of them ends, or when the quota is raised."
        found.append(Clause("quota", text, of.id, event, advice))
    if not found or by_worker.code in workers.TROUBLE:
        found.append(by_worker)
    ahead = around.ahead.get(of.id, 0)
    if ahead:
        verb = "is" if ahead == 1 else "are"
        found.append(Clause(POSITION, f"has to let others go first: {ahead} {verb} before it in the queue", of.id))
    return found


def _group(story: ExplainContext, of: Attempt, holder: str) -> Clause:
    """Another one of the group has it. Attempts are named after their jobs, and these after their runs."""
    id = holder.rpartition(".")[0] or holder
    run_id, _, name = id.partition("/")
    by = f"job {shown(name or id)}"
    if name and run_id != of.run_id:
        by += f" of run {shown(run_id)}"
    text = f"waits for group {shown(of.group)}, which {by} holds"
    return Clause("waiting_for_group", text, id, story.last(of.id), "It is taken when that one has ended.")


def _leased(story: ExplainContext, of: Attempt) -> list[Clause]:
    held = of.lease
    if held is None:
        return []
    due = timers.next_due(of)
    until = due[0] if due is not None else held.accept_by
    text = f"was given to worker {shown(held.worker_id)}, which has until {when(until, story.now)} to take it"
    return [Clause("waiting_for_acceptance", text, of.id, story.last(of.id))]


def _stale(story: ExplainContext, of: Attempt) -> list[Clause]:
    event = story.last(of.id)
    lost = of.ended_lease
    by = f" by {person(event.actor)}" if event is not None else ""
    text = f"was taken from worker {shown(lost.worker_id)}{by}" if lost is not None else f"was taken away{by}"
    text += " and waits to be put back into the queue"
    if of.lost_leases > of.max_lost_leases:
        return [Clause("stalled", text, of.id, event, "Put it back: it was lost too often and will be failed.")]
    soon = f" from {when(of.fence_until, story.now)} on" if of.fence_until > story.now else ""
    return [Clause("stalled", text, of.id, event, f"Put it back, or let a worker claim it{soon}.")]


def _stopping(story: ExplainContext, of: Attempt) -> list[Clause]:
    event = story.last(of.id, "cancel_requested")
    text = f"is being stopped{outcomes.asked_by(story, of)}"
    due = timers.next_due(of)
    if of.lease is None or due is None:
        return [Clause("stopping", text, of.id, event)]
    text += f"; worker {shown(of.lease.worker_id)} must still say that it stopped"
    return [Clause("stopping", text, of.id, event, f"At {when(due[0], story.now)} it is ended without the worker.")]


_ATTEMPT: Final[dict[str, Callable[[ExplainContext, Attempt], list[Clause]]]] = {
    attempt.QUEUED: _queued,
    attempt.LEASED: _leased,
    attempt.STALE: _stale,
    attempt.CANCEL_REQUESTED: _stopping,
}


# -- jobs


def job_waits(story: ExplainContext, of: Job) -> list[Clause]:
    """Why the job does not go on; nothing while it runs, or when it is over."""
    if of.state == job.PENDING:
        return _needs(story, of)
    return own_waits(story, of)


def own_waits(story: ExplainContext, of: Job) -> list[Clause]:
    """What the job itself waits for, other jobs left aside."""
    if of.state in (job.QUEUED, job.RUNNING):
        current = story.attempt_of(of)
        if current is not None:
            return attempt_waits(story, current)
        return [Clause(workers.TURN, "waits for a worker", of.id, story.last(of.id))] if of.state == job.QUEUED else []
    told = _JOB.get(of.state)
    return [told(story, of)] if told is not None else []


def _retrying(story: ExplainContext, of: Job) -> Clause:
    event, last = story.last(of.id, "execution_failed"), story.attempt_of(of)
    text = f"waits to be tried again: attempt {of.attempts + 1} of {of.spec.max_attempts} starts at"
    text += f" {when(of.next_run_at, story.now)}"
    if of.last_error is not None:
        ended = story.last(last.id) if last is not None else None
        exit_code = ended.metadata.get("exit_code") if ended is not None else None
        text += f", as attempt {of.attempts} failed: {failures.what(of.last_error, exit_code)}"
    advice = ""
    if last is not None and last.fence_until == of.next_run_at:
        advice = "It waits that long because the last worker may be at work on it until then."
    return Clause("retry_scheduled", text, of.id, event, advice)


def _approval(story: ExplainContext, of: Job) -> Clause:
    gate = of.spec.gate
    role = f" with the role {shown(gate.role)}" if gate.role else ""
    who = f"a person{role}" if gate.approvers == 1 else f"{gate.approvers} different people{role}"
    if gate.not_by_starter and of.started_by:
        who += f", but not {shown(of.started_by)}, who started the run,"
    text = f"waits for {who} to approve it"
    if of.approve_by:
        text += f", until {when(of.approve_by, story.now)}"
    if gate.approvers > 1:
        done = len(of.approvals)
        names = f" ({listed([each.person for each in of.approvals], 8)})" if done else ""
        text += f"; {done} of {gate.approvers} {'has' if done == 1 else 'have'} done so{names}"
    advice = "If that does not happen, it fails then." if of.approve_by else "It waits for as long as that takes."
    return Clause("waiting_for_approval", text, of.id, story.last(of.id), advice)


def _validating(story: ExplainContext, of: Job) -> Clause:
    return Clause("waiting_for_validation", "was executed, and its result is being validated", of.id, story.last(of.id))


_JOB: Final[dict[str, Callable[[ExplainContext, Job], Clause]]] = {
    job.RETRYING: _retrying,
    job.WAITING_APPROVAL: _approval,
    job.VALIDATING: _validating,
}


def at_root(story: ExplainContext, of: Job) -> Clause:
    """What is said at the end of a chain: why this job, which waits for no other, is not done yet."""
    found = own_waits(story, of)
    if found:
        return found[0]
    if of.state in job.TERMINAL:
        return Clause(RUNNING, "is over", of.id, story.last(of.id))
    current = story.attempt_of(of)
    return under_way(story, current) if current is not None else Clause(RUNNING, "is running", of.id, story.last(of.id))


def under_way(story: ExplainContext, of: Attempt) -> Clause:
    """What is said of an attempt that a runner has."""
    on = f" on worker {shown(of.lease.worker_id)}" if of.lease is not None else ""
    text = f"is being started{on}"
    if of.started_at:
        text = f"has been running{on} since {moment(of.started_at)}"
        text += f" and may do so until {when(of.times_out_at, story.now)}"
    return Clause(RUNNING, text, of.id, story.last(of.id))


def is_under_way(story: ExplainContext, of: Job) -> bool:
    """Whether a runner is at work on the job now."""
    current = story.attempt_of(of) if of.state == job.RUNNING else None
    return current is not None and current.state not in _ATTEMPT


# -- jobs that wait for others


class _Link(msgspec.Struct, frozen=True):
    """Where the most serious wait behind a job begins: by way of which need, at which job, how many links away."""

    weight: int
    root: str
    need: str = ""
    length: int = 0


def _unmet(story: ExplainContext) -> dict[str, Job]:
    """The jobs that keep whoever needs them waiting."""
    return {id: each for id, each in story.jobs.items() if not satisfies(each)}


def _open_needs(unmet: dict[str, Job], of: Job) -> list[Job]:
    """What it needs and is not met; and what it only comes after, until that is over."""
    found = [unmet[id] for id in of.needs if id in unmet]
    if of.after:
        later = (unmet[id] for id in of.after if id in unmet and id not in of.needs)
        found += [each for each in later if each.state not in job.TERMINAL]
    return found


def _links(story: ExplainContext, unmet: dict[str, Job], of: Job) -> dict[str, _Link]:
    """For every job that this one waits for, where its wait begins. Linear in the plan, without recursion."""
    found: dict[str, _Link] = {}
    needs: dict[str, list[Job]] = {}
    stack = [(of, False)]
    while stack:
        at, is_leaving = stack.pop()
        if is_leaving:
            # The first of equals, in the order of the plan.
            worst = max(needs[at.id], key=lambda each: found[each.id].weight, default=None)
            if worst is not None:
                behind = found[worst.id]
                found[at.id] = _Link(behind.weight, behind.root, worst.id, behind.length + 1)
        elif at.id in found:
            continue
        elif at.state != job.PENDING:
            found[at.id] = _Link(_WEIGHT.get(at_root(story, at).code, 1), at.id)
        else:
            found[at.id] = _Link(-1, at.id)  # On its way; a plan has no cycles, but bad input must end too.
            needs[at.id] = _open_needs(unmet, at)
            stack.append((at, True))
            stack.extend((each, False) for each in needs[at.id] if each.id not in found)
    return found


def _needs(story: ExplainContext, of: Job) -> list[Clause]:
    unmet = _unmet(story)
    links = _links(story, unmet, of)
    alike: dict[str, list[Job]] = {}  # By the job at which their wait begins.
    for need in sorted(_open_needs(unmet, of), key=lambda each: -links[each.id].weight):
        alike.setdefault(links[need.id].root, []).append(need)
    clauses: list[Clause] = []
    for needs in list(alike.values())[:MAX_REASONS]:
        clause, others = _chained(story, links, needs[0]), len(needs) - 1
        if others:
            verb = "waits" if others == 1 else "wait"
            clause = clause.adding(f"{count(others, 'other job')} before it {verb} for the same.")
        clauses.append(clause)
    if clauses:
        return clauses
    text = f"waits for {count(of.unmet, 'other job')}" if of.unmet else "waits for its run to begin"
    return [Clause("waiting_for_jobs", text, of.id, story.last(of.id))]


def _chained(story: ExplainContext, links: dict[str, _Link], need: Job) -> Clause:
    first = links[need.id]
    names, id = [story.job_name(need.id)], need.id
    while links[id].need and len(names) < MAX_LINKS:
        id = links[id].need
        names.append(story.job_name(id))
    if first.length >= MAX_LINKS:
        between = count(first.length + 1 - MAX_LINKS, "other job")
        names[-1] = f"{between} in a row, of which the last waits for {story.job_name(first.root)}"
    end = at_root(story, story.jobs[first.root])
    text = f"waits for {', which waits for '.join(names)}, which {end.text}"
    return Clause("waiting_for_jobs", text, first.root, end.event, end.advice)


# -- runs


def run_waits(story: ExplainContext, of: Run) -> list[Said]:
    """Why the run does not go on, and why some of its jobs do not while others do. Nothing once its outcome stands."""
    if run.is_over(of):
        return []
    name = f"Run {shown(of.id)}"
    if of.state in (run.CREATED, run.PLANNING):
        return [(name, each) for each in _planning(story, of)]
    if of.state == run.VALIDATING:
        text = "waits for its final validation: all of its jobs are over"
        return [(name, Clause("waiting_for_validation", text, of.id, story.last(of.id)))]
    return list(_jobs_of(story))


def _planning(story: ExplainContext, of: Run) -> Iterator[Clause]:
    event = story.last(of.id)
    if of.state == run.CREATED:
        yield Clause("planning", "waits for its planning to begin", of.id, event)
    else:
        advice = "Without a plan by then it fails."
        yield Clause("planning", f"is being planned, until {when(of.plan_by, story.now)}", of.id, event, advice)
    asked = story.last(of.id, "cancel_requested")
    if of.cancel_reason:
        by = f" by {person(asked.actor)}" if asked is not None else ""
        text = f"was cancelled{by} and stops as soon as its plan is there"
        yield Clause("stopping", text, of.id, asked)


def _jobs_of(story: ExplainContext) -> Iterator[Said]:
    """What the jobs wait for, other jobs left aside; those that wait for the same are told of together."""
    alike: dict[tuple[str, str], list[Job]] = {}
    first: dict[tuple[str, str], Clause] = {}
    for each in story.jobs.values():
        if each.state == job.PENDING or each.state in job.TERMINAL:
            continue
        for clause in own_waits(story, each):
            if clause.code != POSITION:
                key = (clause.code, clause.text)
                alike.setdefault(key, []).append(each)
                first.setdefault(key, clause)
    keys = sorted(alike, key=lambda key: -_WEIGHT.get(key[0], 1))
    for key in keys[:MAX_REASONS]:
        who, clause = alike[key], first[key]
        if len(who) > 1:
            others = listed([each.spec.name for each in who[1:]])
            clause = clause.adding(f"The same is true of {others}.")
        yield f"Job {shown(who[0].spec.name)}", clause
    left = sum(len(alike[key]) for key in keys[MAX_REASONS:])
    if left:
        verb = "waits" if left == 1 else "wait"
        yield f"{left} more", Clause("more", f"{verb}; ask for a job to see why", story.run.id if story.run else "")


__all__ = ["at_root", "attempt_waits", "is_under_way", "job_waits", "run_waits", "under_way"]
