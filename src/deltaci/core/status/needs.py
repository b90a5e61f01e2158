"""How a job ended, in the words of those that need it: `success`, `failure`, `cancelled` or `skipped`."""

from __future__ import annotations

from typing import Any, Final

from deltaci.core import job
from deltaci.core.attempt import Attempt
from deltaci.core.job import Job

SUCCESS: Final = "success"
FAILURE: Final = "failure"
CANCELLED: Final = "cancelled"
SKIPPED: Final = "skipped"
# It never had its turn because of others, which is not the same as being stopped.
_NEVER_BEGUN: Final = frozenset({job.BLOCKED, job.NOT_NEEDED})


def job_result(needed: Job, last: Attempt | None) -> str:
    """The result. A job that may fail counts as one that did not; one that is not over counts as left out."""
    match needed.state:
        case job.SUCCEEDED:
            return SKIPPED if is_skipped(last) else SUCCESS
        case job.FAILED:
            return FAILURE if needed.spec.is_required else SUCCESS
        case job.CANCELED:
            return SKIPPED if needed.reason in _NEVER_BEGUN else CANCELLED
    return SKIPPED


def is_skipped(last: Attempt | None) -> bool:
    """Whether its runner found that its condition did not hold."""
    report = last.report if last is not None else None
    return isinstance(report, dict) and report.get("is_skipped") is True


def job_outputs(last: Attempt | None) -> dict[str, Any]:
    """What others can read of its output: the keys of an object, nothing of anything else."""
    result = last.result if last is not None else None
    return dict(result) if isinstance(result, dict) else {}
