"""The rules of docs/spec/orchestration.md about runs, and about what attempts mean for their jobs."""

from __future__ import annotations

from typing import Any

import pytest

from deltaci.audit.projections.orchestration import RUN_VIEW
from deltaci.core import attempt, job, lease, run
from deltaci.core.decide import CancelJob
from deltaci.core.events import ORCHESTRATOR, REPORTER, RUNNER
from deltaci.core.machine import ABSENT, Command, Machine
from deltaci.core.status import steps, workstreams
from deltaci.core.status.view import Change
from tests.support.lab import Lab, Lease, gate, task

OVER = (run.SUCCESS, run.FAILED, run.CANCELED, run.TIMEOUT)


def ended(outcome: str) -> Lab:
    """A run with one job that came to this end."""
    lab = Lab().plan(task("build"))
    if outcome == run.SUCCESS:
        lab.work("build")
    elif outcome == run.FAILED:
        lab.work("build", ok=False)
    elif outcome == run.CANCELED:
        lab.cancel_run()
    else:
        lab.claim(lab.attempt("build"))
        lab.after(run.TIMEOUT_SECONDS).do(run.TimeOut(id="r1"))
    assert lab.run().state == outcome
    return lab


def running(*others: Any, **fields: Any) -> tuple[Lab, Lease]:
    """A run whose job `build` is executed by a runner that said so."""
    lab = Lab().plan(task("build"), *others, **fields)
    granted = lab.claim(lab.attempt("build"))
    lab.send(attempt.Heartbeat, granted)
    return lab, granted


def seen_by_document_000(lab: Lab) -> list[str]:
    """The states that document 000 sees the run go through; fails at a step that it does not allow."""
    shown: str | None = None
    seen = []
    for event in (each for each in lab.log if each.entity_id == "r1"):
        change = Change(event.from_, event.to, event.trigger, event.actor)
        taken, shown = RUN_VIEW.project_change(shown, change)
        assert all(RUN_VIEW.allows(step) for step in taken), taken
        seen += [step.target for step in taken]
    return seen


OWNERS: list[tuple[Machine[Any], str, type[Command], tuple[str, ...], str]] = [
    (run.MACHINE, ABSENT, run.Create, (run.CREATED,), ORCHESTRATOR),
    (run.MACHINE, run.CREATED, run.BeginPlanning, (run.PLANNING,), ORCHESTRATOR),
    (run.MACHINE, run.PLANNING, run.PlanReady, (run.QUEUED,), ORCHESTRATOR),
    (run.MACHINE, run.PLANNING, run.PlanFailed, (run.PLAN_FAILED,), ORCHESTRATOR),
    (run.MACHINE, run.PLANNING, run.TimeOutPlanning, (run.PLAN_FAILED,), ORCHESTRATOR),
    (run.MACHINE, run.PLAN_FAILED, run.Fail, (run.FAILED,), ORCHESTRATOR),
    (run.MACHINE, run.QUEUED, run.FirstActive, (run.RUNNING,), ORCHESTRATOR),
    (run.MACHINE, run.RUNNING, run.AllDone, (run.VALIDATING,), ORCHESTRATOR),
    (run.MACHINE, run.VALIDATING, run.Validate, (run.SUCCESS, run.FAILED), ORCHESTRATOR),
    (run.MACHINE, run.RUNNING, run.Fail, (run.FAILED,), ORCHESTRATOR),
    (run.MACHINE, run.QUEUED, run.Cancel, (run.CANCEL_REQUESTED,), ORCHESTRATOR),
    (run.MACHINE, run.RUNNING, run.Cancel, (run.CANCEL_REQUESTED,), ORCHESTRATOR),
    (run.MACHINE, run.CANCEL_REQUESTED, run.FinishCancel, (run.CANCELED,), ORCHESTRATOR),
    (run.MACHINE, run.RUNNING, run.TimeOut, (run.TIMEOUT,), ORCHESTRATOR),
    *((run.MACHINE, state, run.Report, (run.REPORTED,), REPORTER) for state in OVER),
    (attempt.MACHINE, attempt.CREATED, attempt.Publish, (attempt.QUEUED,), ORCHESTRATOR),
    (attempt.MACHINE, attempt.QUEUED, attempt.Grant, (attempt.LEASED,), ORCHESTRATOR),
    (attempt.MACHINE, attempt.LEASED, attempt.Ack, (attempt.STARTING,), ORCHESTRATOR),
    (attempt.MACHINE, attempt.STARTING, attempt.Start, (attempt.RUNNING,), ORCHESTRATOR),
    (attempt.MACHINE, attempt.RUNNING, attempt.BeginUpload, (attempt.UPLOADING,), RUNNER),
    (attempt.MACHINE, attempt.UPLOADING, attempt.Complete, (attempt.SUCCEEDED, attempt.FAILED), ORCHESTRATOR),
    (attempt.MACHINE, attempt.LEASED, attempt.Expire, (attempt.STALE,), ORCHESTRATOR),
    (attempt.MACHINE, attempt.STALE, attempt.Requeue, (attempt.QUEUED, attempt.FAILED), ORCHESTRATOR),
    (attempt.MACHINE, attempt.RUNNING, attempt.TimeOut, (attempt.TIMED_OUT,), ORCHESTRATOR),
    (attempt.MACHINE, attempt.RUNNING, attempt.Cancel, (attempt.CANCEL_REQUESTED,), ORCHESTRATOR),
    (attempt.MACHINE, attempt.CANCEL_REQUESTED, attempt.CancelAck, (attempt.CANCELED,), ORCHESTRATOR),
    (attempt.MACHINE, attempt.CANCEL_REQUESTED, attempt.ForceCancel, (attempt.CANCELED,), ORCHESTRATOR),
    (job.MACHINE, job.RETRYING, job.RetryDue, (job.QUEUED,), ORCHESTRATOR),
]


@pytest.mark.proves("ORC-O1")
@pytest.mark.parametrize(("machine", "source", "command", "targets", "owner"), OWNERS)
def test_every_transition_has_the_owner_that_document_000_names(
    machine: Machine[Any], source: str, command: type[Command], targets: tuple[str, ...], owner: str
) -> None:
    """A state that two components may write is controlled by neither."""
    rule = machine.rule(source, command)

    assert rule is not None
    assert tuple(to.state for to in rule.targets) == targets
    assert rule.owner == owner


# -- success and failure


@pytest.mark.proves("ORC-R6", "ORC-RF1")
@pytest.mark.parametrize("is_required", [True, False])
def test_a_run_does_not_succeed_while_a_job_is_open(is_required: bool) -> None:
    """A success that a later job could contradict is none."""
    lab = Lab()
    lab.register("w1")
    lab.plan(task("build"), task("lint", is_required=is_required))

    lab.work("build")
    refusal = lab.refused(run.AllDone(id="r1"))

    assert refusal.code == "not_eligible"
    assert lab.run().state == run.RUNNING


@pytest.mark.proves("ORC-RF1", "ORC-R6")
@pytest.mark.parametrize("loss", ["failed", "canceled", "rejected"])
def test_a_run_never_succeeds_without_each_of_its_required_jobs(loss: str) -> None:
    """A green run must mean that everything required was done and went well."""
    lab = Lab().plan(task("build"), gate("release"))
    lab.work("build", ok=loss != "failed")

    if loss == "canceled":
        lab.do(CancelJob(id="r1/release", actor="user:ada"))
    elif loss == "rejected":
        lab.do(job.Reject(id="r1/release", actor="user:ada"))
    else:
        lab.approve("release")

    assert run.SUCCESS not in lab.steps("r1")
    assert lab.run().state == run.FAILED
    lab.verified()


@pytest.mark.proves("ORC-R6", "ORC-RF1")
def test_a_run_succeeds_when_all_required_jobs_did_and_an_allowed_failure_does_not_matter() -> None:
    """Document 000 sees RUNNING → SUCCESS, and our validation in between as running."""
    lab = Lab().plan(task("build"), task("lint", is_required=False))

    lab.work("lint", ok=False)
    lab.work("build")

    assert (lab.job("build").state, lab.job("lint").state) == (job.SUCCEEDED, job.FAILED)
    assert lab.steps("r1")[-3:] == [run.RUNNING, run.VALIDATING, run.SUCCESS]
    assert seen_by_document_000(lab)[-2:] == [run.RUNNING, run.SUCCESS]
    lab.verified()


@pytest.mark.proves("ORC-R7", "ORC-RF2", "ORC-J2")
def test_a_run_fails_when_a_required_job_failed_for_good_and_not_while_it_has_retries_left() -> None:
    """A failure that is about to be retried says nothing about the change."""
    lab = Lab().plan(task("build", max_attempts=2))

    lab.fail(lab.claim(lab.attempt("build")))
    first = (lab.job("build").state, lab.run().state)
    refusal = lab.refused(run.Fail(id="r1"))
    lab.after(600).do(job.RetryDue(id="r1/build"))
    lab.fail(lab.claim(lab.attempt("build")))

    assert first == (job.RETRYING, run.RUNNING)
    assert refusal.code == "not_eligible"
    assert (lab.job("build").state, lab.run().state) == (job.FAILED, run.FAILED)
    assert lab.last("r1").metadata["job_id"] == "r1/build"
    lab.verified()


@pytest.mark.proves("ORC-R10", "ORC-T3")
def test_a_run_does_not_time_out_before_its_time_nor_before_it_runs() -> None:
    """Waiting for a runner is not the run's fault, so its time runs from its first activity."""
    lab = Lab().plan(task("build"), timeout_seconds=100)

    queued = lab.after(1000).refused(run.TimeOut(id="r1"))
    lab.claim(lab.attempt("build"))
    early = lab.after(99.999999).refused(run.TimeOut(id="r1"))

    assert (queued.code, early.code) == ("not_due", "not_due")


@pytest.mark.proves("ORC-R10", "ORC-T3", "ORC-RF2")
def test_a_run_that_took_too_long_is_timed_out_stopped_and_shown_as_failed() -> None:
    """A pipeline is bounded, and readers of the outcome need no fifth one."""
    lab = Lab().plan(task("build"), task("test", "build"), timeout_seconds=100)
    granted = lab.claim(lab.attempt("build"))

    lab.after(100).do(run.TimeOut(id="r1"))

    assert lab.steps("r1")[-2:] == [run.RUNNING, run.TIMEOUT]
    assert lab.attempt("build").state == attempt.CANCEL_REQUESTED
    assert lab.job("test").state == job.CANCELED
    shown = [(steps.run_status(each), workstreams.workstream_state(each)) for each in (lab.run(), lab.report())]
    assert shown == [("FAILED", "failed"), ("FAILED", "failed")]
    lab.send(attempt.CancelAck, granted)
    assert (lab.job("build").state, lab.job("build").reason) == (job.CANCELED, job.RUN_TIMEOUT)
    lab.verified()


# -- cancel


@pytest.mark.proves("ORC-R8")
@pytest.mark.parametrize("outcome", [each for each in OVER if each != run.CANCELED])
def test_a_run_that_is_over_cannot_be_canceled_and_a_runner_can_cancel_none(outcome: str) -> None:
    """An outcome is final, and a runner has no authority over the run."""
    over, live = ended(outcome), Lab().plan(task("build"))

    late = over.refused(run.Cancel(id="r1", actor="user:ada"))
    foreign = live.refused(run.Cancel(id="r1", actor="worker:w1"))

    assert (late.code, foreign.code) == ("wrong_state", "wrong_actor")


@pytest.mark.proves("ORC-I2", "MOD-9")
@pytest.mark.parametrize("outcome", OVER)
def test_a_cancel_of_a_canceled_run_changes_nothing_also_once_it_is_reported(outcome: str) -> None:
    """A caller whose response was lost repeats the request, which must not fail."""
    lab = ended(outcome)
    lab.report()
    before = len(lab.log)

    if outcome == run.CANCELED:
        ended(outcome).do(run.Cancel(id="r1", actor="user:ada"))
        lab.do(run.Cancel(id="r1", actor="user:ada"))
    else:
        assert lab.refused(run.Cancel(id="r1", actor="user:ada")).code == "wrong_state"

    assert len(lab.log) == before


@pytest.mark.proves("ORC-R8")
@pytest.mark.parametrize("source", [run.QUEUED, run.RUNNING])
@pytest.mark.parametrize(("actor", "reason"), [("user:ada", "RUN_CANCELED"), ("orchestrator", "SUPERSEDED")])
def test_a_user_or_a_policy_cancels_a_queued_or_a_running_run(source: str, actor: str, reason: str) -> None:
    """A newer run makes an older one worthless in the same way as a person who gave up on it."""
    lab = Lab().plan(task("build")) if source == run.QUEUED else running()[0]
    assert lab.run().state == source

    lab.do(run.Cancel(id="r1", actor=actor, reason=reason))

    asked = next(event for event in lab.log if event.to == run.CANCEL_REQUESTED and event.entity_id == "r1")
    assert (asked.from_, asked.actor, asked.metadata["reason"]) == (source, actor, reason)
    lab.verified()


@pytest.mark.proves("ORC-R9", "ORC-RF3")
def test_a_run_is_not_canceled_without_a_request_nor_while_a_job_is_active() -> None:
    """CANCELED promises that nothing of this run executes any more."""
    lab, _ = running()

    unasked = lab.refused(run.FinishCancel(id="r1"))
    lab.cancel_run()
    early = lab.after(lease.CANCEL_SECONDS - 1).refused(run.FinishCancel(id="r1"))

    assert (unasked.code, early.code) == ("wrong_state", "not_eligible")
    assert lab.run().state == run.CANCEL_REQUESTED


@pytest.mark.proves("ORC-R9", "ORC-RF3", "ORC-J3")
@pytest.mark.parametrize("is_forced", [False, True])
def test_a_run_is_canceled_when_its_last_active_job_acknowledged_or_was_forced(is_forced: bool) -> None:
    """One job that stops in time does not stand for another that does not."""
    lab, first = running(task("lint"), task("test", "build"))
    second = lab.claim(lab.attempt("lint"), by="w2")
    lab.cancel_run()

    lab.send(attempt.CancelAck, first)
    between = (lab.run().state, lab.job("build").state, lab.job("lint").state, lab.job("test").state)
    if is_forced:
        lab.after(lease.CANCEL_SECONDS).do(attempt.ForceCancel(id="r1/lint.1"))
    else:
        lab.send(attempt.CancelAck, second)

    assert between == (run.CANCEL_REQUESTED, job.CANCELED, job.RUNNING, job.CANCELED)
    assert lab.job("lint").state == job.CANCELED
    assert lab.steps("r1")[-2:] == [run.CANCEL_REQUESTED, run.CANCELED]
    assert lab.run().conclusion == run.CANCELED
    lab.verified()


# -- the end


@pytest.mark.proves("ORC-R11")
@pytest.mark.parametrize("actor", ["orchestrator", "user:ada", "worker:w1"])
def test_only_the_reporter_reports_a_run_and_only_one_that_is_over(actor: str) -> None:
    """REPORTED must mean that the statuses were really published outside."""
    over, live = ended(run.SUCCESS), running()[0]

    foreign = over.refused(run.Report(id="r1", actor=actor))
    early = live.refused(run.Report(id="r1", actor="reporter"))

    assert (foreign.code, early.code) == ("wrong_actor", "wrong_state")


@pytest.mark.proves("ORC-R11")
@pytest.mark.parametrize("outcome", OVER)
def test_every_outcome_can_be_reported_and_is_kept(outcome: str) -> None:
    """The state says that it was published, the conclusion what was."""
    lab = ended(outcome)

    lab.report()

    assert lab.steps("r1")[-2:] == [outcome, run.REPORTED]
    assert lab.run().conclusion == outcome
    lab.verified()


@pytest.mark.proves("ORC-R12")
def test_no_transition_leaves_reported() -> None:
    """A published outcome must not change."""
    lab = ended(run.SUCCESS)
    lab.report()

    refusals = [
        lab.refused(command)
        for command in (
            run.BeginPlanning(id="r1"),
            run.PlanFailed(id="r1", error="late"),
            run.TimeOutPlanning(id="r1"),
            run.Fail(id="r1"),
            run.AllDone(id="r1"),
            run.Validate(id="r1", is_passed=False),
            run.TimeOut(id="r1"),
            run.Cancel(id="r1"),
            run.FinishCancel(id="r1"),
            run.Report(id="r1", actor="reporter"),
        )
    ]

    assert {refusal.code for refusal in refusals} == {"wrong_state"}
    assert {run.REPORTED} == run.TERMINAL


@pytest.mark.proves("ORC-R12")
def test_a_job_that_ends_after_its_run_was_reported_does_not_move_the_run() -> None:
    """A runner may still be stopping when a run that fails fast is already published."""
    lab, granted = running(task("lint"), is_fail_fast=True)
    lab.work("lint", "w2", ok=False)
    before = lab.report()

    lab.send(attempt.CancelAck, granted)

    assert lab.job("build").state == job.CANCELED
    assert lab.run() == before
    lab.verified()


# -- what the attempts mean for the job


@pytest.mark.proves("ORC-J1")
@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_job_succeeds_as_soon_as_one_of_its_attempts_does(failures: int) -> None:
    """Earlier failures are history once an attempt has shown that the job can succeed."""
    lab = Lab().plan(task("build", max_attempts=3))
    for _ in range(failures):
        lab.fail(lab.claim(lab.attempt("build")))
        lab.after(600).do(job.RetryDue(id="r1/build"))

    lab.work("build")

    assert (lab.job("build").state, lab.job("build").attempts) == (job.SUCCEEDED, failures + 1)
    assert lab.refused(job.RetryDue(id="r1/build")).code == "wrong_state"
    lab.verified()


@pytest.mark.proves("ORC-J2")
@pytest.mark.parametrize(("max_attempts", "code"), [(1, "RUNNER_STARTUP"), (3, "BAD_SPEC")])
def test_a_job_fails_when_its_latest_attempt_failed_and_no_retry_remains(max_attempts: int, code: str) -> None:
    """Retries are used up, or there was never one to be had for this failure."""
    lab = Lab().plan(task("build", max_attempts=max_attempts))

    lab.fail(lab.claim(lab.attempt("build")), code)

    assert (lab.job("build").state, lab.job("build").reason) == (job.FAILED, code)
    lab.verified()


@pytest.mark.proves("ORC-J3")
def test_a_job_is_canceled_when_its_cancellation_is_final_and_not_when_it_is_requested() -> None:
    """Until the runner has stopped, the job is still running somewhere."""
    lab, granted = running(task("lint"))

    lab.do(CancelJob(id="r1/build", actor="user:ada"))
    asked = lab.job("build").state
    lab.send(attempt.CancelAck, granted)

    assert asked == job.RUNNING
    assert (lab.job("build").state, lab.job("build").reason) == (job.CANCELED, job.JOB_CANCELED)
    assert lab.run().state == run.RUNNING
    lab.verified()
