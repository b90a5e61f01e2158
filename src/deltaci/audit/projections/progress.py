"""The progress of a workstream: the number of tasks in each state, and the tasks to name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from deltaci.core.job import Job
from deltaci.core.status.workstreams import task_state


class Progress(NamedTuple):
    """The progress of a workstream: task counts by state, and the names of running and of waiting tasks.

    `failed` is the failed task to show first, if any.
    """

    counts: dict[str, int]
    under_way: list[str]
    waiting: list[str]
    failed: Job | None


def progress(jobs: Sequence[Job]) -> Progress:
    """Return the progress of a workstream's jobs, given in the order of the plan.

    A critical failed task is shown first.
    """
    states = [(job, task_state(job)) for job in jobs]
    failed_jobs = [job for job, state in states if state == "failed"]
    return Progress(
        counts=dict(sorted(Counter(state for _, state in states if state).items())),
        under_way=[job.spec.name for job, state in states if state in ("running", "validating")],
        waiting=[job.spec.name for job, state in states if state in ("queued", "retrying")],
        failed=next((job for job in failed_jobs if job.spec.is_required), failed_jobs[0] if failed_jobs else None),
    )
