"""A rerun: the plan of a run that repeats another one, completely or only what did not succeed."""

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
from tests.support.budget import budget
from tests.support.histories import History
from tests.support.lab import TENANT, Lab, gate, task


def jobs_of(lab: Lab, id: str = "r1") -> list[Job]:
    """Return the run's jobs in the order of their creation."""
    return [record for record in lab.unit.records.values() if isinstance(record, Job) and record.run_id == id]


def repeated(lab: Lab, *, failed_only: bool = True) -> dict[str, tuple[str, ...]]:
    """Return the jobs of a rerun of r1 with their needs."""
    return needs(rerun_jobs(lab.run(), jobs_of(lab), failed_only=failed_only))


def needs(specs: Iterable[JobSpec]) -> dict[str, tuple[str, ...]]:
    """Return the needs of each job by name."""
    return {spec.name: spec.needs for spec in specs}


@pytest.mark.proves("MOD-T3")
@pytest.mark.parametrize("failed_only", [False, True])
def test_a_run_that_is_not_over_cannot_be_repeated(failed_only: bool) -> None:
    """It has no outcome yet."""
    lab = Lab().plan(task("a"), task("b"))
    lab.work("a", ok=False)

    with pytest.raises(Refused, match="is RUNNING; wait for its end") as refusal:
        rerun_jobs(lab.run(), jobs_of(lab), failed_only=failed_only)
    assert refusal.value.code == "wrong_state"
    assert not can_rerun(lab.run().state, lab.run().reason)


@pytest.mark.proves("MOD-T3")
def test_a_run_in_which_nothing_failed_has_nothing_to_repeat_of_that() -> None:
    """An allowed failure is none."""
    lab = Lab()
    lab.register("w1")
    lab.plan(task("a"), task("b", is_required=False))
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
    """An empty plan would succeed, although the run failed."""
    lab = Lab()
    lab.create()
    lab.do(run.BeginPlanning(id="r1"))
    lab.do(run.PlanFailed(id="r1", error="no plan"))

    with pytest.raises(Refused, match="never had a plan"):
        rerun_jobs(lab.run(), [], failed_only=failed_only)


@pytest.mark.proves("MOD-T3")
def test_a_rerun_of_all_has_the_same_jobs() -> None:
    """In any state of the jobs."""
    specs = (task("a", work={"x": 1}), gate("g", "a", gate=Gate(approvers=2)), task("b", "g", max_attempts=3))
    lab = Lab().plan(*specs)
    lab.cancel_run()

    assert rerun_jobs(lab.run(), jobs_of(lab), failed_only=False) == specs


@pytest.mark.proves("MOD-T3")
def test_successful_jobs_are_omitted_and_count_as_satisfied() -> None:
    """Failed, blocked and canceled jobs are repeated, without needs that succeeded."""
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
    """An approval was given for the old run. The rerun asks again, also for gates before omitted jobs."""
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

    # `smoke` needs both gates through omitted jobs; no repeated job needs `aside`.
    assert needs(specs) == {"first": (), "second": ("first",), "smoke": ("first", "second")}
    again = Run(id="r2", run_id="r2", tenant=TENANT, rerun_of="r1")
    lab.do(StartRun(id="r2", record=again, jobs=specs, plan_hash="hash"))
    assert [lab.job(name, "r2").approvals for name in ("first", "second")] == [(), ()]
    assert lab.job("first", "r2").state == job.WAITING_APPROVAL
    assert lab.job("smoke", "r2").state == job.PENDING
    lab.verified()


@pytest.mark.proves("MOD-T3")
def test_a_long_chain_is_repeated_without_recursion() -> None:
    """A plan may be a single chain of all its jobs."""
    count = 20_000
    names = [f"j{n}" for n in range(count)]
    chain = [gate("g"), *(task(name, names[n - 1] if n else "g") for n, name in enumerate(names))]
    jobs = [Job(id=spec.name, spec=spec, state=job.SUCCEEDED) for spec in chain]
    jobs[-1] = Job(id=names[-1], spec=chain[-1], state=job.FAILED)

    assert needs(rerun_jobs(Run(id="r", state=run.FAILED), jobs, failed_only=True)) == {"g": (), names[-1]: ("g",)}


@pytest.mark.proves("MOD-T3", "MOD-G4")
@settings(max_examples=budget(20, 60), deadline=None, suppress_health_check=list(HealthCheck))
@given(randomness=st.randoms(use_true_random=False))
def test_a_rerun_of_any_run_is_valid(randomness: Random) -> None:
    """It starts, repeats all jobs that did not succeed, and keeps their order."""
    history = History(randomness).go(80).calm()
    lab = history.lab
    for n, record in enumerate([r for r in lab.unit.records.values() if isinstance(r, Run)]):
        jobs = {old.spec.name: old for old in jobs_of(lab, record.id)}
        failed = {name for name, old in jobs.items() if not job.satisfies(old)}
        if not failed:
            continue
        specs = rerun_jobs(record, jobs.values(), failed_only=True)
        kept = {spec.name for spec in specs}
        assert [spec.name for spec in specs] == [name for name in jobs if name in kept]
        needed_before = {name: reached(name, {key: old.spec.needs for key, old in jobs.items()}) for name in jobs}
        before = {name: reached(name, prerequisites(old.spec for old in jobs.values())) for name in jobs}
        repeated_names = failed | {name for name in jobs if before[name] & failed}
        gates = {name for name in jobs if jobs[name].spec.kind == job.APPROVAL}
        assert kept == repeated_names | {
            name for name in gates if any(name in before[later] for later in repeated_names)
        }
        assert {name: reached(name, needs(specs)) for name in kept} == {
            name: needed_before[name] & kept for name in kept
        }
        assert {name: reached(name, prerequisites(specs)) for name in kept} == {
            name: before[name] & kept for name in kept
        }
        again = Run(id=f"again-{n}", run_id=f"again-{n}", tenant=TENANT, rerun_of=record.id)
        lab.do(StartRun(id=again.id, record=again, jobs=specs, plan_hash="hash"))
    lab.verified()


@pytest.mark.proves("MOD-T3", "MOD-D1")
def test_jobs_after_a_failed_one_are_repeated_in_the_same_order() -> None:
    """They saw the failure. Dependencies through omitted jobs are kept."""
    lab = Lab().plan(
        task("a"),
        task("b", "a"),
        task("cleanup", after=("b",)),
        task("notify", "cleanup"),
        task("aside", after=("a",)),
    )
    lab.work("a")
    lab.work("b", ok=False)
    lab.work("cleanup")
    lab.work("notify")
    lab.work("aside")

    specs = rerun_jobs(lab.run(), jobs_of(lab), failed_only=True)

    assert [(spec.name, spec.needs, spec.after) for spec in specs] == [
        ("b", (), ()),
        ("cleanup", (), ("b",)),
        ("notify", ("cleanup",), ()),
    ]


def prerequisites(specs: Iterable[JobSpec]) -> dict[str, tuple[str, ...]]:
    """Return, by name, the jobs that must end before each job."""
    return {spec.name: (*spec.needs, *spec.after) for spec in specs}


def reached(name: str, edges: dict[str, tuple[str, ...]]) -> set[str]:
    """Return all names that can be reached from this one."""
    names, stack = set[str](), [name]
    while stack:
        for target in edges[stack.pop()]:
            if target not in names:
                names.add(target)
                stack.append(target)
    return names
