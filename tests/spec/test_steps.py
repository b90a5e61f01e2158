"""The rules of docs/spec/steps.md about runs, steps and approvals, each proved on the real core."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deltaci.core import attempt, job, run
from deltaci.core.decide import CancelJob
from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.core.status.steps import run_status, step_attempts, step_status
from tests.spec.logs import altered, line_of
from tests.spec.scenes import attempts_in, status
from tests.support.lab import START, Lab, gate, task

# -- the run


@pytest.mark.proves("STP-R1")
def test_a_run_is_pending_until_a_worker_claims_its_first_step() -> None:
    """The claim is the first durable sign of execution; planning and queueing are not."""
    lab = Lab()
    assert run_status(lab.create("r0")) == "PENDING"
    lab.plan(task("a"), task("b", "a"))
    assert status(lab) == "PENDING"

    lab.claim(lab.attempt("a"))

    assert status(lab) == "RUNNING"
    assert lab.last("r1").metadata["job_id"] == "r1/a"
    lab.verified()


@pytest.mark.proves("STP-R2", "STP-S5")
def test_a_run_waits_when_it_reaches_a_gate_and_not_before() -> None:
    """A gate asks people only when the work before it is complete."""
    lab = Lab().plan(task("a"), gate("g", "a"), task("b", "g"))
    lease = lab.claim(lab.attempt("a"))
    assert (status(lab), status(lab, "g")) == ("RUNNING", "PENDING")
    assert lab.refused(job.OpenApproval(id="r1/g")).code == "not_eligible"

    lab.complete(lease)

    assert (status(lab), status(lab, "g")) == ("WAITING_APPROVAL", "WAITING_APPROVAL")
    lab.verified()


@pytest.mark.proves("STP-R3", "STP-S6")
def test_an_approval_resumes_the_run_and_no_worker_executes_anything_for_it() -> None:
    """The decision is the whole of the step: it succeeds with the word of a person."""
    lab = Lab().plan(gate("g"), task("b", "g"))
    assert status(lab) == "WAITING_APPROVAL"
    assert attempts_in(lab) == set()

    lab.approve("g")

    assert (status(lab, "g"), status(lab), status(lab, "b")) == ("SUCCEEDED", "RUNNING", "PENDING")
    assert attempts_in(lab) == {"r1/b.1"}
    assert (lab.job("g").attempts, lab.job("g").worker_id) == (0, "")
    lab.verified()


@pytest.mark.proves("STP-R4")
def test_a_run_succeeds_when_all_its_steps_have_and_not_one_earlier() -> None:
    """Done means all of it."""
    lab = Lab().plan(task("a"), task("b"))

    lab.work("a")
    assert status(lab) == "RUNNING"
    lab.work("b", by="w2")

    assert [status(lab, name) for name in ("a", "b")] == ["SUCCEEDED", "SUCCEEDED"]
    assert status(lab) == "SUCCEEDED"
    lab.verified()


@pytest.mark.proves("STP-R4")
def test_a_step_that_is_allowed_to_fail_does_not_keep_the_run_from_succeeding() -> None:
    """The model's exception: an allowed failure is reported without consequences."""
    lab = Lab().plan(task("a", is_required=False), task("b", "a"))

    lab.work("a", ok=False)
    lab.work("b")

    assert (status(lab, "a"), status(lab, "b"), status(lab)) == ("FAILED", "SUCCEEDED", "SUCCEEDED")
    lab.verified()


@pytest.mark.proves("STP-R5")
def test_the_last_approval_completes_the_run_at_once() -> None:
    """Nothing remains to be executed, so a caller sees the wait end in success."""
    lab = Lab().plan(task("a"), gate("g", "a"), gate("h", "a"))
    lab.work("a")
    lab.approve("g")
    assert status(lab) == "WAITING_APPROVAL"

    lab.approve("h")

    assert status(lab) == "SUCCEEDED"
    lab.verified()


@pytest.mark.proves("STP-R6")
@pytest.mark.parametrize(("error_code", "max_attempts"), [("BAD_SPEC", 5), ("RUNNER_STARTUP", 1)])
def test_a_run_fails_when_a_step_is_terminal_at_once_or_has_no_retry_left(error_code: str, max_attempts: int) -> None:
    """Waiting any longer would not change the outcome."""
    lab = Lab().plan(task("a", max_attempts=max_attempts))

    lab.fail(lab.claim(lab.attempt("a")), error_code)

    assert (status(lab, "a"), status(lab)) == ("FAILED", "FAILED")
    lab.verified()


@pytest.mark.proves("STP-R7")
def test_a_run_fails_when_what_remains_after_the_approval_fails() -> None:
    """An approval opens the gate; it does not promise what lies behind it."""
    lab = Lab().plan(gate("g"), task("b", "g"))
    assert status(lab) == "WAITING_APPROVAL"
    lab.approve("g")

    lab.work("b", ok=False)

    assert status(lab) == "FAILED"
    lab.verified()


@pytest.mark.proves("STP-R7")
def test_a_run_fails_when_its_approval_is_rejected() -> None:
    """With the gate shut, nothing that remains can be executed."""
    lab = Lab().plan(gate("g"), task("b", "g"))

    lab.do(job.Reject(id="r1/g", actor="user:ada"))

    assert (status(lab, "g"), status(lab, "b"), status(lab)) == ("FAILED", "CANCELED", "FAILED")
    lab.verified()


def pending_run() -> Lab:
    return Lab().plan(task("a"), task("b", "a"))


def running_run() -> Lab:
    lab = pending_run()
    lab.work("a")
    return lab


def waiting_run() -> Lab:
    return Lab().plan(gate("g"), task("b", "g"))


@pytest.mark.proves("STP-R8", "STP-S7")
@pytest.mark.parametrize(
    ("made", "before"), [(pending_run, "PENDING"), (running_run, "RUNNING"), (waiting_run, "WAITING_APPROVAL")]
)
def test_a_cancel_ends_the_run_and_every_step_that_is_not_over(made: Callable[[], Lab], before: str) -> None:
    """A cancel stops everything unfinished, and finished steps stay as they are."""
    lab = made()
    assert status(lab) == before
    names = {name for name in ("a", "b", "g") if f"r1/{name}" in lab.unit.records}
    done = {name for name in names if status(lab, name) == "SUCCEEDED"}

    lab.cancel_run()

    assert status(lab) == "CANCELED"
    assert {name for name in names if status(lab, name) == "CANCELED"} == names - done
    lab.verified()


@pytest.mark.proves("STP-S7", "STP-R8")
def test_a_running_step_is_canceled_when_its_runner_has_stopped() -> None:
    """A step that shows CANCELED while its runner still works would be a lie."""
    lab = Lab().plan(task("a"))
    lease = lab.claim(lab.attempt("a"))
    lab.send(attempt.Heartbeat, lease)

    lab.cancel_run()
    assert (status(lab), status(lab, "a")) == ("RUNNING", "RUNNING")
    lab.send(attempt.CancelAck, lease)

    assert (status(lab), status(lab, "a")) == ("CANCELED", "CANCELED")
    lab.verified()


@pytest.mark.proves("STP-R4", "STP-R5", "STP-R6", "STP-R7", "STP-R8")
@pytest.mark.parametrize("end", ["SUCCEEDED", "FAILED", "CANCELED"])
def test_the_status_of_a_run_that_is_over_stays(end: str) -> None:
    """The last three statuses are terminal, also after the report."""
    lab = Lab().plan(gate("g"), task("b", "g"))
    if end == "CANCELED":
        lab.cancel_run()
    else:
        lab.approve("g")
        lab.work("b", ok=end == "SUCCEEDED")
    assert status(lab) == end

    if end != "CANCELED":  # There a repeat is no error, and changes nothing.
        lab.refused(run.Cancel(id="r1", actor="user:ada"))
    lab.after(100_000).refused(run.TimeOut(id="r1"))
    lab.report()

    assert status(lab) == end


# -- the step


@pytest.mark.proves("STP-S1", "STP-S8")
def test_a_claim_makes_a_step_run_and_counts_one_attempt_and_nothing_else_does() -> None:
    """Neither publishing an attempt nor a reclaim after a lost lease is a new try."""
    lab = Lab().plan(task("a", max_attempts=2))

    def seen() -> tuple[str, int]:
        return status(lab, "a"), step_attempts(lab.job("a"))

    assert seen() == ("PENDING", 0)
    lease = lab.claim(lab.attempt("a"))
    assert seen() == ("RUNNING", 1)
    lab.fail(lease)
    assert seen() == ("PENDING", 1)
    lab.after(600).do(job.RetryDue(id="r1/a"))
    assert seen() == ("PENDING", 1)
    lab.claim(lab.attempt("a"))
    lab.after(120).do(attempt.Expire(id="r1/a.2"))
    lab.claim(lab.attempt("a"), by="w2")
    assert seen() == ("RUNNING", 2)
    number = line_of(lab, "r1/a", "RUNNING")
    assert "STP-S1" in altered(lab.canonical(), lambda log: log[number]["metadata"].update(worker_id="w9"))


@pytest.mark.proves("STP-S2")
def test_a_success_stores_what_the_executor_reports() -> None:
    """The output and its cost are why the step was executed."""
    lab = Lab().plan(task("a"))
    lease = lab.claim(lab.attempt("a"))
    assert status(lab, "a") == "RUNNING"

    lab.complete(lease, result={"output": "42 passed", "cost": 0.03})

    assert status(lab, "a") == "SUCCEEDED"
    assert lab.attempt("a").result == {"output": "42 passed", "cost": 0.03}
    assert lab.job("a").completed_at == lab.now


@pytest.mark.proves("STP-S3", "STP-E2")
def test_a_retryable_failure_sends_the_step_back_to_pending_while_attempts_remain() -> None:
    """A failure of the infrastructure deserves another attempt, but not at once."""
    lab = Lab().plan(task("a", max_attempts=2, base_delay_seconds=5))

    lab.fail(lab.claim(lab.attempt("a")))

    assert (status(lab, "a"), status(lab)) == ("PENDING", "RUNNING")
    assert lab.job("a").next_run_at == START + 10 * SECOND
    assert lab.after(9.9).refused(job.RetryDue(id="r1/a")).code == "not_due"
    lab.after(0.1).do(job.RetryDue(id="r1/a"))
    lab.work("a")
    assert status(lab) == "SUCCEEDED"
    lab.verified()


@pytest.mark.proves("STP-S4", "STP-E4")
def test_a_step_that_used_up_its_attempts_fails_for_good_and_its_run_with_it() -> None:
    """Retrying forever would hide that it never works."""
    lab = Lab().plan(task("a", max_attempts=3))
    for _ in range(2):
        lab.fail(lab.claim(lab.attempt("a")))
        assert status(lab, "a") == "PENDING"
        lab.after(1_000).do(job.RetryDue(id="r1/a"))

    lab.fail(lab.claim(lab.attempt("a")))

    assert (status(lab, "a"), status(lab)) == ("FAILED", "FAILED")
    assert lab.job("a").attempts == 3
    lab.after(10_000).refused(job.RetryDue(id="r1/a"))
    lab.verified()


@pytest.mark.proves("STP-S3", "STP-E3")
@pytest.mark.parametrize("base", [1, 10])
def test_the_backoff_doubles_with_every_attempt(base: int) -> None:
    """next_run_at = now + 2^attempts * base_delay: what fails often is left alone for longer."""
    lab = Lab().plan(task("a", max_attempts=5, base_delay_seconds=base))

    waits = list[int]()
    for _ in range(4):
        lab.fail(lab.claim(lab.attempt("a")))
        waits.append((lab.job("a").next_run_at - lab.now) // SECOND)
        lab.after(waits[-1]).do(job.RetryDue(id="r1/a"))

    assert waits == [2 * base, 4 * base, 8 * base, 16 * base]
    lab.verified()


@pytest.mark.proves("STP-E3")
@pytest.mark.parametrize("wrong", ["2026-01-04T08:00:19.999999Z", "2026-01-04T08:00:20.000010Z"])
def test_the_verifier_finds_a_retry_at_the_wrong_time(wrong: str) -> None:
    """A backoff that is too short hammers what is broken; one that is too long wastes time."""
    lab = Lab().plan(task("a", max_attempts=2, base_delay_seconds=10))
    lab.fail(lab.claim(lab.attempt("a")))
    number = line_of(lab, "r1/a", "RETRYING")

    assert altered(lab.canonical(), lambda log: log[number]["metadata"].update(next_run_at=wrong)) == {"STP-E3"}


@pytest.mark.proves("STP-S8", "STP-E1")
def test_a_stale_step_stays_running_and_is_reclaimed_once_its_lease_expired() -> None:
    """A crashed worker must never stall a run forever, and a live one must never be robbed."""
    lab = Lab().plan(task("a"))
    lease = lab.claim(lab.attempt("a"), by="crashed")
    lab.send(attempt.Heartbeat, lease)
    assert lab.after(119.9).refused(attempt.Expire(id="r1/a.1")).code == "not_due"
    assert lab.refused(attempt.Grant(id="r1/a.1", actor="worker:w2", fingerprint="f" * 32)).code == "wrong_state"

    lab.after(0.1).do(attempt.Expire(id="r1/a.1"))
    assert status(lab, "a") == "RUNNING"
    lab.claim(lab.attempt("a"), by="w2")

    assert (status(lab, "a"), lab.job("a").worker_id) == ("RUNNING", "w2")
    assert lab.last("r1/a").metadata["is_reclaim"] is True
    assert lab.job("a").attempts == 1
    lab.verified()


@pytest.mark.proves("STP-S8")
def test_the_verifier_distinguishes_a_reclaim_from_a_first_claim() -> None:
    """Otherwise a log could hide a lost worker."""
    lab = Lab().plan(task("a"))
    lab.claim(lab.attempt("a"))
    number = line_of(lab, "r1/a", "RUNNING")

    assert altered(lab.canonical(), lambda log: log[number]["metadata"].update(is_reclaim=True)) == {"STP-S8"}


# -- approval


@pytest.mark.proves("STP-P1")
def test_approve_changes_only_an_approval_that_waits() -> None:
    """An approval before the gate was open, or for another gate, must not count later."""
    lab = Lab().plan(task("a"), task("b", "a"), gate("g", "a"))

    for name in ("a", "b", "g"):  # queued, pending, and a gate that is not reached
        assert lab.refused(job.Approve(id=f"r1/{name}", actor="user:ada")).code == "wrong_state"
    lease = lab.claim(lab.attempt("a"))
    assert lab.refused(job.Approve(id="r1/a", actor="user:ada")).code == "wrong_state"
    lab.complete(lease)
    assert lab.refused(job.Approve(id="r1/a", actor="user:ada")).code == "wrong_state"

    assert status(lab, "g") == "WAITING_APPROVAL"
    assert step_status(lab.approve("g")) == "SUCCEEDED"


@pytest.mark.proves("STP-P1")
def test_the_verifier_finds_a_task_that_a_person_decided() -> None:
    """Only an approval may be approved."""
    lab = Lab().plan(gate("g"))
    lab.approve("g")
    number = line_of(lab, "r1/g", "PENDING")
    changes = {"kind": "task", "max_attempts": 1, "base_delay_seconds": 1, "max_delay_seconds": 1}

    assert {"STP-P1", "STP-W1"} <= altered(lab.canonical(), lambda log: log[number]["metadata"].update(changes))


@pytest.mark.proves("STP-P2")
def test_a_second_approve_advances_nothing() -> None:
    """Two people may press the same button."""
    lab = Lab().plan(gate("g"), task("b", "g"))
    lab.approve("g")
    before, written = dict(lab.unit.records), len(lab.log)

    decision = lab.after(1).do(job.Approve(id="r1/g", actor="user:bob"))

    assert (decision.events, decision.changed) == ([], {})
    assert (lab.unit.records, len(lab.log)) == (before, written)


@pytest.mark.proves("STP-P2", "STP-P1")
@pytest.mark.parametrize("end", ["FAILED", "CANCELED"])
def test_an_approve_that_comes_after_the_decision_advances_nothing(end: str) -> None:
    """Who was rejected or canceled is not revived by a late yes."""
    lab = Lab().plan(gate("g"), task("b", "g"))
    if end == "FAILED":
        lab.do(job.Reject(id="r1/g", actor="user:ada"))
    else:
        lab.do(CancelJob(id="r1/g", actor="user:ada"))

    lab.refused(job.Approve(id="r1/g", actor="user:bob"))

    assert status(lab, "g") == end


@pytest.mark.proves("STP-P3")
def test_the_step_records_the_wait_while_the_run_goes_on() -> None:
    """Other steps can progress, so the run is not waiting, but the question must not be lost."""
    lab = Lab().plan(gate("g"), task("b"))

    lease = lab.claim(lab.attempt("b"))
    assert (status(lab, "g"), status(lab)) == ("WAITING_APPROVAL", "RUNNING")
    lab.complete(lease)

    assert (status(lab, "g"), status(lab)) == ("WAITING_APPROVAL", "WAITING_APPROVAL")
    lab.verified()


@pytest.mark.proves("STP-W1")
def test_no_worker_can_ever_be_handed_an_approval() -> None:
    """There is nothing to claim: an approval has no attempt, and none can be made for it."""
    lab = Lab().plan(task("a"), gate("g", "a"))
    assert lab.refused(job.Schedule(id="r1/g")).code == "not_eligible"

    lab.work("a")

    assert lab.refused(job.Schedule(id="r1/g")).code == "wrong_state"
    assert attempts_in(lab) == {"r1/a.1"}
    ready = job.Job(id="x", state=job.PENDING, spec=gate("g"))
    with pytest.raises(Refused, match="a worker never gets an approval"):
        job.MACHINE.step(ready, job.Schedule(id="x"), START, [])


@pytest.mark.proves("STP-W2")
@pytest.mark.parametrize("actor", ["worker:w1", "orchestrator", "reporter"])
def test_only_a_person_decides_an_approval(actor: str) -> None:
    """A worker that could approve would make the gate worthless."""
    lab = Lab().plan(gate("g"))

    assert lab.refused(job.Approve(id="r1/g", actor=actor)).code == "wrong_actor"
    assert lab.refused(job.Reject(id="r1/g", actor=actor)).code == "wrong_actor"
    assert lab.refused(job.Begin(id="r1/g", worker_id="w1")).code == "wrong_state"
    assert lab.refused(job.AttemptSucceeded(id="r1/g")).code == "wrong_state"

    assert status(lab, "g") == "WAITING_APPROVAL"
