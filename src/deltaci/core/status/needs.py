"""The result and the outputs of a job, as jobs that need it read them: `needs.<job>.result` and `.outputs`."""

from __future__ import annotations

from typing import Any, Final

from deltaci.core import job
from deltaci.core.attempt import Attempt
from deltaci.core.job import Job

SUCCESS: Final = "success"
FAILURE: Final = "failure"
CANCELLED: Final = "cancelled"
SKIPPED: Final = "skipped"
# Reasons of jobs that never started because of other jobs: their result is not `cancelled`.
_NOT_STARTED_REASONS: Final = frozenset({job.BLOCKED, job.NOT_NEEDED})


def job_result(needed_job: Job, last_attempt: Attempt | None) -> str:
    """Return the result of a job for jobs that need it: `success`, `failure`, `cancelled` or `skipped`.

    A failure that is allowed is a `success`. A job that has not ended, or that never started because of other jobs, is
    `skipped`.
    """
    match needed_job.state:
        case job.SUCCEEDED:
            return SKIPPED if is_skipped(last_attempt) else SUCCESS
        case job.FAILED:
            return FAILURE if needed_job.spec.is_required else SUCCESS
        case job.CANCELED:
            return SKIPPED if needed_job.reason in _NOT_STARTED_REASONS else CANCELLED
    return SKIPPED


def is_skipped(last_attempt: Attempt | None) -> bool:
    """Return whether the runner skipped the job because its condition was false."""
    report = last_attempt.report if last_attempt is not None else None
    return isinstance(report, dict) and report.get("is_skipped") is True


def job_outputs(last_attempt: Attempt | None) -> dict[str, Any]:
    """Return the outputs of a job: the result of its last attempt if that is an object, else an empty dict."""
    result = last_attempt.result if last_attempt is not None else None
    return dict(result) if isinstance(result, dict) else {}
