"""Explain why no worker has claimed a queued attempt: missing labels, or matching workers that are busy or on hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from deltaci.audit.explain.context import ExplainContext
from deltaci.audit.explain.formatting import MAX_LISTED, colon_quote, listed, moment, one_line
from deltaci.audit.explain.reasons import Clause
from deltaci.core import worker as core_worker
from deltaci.core.attempt import Attempt, avoids
from deltaci.core.worker import Worker, required_labels

NO_WORKER: Final = "no_worker"
NO_FITTING_WORKER: Final = "no_fitting_worker"
UNRESPONSIVE: Final = "workers_unresponsive"
LEAVING: Final = "workers_leaving"
ON_HOLD: Final = "workers_held"
BUSY: Final = "workers_busy"
CLAIMABLE: Final = "waiting_for_worker"

# Waits that last until a person changes something.
NEEDS_ACTION: Final = frozenset({NO_WORKER, NO_FITTING_WORKER, UNRESPONSIVE, LEAVING, ON_HOLD})


def worker_clause(context: ExplainContext, attempt: Attempt) -> Clause:
    """Return why no worker has claimed the attempt.

    The answer depends on the required labels only and is cached for them. It differs if a free worker has lost this
    attempt before and leaves it to others.
    """
    queue_key, is_plain = attempt.queue_key, not attempt.job_id
    clause = context.worker_clauses.get((queue_key, is_plain))
    if clause is None:
        clause = context.worker_clauses[queue_key, is_plain] = _clause_for_labels(context, queue_key, is_plain=is_plain)
    if attempt.avoid and clause.code == CLAIMABLE:
        return _left_to_others(context, attempt) or clause
    return clause


def _clause_for_labels(context: ExplainContext, queue_key: str, *, is_plain: bool) -> Clause:
    required = required_labels(queue_key)
    registered = context.workers
    matching = [worker for worker, labels in registered if required <= labels]
    needed = f"a worker{_with_labels(sorted(required))}"
    if is_plain and not matching:
        # Workers of the plain queue need not register, so the absence of a registered one says nothing.
        return Clause(CLAIMABLE, f"waits until {needed} asks the queue for work", "")
    if not registered:
        return Clause(NO_WORKER, f"waits for {needed}: no worker is registered", "", None, _start_advice(required))
    if not matching:
        return _missing_labels(registered, required, needed)
    responsive = [worker for worker in matching if worker.state != core_worker.UNRESPONSIVE]
    on_hold = [worker for worker in responsive if worker.hold and not worker.shutdown_reason]
    available = [worker for worker in responsive if not worker.hold and not worker.shutdown_reason]
    if not responsive:
        text = f"waits for {needed}: {_share(matching, matching)} stopped answering"
        advice = "Check the workers that do not answer, or start another worker."
        return Clause(UNRESPONSIVE, text, matching[0].id, None, advice)
    if not available and on_hold:
        return _on_hold(on_hold, len(matching), needed)
    if not available:
        others = ", and the rest stopped answering" if len(responsive) < len(matching) else ""
        text = f"waits for {needed}: {_share(responsive, matching)} will shut down and take no new work{others}"
        return Clause(LEAVING, text, responsive[0].id, None, _start_advice(required))
    free = [worker for worker in available if _has_free_slot(worker)]
    if not free:
        return _busy(context, available, len(matching), needed, is_any_on_hold=bool(on_hold))
    return Clause(CLAIMABLE, _claimable_text(free), free[0].id)


def _claimable_text(free: Sequence[Worker]) -> str:
    verb = "has" if len(free) == 1 else "have"
    return f"waits to be claimed: {listed([worker.id for worker in free])} {verb} a free slot"


def _has_free_slot(worker: Worker) -> bool:
    return len(worker.tasks) < worker.max_concurrent_tasks


def _left_to_others(context: ExplainContext, attempt: Attempt) -> Clause | None:
    """Return a clause if a free worker has lost the attempt before and leaves it to another one, which may be busy."""
    required = required_labels(attempt.queue_key)
    available = [
        worker for worker, labels in context.workers if required <= labels and core_worker.accepts_work(worker)
    ]
    losers = [worker.id for worker in available if avoids(attempt, worker.id) and _has_free_slot(worker)]
    others = [worker for worker in available if not avoids(attempt, worker.id)]
    if not losers or not others:
        return None
    lost = f"{listed(losers)} lost it before and {'leaves' if len(losers) == 1 else 'leave'} it to other workers"
    free = [worker for worker in others if _has_free_slot(worker)]
    if not free:
        needed = f"a worker{_with_labels(sorted(required))}"
        busy = _busy(context, others, len(others), needed, is_any_on_hold=False)
        return Clause(BUSY, f"{busy.text}; {lost}", others[0].id, None, busy.advice)
    return Clause(CLAIMABLE, f"{_claimable_text(free)}; {lost}", free[0].id)


def _on_hold(on_hold: Sequence[Worker], matching_count: int, needed: str) -> Clause:
    """Return the clause for matching workers that are online, but drained or quarantined."""
    text = "; ".join(
        f"worker {one_line(worker.id)} matches, but {describe_hold(worker)}" for worker in on_hold[:MAX_LISTED]
    )
    if len(on_hold) > MAX_LISTED:
        more = len(on_hold) - MAX_LISTED
        text += f"; {more} more {'is' if more == 1 else 'are'} on hold"
    others = "" if len(on_hold) == matching_count else ", and the rest stopped answering or will shut down"
    advice = f"`deltaci workers resume {one_line(on_hold[0].id)}` lets it take work again."
    return Clause(ON_HOLD, f"waits for {needed}: {text}{others}", on_hold[0].id, None, advice)


def describe_hold(worker: Worker) -> str:
    """Return that a worker is drained or quarantined, since when and why."""
    since = f"since {moment(worker.held_at)}"
    if worker.hold == core_worker.DRAINED:
        return f"is drained {since}{colon_quote(worker.hold_reason)}"
    if worker.hold_reason == core_worker.REPEATED_INFRA_FAILURES:
        times = core_worker.MAX_INFRA_FAILURES
        return (
            f"is quarantined {since}: {times} times in a row it lost a job or failed one because of its infrastructure"
        )
    return f"is quarantined {since}{colon_quote(worker.hold_reason)}"


def _missing_labels(registered: Sequence[tuple[Worker, set[str]]], required: set[str], needed: str) -> Clause:
    closest, labels = min(registered, key=lambda pair: len(required - pair[1]))
    missing = sorted(required - labels)
    if len(registered) == 1:
        text = f"the only worker, {one_line(closest.id)}, lacks {listed(missing, 8)}"
    elif len(required) == 1:
        text = f"none of the {len(registered)} workers has it"
    else:
        text = f"none of the {len(registered)} workers has all of them; the closest, {one_line(closest.id)},"
        text += f" lacks {listed(missing, 8)}"
    return Clause(NO_FITTING_WORKER, f"waits for {needed}: {text}", closest.id, None, _start_advice(required))


def _busy(
    context: ExplainContext, available: Sequence[Worker], matching_count: int, needed: str, *, is_any_on_hold: bool
) -> Clause:
    work = [f"{one_line(worker.id)} with {listed(worker.tasks, 2)}" for worker in available[:MAX_LISTED]]
    if len(available) > MAX_LISTED:
        work.append(f"{len(available) - MAX_LISTED} more with other work")
    is_all = len(available) == matching_count
    subject = _all(len(available)) if is_all else f"{len(available)} of the {matching_count} matching workers"
    verb = "is" if len(available) in (1, matching_count) else "are"
    unavailable = (
        "stopped answering, is on hold or will shut down" if is_any_on_hold else "stopped answering or will shut down"
    )
    others = "" if is_all else f", and the rest {unavailable}"
    details = "" if context.is_brief else f" ({'; '.join(work)})"
    text = f"waits for {needed}: {subject} {verb} busy{details}{others}"
    return Clause(BUSY, text, available[0].id, None, "It is claimed when a slot becomes free.")


def _with_labels(labels: Sequence[str]) -> str:
    if not labels:
        return ""
    return f" with the label{'' if len(labels) == 1 else 's'} {listed(labels, 8)}"


def _start_advice(required: set[str]) -> str:
    if not required:
        return "Start one with `deltaci runner`."
    labels = one_line(",".join(sorted(required)))
    return f"Start one with `deltaci runner --labels {labels}`, or change the labels that the job requires."


def _all(number: int) -> str:
    return "the only matching worker" if number == 1 else f"each of the {number} matching workers"


def _share(workers: Sequence[Worker], matching: Sequence[Worker]) -> str:
    is_all = len(workers) == len(matching)
    subject = _all(len(workers)) if is_all else f"{len(workers)} of the {len(matching)} matching workers"
    return f"{subject} ({listed([worker.id for worker in workers])})"
