"""What a forge is to be told of a run: from its record, its jobs and, for a check, what they wrote."""

from __future__ import annotations

import asyncio
from typing import Final

from deltaci.core import job, run
from deltaci.core.attempt import Attempt
from deltaci.core.ids import attempt_id
from deltaci.core.status import steps
from deltaci.core.text import plain_line
from deltaci.forges import check_annotations
from deltaci.forges.projects import ForgeProject, Subject
from deltaci.forges.status_state import MAX_DESCRIPTION, Note, Report, State
from deltaci.storage.blobs.logs import LogStore
from deltaci.storage.port import Store, load_jobs

CONTEXT: Final = "deltaci"
MAX_CONTEXT: Final = 200
MAX_JOBS_SHOWN: Final = 100
MAX_JOBS_READ: Final = 20  # Of so many jobs that failed, what they wrote is looked at.
TAIL_BYTES: Final = 256 * 1024

_STATES: Final[dict[str, State]] = {
    steps.PENDING: "pending",
    steps.RUNNING: "running",
    steps.WAITING_APPROVAL: "pending",
    steps.SUCCEEDED: "success",
    steps.FAILED: "failure",
    steps.CANCELED: "canceled",
}
_WORDS: Final = {
    steps.PENDING: "waiting to start",
    steps.RUNNING: "under way",
    steps.WAITING_APPROVAL: "waiting for approval",
    steps.SUCCEEDED: "succeeded",
    steps.CANCELED: "cancelled",
}
_ENDS: Final = {steps.CANCELED: "was cancelled"}
_REASONS: Final = {
    "PLAN_FAILED": "the pipeline cannot be planned",
    "PLAN_TIMEOUT": "the pipeline was not planned in time",
    "RUN_TIMEOUT": "the run took too long",
    "VALIDATION_FAILED": "the final validation failed",
}
_NO_PLAN: Final = frozenset({"PLAN_FAILED", "PLAN_TIMEOUT"})


def context_of(subject: Subject) -> str:
    """Under which name the forge shows it."""
    return plain_line(f"{CONTEXT}/{subject.pipeline}" if subject.pipeline else CONTEXT, MAX_CONTEXT)


class Reports:
    """Makes reports. `public_url` is where people find this server; without it, reports have no link."""

    def __init__(self, store: Store, logs: LogStore | None = None, public_url: str = "") -> None:
        self._store = store
        self._logs = logs
        self._public_url = public_url.rstrip("/")

    async def of(self, record: run.Run, subject: Subject, project: ForgeProject) -> Report:
        """The run as it is now."""
        status = steps.run_status(record)
        is_check = project.reports == "checks" and run.is_over(record)
        jobs = await self._store.read(lambda: load_jobs(record.id)) if is_check else []
        lost = [each for each in jobs if job.dooms_run(each)]
        return Report(
            run_id=record.id,
            commit=subject.commit,
            context=context_of(subject),
            state="error" if record.reason in _NO_PLAN else _STATES[status],
            description=await self._description(record, status),
            url=f"{self._public_url}/runs/{record.id}" if self._public_url else "",
            ref=subject.ref,
            summary=_summary(jobs),
            notes=check_annotations.few([note for each in lost[:MAX_JOBS_READ] for note in await self._notes(each)]),
        )

    async def _description(self, record: run.Run, status: str) -> str:
        word = _WORDS.get(status) or _REASONS.get(record.reason, "")
        if not word:
            first = await self._store.find(record.tally.first_doomed) if record.tally.first_doomed else None
            word = "a job failed"
            if isinstance(first, job.Job):
                word = f"{plain_line(first.spec.name, 60)!r} {_ENDS.get(steps.step_status(first), 'failed')}"
            if record.tally.doomed > 1:
                word = f"{word}; {record.tally.doomed} jobs did not succeed"
        return word[:MAX_DESCRIPTION]

    async def _notes(self, lost: job.Job) -> list[Note]:
        attempt = await self._store.find(attempt_id(lost.id, max(1, lost.attempts)))
        if not isinstance(attempt, Attempt):
            return []
        found = list(check_annotations.from_tests(_failures(attempt)))
        lease = attempt.lease or attempt.ended_lease
        if lease is not None and self._logs is not None:
            tail = await asyncio.to_thread(_tail, self._logs, attempt.id, lease.number)
            found += check_annotations.from_log(tail)
        return found


def _failures(attempt: Attempt) -> list[object]:
    """What its test reports say of tests that failed: what a runner said, so it may be anything."""
    report = attempt.report
    tests = report.get("tests") if isinstance(report, dict) else None
    failures = tests.get("failures") if isinstance(tests, dict) else None
    return failures if isinstance(failures, list) else []


def _tail(logs: LogStore, id: str, number: int) -> str:
    size = logs.size(id, number)
    return logs.read(id, number, max(0, size - TAIL_BYTES), TAIL_BYTES).decode("utf-8", "replace")


def _summary(jobs: list[job.Job]) -> str:
    """A table of jobs; the ones that failed come first."""
    if not jobs:
        return ""
    rows = sorted(jobs, key=lambda each: not job.dooms_run(each))
    lines = ["| job | status | why |", "|---|---|---|"]
    for each in rows[:MAX_JOBS_SHOWN]:
        error = each.last_error.code if each.last_error is not None else ""
        why = each.reason or error
        lines.append(f"| {_cell(each.spec.name)} | {steps.step_status(each).lower()} | {_cell(why)} |")
    if len(rows) > MAX_JOBS_SHOWN:
        lines.append(f"\nand {len(rows) - MAX_JOBS_SHOWN} more")
    return "\n".join(lines)


def _cell(text: str) -> str:
    """As it is written: a job's name is no markup."""
    shown = plain_line(text, 100)
    for mark in "\\`*_{}[]<>()#+!|~@":
        shown = shown.replace(mark, f"\\{mark}")
    return shown
