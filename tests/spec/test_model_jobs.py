"""Rules 6 to 10 of docs/spec/model.md: jobs that block, fail and wait, and records that end. Proved on the core."""

from __future__ import annotations

import pytest

from deltaci.core import attempt, job, run
from deltaci.core.attempt import Attempt
from deltaci.core.decide import CancelJob, Plan
from deltaci.core.machine import Command
from tests.spec.logs import altered, line_of
from tests.support.lab import Lab, gate, task


def ends(lab: Lab, *names: str) -> list[tuple[str, str]]:
    """How the jobs ended, and why."""
    return [(lab.job(name).state, lab.job(name).reason) for name in names]


# -- 6: blocked and not needed


@pytest.mark.proves("MOD-6")
@pytest.mark.parametrize("is_canceled", [False, True])
def test_who_depends_on_a_failed_or_canceled_job_is_canceled_as_blocked(is_canceled: bool) -> None:
    """It can never run, however far down the line it waits, and it says so."""
    lab = Lab().plan(task("a"), task("b", "a"), gate("g", "b"), task("c", "g"), task("free"))

    if is_canceled:
        lab.do(CancelJob(id="r1/a", actor="user:ada"))
    else:
        lab.work("a", ok=False)

    assert ends(lab, "b", "g", "c") == [(job.CANCELED, job.BLOCKED)] * 3
    assert lab.job("free").state == job.QUEUED
    lab.verified()


@pytest.mark.proves("MOD-6", "MOD-7")
def test_what_a_failed_run_has_not_begun_is_canceled_as_not_needed() -> None:
    """Its outcome is known, so more work would only cost."""
    lab = Lab().plan(task("a"), task("b"), gate("g"), is_fail_fast=True)

    lab.work("a", ok=False)

    assert lab.run().state == run.FAILED
    assert ends(lab, "b", "g") == [(job.CANCELED, job.NOT_NEEDED)] * 2
    lab.verified()


@pytest.mark.proves("MOD-6")
@pytest.mark.parametrize("reason", ["", "NOT_NEEDED", "BLOCKED"])
def test_the_verifier_finds_a_cancellation_without_a_true_reason(reason: str) -> None:
    """A reason that is not true is worse than none."""
    lab = Lab().plan(task("a"), gate("g"))
    lab.do(CancelJob(id="r1/g", actor="user:ada"))
    number = line_of(lab, "r1/g", job.CANCELED)

    assert altered(lab.canonical(), lambda log: log[number]["metadata"].update(reason=reason)) == {"MOD-6"}


@pytest.mark.proves("MOD-6")
@pytest.mark.parametrize("reason", sorted(job.ORCHESTRATOR_REASONS))
def test_the_text_of_a_person_is_never_taken_for_a_finding(reason: str) -> None:
    """The reason of a cancel is free text: it cannot claim that the run was cancelled or a need was lost."""
    lab = Lab().plan(task("a"), gate("g"))

    lab.do(CancelJob(id="r1/g", actor="user:ada", reason=reason))

    assert ends(lab, "g") == [(job.CANCELED, f"“{reason}”")]
    lab.verified()


# -- 7: a failed required job


@pytest.mark.proves("MOD-7")
def test_a_run_with_a_failed_job_goes_on_until_nothing_else_can_progress() -> None:
    """People want to see everything that is wrong, not only the first thing."""
    lab = Lab().plan(task("a"), task("b"), task("c", "b"))

    lab.work("a", ok=False)
    assert lab.run().state == run.RUNNING
    lab.work("b")
    assert lab.run().state == run.RUNNING
    lab.work("c")

    assert (lab.run().state, lab.run().reason) == (run.FAILED, "JOB_FAILED")
    assert lab.last("r1").metadata["job_id"] == "r1/a"
    lab.verified()


@pytest.mark.proves("MOD-7")
def test_under_fail_fast_the_run_fails_at_once_and_the_rest_is_canceled() -> None:
    """Who pays for the machines may prefer the first answer to all answers."""
    lab = Lab().plan(task("a"), task("b"), is_fail_fast=True)
    lease = lab.claim(lab.attempt("b"), by="w2")

    lab.work("a", ok=False)

    assert lab.run().state == run.FAILED
    assert lab.attempt("b").state == attempt.CANCEL_REQUESTED
    lab.send(attempt.CancelAck, lease)
    assert ends(lab, "b") == [(job.CANCELED, job.NOT_NEEDED)]
    lab.verified()


@pytest.mark.proves("MOD-7")
def test_a_failed_job_that_may_fail_blocks_no_other_job() -> None:
    """Document 003's critical is our required; only required jobs decide."""
    lab = Lab().plan(task("a", is_required=False), task("b", "a"), is_fail_fast=True)

    lab.work("a", ok=False)
    assert (lab.job("b").state, lab.run().state) == (job.QUEUED, run.RUNNING)
    lab.work("b")

    assert lab.run().state == run.SUCCESS
    lab.verified()


@pytest.mark.proves("MOD-7")
def test_the_verifier_finds_a_run_that_fails_while_others_progress() -> None:
    """Without fail fast this run gave up too early."""
    lab = Lab().plan(task("a"), task("b"), is_fail_fast=True)
    lab.work("a", ok=False)

    assert "MOD-7" in altered(lab.canonical(), lambda log: log[0]["metadata"].update(is_fail_fast=False))


# -- 8: approval


@pytest.mark.proves("MOD-8")
def test_a_run_waits_for_approval_exactly_while_one_waits_and_none_can_progress() -> None:
    """A run that shows it waits needs a person now; one that can go on does not."""
    lab = Lab().plan(gate("g"), task("a", max_attempts=2), task("b", "g"))
    states = [lab.run().state]

    lease = lab.claim(lab.attempt("a"))
    states.append(lab.run().state)
    lab.fail(lease)  # Its retry is still to come: it can progress.
    states.append(lab.run().state)
    lab.after(1_000).do(job.RetryDue(id="r1/a"))
    lab.work("a")
    states.append(lab.run().state)
    lab.approve("g")
    states.append(lab.run().state)

    assert states == [run.QUEUED, run.RUNNING, run.RUNNING, run.WAITING_APPROVAL, run.RUNNING]
    lab.verified()


@pytest.mark.proves("MOD-8")
def test_approve_applies_to_a_waiting_job_only_and_a_second_one_has_no_effect() -> None:
    """An approval is for what was asked, and once."""
    lab = Lab().plan(task("a"), gate("g", "a"))

    assert lab.refused(job.Approve(id="r1/g", actor="user:ada")).code == "wrong_state"
    assert lab.refused(job.Approve(id="r1/a", actor="user:ada")).code == "wrong_state"
    lab.work("a")
    lab.approve("g")
    written = len(lab.log)
    lab.approve("g", by="user:bob")

    assert lab.job("g").state == job.SUCCEEDED
    assert len(lab.log) == written


@pytest.mark.proves("MOD-8")
def test_a_rejected_job_fails_as_rejected_and_never_had_an_attempt() -> None:
    """The reason tells a no from a crash, and a worker could never have been handed it."""
    lab = Lab().plan(gate("g"))

    lab.do(job.Reject(id="r1/g", actor="user:ada", comment="not on a Friday"))

    assert ends(lab, "g") == [(job.FAILED, "REJECTED")]
    assert (lab.job("g").attempts, lab.job("g").attempt_id) == (0, "")
    assert not [record for record in lab.unit.records.values() if isinstance(record, Attempt)]
    lab.verified()


@pytest.mark.proves("MOD-8")
def test_the_verifier_finds_a_run_that_waits_while_a_job_can_progress() -> None:
    """No worker would look at a run that claims to wait."""
    lab = Lab().plan(gate("g"), task("a"))
    lab.work("a")
    waits, ends_ = line_of(lab, "r1", run.WAITING_APPROVAL), line_of(lab, "r1/a.1", attempt.STARTING)

    rules = altered(lab.canonical(), lambda log: log.insert(ends_, {**log.pop(waits), "seq": log[ends_ - 1]["seq"]}))

    assert "MOD-8" in rules


# -- 9: terminal records


def possible_commands(lab: Lab) -> list[Command]:
    """Return all commands that may be sent to a run, its job and its attempt."""
    return [
        run.Cancel(id="r1", actor="user:ada"),
        run.TimeOut(id="r1"),
        run.BeginPlanning(id="r1"),
        run.Validate(id="r1", is_passed=True),
        run.Fail(id="r1"),
        Plan(id="r1", jobs=(task("z"),)),
        job.RetryDue(id="r1/a"),
        job.Begin(id="r1/a", worker_id="w9"),
        job.Validate(id="r1/a", is_passed=False),
        attempt.Cancel(id="r1/a.1", reason="late"),
        attempt.Stall(id="r1/a.1"),
        attempt.Expire(id="r1/a.1"),
        attempt.Grant(id="r1/a.1", actor="worker:w9", fingerprint="f" * 32),
    ]


@pytest.mark.proves("MOD-9")
@pytest.mark.parametrize(("ok", "conclusion"), [(True, "SUCCESS"), (False, "FAILED")])
def test_a_terminal_record_never_changes_except_that_a_run_is_reported(ok: bool, conclusion: str) -> None:
    """Others have acted on the outcome; the conclusion stays readable when it is published."""
    lab = Lab().plan(task("a"))
    lab.work("a", ok=ok)
    over = lab.run()

    for order in possible_commands(lab.after(100_000)):
        lab.refused(order)
    reported = lab.report()
    for order in (*possible_commands(lab), run.Report(id="r1", actor="reporter")):
        lab.refused(order)

    assert (over.state, over.conclusion) == (conclusion, conclusion)
    assert (reported.state, reported.conclusion) == ("REPORTED", conclusion)
    lab.verified()


@pytest.mark.proves("MOD-9")
def test_a_run_that_is_over_does_not_change_with_what_still_happens_to_its_jobs() -> None:
    """A runner that stops after the run has failed must not touch the outcome."""
    lab = Lab().plan(task("a"), task("b"), is_fail_fast=True)
    lease = lab.claim(lab.attempt("b"), by="w2")
    lab.work("a", ok=False)
    over = lab.run()

    lab.after(5).send(attempt.CancelAck, lease)

    assert lab.job("b").state == job.CANCELED
    assert lab.run() == over


@pytest.mark.proves("MOD-9")
def test_the_verifier_finds_a_record_that_comes_back_and_a_conclusion_that_changes() -> None:
    """A log in which an outcome changes cannot be trusted in anything else."""
    lab = Lab().plan(task("a"))
    lab.work("a")
    lab.report()
    reported = line_of(lab, "r1", run.REPORTED)

    again = altered(lab.canonical(), lambda log: log.append({**log[-1], "seq": 99, "rev": log[-1]["rev"] + 1}))
    other = altered(lab.canonical(), lambda log: log[reported]["metadata"].update(conclusion="FAILED"))

    assert "MOD-9" in again
    assert other == {"MOD-9"}


# -- 10: one transition, one event


@pytest.mark.proves("MOD-10")
def test_every_accepted_transition_is_one_event_and_one_rev() -> None:
    """The log alone must be enough to know every record's state."""
    lab = Lab().plan(task("a", max_attempts=2), gate("g", "a"), task("b", "g"))
    lab.register("w1")
    lab.fail(lab.claim(lab.attempt("a")))
    lab.after(1_000).do(job.RetryDue(id="r1/a"))
    lab.work("a")
    lab.approve("g")
    lab.cancel_run()

    for id, found in lab.unit.records.items():
        assert found is not None
        events = [event for event in lab.log if event.entity_id == id]
        assert [event.rev for event in events] == list(range(1, found.rev + 1))
        assert (events[-1].to, events[-1].at) == (found.state, found.updated_at)
        assert [event.from_ for event in events[1:]] == [event.to for event in events[:-1]]
    lab.verified()


@pytest.mark.proves("MOD-10")
def test_a_rejected_or_repeated_message_leaves_no_event_and_every_rev_as_it_was() -> None:
    """Nothing happened, so no event may say so."""
    lab = Lab().plan(task("a"))
    lease = lab.claim(lab.attempt("a"))
    lab.complete(lease)
    before, written = dict(lab.unit.records), len(lab.log)

    lab.refused(lab.message(attempt.Complete, lease, is_success=False))
    decision = lab.do(lab.message(attempt.Complete, lease, is_success=True, exit_code=0))

    assert (decision.events, decision.changed) == ([], {})
    assert (lab.unit.records, len(lab.log)) == (before, written)


@pytest.mark.proves("MOD-10")
def test_the_creation_of_a_record_is_an_event_too() -> None:
    """Its step leads from null to the first stable state; an attempt is created by being enqueued."""
    lab = Lab().plan(task("a"))
    lab.register("w1")

    births = {event.entity: (event.from_, event.to, event.trigger) for event in reversed(lab.log) if event.rev == 1}

    assert births == {
        "run": (None, "CREATED", "created"),
        "job": (None, "PENDING", "created"),
        "worker": (None, "INITIALIZING", "registered"),
        "attempt": ("CREATED", "QUEUED", "enqueued"),
    }
    first = line_of(lab, "r1", run.PLANNING)
    assert "MOD-10" in altered(lab.canonical(), lambda log: log[first].update(rev=7))
    assert "MOD-10" in altered(lab.canonical(), lambda log: log.pop(0))
