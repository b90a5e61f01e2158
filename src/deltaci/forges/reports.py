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
from deltaci.pipeline.planning import plan_report
from deltaci.storage.blobs.logs import LogStore
from deltaci.storage.port import Store, load_jobs

CONTEXT: Final = "deltaci"
CHANGE_CONTEXT: Final = "deltaci (delivery)"  # Unlike that of any pipeline, which follows a slash.
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

    async def build(self, run_record: run.Run, target: StatusTarget, project: ForgeProject) -> StatusReport:
        """Return the report of the run's current state; a finished check run has a summary and annotations."""
        run_status = steps.run_status(run_record)
        is_finished_check = project.reports == "checks" and run.is_over(run_record)
        jobs = await self._store.read(lambda: load_jobs(run_record.id)) if is_finished_check else []
        failed_jobs = [job_record for job_record in jobs if job.dooms_run(job_record)][:MAX_ANNOTATED_JOBS]
        annotations = [annotation for failed_job in failed_jobs for annotation in await self._annotations(failed_job)]
        return StatusReport(
            run_id=run_record.id,
            commit=target.commit,
            context=status_context(target),
            state="error" if run_record.reason in _PLANNING_FAILURES else _STATES[run_status],
            description=await self._description(run_record, run_status),
            url=f"{self._public_url}/runs/{run_record.id}" if self._public_url else "",
            ref=target.ref,
            summary=_summary(jobs),
            annotations=check_annotations.most_severe(annotations),
        )

    def build_for_change(self, change_id: str, commit: str, reason: str, is_failed: bool) -> StatusReport:
        """Return the report of a change that cannot be handled, or that was handled after it had been reported so.

        It has a context of its own, so that it never replaces the status of a run.
        """
        return StatusReport(
            run_id=change_id,
            commit=commit,
            context=CHANGE_CONTEXT,
            state="error" if is_failed else "success",
            description=plain_line(f"{'cannot be handled: ' if is_failed else ''}{reason}", MAX_DESCRIPTION),
            url=f"{self._public_url}/changes" if self._public_url else "",
        )

    async def _description(self, run_record: run.Run, run_status: str) -> str:
        """Return the text of a commit status: why the run succeeded or not, e.g. which job failed."""
        description = _DESCRIPTIONS.get(run_status) or _REASONS.get(run_record.reason, "")
        if run_status == steps.SUCCEEDED and run_record.origin.event and (reuse := await self._reuse(run_record)):
            description = f"{description}: {reuse}"
        if not description:
            first_failed_id = run_record.tally.first_doomed
            first_failed_job = await self._store.find(first_failed_id) if first_failed_id else None
            description = "a job failed"
            if isinstance(first_failed_job, job.Job):
                outcome = _JOB_OUTCOMES.get(steps.step_status(first_failed_job), "failed")
                description = f"{plain_line(first_failed_job.spec.name, 60)!r} {outcome}"
            if run_record.tally.doomed > 1:
                description = f"{description}; {run_record.tally.doomed} jobs did not succeed"
        return description[:MAX_DESCRIPTION]

    async def _reuse(self, run_record: run.Run) -> str:
        """Return how many jobs of a run ran and were reused, or an empty string if none was reused."""
        name = plan_report.report_name(run_record.id, run_record.plan_hash)
        document = await self._store.find_document(plan_report.KIND, name, run_record.tenant)
        return plan_report.describe_reuse(plan_report.decode_report(document.body)) if document is not None else ""

    async def _annotations(self, failed_job: job.Job) -> list[Annotation]:
        """Return annotations for the failed tests and the end of the log of the job's last attempt."""
        attempt = await self._store.find(attempt_id(failed_job.id, max(1, failed_job.attempts)))
        if not isinstance(attempt, Attempt):
            return []
        annotations = list(check_annotations.from_test_failures(_test_failures(attempt)))
        lease = attempt.lease or attempt.ended_lease
        if lease is not None and self._logs is not None:
            log_tail = await asyncio.to_thread(_log_tail, self._logs, attempt.id, lease.number)
            annotations += check_annotations.from_log(log_tail)
        return annotations


def _test_failures(attempt: Attempt) -> list[object]:
    """Return the failed tests of an attempt's test report. A runner sent it, so its form is not trusted."""
    report = attempt.report
    test_summary = report.get("tests") if isinstance(report, dict) else None
    failures = test_summary.get("failures") if isinstance(test_summary, dict) else None
    return failures if isinstance(failures, list) else []


def _log_tail(logs: LogStore, attempt_id: str, lease_number: int) -> str:
    log_bytes = logs.size(attempt_id, lease_number)
    log_tail = logs.read(attempt_id, lease_number, max(0, log_bytes - LOG_TAIL_BYTES), LOG_TAIL_BYTES)
    return log_tail.decode("utf-8", "replace")


def _summary(jobs: list[job.Job]) -> str:
    """Return a Markdown table of at most MAX_SUMMARY_JOBS jobs, failing required ones first; empty without jobs."""
    if not jobs:
        return ""
    sorted_jobs = sorted(jobs, key=lambda job_record: not job.dooms_run(job_record))
    table_lines = ["| job | status | why |", "|---|---|---|"]
    for job_record in sorted_jobs[:MAX_SUMMARY_JOBS]:
        error_code = job_record.last_error.code if job_record.last_error is not None else ""
        reason_text = job_record.reason or error_code
        job_status = steps.step_status(job_record).lower()
        table_lines.append(
            f"| {_escape_markdown(job_record.spec.name)} | {job_status} | {_escape_markdown(reason_text)} |"
        )
    if len(sorted_jobs) > MAX_SUMMARY_JOBS:
        table_lines.append(f"\nand {len(sorted_jobs) - MAX_SUMMARY_JOBS} more")
    return "\n".join(table_lines)


def _escape_markdown(text: str) -> str:
    escaped_text = plain_line(text, 100)
    for character in "\\`*_{}[]<>()#+!|~@":
        escaped_text = escaped_text.replace(character, f"\\{character}")
    return escaped_text
