"""Start a run with its plan in one decision: atomic, and safe to repeat."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from deltaci.core import job, run
from deltaci.core.approvals import Gate
from deltaci.core.decide import Plan, StartRun, decide
from deltaci.core.job import JobSpec
from deltaci.core.machine import LATEST_REQUESTS, REQUESTS_IN_RECORD, move_requests, remember_request
from deltaci.core.run import MAX_JOBS, Origin, Run
from deltaci.core.unit_of_work import UnitOfWork
from tests.support.lab import START, TENANT, Lab, gate, task

ADA = "user:ada"
INVALID_PLANS: dict[str, tuple[tuple[JobSpec, ...], str]] = {
    "a cycle": ((task("a", "b"), task("b", "a")), "dependency_cycle"),
    "a job that waits for itself": ((task("a", "a"),), "dependency_cycle"),
    "a need that is not there": ((task("a", "missing"),), "bad_request"),
    "a need that is named twice": ((task("a"), task("b", "a", "a")), "bad_request"),
    "two jobs of one name": ((task("a"), task("a")), "bad_request"),
    "a job without a name": ((task("a"), task("")), "bad_request"),
    "a job named like an attempt": ((task("a"), task("a.1")), "bad_request"),
    "too many jobs": ((task("a"),) * (MAX_JOBS + 1), "bad_request"),
    "an unknown kind": ((task("a", kind="other"),), "bad_request"),
    "a gate that nobody needs to pass": ((gate("g", gate=Gate(approvers=0)),), "bad_request"),
    "a gate for a crowd": ((gate("g", gate=Gate(approvers=101)),), "bad_request"),
    "a task with a gate": ((task("a", gate=Gate(role="ops")),), "bad_request"),
}


def start(*jobs: JobSpec, id: str = "r1", actor: str = ADA, request_id: str = "key", **fields: Any) -> StartRun:
    """Return the command that starts a run with this plan."""
    record = Run(id=id, run_id=id, tenant=TENANT, **fields)
    return StartRun(id=id, actor=actor, request_id=request_id, record=record, jobs=jobs, plan_hash="hash")


@pytest.mark.proves("MOD-S1")
@pytest.mark.parametrize("problem", INVALID_PLANS)
def test_an_invalid_plan_starts_without(problem: str) -> None:
    """The plan of an existing run is refused for the same reasons."""
    jobs, code = INVALID_PLANS[problem]
    lab = Lab()
    lab.create("other")
    lab.do(run.BeginPlanning(id="other"))

    assert lab.refused(start(*jobs)).code == code
    assert lab.refused(Plan(id="other", jobs=jobs)).code == code

    assert set(lab.unit.records) == {"other"}


@pytest.mark.proves("MOD-S1")
@pytest.mark.parametrize("actor", ["worker:w1", "reporter"])
def test_only_people_and_programs_start_runs(actor: str) -> None:
    """Workers and reporters may not start runs."""
    assert Lab().refused(start(task("a"), actor=actor)).code == "wrong_actor"


@pytest.mark.proves("MOD-S1")
@pytest.mark.parametrize("wrong", [{"id": "r2"}, {"run_id": "r2"}, {"state": run.RUNNING}])
def test_a_record_that_is_not_the_run_to_start_is_refused(wrong: dict[str, str]) -> None:
    """The record must be a new run with the id of the command."""
    command = start(task("a"))

    changed = msgspec.structs.replace(command, record=msgspec.structs.replace(command.record, **wrong))

    assert Lab().refused(changed).code == "bad_request"


@pytest.mark.proves("MOD-S1", "MOD-1")
def test_a_start_skips_no_state_and_is_one_transaction() -> None:
    """The log has the same steps as if they had been made one by one."""
    lab, stepwise = Lab(), Lab()
    jobs = (task("a"), gate("g"), task("b", "a", "g"))

    decision = lab.do(start(*jobs))
    stepwise.plan(*jobs)

    steps = [(event.entity_id, event.from_, event.to, event.trigger, event.metadata) for event in lab.log]
    assert steps == [(event.entity_id, event.from_, event.to, event.trigger, event.metadata) for event in stepwise.log]
    assert lab.steps("r1") == [run.CREATED, run.PLANNING, run.QUEUED]
    assert (lab.job("a").state, lab.job("g").state, lab.job("b").state) == ("QUEUED", "WAITING_APPROVAL", "PENDING")
    assert {event.at for event in lab.log} == {START}
    assert {event.request_id for event in lab.log} == {"key"}
    assert {event.actor for event in lab.log} == {ADA, "orchestrator"}
    assert decision.record == lab.run()
    lab.verified()


@pytest.mark.proves("MOD-S1")
def test_a_start_without_jobs_succeeds_at_once() -> None:
    """A plan without jobs is complete."""
    lab = Lab()

    lab.do(start())

    assert lab.run().state == run.SUCCESS
    lab.verified()


@pytest.mark.proves("MOD-S2")
def test_a_repeat_is_answered_by_the_same_run_and_changes_without() -> None:
    """A client whose answer was lost repeats the request, perhaps with the keys of its inputs in another order."""
    lab = Lab()
    first = start(task("a", work={"x": 1, "y": 2}), origin=Origin(inputs={"a": "1", "b": "2"}))
    again = start(task("a", work={"y": 2, "x": 1}), origin=Origin(inputs={"b": "2", "a": "1"}))
    lab.do(first)

    decision = lab.after(5).do(again)

    assert (decision.record, decision.changed, decision.events) == (lab.run(), {}, [])
    assert len(lab.run().requests) == 1


@pytest.mark.proves("MOD-S2")
@pytest.mark.parametrize(
    "other",
    [
        start(task("b")),
        start(task("a"), task("b")),
        start(task("a"), timeout_seconds=5),
        start(task("a"), actor="user:bob"),
        start(task("a", work={"steps": ["rm"]})),
    ],
)
def test_the_same_request_with_another_content_is_refused(other: StartRun) -> None:
    """A request id stands for one content only."""
    lab = Lab()
    lab.do(start(task("a")))

    assert lab.refused(other).code == "request_id_reused"


@pytest.mark.proves("MOD-S2")
def test_another_request_for_the_same_id_is_refused() -> None:
    """A run is started once."""
    lab = Lab()
    lab.do(start(task("a")))

    assert lab.refused(start(task("a"), request_id="another")).code == "bad_request"
    assert lab.refused(start(task("a"), request_id="")).code == "bad_request"


@pytest.mark.proves("MOD-S2")
def test_a_run_always_remembers_the_request_that_created_it() -> None:
    """A client may repeat it a week later, after many other requests about the run."""
    lab = Lab()
    first = start(task("a"))
    lab.do(first)
    lab.do(run.Cancel(id="r1", actor=ADA, request_id="cancel"))
    lab.do(run.Report(id="r1", actor="reporter", request_id="report"))
    assert lab.run().state == run.REPORTED
    record = lab.run()
    for n in range(2 * REQUESTS_IN_RECORD):
        record = remember_request(record, run.Cancel(id="r1", actor=ADA, request_id=f"later-{n}"))
    before = record.requests
    record, moved = move_requests(record)
    assert (before[0], *moved, *before[-LATEST_REQUESTS:]) == before
    assert len(record.requests) == LATEST_REQUESTS + 2
    lab.unit.records["r1"] = record

    decision = lab.after(7 * 86400).do(first)

    assert (decision.record, decision.changed) == (lab.run(), {})
    assert lab.refused(start(task("b"))).code == "request_id_reused"


@pytest.mark.proves("MOD-S1")
@pytest.mark.parametrize("count", [1, 1000])
def test_a_start_loads_only_the_run(count: int) -> None:
    """If the run does not exist, its jobs do not exist either and are not loaded."""
    jobs = tuple(task(f"j{n}", *([f"j{n - 1}"] if n % 5 else [])) for n in range(count))

    decision = decide(_without("r1"), start(*jobs), START)

    assert sum(record.id.startswith("r1/") for record in decision.changed.values()) == count + (count + 4) // 5


def _without(id: str) -> UnitOfWork:
    """Return a unit of work that has loaded only that this record does not exist."""
    unit = UnitOfWork()
    unit.records[id] = None
    return unit


@pytest.mark.proves("MOD-S1")
def test_assumed_absences_end_with_the_decision() -> None:
    """Another decision may create these records."""
    unit = _without("r1")
    decide(unit, start(task("a")), START)

    assert unit.absent == set()


@pytest.mark.proves("MOD-G3")
def test_the_starter_of_a_run_is_that_of_its_record_or_else_the_actor() -> None:
    """A gate with `not_by_starter` needs to know the starter of every run."""
    spec = gate("g", gate=Gate(not_by_starter=True))

    starts = (
        (start(spec), "ada"),
        (start(spec, started_by="bob"), "bob"),
        (start(spec, started_by="user:eve"), "eve"),
    )
    for command, starter in starts:
        lab = Lab()
        lab.do(command)
        assert lab.job("g").started_by == starter
        assert lab.refused(job.Approve(id="r1/g", actor=f"user:{starter}")).code == "not_allowed"
    assert Lab().plan(gate("g"), started_by="cyd").job("g").started_by == "cyd"
