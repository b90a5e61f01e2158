"""Predicates for the outcome of a run or workstream."""

from __future__ import annotations

from typing import Final

from deltaci.api.schemas import records as api
from deltaci.api.schemas import workstreams as api_workstreams

GOOD: Final = "SUCCEEDED"


def is_over(run: api.Run) -> bool:
    """Return whether the run has its final outcome."""
    return bool(run.conclusion)


def is_good(run: api.Run) -> bool:
    """Return whether the outcome of the run is a success."""
    return is_over(run) and run.status == GOOD


def is_settled(run: api.RunWithJobs) -> bool:
    """Return whether the run has its final outcome and none of its jobs is still being stopped."""
    return is_over(run) and all(job.completed_at is not None for job in run.jobs)


def is_completed(workstream: api_workstreams.WorkstreamSummary) -> bool:
    """Return whether a workstream has ended successfully."""
    return workstream.ended_at is not None and workstream.status == GOOD
