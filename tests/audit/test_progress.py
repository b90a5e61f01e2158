"""The progress of a workstream."""

from __future__ import annotations

from deltaci.audit.projections.progress import progress
from deltaci.core import job
from deltaci.core.job import Job, JobSpec


def job_in_state(name: str, state: str, *, is_required: bool = True, kind: str = job.TASK) -> Job:
    """A job in this state."""
    spec = JobSpec(name=name, is_required=is_required, kind=kind)
    return Job(id=f"r/{name}", run_id="r", tenant="t", spec=spec, state=state)


def test_running_and_waiting_tasks_are_named_in_the_order_of_the_plan() -> None:
    """Approvals are not tasks."""
    result = progress(
        [
            job_in_state("a", job.SUCCEEDED),
            job_in_state("b", job.VALIDATING),
            job_in_state("c", job.RUNNING),
            job_in_state("d", job.RETRYING),
            job_in_state("e", job.QUEUED),
            job_in_state("f", job.PENDING),
            job_in_state("gate", job.WAITING_APPROVAL, kind=job.APPROVAL),
        ]
    )

    assert result.counts == {
        **{"completed": 1, "pending": 1, "queued": 1, "retrying": 1, "running": 1, "validating": 1},
    }
    assert (result.under_way, result.waiting, result.failed) == (["b", "c"], ["d", "e"], None)


def test_a_critical_failed_task_is_shown_before_others() -> None:
    """Whichever comes first in the plan."""
    notes, api = job_in_state("notes", job.FAILED, is_required=False), job_in_state("api", job.FAILED)

    assert progress([notes]).failed == notes
    assert progress([notes, api]).failed == api
    assert progress([]) == ({}, [], [], None)
