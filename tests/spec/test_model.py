"""The tiers of docs/spec/model.md and its rules 1 to 3, each proved on the real core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from deltaci.audit.projections.orchestration import ATTEMPT_VIEW
from deltaci.core import attempt, job, lease, run, worker
from deltaci.core.attempt import Attempt
from deltaci.core.events import Event
from deltaci.core.status.queue import JOB_VIEW, job_status
from deltaci.core.status.steps import RUN_VIEW, STEP_VIEW, run_status, step_status
from deltaci.core.status.view import Change, View
from tests.support.lab import Lab, Lease, gate, task


def seen(view: View, log: list[Event], entity_id: str) -> list[str]:
    """What the view shows of one entity, in order."""
    shown, states = None, list[str]()
    for event in log:
        if event.entity_id == entity_id:
            steps, shown = view.project_change(shown, Change(event.from_, event.to, event.trigger, event.actor))
            states += [step.target for step in steps]
    return states


def job_events(lab: Lab, job_id: str) -> list[tuple[str, str]]:
    """Who did what to one attempt, in document 004's words."""
    lines = [msgspec.json.decode(line) for line in lab.job_events()]
    return [(line["type"], line["actor"]) for line in lines if line["job_id"] == job_id]


def running(**fields: Any) -> tuple[Lab, Lease]:
    """A run with one job that a worker executes."""
    lab = Lab().plan(task("a", **fields))
    granted = lab.claim(lab.attempt("a"))
    lab.send(attempt.Heartbeat, granted)
    return lab, granted


TAKEOVER: Final = [
    ("stalled", "orchestrator"),
    ("claimed", "orchestrator"),
    ("started", "orchestrator"),
    ("failed", "orchestrator"),
]


# -- tiers


@pytest.mark.proves("MOD-T1")
def test_a_retry_is_another_attempt_whose_index_is_one_higher() -> None:
    """The failed attempt stays as it was, as evidence."""
    lab = Lab().plan(task("a", max_attempts=2))
    lab.fail(lab.claim(lab.attempt("a")))
    first = lab.attempt("a")

    lab.after(1_000).do(job.RetryDue(id="r1/a"))

    second = lab.attempt("a")
    assert (first.index, first.state) == (1, attempt.FAILED)
    assert (second.index, second.state, second.claims) == (2, attempt.QUEUED, 0)
    assert lab.attempt("a", index=1) == first
    lab.verified()


@pytest.mark.proves("MOD-T1", "MOD-5")
def test_a_lost_lease_is_no_retry_but_another_claim_of_the_same_attempt() -> None:
    """It is unknown whether the job failed, so no attempt is used up."""
    lab, _ = running()

    lab.after(120).do(attempt.Expire(id="r1/a.1"))
    assert (lab.attempt("a").state, lab.job("a").state) == (attempt.QUEUED, job.RUNNING)
    lab.claim(lab.attempt("a"), by="w2")

    assert lab.job("a").attempts == 1
    assert (lab.attempt("a").index, lab.attempt("a").claims) == (1, 2)
    lab.verified()


@pytest.mark.proves("MOD-T1")
def test_a_rerun_is_another_run_that_points_at_the_one_it_repeats() -> None:
    """What is over stays as it was; the new run says what it repeats."""
    lab = Lab().plan(task("a"))
    lab.work("a", ok=False)
    first = lab.run("r1")

    lab.plan(task("a"), id="r2", rerun_of="r1")
    lab.work("a", run_id="r2")

    assert lab.run("r2").rerun_of == "r1"
    assert (lab.run("r2").state, lab.run("r1")) == (run.SUCCESS, first)
    lab.verified()


@pytest.mark.proves("MOD-T2")
def test_status_is_computed_from_the_record_and_is_what_the_events_show() -> None:
    """Two stored answers to one question would sooner or later differ."""
    lab = Lab().plan(task("a"), gate("g", "a"), task("b", "g", max_attempts=2), task("c", "a"))

    def agree() -> None:
        assert run_status(lab.run()) == seen(RUN_VIEW, lab.log, "r1")[-1]
        for name in "agbc":
            assert step_status(lab.job(name)) == seen(STEP_VIEW, lab.log, f"r1/{name}")[-1]
        for id, record in lab.unit.records.items():
            if isinstance(record, Attempt):
                assert job_status(record) == seen(JOB_VIEW, lab.log, id)[-1]

    agree()
    lab.work("a")
    agree()
    lab.approve("g")
    granted = lab.claim(lab.attempt("b"))
    agree()
    lab.send(attempt.Heartbeat, granted)
    lab.fail(granted)
    agree()
    granted = lab.claim(lab.attempt("c"))
    lab.cancel_run()
    agree()
    lab.send(attempt.CancelAck, granted)
    agree()
    lab.report()
    agree()
    records = (run.Run, job.Job, Attempt, worker.Worker, lease.Lease)
    assert not [kind for kind in records if "status" in kind.__struct_fields__]


# -- 1: no state is skipped


@pytest.mark.proves("MOD-1")
def test_a_complete_without_any_heartbeat_records_every_step_in_one_transaction() -> None:
    """Who reads the log sees a whole life, however little the runner said."""
    lab = Lab().plan(task("a"))
    granted = lab.claim(lab.attempt("a"))
    written = len(lab.log)

    lab.after(5).complete(granted)

    assert lab.steps("r1/a.1") == [
        *("CREATED", "QUEUED", "LEASED"),
        *("STARTING", "RUNNING", "UPLOADING", "SUCCEEDED"),
    ]
    assert {event.at for event in lab.log[written:]} == {lab.now}
    assert lab.steps("r1")[-3:] == ["RUNNING", "VALIDATING", "SUCCESS"]
    lab.verified()


@pytest.mark.proves("MOD-1")
def test_a_run_whose_first_progress_is_a_gate_records_that_it_ran() -> None:
    """A run that waits has begun; a log that jumps from QUEUED would say otherwise."""
    lab = Lab().plan(gate("g"))

    assert lab.steps("r1") == ["CREATED", "PLANNING", "QUEUED", "RUNNING", "WAITING_APPROVAL"]
    lab.approve("g")
    assert lab.steps("r1")[-4:] == ["WAITING_APPROVAL", "RUNNING", "VALIDATING", "SUCCESS"]
    lab.verified()


# -- 2: one door


def _timed_out() -> tuple[Lab, Lease]:
    lab, granted = running(timeout_seconds=60)
    lab.after(60).do(attempt.TimeOut(id="r1/a.1"))
    return lab, granted


def _forced() -> tuple[Lab, Lease]:
    lab, granted = running()
    lab.cancel_run()
    lab.after(30).do(attempt.ForceCancel(id="r1/a.1"))
    return lab, granted


@pytest.mark.proves("MOD-2")
@pytest.mark.parametrize(
    ("made", "named"), [(_timed_out, ["RUNNING", "TIMED_OUT"]), (_forced, ["CANCEL_REQUESTED", "CANCELED"])]
)
def test_what_the_orchestrator_ends_itself_it_takes_over(
    made: Callable[[], tuple[Lab, Lease]], named: list[str]
) -> None:
    """Document 004 sees a takeover, document 000 its one transition, and the runner's late word is stale."""
    lab, granted = made()

    ended = lab.attempt("a")

    assert job_events(lab, "r1/a.1")[-4:] == TAKEOVER
    assert seen(ATTEMPT_VIEW, lab.log, "r1/a.1")[-2:] == named
    assert ended.claims == 2
    assert ended.ended_lease is not None
    assert ended.ended_lease.state == lease.REVOKED
    assert lab.stale(lab.message(attempt.Complete, granted, is_success=True, exit_code=0)) == "LEASE_REVOKED"
    lab.verified()


@pytest.mark.proves("MOD-2", "MOD-5")
def test_too_many_lost_leases_end_in_a_takeover() -> None:
    """Document 004 sees the orchestrator claim the job that lost its leases, and fail it."""
    lab, granted = running(max_lost_leases=0)

    lab.after(120).do(attempt.Expire(id="r1/a.1"))

    assert job_events(lab, "r1/a.1")[-4:] == TAKEOVER
    assert lab.attempt("a").claims == 2
    assert lab.stale(lab.message(attempt.Complete, granted, is_success=True, exit_code=0)) == "LEASE_EXPIRED"
    lab.verified()


@pytest.mark.proves("MOD-2")
@pytest.mark.parametrize("actor", ["orchestrator", "user:ada"])
def test_only_the_orchestrator_takes_over_a_job_that_lost_too_many_leases(actor: str) -> None:
    """A person may take it from its worker, but the orchestrator claims, starts and fails the job, at once."""
    lab = Lab()
    lab.enqueue(max_lost_leases=0)
    lab.claim(lab.queued())

    lab.do(attempt.Stall(id="q1", actor=actor))

    assert (lab.queued().state, lab.queued().claims) == (attempt.FAILED, 2)
    assert job_events(lab, "q1")[-3:] == TAKEOVER[1:]
    lab.verified()


@pytest.mark.proves("MOD-2")
def test_the_exported_job_events_count_their_own_rev() -> None:
    """One of our events may be several there, so our numbers would have gaps or repeats."""
    lab, _ = _timed_out()

    lines = [msgspec.json.decode(line) for line in lab.job_events()]

    assert [line["rev"] for line in lines] == list(range(1, len(lines) + 1))
    implied_acknowledgements = 1  # Our log has them; their runner sent no heartbeat, so that document 004 has none.
    assert len(lines) == lab.attempt("a").rev + 3 - implied_acknowledgements
    assert [line["attempt"] for line in lines][-4:] == [1, 2, 2, 2]


@pytest.mark.proves("MOD-2")
def test_a_cancel_without_a_runner_is_a_claim_by_the_orchestrator() -> None:
    """No runner has the attempt, so there is nothing to stall: the queue sees it claimed, started and failed."""
    lab = Lab()
    lab.enqueue()

    lab.do(attempt.Cancel(id="q1", reason="why"))

    assert job_events(lab, "q1")[1:] == TAKEOVER[1:]
    assert lab.queued().claims == msgspec.json.decode(lab.job_events()[-1])["attempt"] == 1
    lab.verified()


# -- 3: cancel wins


@pytest.mark.proves("MOD-3")
@pytest.mark.parametrize("message", [attempt.Complete, attempt.Finish])
@pytest.mark.parametrize("is_success", [True, False])
def test_a_result_after_the_cancel_is_the_acknowledgement_and_not_accepted(
    message: type[attempt.Outcome], is_success: bool
) -> None:
    """The person who cancelled was promised that it stops; a late success must not undo that."""
    lab, granted = running()
    lab.cancel_run()
    brought = {"artifacts": [{"type": "log", "uri": "s3://logs/1"}]}

    ended = lab.send(message, granted, is_success=is_success, exit_code=int(not is_success), report=brought)

    assert (ended.state, ended.result, ended.report) == (attempt.CANCELED, None, brought)
    assert attempt.complete_answer(ended) == (False, "CANCEL_REQUESTED")
    assert ended.ended_lease is not None
    assert ended.ended_lease.state == lease.CANCELED
    assert (lab.job("a").state, lab.run().state) == (job.CANCELED, run.CANCELED)
    lab.verified()


@pytest.mark.proves("MOD-3")
@pytest.mark.parametrize("is_planning", [False, True])
def test_a_cancel_before_the_plan_is_remembered_and_applied_once_the_run_is_queued(is_planning: bool) -> None:
    """A planner cannot be stopped halfway, but no job of its plan may start."""
    lab = Lab()
    lab.create()
    if is_planning:
        lab.do(run.BeginPlanning(id="r1"))
    lab.cancel_run(reason="CHANGED_MY_MIND")
    assert lab.cancel_run(reason="AGAIN").rev == lab.last("r1").rev == 2 + is_planning
    assert lab.run().state == (run.PLANNING if is_planning else run.CREATED)
    if not is_planning:
        lab.do(run.BeginPlanning(id="r1"))

    lab.do(run.PlanReady(id="r1", jobs=0))

    assert lab.steps("r1")[-3:] == ["QUEUED", "CANCEL_REQUESTED", "CANCELED"]
    assert lab.run().reason == "CHANGED_MY_MIND"
    lab.verified()


@pytest.mark.proves("MOD-3")
def test_a_cancel_needs_the_answer_of_a_runner_that_has_not_acknowledged_yet() -> None:
    """The job may already be on its way to the runner: only its word, or its silence, ends it."""
    lab = Lab().plan(task("a"))
    granted = lab.claim(lab.attempt("a"))
    lab.cancel_run()
    assert lab.attempt("a").state == attempt.CANCEL_REQUESTED

    lab.send(attempt.Ack, granted)
    acknowledged = lab.attempt("a").lease
    assert acknowledged is not None
    assert (lab.attempt("a").state, acknowledged.state) == (attempt.CANCEL_REQUESTED, lease.ACTIVE)
    lab.send(attempt.CancelAck, granted)

    assert lab.attempt("a").state == attempt.CANCELED
    lab.verified()


@pytest.mark.proves("MOD-3")
@pytest.mark.parametrize(
    ("order", "early", "due"), [(attempt.RevokeUnaccepted, 29.9, 30), (attempt.Expire, 119.9, 120)]
)
def test_a_lease_that_stays_unacknowledged_or_expires_forces_the_cancel(
    order: type[attempt.Expire], early: float, due: float
) -> None:
    """Silence must not keep a canceled run alive, nor may it be cut short."""
    lab = Lab().plan(task("a"))
    lab.claim(lab.attempt("a"))
    lab.do(run.Cancel(id="r1", actor="user:ada"))

    assert lab.after(early).refused(order(id="r1/a.1")).code == "not_due"
    lab.after(due - early).do(order(id="r1/a.1"))

    assert (lab.attempt("a").state, lab.run().state) == (attempt.CANCELED, run.CANCELED)
    lab.verified()
