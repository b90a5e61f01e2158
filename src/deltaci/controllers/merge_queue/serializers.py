"""Convert the state of a merge queue to its view."""

from __future__ import annotations

from deltaci.controllers.merge_queue.decisions import MergeBatch, MergeQueueState, run_of, splits_of, tests_of
from deltaci.controllers.merge_queue.records import BatchView, EntryView, QueueView


def shown(line: MergeQueueState) -> QueueView:
    """Who waits, in order, and which batches are under way."""
    batch_of = {id: each.number for each in line.batches for id in each.members}
    entries = tuple(
        EntryView(
            id=each.entry.id,
            title=each.entry.title,
            method=each.entry.method,
            head=each.entry.head,
            at=each.entry.at,
            batch=batch_of.get(each.entry.id, 0),
            problem=each.trouble.problem or _waits(each.behind, line),
            tries=each.trouble.tries,
            not_before=each.trouble.not_before,
        )
        for each in line.places
    )
    return QueueView(
        project=line.project,
        base=line.base,
        entries=entries,
        batches=tuple(_batch(line, each) for each in line.batches),
        splits=splits_of(line),
        problem=line.trouble.problem,
        tries=line.trouble.tries,
        not_before=line.trouble.not_before,
    )


def _waits(behind: int, line: MergeQueueState) -> str:
    return f"conflicts with batch {behind}; waits until it ends" if line.batch(behind) is not None else ""


def _batch(line: MergeQueueState, batch: MergeBatch) -> BatchView:
    if not batch.commits:
        return BatchView(number=batch.number, method=batch.method, members=batch.members, doing="building")
    is_good = batch.found.is_good if batch.found is not None else None
    return BatchView(
        number=batch.number,
        method=batch.method,
        members=batch.members,
        doing="testing" if is_good is None else "landing" if batch.is_landing else "waiting",
        start=batch.start,
        commit=batch.commits[-1],
        run_id=run_of(line, batch) if tests_of(line, batch) else "",
        is_good=is_good,
        problem=batch.trouble.problem,
        tries=batch.trouble.tries,
        not_before=batch.trouble.not_before,
    )
