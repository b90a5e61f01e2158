"""The rules of docs/spec/orchestration.md about how a run comes to be, is planned and begins."""

from __future__ import annotations

from typing import Any, Final

import pytest

from deltaci.core import job, run
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import CancelJob, Plan
from deltaci.core.events import ORCHESTRATOR
from deltaci.core.instants import SECOND
from deltaci.core.job import JobSpec
from deltaci.core.run import Run
from tests.spec.logs import altered, line_of
from tests.spec.scenes import MICROSECOND
from tests.support.lab import START, Lab, gate, task

PLANNED: Final = run.PlanReady(id="r1", jobs=0)


def planning(**fields: Any) -> Lab:
    """A run that waits for its plan."""
    lab = Lab()
    lab.create(**fields)
    lab.do(run.BeginPlanning(id="r1"))
    return lab


# -- created and planned


@pytest.mark.proves("ORC-R1")
def test_a_runner_cannot_create_a_run_and_a_missing_run_cannot_be_planned() -> None:
    """Runs come from webhooks and people; planning needs a stored record."""
    lab = Lab()

    asked = lab.refused(NewRecord(id="r1", record=Run(id="r1", run_id="r1"), actor="worker:w1"))
    planned = lab.refused(run.BeginPlanning(id="r1"))

    assert (asked.code, planned.code) == ("wrong_actor", "not_found")


@pytest.mark.proves("ORC-R1")
@pytest.mark.parametrize("actor", ["orchestrator", "user:ada"])
def test_planning_begins_once_a_webhook_or_a_person_has_created_the_run(actor: str) -> None:
    """Both ways in lead to the same record, so that nothing later has to ask where a run came from."""
    lab = Lab()
    lab.do(NewRecord(id="r1", record=Run(id="r1", run_id="r1"), actor=actor))
    born = lab.last("r1")

    lab.do(run.BeginPlanning(id="r1"))

    assert (born.from_, born.to, born.actor) == (None, run.CREATED, actor)
    assert lab.steps("r1") == [run.CREATED, run.PLANNING]
    assert lab.last("r1").actor == ORCHESTRATOR
    assert lab.refused(run.BeginPlanning(id="r1")).code == "wrong_state"
    lab.verified()


@pytest.mark.proves("ORC-R2")
def test_a_plan_is_refused_before_planning_and_when_it_makes_no_sense() -> None:
    """A run must not be queued with jobs that can never be created."""
    lab = Lab()
    lab.create()

    early = lab.refused(Plan(id="r1", jobs=(task("build"),)))
    lab.do(run.BeginPlanning(id="r1"))
    unknown = lab.refused(Plan(id="r1", jobs=(task("test", "build"),)))
    circular = lab.refused(Plan(id="r1", jobs=(task("a", "b"), task("b", "a"))))

    assert (early.code, unknown.code, circular.code) == ("wrong_state", "bad_request", "dependency_cycle")
    assert lab.run().state == run.PLANNING


@pytest.mark.proves("ORC-R2")
def test_an_accepted_plan_queues_the_run_after_all_of_its_jobs_were_created() -> None:
    """A reader of a queued run must find its jobs."""
    lab = planning()

    decision = lab.do(Plan(id="r1", jobs=(task("build"), task("test", "build")), plan_hash="abc"))

    written = [(event.entity_id, event.to) for event in decision.events]
    assert written[:3] == [("r1/build", job.PENDING), ("r1/test", job.PENDING), ("r1", run.QUEUED)]
    assert lab.run().plan_hash == "abc"
    assert len({event.at for event in decision.events}) == 1
    lab.verified()


@pytest.mark.proves("ORC-R2", "WST-WG1")
@pytest.mark.parametrize("jobs", [1, 5])
def test_a_plan_counts_only_with_as_many_jobs_as_were_created(jobs: int) -> None:
    """A run that is queued without one of its jobs would succeed without it."""
    lab = planning()

    refusal = lab.refused(run.PlanReady(id="r1", jobs=jobs))

    assert refusal.code == "not_eligible"
    lab.do(run.PlanReady(id="r1", jobs=0))
    assert lab.run().state == run.SUCCESS
    lab.verified()


@pytest.mark.proves("ORC-R2", "ORC-O1")
@pytest.mark.parametrize("actor", ["worker:w1", "user:ada", "reporter"])
@pytest.mark.parametrize("specs", [(), (task("build"),), (task("a", "b"), task("b", "a"))])
def test_only_the_orchestrator_can_plan_a_run(actor: str, specs: tuple[JobSpec, ...]) -> None:
    """The plan decides what is executed; others do not even learn whether their plan is valid."""
    lab = planning()

    refusal = lab.refused(Plan(id="r1", jobs=specs, actor=actor))

    assert refusal.code == "wrong_actor"
    assert lab.run().state == run.PLANNING


@pytest.mark.proves("ORC-R3", "ORC-R4", "ORC-RF2")
def test_a_failed_plan_fails_the_run_in_the_same_decision() -> None:
    """A run without a plan has nothing to wait for."""
    lab = planning()

    lab.after(1).do(run.PlanFailed(id="r1", error="the planner crashed"))

    assert lab.steps("r1") == [run.CREATED, run.PLANNING, run.PLAN_FAILED, run.FAILED]
    errors = [event.metadata["error"] for event in lab.log if event.to == run.PLAN_FAILED]
    assert errors == ["the planner crashed"]
    assert (lab.run().conclusion, lab.run().reason) == (run.FAILED, "PLAN_FAILED")
    assert lab.refused(Plan(id="r1", jobs=(task("build"),))).code == "wrong_state"
    lab.verified()


@pytest.mark.proves("ORC-R3", "ORC-R4", "ORC-T5")
def test_a_planner_that_exceeds_its_time_fails_the_run_and_not_one_moment_earlier() -> None:
    """A planner that hangs must not hang its run, and one that is only slow must not be cut short."""
    lab = planning()
    begun = lab.last("r1")

    early = lab.after(run.PLANNING_SECONDS - MICROSECOND).refused(run.TimeOutPlanning(id="r1"))
    lab.after(MICROSECOND).do(run.TimeOutPlanning(id="r1"))

    assert begun.metadata == {"plan_by": START + run.PLANNING_SECONDS * SECOND}
    assert early.code == "not_due"
    assert lab.steps("r1")[-3:] == [run.PLANNING, run.PLAN_FAILED, run.FAILED]
    assert (lab.run().conclusion, lab.run().reason) == (run.FAILED, "PLAN_TIMEOUT")
    lab.verified()


@pytest.mark.proves("ORC-R3")
@pytest.mark.parametrize("seconds", [10, run.PLANNING_SECONDS])
def test_a_plan_is_accepted_until_its_deadline_and_never_afterwards(seconds: int) -> None:
    """The response to a late plan is the same before and after the timeout is recorded, also for a wait for a group."""
    on_time, late = planning(planning_seconds=seconds), planning(planning_seconds=seconds)
    jobs = (task("build"),)
    late_commands = (Plan(id="r1", jobs=jobs), PLANNED, run.AwaitGroup(id="r1", group="deploy"))

    on_time.after(seconds - MICROSECOND).do(Plan(id="r1", jobs=jobs))
    late.after(seconds)
    refusals = [late.refused(command) for command in late_commands]

    assert on_time.run().state == run.QUEUED
    assert {refusal.code for refusal in refusals} == {"not_eligible"}
    late.do(run.TimeOutPlanning(id="r1"))
    assert late.run().state == run.FAILED
    on_time.verified()
    late.verified()


@pytest.mark.proves("ORC-R3")
@pytest.mark.parametrize("plan_by", [None, "2026-01-04T08:00:00.000000Z", "2026-01-04T08:00:01.000000Z"])
def test_the_verifier_finds_a_plan_without_a_deadline_or_after_it(plan_by: str | None) -> None:
    """The log itself must show that the planner kept its time."""
    lab = planning()
    lab.after(1).do(Plan(id="r1", jobs=(task("build"),)))
    lab.verified()
    begun = line_of(lab, "r1", run.PLANNING)

    assert "ORC-R3" in altered(lab.canonical(), lambda log: log[begun]["metadata"].update(plan_by=plan_by))


@pytest.mark.proves("ORC-R3")
def test_a_run_whose_plan_was_accepted_cannot_fail_planning() -> None:
    """A planner that answers twice must not undo its own plan."""
    lab = Lab().plan(task("build"))

    refusal = lab.refused(run.PlanFailed(id="r1", error="late"))

    assert refusal.code == "wrong_state"


# -- first activity


@pytest.mark.proves("ORC-R5")
def test_the_first_active_attempt_starts_the_run_and_the_second_does_not_start_it_again() -> None:
    """The time of a run is measured from its first activity, so there is one such moment."""
    lab = Lab().plan(task("build"), task("lint"))
    assert lab.run().state == run.QUEUED

    lab.after(5).claim(lab.attempt("build"), by="w1")
    rev, started_at = lab.run().rev, lab.run().started_at
    lab.after(5).claim(lab.attempt("lint"), by="w2")

    assert lab.steps("r1")[-2:] == [run.QUEUED, run.RUNNING]
    assert lab.last("r1").metadata == {"cause": "job_started", "job_id": "r1/build"}
    assert (lab.run().rev, lab.run().started_at, started_at) == (rev, START + 5 * SECOND, START + 5 * SECOND)
    lab.verified()


CAUSES = [
    ((task("build"),), False, "job_started", "r1/build"),
    ((gate("ask"), task("build", "ask")), False, "approval_opened", ""),
    ((), False, "nothing_to_run", ""),
    ((task("build"), task("lint")), True, "nothing_to_run", ""),
]


def begun(specs: tuple[JobSpec, ...], *, is_fail_fast: bool) -> Lab:
    """A run that has just begun: by a claim, by a gate, or because nothing remains of its plan."""
    lab = Lab().plan(*specs, is_fail_fast=is_fail_fast)
    if is_fail_fast:
        lab.do(CancelJob(id="r1/build", actor="user:ada"))
    elif lab.run().state == run.QUEUED:
        lab.claim(lab.attempt("build"))
    return lab


@pytest.mark.proves("ORC-R5")
@pytest.mark.parametrize(("specs", "is_fail_fast", "cause", "job_id"), CAUSES)
def test_a_run_records_what_started_it(specs: tuple[JobSpec, ...], is_fail_fast: bool, cause: str, job_id: str) -> None:
    """Usually an attempt; but an open approval is progress too, and a run without jobs ends at once."""
    lab = begun(specs, is_fail_fast=is_fail_fast)

    started = next(event for event in lab.log if event.entity_id == "r1" and event.to == run.RUNNING)

    assert (started.metadata["cause"], started.metadata["job_id"]) == (cause, job_id)
    assert ("implied_by" in started.metadata) == (cause != "job_started")
    lab.verified()


@pytest.mark.proves("ORC-R5")
@pytest.mark.parametrize(("specs", "is_fail_fast", "cause", "job_id"), CAUSES)
def test_the_verifier_finds_a_run_that_began_for_another_reason_than_it_says(
    specs: tuple[JobSpec, ...], is_fail_fast: bool, cause: str, job_id: str
) -> None:
    """A run that says that a job started must have one that did."""
    lab = begun(specs, is_fail_fast=is_fail_fast)
    number = line_of(lab, "r1", run.RUNNING)

    def violated_rules(cause: str | None) -> set[str]:
        return altered(lab.canonical(), lambda log: log[number]["metadata"].update(cause=cause))

    assert violated_rules(cause) == set()
    for other in {"job_started", "approval_opened", "nothing_to_run", None} - {cause}:
        assert "ORC-R5" in violated_rules(other)
