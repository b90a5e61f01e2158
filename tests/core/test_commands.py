"""Commands about several records, and claims of a caller that are refused."""

from __future__ import annotations

import pytest

from deltaci.core import attempt, run
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import CancelJob, Plan
from deltaci.core.run import Run
from deltaci.core.status.steps import step_attempts
from tests.support.lab import TENANT, Lab, task


@pytest.mark.proves("STP-S1")
def test_an_unclaimed_attempt_does_not_count() -> None:
    """Document 002 counts claims; a job that was cancelled in the queue has none."""
    lab = Lab().plan(task("a"))

    lab.do(CancelJob(id="r1/a", actor="user:ada"))

    assert (lab.job("a").attempts, step_attempts(lab.job("a"))) == (1, 0)


@pytest.mark.proves("WST-TG3")
def test_a_queue_job_cannot_be_completed_with_a_failing_exit_code() -> None:
    """A success with a failing exit code contradicts itself."""
    lab = Lab()
    lab.enqueue()
    lease = lab.claim(lab.queued())
    lab.send(attempt.Start, lease)

    refusal = lab.refused(lab.message(attempt.Finish, lease, is_success=True, exit_code=3))

    assert refusal.code == "bad_request"


@pytest.mark.proves("WST-KG2")
def test_a_claim_cannot_have_labels_that_the_worker_is_not_registered_with() -> None:
    """The registered labels count, not those of the request."""
    lab = Lab().plan(task("a", queue_key="gpu"))
    lab.register("w1")
    grant = attempt.Grant(id="r1/a.1", actor="worker:w1", fingerprint="f" * 32, labels=("gpu",))

    assert lab.refused(grant).code == "not_eligible"


@pytest.mark.parametrize("reason", ["LEASE_EXPIRED", "NOT_ACCEPTED", "WORKER_LOST", "MOOD"])
def test_a_person_cannot_stall_with_a_reason_of_the_orchestrator(reason: str) -> None:
    """Only the orchestrator detects that a lease expired or a worker is lost."""
    lab = Lab()
    lab.enqueue()
    lab.claim(lab.queued())

    assert lab.refused(attempt.Stall(id="q1", actor="user:ada", reason=reason)).code == "bad_request"


@pytest.mark.proves("QUE-C5", "MOD-10")
def test_repeating_a_command_about_several_records_changes_nothing() -> None:
    """A planner, a client or a person whose answer was lost sends the same request again."""
    lab = Lab()
    created = NewRecord(id="r1", record=Run(id="r1", run_id="r1", tenant=TENANT), request_id="b")
    planned = Plan(id="r1", jobs=(task("a"), task("b")), request_id="p")
    canceled = CancelJob(id="r1/a", actor="user:ada", request_id="c")
    lab.do(created)
    lab.do(run.BeginPlanning(id="r1"))
    lab.do(planned)
    lab.do(canceled)
    events = len(lab.log)

    decisions = [lab.do(command) for command in (created, planned, canceled)]

    assert len(lab.log) == events
    assert [decision.changed for decision in decisions] == [{}, {}, {}]


def test_the_same_request_with_another_record_is_refused() -> None:
    """A request id stands for one content only."""
    lab = Lab()
    lab.do(NewRecord(id="q1", record=Attempt(id="q1", tenant=TENANT), request_id="b"))

    refusal = lab.refused(NewRecord(id="q1", record=Attempt(id="q1", tenant=TENANT, priority=3), request_id="b"))

    assert refusal.code == "request_id_reused"
