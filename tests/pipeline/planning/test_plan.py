"""A plan without some of its jobs: as if they were done, or with whatever needs them."""

from __future__ import annotations

from deltaci.core.job import JobSpec
from deltaci.core.plan import plan_hash
from deltaci.pipeline.planning.plan import Plan, PlannedJob, exclude_jobs

SPECS = (
    JobSpec(name="a"),
    JobSpec(name="b", needs=("a",)),
    JobSpec(name="c", needs=("b",)),
    JobSpec(name="d", after=("c",)),
    JobSpec(name="e", needs=("d",)),
)
PLAN = Plan(
    file="f",
    name="n",
    jobs=tuple(PlannedJob(spec=spec, job=spec.name, code="x", reason="y") for spec in SPECS),
    hash="old",
)
WHY = ("code", "reason")


def needs_and_after(plan: Plan) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return `needs` and `after` of each job."""
    return {job.spec.name: (job.spec.needs, job.spec.after) for job in plan.jobs}


def test_dependents_wait_for_the_needs_of_a_job_that_is_done() -> None:
    """Their needs become the needs of the job that is done; through an `after`, no success is required."""
    result = exclude_jobs(PLAN, {"b": WHY, "d": WHY}, are_done=True)

    assert needs_and_after(result) == {"a": ((), ()), "c": (("a",), ()), "e": ((), ("c",))}
    assert [(job.name, job.code, job.reason) for job in result.excluded] == [("b", *WHY), ("d", *WHY)]
    assert result.hash == plan_hash([job.spec for job in result.jobs])


def test_dependents_of_an_excluded_job_are_excluded() -> None:
    """Jobs that only come `after` it still run."""
    result = exclude_jobs(PLAN, {"b": WHY}, are_done=False)

    assert needs_and_after(result) == {"a": ((), ()), "d": ((), ("a",)), "e": (("d",), ())}
    assert [(job.name, job.code) for job in result.excluded] == [("b", "code"), ("c", "need_left_out")]
