"""The tiers of docs/spec/model.md and its rules 1 to 5, each proved on the real core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from deltaci.core import attempt, job, lease, run, worker
from deltaci.core.attempt import Attempt
from deltaci.core.errors import StaleLease
from deltaci.core.events import Event
from deltaci.core.instants import SECOND
from deltaci.core.verify import verify
from deltaci.core.views.orchestration import ATTEMPT_VIEW
from deltaci.core.views.queue import JOB_VIEW, job_status
from deltaci.core.views.steps import RUN_VIEW, STEP_VIEW, run_status, step_status
from deltaci.core.views.view import Change, View
from tests.lab import START, Lab, Lease, gate, task


def altered(lines: list[bytes], change: Callable[[list[dict[str, Any]]], object]) -> set[str]:
    """The rules that a log breaks once it was tampered with."""
    decoded = [msgspec.json.decode(line) for line in lines]
    change(decoded)
    return {violation.rule for violation in verify([msgspec.json.encode(line) for line in decoded]).violations}


def line_of(lab: Lab, entity_id: str, to: str) -> int:
    """Where the canonical log says that this entity came to this state."""
    lines = [msgspec.json.decode(line) for line in lab.canonical()]
    return next(n for n, line in enumerate(lines) if (line["entity_id"], line["to"]) == (entity_id, to))


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
    held = lab.claim(lab.attempt("a"))
    lab.say(attempt.Heartbeat, held)
    return lab, held


TAKEOVER: Final = [
    ("stalled", "orchestrator"),
    ("claimed", "orchestrator"),
    ("started", "orchestrator"),
    ("failed", "orchestrator"),
]


# -- tiers


@pytest.mark.proves("MOD-T1")
def test_a_retry_is_another_attempt_whose_index_is_one_higher() -> None:
    """The failed attempt stays as it was, for whoever wants to know why."""
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
    """Nobody knows whether it failed, so no attempt is used up."""
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
        for id, record in lab.world.records.items():
            if isinstance(record, Attempt):
                assert job_status(record) == seen(JOB_VIEW, lab.log, id)[-1]

    agree()
    lab.work("a")
    agree()
    lab.approve("g")
    held = lab.claim(lab.attempt("b"))
    agree()
    lab.say(attempt.Heartbeat, held)
    lab.fail(held)
    agree()
    held = lab.claim(lab.attempt("c"))
    lab.cancel_run()
    agree()
    lab.say(attempt.CancelAck, held)
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
    held = lab.claim(lab.attempt("a"))
    written = len(lab.log)

    lab.after(5).complete(held)

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
    lab, held = running(timeout_seconds=60)
    lab.after(60).do(attempt.TimeOut(id="r1/a.1"))
    return lab, held


def _forced() -> tuple[Lab, Lease]:
    lab, held = running()
    lab.cancel_run()
    lab.after(30).do(attempt.ForceCancel(id="r1/a.1"))
    return lab, held


@pytest.mark.proves("MOD-2")
@pytest.mark.parametrize(
    ("made", "named"), [(_timed_out, ["RUNNING", "TIMED_OUT"]), (_forced, ["CANCEL_REQUESTED", "CANCELED"])]
)
def test_what_the_orchestrator_ends_itself_it_takes_over(
    made: Callable[[], tuple[Lab, Lease]], named: list[str]
) -> None:
    """Document 004 sees a takeover, document 000 its one transition, and the runner's late word is stale."""
    lab, held = made()

    ended = lab.attempt("a")

    assert job_events(lab, "r1/a.1")[-4:] == TAKEOVER
    assert seen(ATTEMPT_VIEW, lab.log, "r1/a.1")[-2:] == named
    assert ended.claims == 2
    assert ended.ended_lease is not None
    assert ended.ended_lease.state == lease.REVOKED
    assert lab.stale(lab.message(attempt.Complete, held, is_success=True)) == "LEASE_REVOKED"
    lab.verified()


@pytest.mark.proves("MOD-2", "MOD-5")
def test_too_many_lost_leases_end_in_a_takeover() -> None:
    """Document 004 sees the orchestrator claim what nobody could keep, and fail it."""
    lab, held = running(max_lost_leases=0)

    lab.after(120).do(attempt.Expire(id="r1/a.1"))

    assert job_events(lab, "r1/a.1")[-4:] == TAKEOVER
    assert lab.attempt("a").claims == 2
    assert lab.stale(lab.message(attempt.Complete, held, is_success=True)) == "LEASE_EXPIRED"
    lab.verified()


@pytest.mark.proves("MOD-2")
def test_the_exported_job_events_count_their_own_rev() -> None:
    """One of our events may be several there, so our numbers would have gaps or repeats."""
    lab, _ = _timed_out()

    lines = [msgspec.json.decode(line) for line in lab.job_events()]

    assert [line["rev"] for line in lines] == list(range(1, len(lines) + 1))
    assert len(lines) == lab.attempt("a").rev + 3
    assert [line["attempt"] for line in lines][-4:] == [1, 2, 2, 2]


@pytest.mark.proves("MOD-2")
def test_a_cancel_that_nobody_can_acknowledge_is_a_claim_by_the_orchestrator() -> None:
    """Nobody has the attempt, so there is nothing to stall: the queue sees it claimed, started and failed."""
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
    """Whoever canceled was told that it stops; a late success must not undo that."""
    lab, held = running()
    lab.cancel_run()

    ended = lab.say(message, held, is_success=is_success)

    assert (ended.state, ended.result) == (attempt.CANCELED, None)
    assert attempt.completion(ended) == (False, "CANCEL_REQUESTED")
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
    held = lab.claim(lab.attempt("a"))
    lab.cancel_run()
    assert lab.attempt("a").state == attempt.CANCEL_REQUESTED

    lab.say(attempt.Ack, held)
    acknowledged = lab.attempt("a").lease
    assert acknowledged is not None
    assert (lab.attempt("a").state, acknowledged.state) == (attempt.CANCEL_REQUESTED, lease.ACTIVE)
    lab.say(attempt.CancelAck, held)

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


# -- 4: the clock


@pytest.mark.proves("MOD-4")
def test_a_clock_that_goes_backwards_does_not_shorten_a_lease() -> None:
    """The runner was promised its time, whatever the server's clock does."""
    lab, held = running()
    promised = lab.attempt("a").lease

    renewed = lab.after(-3_600).say(attempt.Heartbeat, held).lease

    assert promised is not None
    assert renewed is not None
    assert renewed.expires_at == promised.expires_at == START + 120 * SECOND
    assert [event.at for event in lab.log] == sorted(event.at for event in lab.log)
    lab.verified()


@pytest.mark.proves("MOD-4")
def test_a_clock_that_goes_backwards_does_not_revive_a_lease() -> None:
    """What was declared over is over, even if the clock says that it is not yet."""
    lab, held = running()
    lab.after(120).do(attempt.Expire(id="r1/a.1"))

    lab.after(-60)

    assert lab.stale(lab.message(attempt.Complete, held, is_success=True)) == "LEASE_EXPIRED"


@pytest.mark.proves("MOD-4")
def test_a_record_that_was_written_after_the_end_of_its_lease_keeps_that_lease_dead() -> None:
    """The record has seen a later time than the clock shows now, and that time counts."""
    lab, held = running()
    lab.after(130).do(attempt.Cancel(id="r1/a.1", reason="why"))
    late = lab.message(attempt.CancelAck, held)

    lab.after(-60)

    assert lab.stale(late) == "LEASE_EXPIRED"
    with pytest.raises(StaleLease):
        attempt.decide(lab.attempt("a"), late, lab.now, [])


@pytest.mark.proves("MOD-4")
def test_every_layer_by_itself_withstands_a_clock_that_goes_backwards() -> None:
    """A queue may use the attempt alone, or the lease alone, so neither relies on the other for this."""
    lab = Lab()
    lab.enqueue()
    held = lab.claim(lab.queued(), ttl_seconds=60)
    record = lab.after(50).say(attempt.Heartbeat, held)
    assert record.lease is not None
    events: list[Event] = []

    renewed = lease.change(record.lease, lease.Renew(id="q1", actor=held.actor), START)
    decided = attempt.decide(record, lab.message(attempt.Heartbeat, held), START, events)

    assert renewed.expires_at == record.lease.expires_at == START + 110 * SECOND
    assert (decided.updated_at, [event.at for event in events]) == (record.updated_at, [record.updated_at])


@pytest.mark.proves("MOD-4")
def test_nothing_that_a_runner_can_say_is_a_time_that_counts() -> None:
    """A runner whose clock is wrong could otherwise keep a job forever, or lose it at once."""
    told = {"id", "actor", "request_id", "expected_rev", "lease", "is_success", "exit_code", "result", "facts"}
    messages = [kind for kind in attempt.MACHINE.commands if issubclass(kind, attempt.Leased)]

    assert len(messages) == 8
    assert {field for kind in messages for field in kind.__struct_fields__} <= told | {"failure"}


@pytest.mark.proves("MOD-4")
@pytest.mark.parametrize("seconds", [60, 61])
def test_the_timeout_is_measured_by_the_store_from_running_on(seconds: int) -> None:
    """Waiting for a runner to start is not the job's fault."""
    lab = Lab().plan(task("a", timeout_seconds=60))
    held = lab.claim(lab.attempt("a"))
    lab.after(20).say(attempt.Ack, held)
    lab.after(50).say(attempt.Start, held)

    assert lab.after(59.9).refused(attempt.TimeOut(id="r1/a.1")).code == "not_due"
    lab.after(seconds - 59.9).do(attempt.TimeOut(id="r1/a.1"))

    assert lab.attempt("a").state == attempt.TIMED_OUT


# -- 5: lost leases


@pytest.mark.proves("MOD-5")
def test_more_than_three_lost_leases_fail_the_attempt_as_lease_lost() -> None:
    """A job that kills every worker must stop, as a failure of the infrastructure that is worth a retry."""
    lab = Lab().plan(task("a", max_attempts=2))
    for number in range(4):
        assert lab.attempt("a").state == attempt.QUEUED
        lab.claim(lab.attempt("a"), by=f"w{number}")
        lab.after(120).do(attempt.Expire(id="r1/a.1"))

    error = lab.attempt("a").error

    assert lab.attempt("a").state == attempt.FAILED
    assert error is not None
    assert (error.code, error.failure_class, error.is_retryable) == ("LEASE_LOST", "INFRA", True)
    assert lab.job("a").state == job.RETRYING
    lab.verified()


@pytest.mark.proves("MOD-5")
def test_a_worker_that_is_given_up_early_keeps_others_out_until_its_lease_would_have_ended() -> None:
    """It may still be at work: two workers that respect their leases never run an attempt together."""
    lab = Lab().plan(task("a"))
    lab.register("w1")
    held = lab.claim(lab.attempt("a"), by="w1")
    lab.say(attempt.Heartbeat, held)

    lab.after(90).do(worker.MissHealthChecks(id="w1"))

    assert lab.stale(lab.message(attempt.Heartbeat, held)) == "LEASE_REVOKED"
    assert lab.attempt("a").run_at == START + 120 * SECOND
    again = attempt.Grant(id="r1/a.1", actor="worker:w2", fingerprint="f" * 32)
    assert lab.after(29.9).refused(again).code == "not_due"
    lab.after(0.1).do(again)
    assert lab.job("a").worker_id == "w2"
    lab.verified()


@pytest.mark.proves("MOD-5")
def test_the_retry_after_a_timeout_waits_until_the_old_lease_would_have_ended() -> None:
    """The runner that overran its time may not have heard of it yet."""
    lab, _ = running(timeout_seconds=60, max_attempts=2, base_delay_seconds=1)

    lab.after(60).do(attempt.TimeOut(id="r1/a.1"))

    assert lab.job("a").next_run_at == START + 120 * SECOND
    assert lab.after(59.9).refused(job.RetryDue(id="r1/a")).code == "not_due"
    lab.after(0.1).do(job.RetryDue(id="r1/a"))
    lab.verified()


@pytest.mark.proves("MOD-5")
@pytest.mark.parametrize("change", [{"lost_leases": 2}, {"reason": "NOT_ACCEPTED"}])
def test_the_verifier_counts_lost_leases_itself(change: dict[str, Any]) -> None:
    """A log that counts wrongly would never give up, or give up too early."""
    lab, _ = running()
    lab.after(120).do(attempt.Expire(id="r1/a.1"))
    number = line_of(lab, "r1/a.1", attempt.STALE)

    assert "MOD-5" in altered(lab.canonical(), lambda log: log[number]["metadata"].update(change))
