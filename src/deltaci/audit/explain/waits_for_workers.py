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
    required_label_set = required_labels(queue_key)
    registered_workers = context.workers
    matching_workers = [worker for worker, labels in registered_workers if required_label_set <= labels]
    needed_text = f"a worker{_with_labels(sorted(required_label_set))}"
    if is_plain and not matching_workers:
        # Workers of the plain queue need not register, so the absence of a registered one says nothing.
        return Clause(CLAIMABLE, f"waits until {needed_text} asks the queue for work", "")
    if not registered_workers:
        return Clause(
            NO_WORKER, f"waits for {needed_text}: no worker is registered", "", None, _start_advice(required_label_set)
        )
    if not matching_workers:
        return _missing_labels_clause(registered_workers, required_label_set, needed_text)
    responsive_workers = [worker for worker in matching_workers if worker.state != core_worker.UNRESPONSIVE]
    workers_on_hold = [worker for worker in responsive_workers if worker.hold and not worker.shutdown_reason]
    available_workers = [worker for worker in responsive_workers if not worker.hold and not worker.shutdown_reason]
    if not responsive_workers:
        text = f"waits for {needed_text}: {_share_of_matching(matching_workers, matching_workers)} stopped answering"
        details = "Check the workers that do not answer, or start another worker."
        return Clause(UNRESPONSIVE, text, matching_workers[0].id, None, details)
    if not available_workers and workers_on_hold:
        return _on_hold_clause(workers_on_hold, len(matching_workers), needed_text)
    if not available_workers:
        other_text = ", and the rest stopped answering" if len(responsive_workers) < len(matching_workers) else ""
        text = f"waits for {needed_text}: {_share_of_matching(responsive_workers, matching_workers)}"
        text += f" will shut down and take no new work{other_text}"
        return Clause(LEAVING, text, responsive_workers[0].id, None, _start_advice(required_label_set))
    free_workers = [worker for worker in available_workers if _has_free_slot(worker)]
    if not free_workers:
        return _busy_clause(
            context, available_workers, len(matching_workers), needed_text, is_any_on_hold=bool(workers_on_hold)
        )
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
    required_label_set = required_labels(attempt.queue_key)
    available_workers = [
        worker
        for worker, labels in context.workers
        if required_label_set <= labels and core_worker.accepts_work(worker)
    ]
    avoided_ids = [worker.id for worker in available_workers if avoids(attempt, worker.id) and _has_free_slot(worker)]
    other_workers = [worker for worker in available_workers if not avoids(attempt, worker.id)]
    if not avoided_ids or not other_workers:
        return None
    avoided_text = (
        f"{listed(avoided_ids)} lost it before and {'leaves' if len(avoided_ids) == 1 else 'leave'} it to other workers"
    )
    free_workers = [worker for worker in other_workers if _has_free_slot(worker)]
    if not free_workers:
        needed_text = f"a worker{_with_labels(sorted(required_label_set))}"
        busy_clause = _busy_clause(context, other_workers, len(other_workers), needed_text, is_any_on_hold=False)
        return Clause(BUSY, f"{busy_clause.text}; {avoided_text}", other_workers[0].id, None, busy_clause.details)
    return Clause(CLAIMABLE, f"{_claimable_text(free_workers)}; {avoided_text}", free_workers[0].id)


def _on_hold_clause(workers_on_hold: Sequence[Worker], matching_count: int, needed_text: str) -> Clause:
    """Return the clause for an attempt of which no matching worker takes work, and some are drained or quarantined."""
    text = "; ".join(
        f"worker {one_line(worker.id)} matches, but {describe_hold(worker)}" for worker in workers_on_hold[:MAX_LISTED]
    )
    if len(workers_on_hold) > MAX_LISTED:
        unlisted_count = len(workers_on_hold) - MAX_LISTED
        text += f"; {unlisted_count} more {'is' if unlisted_count == 1 else 'are'} on hold"
    other_text = "" if len(workers_on_hold) == matching_count else ", and the rest stopped answering or will shut down"
    details = f"`deltaci workers resume {one_line(workers_on_hold[0].id)}` lets it take work again."
    return Clause(ON_HOLD, f"waits for {needed_text}: {text}{other_text}", workers_on_hold[0].id, None, details)


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
    registered_workers: Sequence[tuple[Worker, set[str]]], required_label_set: set[str], needed_text: str
) -> Clause:
    closest_worker, labels = min(
        registered_workers, key=lambda worker_and_labels: len(required_label_set - worker_and_labels[1])
    )
    missing_labels = sorted(required_label_set - labels)
    if len(registered_workers) == 1:
        text = f"the only worker, {one_line(closest_worker.id)}, lacks {listed(missing_labels, 8)}"
    elif len(required_label_set) == 1:
        text = f"none of the {len(registered_workers)} workers has it"
    else:
        text = f"none of the {len(registered_workers)} workers has all of them; the closest,"
        text += f" {one_line(closest_worker.id)}, lacks {listed(missing_labels, 8)}"
    return Clause(
        NO_FITTING_WORKER,
        f"waits for {needed_text}: {text}",
        closest_worker.id,
        None,
        _start_advice(required_label_set),
    )


def _busy_clause(
    context: ExplainContext,
    available_workers: Sequence[Worker],
    matching_count: int,
    needed_text: str,
    *,
    is_any_on_hold: bool,
) -> Clause:
    worker_texts = [
        f"{one_line(worker.id)} with {listed(worker.tasks, 2)}" for worker in available_workers[:MAX_LISTED]
    ]
    if len(available_workers) > MAX_LISTED:
        worker_texts.append(f"{len(available_workers) - MAX_LISTED} more with other work")
    is_all = len(available_workers) == matching_count
    subject = (
        _all_matching(len(available_workers))
        if is_all
        else f"{len(available_workers)} of the {matching_count} matching workers"
    )
    verb = "is" if len(available_workers) in (1, matching_count) else "are"
    unavailable_text = (
        "stopped answering, is on hold or will shut down" if is_any_on_hold else "stopped answering or will shut down"
    )
    other_text = "" if is_all else f", and the rest {unavailable_text}"
    task_text = "" if context.is_brief else f" ({'; '.join(worker_texts)})"
    text = f"waits for {needed_text}: {subject} {verb} busy{task_text}{other_text}"
    return Clause(BUSY, text, available_workers[0].id, None, "It is claimed when a slot becomes free.")


def _with_labels(labels: Sequence[str]) -> str:
    if not labels:
        return ""
    return f" with the label{'' if len(labels) == 1 else 's'} {listed(labels, 8)}"


def _start_advice(required_label_set: set[str]) -> str:
    if not required_label_set:
        return "Start one with `deltaci runner`."
    joined_labels = one_line(",".join(sorted(required_label_set)))
    return f"Start one with `deltaci runner --labels {joined_labels}`, or change the labels that the job requires."


def _all_matching(matching_count: int) -> str:
    return "the only matching worker" if matching_count == 1 else f"each of the {matching_count} matching workers"


def _share_of_matching(workers: Sequence[Worker], matching_workers: Sequence[Worker]) -> str:
    is_all = len(workers) == len(matching_workers)
    subject = (
        _all_matching(len(workers)) if is_all else f"{len(workers)} of the {len(matching_workers)} matching workers"
    )
    return f"{subject} ({listed([worker.id for worker in workers])})"
