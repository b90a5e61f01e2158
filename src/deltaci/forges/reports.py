"""Build the status report of a run from its record, its jobs and, for a check run, their logs and test reports."""

from __future__ import annotations

import asyncio
from typing import Final

from deltaci.core import job, run
from deltaci.core.attempt import Attempt
from deltaci.core.ids import attempt_id
from deltaci.core.status import steps
from deltaci.core.text import plain_line
from deltaci.forges import check_annotations
from deltaci.forges.projects import ForgeProject, StatusTarget
from deltaci.forges.status_decisions import MAX_DESCRIPTION, Annotation, State, StatusReport
from deltaci.storage.blobs.logs import LogStore
from deltaci.storage.port import Store, load_jobs

CONTEXT: Final = "deltaci"
MAX_CONTEXT: Final = 200
MAX_SUMMARY_JOBS: Final = 100
MAX_ANNOTATED_JOBS: Final = 20  # The number of failed jobs whose logs and test reports are read.
LOG_TAIL_BYTES: Final = 256 * 1024

_STATES: Final[dict[str, State]] = {
    steps.PENDING: "pending",
    steps.RUNNING: "running",
    steps.WAITING_APPROVAL: "pending",
    steps.SUCCEEDED: "success",
    steps.FAILED: "failure",
    steps.CANCELED: "canceled",
}
_DESCRIPTIONS: Final = {
    steps.PENDING: "waiting to start",
    steps.RUNNING: "under way",
    steps.WAITING_APPROVAL: "waiting for approval",
    steps.SUCCEEDED: "succeeded",
    steps.CANCELED: "cancelled",
}
_JOB_OUTCOMES: Final = {steps.CANCELED: "was cancelled"}
_REASONS: Final = {
    "PLAN_FAILED": "the pipeline cannot be planned",
    "PLAN_TIMEOUT": "the pipeline was not planned in time",
    "RUN_TIMEOUT": "the run took too long",
    "VALIDATION_FAILED": "the final validation failed",
}
_PLANNING_FAILURES: Final = frozenset({"PLAN_FAILED", "PLAN_TIMEOUT"})


def status_context(target: StatusTarget) -> str:
    """Return the status context: the name under which the forge shows the status of the commit."""
    return plain_line(f"{CONTEXT}/{target.pipeline}" if target.pipeline else CONTEXT, MAX_CONTEXT)


class ReportBuilder:
    """Builds status reports, with a link to the run if the server's base URL `public_url` is given."""

    def __init__(self, store: Store, logs: LogStore | None = None, public_url: str = "") -> None:
        self._store = store
        self._logs = logs
        self._public_url = public_url.rstrip("/")

    async def build(self, record: run.Run, target: StatusTarget, project: ForgeProject) -> StatusReport:
        """Return the report of the run's current state; a finished check run has a summary and annotations."""
        status = steps.run_status(record)
        is_finished_check = project.reports == "checks" and run.is_over(record)
        jobs = await self._store.read(lambda: load_jobs(record.id)) if is_finished_check else []
        failed_jobs = [job_record for job_record in jobs if job.dooms_run(job_record)][:MAX_ANNOTATED_JOBS]
        annotations = [annotation for failed_job in failed_jobs for annotation in await self._annotations(failed_job)]
        return StatusReport(
            run_id=record.id,
            commit=target.commit,
            context=status_context(target),
            state="error" if record.reason in _PLANNING_FAILURES else _STATES[status],
            description=await self._description(record, status),
            url=f"{self._public_url}/runs/{record.id}" if self._public_url else "",
            ref=target.ref,
            summary=_summary(jobs),
            annotations=check_annotations.most_severe(annotations),
        )

    async def _description(self, record: run.Run, status: str) -> str:
        description = _DESCRIPTIONS.get(status) or _REASONS.get(record.reason, "")
        if not description:
            first_id = record.tally.first_doomed
            first_failed = await self._store.find(first_id) if first_id else None
            description = "a job failed"
            if isinstance(first_failed, job.Job):
                outcome = _JOB_OUTCOMES.get(steps.step_status(first_failed), "failed")
                description = f"{plain_line(first_failed.spec.name, 60)!r} {outcome}"
            if record.tally.doomed > 1:
                description = f"{description}; {record.tally.doomed} jobs did not succeed"
        return description[:MAX_DESCRIPTION]

    async def _annotations(self, failed_job: job.Job) -> list[Annotation]:
        attempt = await self._store.find(attempt_id(failed_job.id, max(1, failed_job.attempts)))
        if not isinstance(attempt, Attempt):
            return []
        annotations = list(check_annotations.from_test_failures(_test_failures(attempt)))
        lease = attempt.lease or attempt.ended_lease
        if lease is not None and self._logs is not None:
            tail = await asyncio.to_thread(_log_tail, self._logs, attempt.id, lease.number)
            annotations += check_annotations.from_log(tail)
        return annotations


def _test_failures(attempt: Attempt) -> list[object]:
    """Return the failed tests of an attempt's test report. A runner sent it, so its form is not trusted."""
    report = attempt.report
    test_summary = report.get("tests") if isinstance(report, dict) else None
    failures = test_summary.get("failures") if isinstance(test_summary, dict) else None
    return failures if isinstance(failures, list) else []


def _log_tail(logs: LogStore, attempt_id: str, lease_number: int) -> str:
    size = logs.size(attempt_id, lease_number)
    tail = logs.read(attempt_id, lease_number, max(0, size - LOG_TAIL_BYTES), LOG_TAIL_BYTES)
    return tail.decode("utf-8", "replace")


def _summary(jobs: list[job.Job]) -> str:
    """Return a Markdown table of the jobs, failed ones first."""
    if not jobs:
        return ""
    failed_first = sorted(jobs, key=lambda job_record: not job.dooms_run(job_record))
    lines = ["| job | status | why |", "|---|---|---|"]
    for job_record in failed_first[:MAX_SUMMARY_JOBS]:
        error_code = job_record.last_error.code if job_record.last_error is not None else ""
        reason = job_record.reason or error_code
        status = steps.step_status(job_record).lower()
        lines.append(f"| {_escape_markdown(job_record.spec.name)} | {status} | {_escape_markdown(reason)} |")
    if len(failed_first) > MAX_SUMMARY_JOBS:
        lines.append(f"\nand {len(failed_first) - MAX_SUMMARY_JOBS} more")
    return "\n".join(lines)


def _escape_markdown(text: str) -> str:
    escaped = plain_line(text, 100)
    for character in "\\`*_{}[]<>()#+!|~@":
        escaped = escaped.replace(character, f"\\{character}")
    return escaped
