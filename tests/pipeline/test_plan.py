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


def left(plan: Plan) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """What each job needs, and what it only comes after."""
    return {each.spec.name: (each.spec.needs, each.spec.after) for each in plan.jobs}


def test_what_is_done_is_waited_through() -> None:
    """A job whose need is done waits for what that one waited for; through an `after`, for no success."""
    found = exclude_jobs(PLAN, {"b": WHY, "d": WHY}, are_done=True)

    assert left(found) == {"a": ((), ()), "c": (("a",), ()), "e": ((), ("c",))}
    assert [(each.name, each.code, each.reason) for each in found.excluded] == [("b", *WHY), ("d", *WHY)]
    assert found.hash == plan_hash([each.spec for each in found.jobs])


def test_what_cannot_be_done_takes_along_whatever_needs_it() -> None:
    """Not who only comes after it."""
    found = exclude_jobs(PLAN, {"b": WHY}, are_done=False)

    assert left(found) == {"a": ((), ()), "d": ((), ("a",)), "e": (("d",), ())}
    assert [(each.name, each.code) for each in found.excluded] == [("b", "code"), ("c", "need_left_out")]
