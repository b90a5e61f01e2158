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
    """Return the clause that says why no worker has claimed the queued attempt.

    It depends only on the required labels and is cached for them, except if a free worker lost this attempt before and
    leaves it to others.
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
    needed_text = f"a worker{_with_labels(sorted(required))}"
    if is_plain and not matching:
        # Workers of the plain queue need not register, so the absence of a registered one says nothing.
        return Clause(CLAIMABLE, f"waits until {needed_text} asks the queue for work", "")
    if not registered:
        return Clause(NO_WORKER, f"waits for {needed_text}: no worker is registered", "", None, _start_advice(required))
    if not matching:
        return _missing_labels_clause(registered, required, needed_text)
    responsive = [worker for worker in matching if worker.state != core_worker.UNRESPONSIVE]
    on_hold = [worker for worker in responsive if worker.hold and not worker.shutdown_reason]
    available = [worker for worker in responsive if not worker.hold and not worker.shutdown_reason]
    if not responsive:
        text = f"waits for {needed_text}: {_share_of_matching(matching, matching)} stopped answering"
        advice = "Check the workers that do not answer, or start another worker."
        return Clause(UNRESPONSIVE, text, matching[0].id, None, advice)
    if not available and on_hold:
        return _on_hold_clause(on_hold, len(matching), needed_text)
    if not available:
        other_text = ", and the rest stopped answering" if len(responsive) < len(matching) else ""
        text = f"waits for {needed_text}: {_share_of_matching(responsive, matching)}"
        text += f" will shut down and take no new work{other_text}"
        return Clause(LEAVING, text, responsive[0].id, None, _start_advice(required))
    free_workers = [worker for worker in available if _has_free_slot(worker)]
    if not free_workers:
        return _busy_clause(context, available, len(matching), needed_text, is_any_on_hold=bool(on_hold))
    return Clause(CLAIMABLE, _claimable_text(free_workers), free_workers[0].id)


def _claimable_text(free_workers: Sequence[Worker]) -> str:
    verb = "has" if len(free_workers) == 1 else "have"
    return f"waits to be claimed: {listed([worker.id for worker in free_workers])} {verb} a free slot"


def _has_free_slot(worker: Worker) -> bool:
    return len(worker.tasks) < worker.max_concurrent_tasks


def _left_to_others(context: ExplainContext, attempt: Attempt) -> Clause | None:
    """Return the clause for an attempt that a free worker leaves to other workers because it lost the attempt before.

    Return None if that is not the case. The other workers may be busy.
    """
    required = required_labels(attempt.queue_key)
    available = [
        worker for worker, labels in context.workers if required <= labels and core_worker.accepts_work(worker)
    ]
    avoided_ids = [worker.id for worker in available if avoids(attempt, worker.id) and _has_free_slot(worker)]
    other_workers = [worker for worker in available if not avoids(attempt, worker.id)]
    if not avoided_ids or not other_workers:
        return None
    avoided_text = (
        f"{listed(avoided_ids)} lost it before and {'leaves' if len(avoided_ids) == 1 else 'leave'} it to other workers"
    )
    free_workers = [worker for worker in other_workers if _has_free_slot(worker)]
    if not free_workers:
        needed_text = f"a worker{_with_labels(sorted(required))}"
        busy_clause = _busy_clause(context, other_workers, len(other_workers), needed_text, is_any_on_hold=False)
        return Clause(BUSY, f"{busy_clause.text}; {avoided_text}", other_workers[0].id, None, busy_clause.advice)
    return Clause(CLAIMABLE, f"{_claimable_text(free_workers)}; {avoided_text}", free_workers[0].id)


def _on_hold_clause(on_hold: Sequence[Worker], matching_count: int, needed_text: str) -> Clause:
    """Return the clause for an attempt of which no matching worker takes work, and some are drained or quarantined."""
    text = "; ".join(
        f"worker {one_line(worker.id)} matches, but {describe_hold(worker)}" for worker in on_hold[:MAX_LISTED]
    )
    if len(on_hold) > MAX_LISTED:
        unlisted_count = len(on_hold) - MAX_LISTED
        text += f"; {unlisted_count} more {'is' if unlisted_count == 1 else 'are'} on hold"
    other_text = "" if len(on_hold) == matching_count else ", and the rest stopped answering or will shut down"
    advice = f"`deltaci workers resume {one_line(on_hold[0].id)}` lets it take work again."
    return Clause(ON_HOLD, f"waits for {needed_text}: {text}{other_text}", on_hold[0].id, None, advice)


def describe_hold(worker: Worker) -> str:
    """Return the end of a sentence that says that the worker is drained or quarantined, since when and why."""
    since_text = f"since {moment(worker.held_at)}"
    if worker.hold == core_worker.DRAINED:
        return f"is drained {since_text}{colon_quote(worker.hold_reason)}"
    if worker.hold_reason == core_worker.REPEATED_INFRA_FAILURES:
        failure_count = core_worker.MAX_INFRA_FAILURES
        cause_text = f"{failure_count} times in a row it lost a job or failed one because of its infrastructure"
        return f"is quarantined {since_text}: {cause_text}"
    return f"is quarantined {since_text}{colon_quote(worker.hold_reason)}"


def _missing_labels_clause(
    registered: Sequence[tuple[Worker, set[str]]], required: set[str], needed_text: str
) -> Clause:
    closest, labels = min(registered, key=lambda pair: len(required - pair[1]))
    missing = sorted(required - labels)
    if len(registered) == 1:
        text = f"the only worker, {one_line(closest.id)}, lacks {listed(missing, 8)}"
    elif len(required) == 1:
        text = f"none of the {len(registered)} workers has it"
    else:
        text = f"none of the {len(registered)} workers has all of them; the closest, {one_line(closest.id)},"
        text += f" lacks {listed(missing, 8)}"
    return Clause(NO_FITTING_WORKER, f"waits for {needed_text}: {text}", closest.id, None, _start_advice(required))


def _busy_clause(
    context: ExplainContext,
    available: Sequence[Worker],
    matching_count: int,
    needed_text: str,
    *,
    is_any_on_hold: bool,
) -> Clause:
    worker_texts = [f"{one_line(worker.id)} with {listed(worker.tasks, 2)}" for worker in available[:MAX_LISTED]]
    if len(available) > MAX_LISTED:
        worker_texts.append(f"{len(available) - MAX_LISTED} more with other work")
    is_all = len(available) == matching_count
    subject = _all_matching(len(available)) if is_all else f"{len(available)} of the {matching_count} matching workers"
    verb = "is" if len(available) in (1, matching_count) else "are"
    unavailable = (
        "stopped answering, is on hold or will shut down" if is_any_on_hold else "stopped answering or will shut down"
    )
    other_text = "" if is_all else f", and the rest {unavailable}"
    task_text = "" if context.is_brief else f" ({'; '.join(worker_texts)})"
    text = f"waits for {needed_text}: {subject} {verb} busy{task_text}{other_text}"
    return Clause(BUSY, text, available[0].id, None, "It is claimed when a slot becomes free.")


def _with_labels(labels: Sequence[str]) -> str:
    if not labels:
        return ""
    return f" with the label{'' if len(labels) == 1 else 's'} {listed(labels, 8)}"


def _start_advice(required: set[str]) -> str:
    if not required:
        return "Start one with `deltaci runner`."
    joined_labels = one_line(",".join(sorted(required)))
    return f"Start one with `deltaci runner --labels {joined_labels}`, or change the labels that the job requires."


def _all_matching(number: int) -> str:
    return "the only matching worker" if number == 1 else f"each of the {number} matching workers"


def _share_of_matching(workers: Sequence[Worker], matching: Sequence[Worker]) -> str:
    is_all = len(workers) == len(matching)
    subject = _all_matching(len(workers)) if is_all else f"{len(workers)} of the {len(matching)} matching workers"
    return f"{subject} ({listed([worker.id for worker in workers])})"
