"""How far a workstream is, from its jobs alone."""

from __future__ import annotations

from deltaci.audit.projections.progress import progress
from deltaci.core import job
from deltaci.core.job import Job, JobSpec


def made(name: str, state: str, *, is_required: bool = True, kind: str = job.TASK) -> Job:
    """A job in this state."""
    spec = JobSpec(name=name, is_required=is_required, kind=kind)
    return Job(id=f"r/{name}", run_id="r", tenant="t", spec=spec, state=state)


def test_what_goes_on_and_what_waits_is_named_in_the_order_of_the_plan() -> None:
    """Approvals are no tasks."""
    found = progress(
        [
            made("a", job.SUCCEEDED),
            made("b", job.VALIDATING),
            made("c", job.RUNNING),
            made("d", job.RETRYING),
            made("e", job.QUEUED),
            made("f", job.PENDING),
            made("gate", job.WAITING_APPROVAL, kind=job.APPROVAL),
        ]
    )

    assert found.counts == {
        **{"completed": 1, "pending": 1, "queued": 1, "retrying": 1, "running": 1, "validating": 1},
    }
    assert (found.under_way, found.waiting, found.failed) == (["b", "c"], ["d", "e"], None)


def test_a_critical_failure_says_more_than_one_that_is_not() -> None:
    """Whichever comes first in the plan."""
    notes, api = made("notes", job.FAILED, is_required=False), made("api", job.FAILED)

    assert progress([notes]).failed == notes
    assert progress([notes, api]).failed == api
    assert progress([]) == ({}, [], [], None)
