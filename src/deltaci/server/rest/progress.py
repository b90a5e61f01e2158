"""The progress of workstreams, for lists: one transaction reads the jobs of all workstreams and the failed attempts."""

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

MAX_NAMES: Final = 5  # The number of task names shown for a workstream in a list.


class TaskProgress(msgspec.Struct, frozen=True):
    """The progress of the tasks of a workstream, and the last attempt of its failed task."""

    progress: Progress
    failed_attempt: Attempt | None = None


async def load_progress(store: Store, runs: Iterable[Run]) -> dict[str, TaskProgress]:
    """Return the task progress by run id. The runs are those of workstreams."""
    run_ids = [run.id for run in runs]
    return await store.read(lambda: _load_progress(run_ids))


def _load_progress(run_ids: Sequence[str]) -> ReadTransaction[dict[str, TaskProgress]]:
    """Return the progress of the tasks of each run, with the last attempt of its failed task, by run id."""
    progress_by_id = {}
    for run_id in run_ids:
        progress_by_id[run_id] = progress((yield from load_jobs(run_id)))
    failed_attempt_ids = {
        run_id: run_progress.failed.attempt_id
        for run_id, run_progress in progress_by_id.items()
        if run_progress.failed and run_progress.failed.attempt_id
    }
    stored_records = (yield Load(tuple(failed_attempt_ids.values()))) if failed_attempt_ids else []
    attempt_by_id = {
        stored_record.record.id: stored_record.record
        for stored_record in stored_records
        if isinstance(stored_record.record, Attempt)
    }
    return {
        run_id: TaskProgress(run_progress, attempt_by_id.get(failed_attempt_ids.get(run_id, "")))
        for run_id, run_progress in progress_by_id.items()
    }


def serialize_progress(
    progress: TaskProgress, workstream_record: records.Workstream, merge: wire.WorkstreamMerge
) -> wire.WorkstreamProgress:
    """Return the progress of a workstream as the API shows it."""
    tasks, failed_job = progress.progress, progress.progress.failed
    last_rule_results = rule_results([progress.failed_attempt] if progress.failed_attempt is not None else [])
    broken_rules = (
        failed_rules([*last_rule_results, *workstream_record.verdicts.get(failed_job.spec.name, ())])
        if failed_job is not None
        else []
    )
    return wire.WorkstreamProgress(
        tasks=len(workstream_record.spec.get("tasks", ())),
        counts=tasks.counts,
        under_way=tasks.under_way[:MAX_NAMES],
        waiting=tasks.waiting[:MAX_NAMES],
        position=merge.position,
        doing=merge.doing,
        waits_for=merge.waits_for,
        failed_task=failed_job.spec.name if failed_job is not None else "",
        failed_rule=next(iter([*broken_rules, *merge.failed_rules]), None),
        problem=_error_text(failed_job) or merge.problem,
    )


def _error_text(failed_job: Job | None) -> str:
    error = failed_job.last_error if failed_job is not None else None
    return (error.message or error.line or error.code) if error is not None else ""


# -- rules


def report(last_attempts: Sequence[Attempt]) -> Mapping[str, Any]:
    """Return the runner's report of the only attempt in the list, or an empty one if there is none."""
    last_report = last_attempts[0].report if last_attempts else None
    return last_report if isinstance(last_report, dict) else {}


def rule_results(last_attempts: Sequence[Attempt]) -> list[RuleResult]:
    """Return the results of the validation rules in the runner's report of the only attempt in the list.

    Return an empty list if there is no attempt or no such report.
    """
    return msgspec.convert(report(last_attempts).get("verdicts") or [], list[RuleResult])


def failed_rules(rule_results: Iterable[RuleResult]) -> list[wire.FailedRule]:
    """Return those of the results that did not pass, as the API shows them."""
    return [
        wire.FailedRule(rule=result.rule, actual=result.actual, expected=result.expected)
        for result in rule_results
        if not result.is_passed
    ]
