"""A rerun: the plan of another run, all of it or what did not succeed."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaci.core import job, run
from deltaci.core.approvals import Gate
from deltaci.core.decide import CancelJob, StartRun
from deltaci.core.errors import Refused
from deltaci.core.job import Job, JobSpec
from deltaci.core.plan import can_rerun, rerun_jobs
from deltaci.core.run import Run
from tests.histories import History
from tests.lab import TENANT, Lab, gate, task
from tests.support.budget import budget


def jobs_of(lab: Lab, id: str = "r1") -> list[Job]:
    """The run's jobs in the order of their births."""
    return [each for each in lab.unit.records.values() if isinstance(each, Job) and each.run_id == id]


def repeated(lab: Lab, *, failed_only: bool = True) -> dict[str, tuple[str, ...]]:
    """What a rerun has to do, and what each part of it waits for."""
    return needs(rerun_jobs(lab.run(), jobs_of(lab), failed_only=failed_only))


def needs(specs: Iterable[JobSpec]) -> dict[str, tuple[str, ...]]:
    """By name."""
    return {spec.name: spec.needs for spec in specs}


@pytest.mark.proves("MOD-T3")
@pytest.mark.parametrize("failed_only", [False, True])
def test_a_run_that_is_not_over_cannot_be_repeated(failed_only: bool) -> None:
    """Its outcome is not known yet."""
    lab = Lab().plan(task("a"), task("b"))
    lab.work("a", ok=False)

    with pytest.raises(Refused, match="is RUNNING; wait for its end") as refusal:
        rerun_jobs(lab.run(), jobs_of(lab), failed_only=failed_only)
    assert refusal.value.code == "wrong_state"
    assert not can_rerun(lab.run().state, lab.run().reason)


@pytest.mark.proves("MOD-T3")
def test_a_run_in_which_nothing_failed_has_nothing_to_repeat_of_that() -> None:
    """An allowed failure is none."""
    lab = Lab().plan(task("a"), task("b", is_required=False))
    lab.work("a")
    lab.work("b", ok=False)
    assert lab.run().state == run.SUCCESS

    with pytest.raises(Refused, match="nothing failed") as refusal:
        rerun_jobs(lab.run(), jobs_of(lab), failed_only=True)

    assert refusal.value.code == "wrong_state"
    assert repeated(lab, failed_only=False) == {"a": (), "b": ()}


@pytest.mark.proves("MOD-T3")
@pytest.mark.parametrize("failed_only", [False, True])
def test_a_run_that_was_never_planned_cannot_be_repeated(failed_only: bool) -> None:
    """An empty plan would succeed, which the run did not."""
    lab = Lab()
    lab.create()
    lab.do(run.BeginPlanning(id="r1"))
    lab.do(run.PlanFailed(id="r1", error="no plan"))

    with pytest.raises(Refused, match="never had a plan"):
        rerun_jobs(lab.run(), [], failed_only=failed_only)


@pytest.mark.proves("MOD-T3")
def test_a_rerun_of_all_has_the_same_jobs() -> None:
    """Whatever became of them."""
    specs = (task("a", work={"x": 1}), gate("g", "a", gate=Gate(approvers=2)), task("b", "g", max_attempts=3))
    lab = Lab().plan(*specs)
    lab.cancel_run()

    assert rerun_jobs(lab.run(), jobs_of(lab), failed_only=False) == specs


@pytest.mark.proves("MOD-T3")
def test_what_succeeded_is_left_out_and_counts_as_met() -> None:
    """Failed, blocked and canceled jobs are repeated; nobody waits for what is done."""
    lab = Lab().plan(
        task("build"),
        task("lint", is_required=False),
        task("test", "build", "lint"),
        task("pack", "build"),
        task("stray"),
        task("ship", "test", "pack"),
    )
    lab.work("build")
    lab.work("lint", ok=False)
    lab.work("pack")
    lab.do(CancelJob(id="r1/stray", actor="user:ada"))
    lab.work("test", ok=False)
    assert lab.job("ship").reason == job.BLOCKED

    assert repeated(lab) == {"test": (), "stray": (), "ship": ("test",)}


@pytest.mark.proves("MOD-T3", "MOD-G4")
def test_no_approval_is_inherited() -> None:
    """Somebody approved then, for what was known then. What is done again is asked for again, however far away."""
    lab = Lab().plan(
        gate("first"),
        task("build", "first"),
        gate("second", "build"),
        gate("aside"),
        task("deploy", "second"),
        task("smoke", "build", "deploy"),
    )
    for name in ("first", "aside"):
        lab.approve(name)
    lab.work("build")
    lab.approve("second")
    lab.work("deploy")
    lab.work("smoke", ok=False)

    specs = rerun_jobs(lab.run(), jobs_of(lab), failed_only=True)

    # `smoke` waits for both gates through jobs that are left out; `aside` stands before nothing that is repeated.
    assert needs(specs) == {"first": (), "second": ("first",), "smoke": ("first", "second")}
    again = Run(id="r2", run_id="r2", tenant=TENANT, rerun_of="r1")
    lab.do(StartRun(id="r2", record=again, jobs=specs, plan_hash="hash"))
    assert [lab.job(name, "r2").approvals for name in ("first", "second")] == [(), ()]
    assert lab.job("first", "r2").state == job.WAITING_APPROVAL
    assert lab.job("smoke", "r2").state == job.PENDING
    lab.verified()


@pytest.mark.proves("MOD-T3")
def test_a_long_chain_is_repeated_without_recursion() -> None:
    """A plan may be as deep as it is large."""
    count = 20_000
    names = [f"j{n}" for n in range(count)]
    chain = [gate("g"), *(task(name, names[n - 1] if n else "g") for n, name in enumerate(names))]
    jobs = [Job(id=spec.name, spec=spec, state=job.SUCCEEDED) for spec in chain]
    jobs[-1] = Job(id=names[-1], spec=chain[-1], state=job.FAILED)

    assert needs(rerun_jobs(Run(id="r", state=run.FAILED), jobs, failed_only=True)) == {"g": (), names[-1]: ("g",)}


@pytest.mark.proves("MOD-T3", "MOD-G4")
@settings(max_examples=budget(20, 60), deadline=None, suppress_health_check=list(HealthCheck))
@given(randomness=st.randoms(use_true_random=False))
def test_a_rerun_of_any_run_makes_sense(randomness: Random) -> None:
    """It starts, repeats all that did not succeed, and keeps who comes after whom."""
    history = History(randomness).go(80).calm()
    lab = history.lab
    for n, each in enumerate([record for record in lab.unit.records.values() if isinstance(record, Run)]):
        jobs = {one.spec.name: one for one in jobs_of(lab, each.id)}
        lost = {name for name, one in jobs.items() if not job.satisfies(one)}
        if not lost:
            continue
        specs = rerun_jobs(each, jobs.values(), failed_only=True)
        kept = {spec.name for spec in specs}
        assert [spec.name for spec in specs] == [name for name in jobs if name in kept]
        needed = {name: reached(name, {key: one.spec.needs for key, one in jobs.items()}) for name in jobs}
        before = {name: reached(name, waits(one.spec for one in jobs.values())) for name in jobs}
        again_too = lost | {name for name in jobs if before[name] & lost}
        gates = {name for name in jobs if jobs[name].spec.kind == job.APPROVAL}
        assert kept == again_too | {name for name in gates if any(name in before[one] for one in again_too)}
        assert {one: reached(one, needs(specs)) for one in kept} == {one: needed[one] & kept for one in kept}
        assert {one: reached(one, waits(specs)) for one in kept} == {one: before[one] & kept for one in kept}
        again = Run(id=f"again-{n}", run_id=f"again-{n}", tenant=TENANT, rerun_of=each.id)
        lab.do(StartRun(id=again.id, record=again, jobs=specs, plan_hash="hash"))
    lab.verified()


@pytest.mark.proves("MOD-T3", "MOD-D1")
def test_who_came_after_what_failed_is_repeated_and_waits_as_before() -> None:
    """It saw the failure; and what was between them no longer is."""
    lab = Lab().plan(
        task("a"),
        task("b", "a"),
        task("mop", after=("b",)),
        task("tell", "mop"),
        task("aside", after=("a",)),
    )
    lab.work("a")
    lab.work("b", ok=False)
    lab.work("mop")
    lab.work("tell")
    lab.work("aside")

    found = rerun_jobs(lab.run(), jobs_of(lab), failed_only=True)

    assert [(spec.name, spec.needs, spec.after) for spec in found] == [
        ("b", (), ()),
        ("mop", (), ("b",)),
        ("tell", ("mop",), ()),
    ]


def waits(specs: Iterable[JobSpec]) -> dict[str, tuple[str, ...]]:
    """What must be over before each, whether or not it must succeed."""
    return {spec.name: (*spec.needs, *spec.after) for spec in specs}


def reached(name: str, waits: dict[str, tuple[str, ...]]) -> set[str]:
    """Everything that must be over before this one begins."""
    found, stack = set[str](), [name]
    while stack:
        for need in waits[stack.pop()]:
            if need not in found:
                found.add(need)
                stack.append(need)
    return found
