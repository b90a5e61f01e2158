"""How a job of a run is displayed: its status word, tone, duration and a short reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from deltaci.api.schemas.records import Job
from deltaci.core import failures
from deltaci.core import job as jobs
from deltaci.server.web.components import seconds_text, tone, words

# Why a job did not have its turn, or had to end: what to call it, and the same as a sentence.
REASONS: Final[Mapping[str, tuple[str, str]]] = {
    jobs.BLOCKED: ("blocked", "a job that it needs did not succeed"),
    jobs.NOT_NEEDED: ("not needed", "the result of the run was already decided"),
    jobs.RUN_CANCELED: ("canceled", "the run was canceled"),
    jobs.RUN_TIMEOUT: ("canceled", "the run reached its time limit"),
    jobs.JOB_CANCELED: ("canceled", "somebody canceled it"),
}
FAILED: Final[Mapping[str, str]] = {
    jobs.REJECTED: "somebody rejected it",
    jobs.APPROVAL_EXPIRED: "nobody approved it in time",
}
MAX_NAMED: Final = 3
MAX_SAID: Final = 300


class JobStatusLabel(msgspec.Struct, frozen=True):
    """The word for a status and its tone."""

    word: str
    tone: str


def look(job: Job) -> JobStatusLabel:
    """How it is now, as people say it."""
    feels = tone(job.state)
    if job.tries and isinstance(job.tries[-1].report, dict) and job.tries[-1].report.get("is_skipped") is True:
        return JobStatusLabel("skipped", "gone")
    if job.reason in REASONS and feels == "gone":
        return JobStatusLabel(REASONS[job.reason][0], "gone")
    if feels == "bad":
        if job.allow_failure:
            return JobStatusLabel("failed, allowed", "held")
        return JobStatusLabel("rejected" if job.reason == jobs.REJECTED else words(job.state), "bad")
    if job.approval is not None and job.completed_at is not None and feels == "good":
        return JobStatusLabel("approved", "good")
    return JobStatusLabel(words(job.state), feels)


def is_blocked(job: Job) -> bool:
    """Whether it had no turn because of what it needs."""
    return job.reason == jobs.BLOCKED


def took(job: Job) -> str:
    """How long it took; empty while it goes on, and for what never began."""
    if job.started_at is None or job.completed_at is None:
        return ""
    return seconds_text((job.completed_at - job.started_at).total_seconds())


def why(job: Job, known: Mapping[str, Job]) -> str:
    """Why it waits, failed or never began, in a few words; empty for what goes on or went well."""
    if job.reason in REASONS:
        return REASONS[job.reason][1]
    if job.reason in FAILED:
        return FAILED[job.reason]
    if job.last_error is not None and (job.reason or job.next_run_at is not None):
        return _failed(job)
    if job.reason:
        return job.reason[:MAX_SAID]
    if job.completed_at is not None:
        return ""
    if job.approval is not None and job.approval.approvers > 1 and job.approval.approvals:
        return f"{len(job.approval.approvals)} of {job.approval.approvers} approved"
    open_ = [name for name in (*job.needs, *job.after) if name in known and known[name].completed_at is None]
    if open_:
        others = len(open_) - MAX_NAMED
        return f"waits for {', '.join(open_[:MAX_NAMED])}{f' and {others} more' if others > 0 else ''}"
    return ""


def _failed(job: Job) -> str:
    error = job.last_error
    assert error is not None
    said = error.message or error.line or words(error.code)
    blame = {failures.INFRA: "the infrastructure", failures.TOOLING: "the tools", failures.FLAKY: "known to be flaky"}
    cause = f" ({blame[error.failure_class]})" if error.failure_class in blame else ""
    return f"{said[:MAX_SAID]}{cause}"
