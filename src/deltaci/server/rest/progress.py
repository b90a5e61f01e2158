"""How far workstreams are, for lists: one look at the jobs of all of them, and only of what failed an attempt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from deltaci.api.schemas import workstreams as wire
from deltaci.audit.projections.progress import Progress, progress
from deltaci.controllers.workstreams import records
from deltaci.core.attempt import Attempt
from deltaci.core.job import Job
from deltaci.core.run import Run
from deltaci.protocol.messages import RuleResult
from deltaci.storage.port import Load, ReadTransaction, Store, load_jobs

MAX_NAMES: Final = 5  # Of tasks that are told by name.


class Known(msgspec.Struct, frozen=True):
    """What the tasks of one workstream say, and the last attempt of the one that failed."""

    progress: Progress
    last: Attempt | None = None


async def known_of(store: Store, runs: Iterable[Run]) -> dict[str, Known]:
    """Of each of them, by id."""
    ids = [each.id for each in runs]
    return await store.read(lambda: _look(ids))


def _look(ids: Sequence[str]) -> ReadTransaction[dict[str, Known]]:
    found = {}
    for id in ids:
        found[id] = progress((yield from load_jobs(id)))
    failed = {id: each.failed.attempt_id for id, each in found.items() if each.failed and each.failed.attempt_id}
    held = (yield Load(tuple(failed.values()))) if failed else []
    last = {each.record.id: each.record for each in held if isinstance(each.record, Attempt)}
    return {id: Known(each, last.get(failed.get(id, ""))) for id, each in found.items()}


def shown(known: Known, record: records.Workstream, merge: wire.WorkstreamMerge) -> wire.WorkstreamProgress:
    """As the API says it."""
    tasks, failed = known.progress, known.progress.failed
    held = verdicts([known.last] if known.last is not None else [])
    broken = rules([*held, *record.verdicts.get(failed.spec.name, ())]) if failed is not None else []
    return wire.WorkstreamProgress(
        tasks=len(record.spec.get("tasks", ())),
        counts=tasks.counts,
        under_way=tasks.under_way[:MAX_NAMES],
        waiting=tasks.waiting[:MAX_NAMES],
        position=merge.position,
        doing=merge.doing,
        waits_for=merge.waits_for,
        failed_task=failed.spec.name if failed is not None else "",
        failed_rule=next(iter([*broken, *merge.failed_rules]), None),
        problem=_said(failed) or merge.problem,
    )


def _said(failed: Job | None) -> str:
    error = failed.last_error if failed is not None else None
    return (error.message or error.line or error.code) if error is not None else ""


# -- rules


def report(last: Sequence[Attempt]) -> Mapping[str, Any]:
    """What the runner of the last attempt said of it."""
    said = last[0].report if last else None
    return said if isinstance(said, dict) else {}


def verdicts(last: Sequence[Attempt]) -> list[RuleResult]:
    """What the runner of the last attempt found when it looked at the rules."""
    return msgspec.convert(report(last).get("verdicts") or [], list[RuleResult])


def rules(verdicts: Iterable[RuleResult]) -> list[wire.FailedRule]:
    """Those that did not hold."""
    return [
        wire.FailedRule(rule=each.rule, actual=each.actual, expected=each.expected)
        for each in verdicts
        if not each.is_passed
    ]
