"""The task rules of docs/spec/workstreams.md, each proved on the real core."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest

from deltaci.audit.verify import verify
from deltaci.core import attempt, job, worker
from deltaci.core.decide import CancelJob
from deltaci.core.errors import Refused
from deltaci.core.failures import Facts, Failure
from deltaci.core.instants import SECOND
from deltaci.core.machine import Command
from deltaci.core.status.workstreams import task_state
from tests.spec.logs import exported, last_step
from tests.spec.scenes import grant
from tests.support.lab import Lab, Lease, task


def fleet(*specs: Any, **fields: Any) -> Lab:
    """A planned run and one registered worker."""
    lab = Lab()
    lab.register("w1")
    return lab.plan(*specs, **fields)


def running(*specs: Any) -> tuple[Lab, Lease]:
    """A run whose task `a` is running on w1."""
    lab = fleet(*specs)
    lease = lab.claim(lab.attempt("a"))
    lab.send(attempt.Heartbeat, lease)
    return lab, lease


# -- scheduling and start


@pytest.mark.proves("WST-TG1")
def test_a_task_is_not_queued_while_a_dependency_is_open() -> None:
    """Work that starts before what it builds on is wasted, or worse, wrong."""
    lab = fleet(task("a"), task("b", "a"))

    refusal = lab.refused(job.Schedule(id="r1/b"))

    assert refusal.code == "not_eligible"
    assert task_state(lab.job("b")) == "pending"
    assert exported(lab, "r1/b") == []


@pytest.mark.proves("WST-T1", "WST-TA1", "WST-TG1")
def test_a_task_is_scheduled_as_soon_as_its_last_dependency_is_completed() -> None:
    """Scheduled means that any worker of its queue can find it; the plan then names what will execute it."""
    lab = fleet(task("a"), task("b"), task("c", "a", "b", queue_key="linux", priority=7))
    lab.work("a")
    assert task_state(lab.job("c")) == "pending"

    lab.work("b")

    assert last_step(lab, "r1/c") == ("pending", "queued", "scheduler_assigned", "info")
    published = lab.attempt("c")
    assert (published.state, published.queue_key, published.priority) == (attempt.QUEUED, "linux", 7)
    assert (lab.job("c").attempt_id, lab.job("c").attempts) == (published.id, 1)
    lab.verified()


@pytest.mark.proves("WST-TG2")
@pytest.mark.parametrize(
    ("hindrance", "code"),
    [
        ("lacks the label", "not_eligible"),
        ("is full", "worker_full"),
        ("is leaving", "not_eligible"),
        ("is drained", "not_eligible"),
        ("is quarantined", "not_eligible"),
        ("is silent", "wrong_state"),
        ("is gone", "wrong_state"),
    ],
)
def test_a_task_does_not_start_on_a_worker_that_is_unfit_or_not_available(hindrance: str, code: str) -> None:
    """A task on the wrong worker fails for a reason that has nothing to do with it."""
    lab = Lab()
    lab.register("w1", labels=() if hindrance == "lacks the label" else ("gpu",))
    lab.plan(task("a", queue_key="gpu"), task("other"))
    if hindrance in ("is full", "is leaving", "is silent"):
        lab.claim(lab.attempt("other"))
    if hindrance in ("is leaving", "is gone"):
        lab.do(worker.Shutdown(id="w1"))
    if hindrance == "is drained":
        lab.do(worker.Drain(id="w1", actor="user:ada", reason="new disk"))
    if hindrance == "is quarantined":
        lab.do(worker.Quarantine(id="w1", reason="slow disk"))
    if hindrance == "is silent":
        lab.do(worker.MissHealthChecks(id="w1"))

    refusal = lab.refused(grant(lab, "a"))

    assert refusal.code == code
    assert task_state(lab.job("a")) == "queued"


@pytest.mark.proves("WST-T2", "WST-TG2", "WST-TA2")
def test_a_start_sets_the_worker_the_start_time_and_the_timer() -> None:
    """The timer is the attempt's: by the model it runs from the first sign that the steps execute."""
    lab = Lab()
    lab.register("w1", labels=("gpu", "linux"))
    lab.plan(task("a", queue_key="gpu", timeout_seconds=60))
    lab.after(5)

    lease = lab.claim(lab.attempt("a"))

    assert last_step(lab, "r1/a") == ("queued", "running", "worker_started", "info")
    assert exported(lab, "r1/a")[-1]["metadata"]["worker_id"] == lab.job("a").worker_id == "w1"
    assert lab.job("a").started_at == lab.now
    lab.send(attempt.Heartbeat, lease)
    assert lab.attempt("a").times_out_at == lab.now + 60 * SECOND
    assert lab.after(59.999).refused(attempt.TimeOut(id=lab.attempt("a").id)).code == "not_due"
    lab.after(0.001).do(attempt.TimeOut(id=lab.attempt("a").id))
    assert lab.attempt("a").state == attempt.TIMED_OUT
    lab.verified()


# -- execution


@pytest.mark.proves("WST-TG3")
@pytest.mark.parametrize("exit_code", [None, 1, 2, 127, 255, -9])
def test_a_success_with_another_exit_code_than_zero_is_refused(exit_code: int | None) -> None:
    """A runner must not call something a success that its own process denies."""
    lab, lease = running(task("a"))

    refusal = lab.refused(lab.message(attempt.Complete, lease, is_success=True, exit_code=exit_code))

    assert refusal.code == "bad_request"
    if exit_code is not None:
        assert lab.refused(job.AttemptSucceeded(id="r1/a", exit_code=exit_code)).code == "bad_request"
    assert task_state(lab.job("a")) == "running"


@pytest.mark.proves("WST-T3", "WST-TG3")
def test_a_task_that_exits_with_zero_is_validated_next() -> None:
    """Execution alone does not complete a task: its rules have the last word."""
    lab, lease = running(task("a", has_validation=True))

    lab.complete(lease, exit_code=0)

    assert last_step(lab, "r1/a") == ("running", "validating", "execution_completed", "info")
    lab.verified()


@pytest.mark.proves("WST-T4", "WST-T5", "WST-TG4", "WST-TG5")
@pytest.mark.parametrize(
    ("max_retries", "error_code", "retries"),
    [(0, "RUNNER_STARTUP", 0), (1, "RUNNER_STARTUP", 1), (3, "CACHE_FETCH", 3), (3, "BAD_SPEC", 0)],
)
def test_a_failed_task_is_retried_while_retries_remain_and_it_is_worth_it(
    max_retries: int, error_code: str, retries: int
) -> None:
    """A retry helps against bad luck; it only delays the answer when the task itself is wrong."""
    lab = fleet(task("a", max_attempts=max_retries + 1))
    for _ in range(retries):
        lab.fail(lab.claim(lab.attempt("a")), error_code)
        assert last_step(lab, "r1/a") == ("running", "retrying", "execution_failed", "warning")
        lab.after(600).do(job.RetryDue(id="r1/a"))

    lab.fail(lab.claim(lab.attempt("a")), error_code)

    assert last_step(lab, "r1/a") == ("running", "failed", "execution_failed", "error")
    assert exported(lab, "r1/a")[-1]["metadata"]["retry_count"] == retries
    assert lab.job("a").attempts == retries + 1
    lab.verified()


@pytest.mark.proves("WST-TA4", "WST-T7")
def test_a_retry_waits_exponentially_longer_each_time_and_frees_its_worker() -> None:
    """A broken dependency gets time to recover, and the worker does not wait for it."""
    lab = fleet(task("a", max_attempts=4, base_delay_seconds=10, max_delay_seconds=1000))

    for retry, delay in enumerate((20, 40, 80), 1):
        lab.fail(lab.claim(lab.attempt("a")))

        line = exported(lab, "r1/a")[-1]
        assert (line["to_state"], line["severity"]) == ("retrying", "warning")
        assert (line["metadata"]["retry_count"], line["metadata"]["max_retries"]) == (retry, 3)
        assert lab.job("a").next_run_at == lab.now + delay * SECOND
        assert (lab.job("a").worker_id, lab.worker_record("w1").state) == ("", worker.IDLE)
        assert lab.after(delay - 0.001).refused(job.RetryDue(id="r1/a")).code == "not_due"
        lab.after(0.001).do(job.RetryDue(id="r1/a"))
        assert last_step(lab, "r1/a") == ("retrying", "queued", "retry_delay_elapsed", "info")
    lab.verified()


@pytest.mark.proves("WST-TA5")
def test_a_failure_keeps_the_workers_words_frees_the_worker_and_blocks_the_dependents() -> None:
    """Who looks at a red run wants to know what was said, and must not wait for what can never start."""
    lab, lease = running(task("a"), task("b", "a"), task("c", "b"))
    said = "write failed: No space left on device"

    lab.complete(lease, ok=False, facts=Facts(log_tail=("compiling", said)))

    error = lab.job("a").last_error
    assert error is not None
    assert (error.line, error.rule) == (said, "disk-or-memory")
    assert (lab.job("a").worker_id, lab.worker_record("w1").state, lab.attempt("a").lease) == ("", worker.IDLE, None)
    assert {(lab.job(name).state, lab.job(name).reason) for name in "bc"} == {(job.CANCELED, job.BLOCKED)}
    assert last_step(lab, "r1/a")[3] == "error"
    lab.verified()


@pytest.mark.proves("WST-T6")
def test_a_running_task_is_cancelled_once_its_runner_has_stopped() -> None:
    """Until then something still runs, and the task must say so."""
    lab, lease = running(task("a"))
    lab.do(CancelJob(id="r1/a", actor="user:ada"))
    assert task_state(lab.job("a")) == "running"

    lab.send(attempt.CancelAck, lease)

    assert last_step(lab, "r1/a") == ("running", "cancelled", "user_cancelled", "info")
    assert (lab.job("a").worker_id, lab.worker_record("w1").state) == ("", worker.IDLE)
    lab.verified()


# -- validation


@pytest.mark.proves("WST-TG8", "WST-TG9")
def test_a_task_is_not_validated_before_it_was_executed() -> None:
    """The rules judge what was executed; there is nothing to judge before."""
    lab, _ = running(task("a", has_validation=True))

    codes = {lab.refused(job.Validate(id="r1/a", is_passed=passed)).code for passed in (True, False)}

    assert codes == {"wrong_state"}
    assert task_state(lab.job("a")) == "running"


@pytest.mark.proves("WST-T8", "WST-TG8", "WST-TA8")
def test_a_task_is_completed_only_when_its_rules_pass() -> None:
    """Dependents start from a result that is not only there but right."""
    lab, lease = running(task("a", has_validation=True), task("b", "a"))
    lab.after(30).complete(lease)
    assert (task_state(lab.job("a")), task_state(lab.job("b"))) == ("validating", "pending")

    lab.after(12).do(job.Validate(id="r1/a", is_passed=True))

    assert last_step(lab, "r1/a") == ("validating", "completed", "validation_passed", "info")
    assert exported(lab, "r1/a")[-1]["metadata"]["duration_seconds"] == 42
    assert lab.job("a").completed_at == lab.now
    assert task_state(lab.job("b")) == "queued"
    assert (lab.worker_record("w1").tasks, lab.attempt("a").lease) == ((), None)
    lab.verified()


@pytest.mark.proves("WST-T9", "WST-TG9", "WST-TA9")
def test_a_task_fails_when_a_rule_fails_and_says_which() -> None:
    """A failed validation is final: the same output would fail again."""
    lab, lease = running(task("a", has_validation=True, max_attempts=3), task("b", "a"))
    lab.complete(lease)

    lab.do(job.Validate(id="r1/a", is_passed=False, details="coverage 71 % < 80 %"))

    error = lab.job("a").last_error
    assert last_step(lab, "r1/a") == ("validating", "failed", "validation_failed", "error")
    assert error is not None
    assert (error.code, error.line) == ("VALIDATION_FAILED", "coverage 71 % < 80 %")
    assert (lab.job("b").state, lab.job("b").reason) == (job.CANCELED, job.BLOCKED)
    lab.verified()


@pytest.mark.proves("WST-T9", "WST-TG8", "WST-TG9", "WST-TA3", "WST-TA9")
@pytest.mark.parametrize("has_validation", [False, True])
def test_a_rule_that_its_worker_found_broken_fails_the_task_at_once(*, has_validation: bool) -> None:
    """The execution went well, and its time stands still; its result is not good, and another try would not be."""
    lab, lease = running(task("a", has_validation=has_validation, max_attempts=3), task("b", "a"))
    found = "rule coverage: found 71, wanted at least 80"

    lab.complete(lease, verdict=attempt.Verdict(is_passed=False, details=found))

    ended, failed = lab.attempt("a"), lab.job("a")
    steps = [(each.from_, each.to, each.trigger) for each in lab.log if each.entity_id == "r1/a"][-2:]
    assert steps == [
        (job.RUNNING, job.VALIDATING, "execution_completed"),
        (job.VALIDATING, job.FAILED, "validation_failed"),
    ]
    assert (ended.state, ended.error, ended.verdict) == (
        attempt.SUCCEEDED,
        None,
        attempt.Verdict(is_passed=False, details=found),
    )
    assert failed.last_error is not None
    assert (failed.last_error.code, failed.last_error.line) == ("VALIDATION_FAILED", found)
    assert (lab.job("b").state, lab.job("b").reason) == (job.CANCELED, job.BLOCKED)
    lab.verified()


@pytest.mark.proves("WST-TG8", "WST-TA3")
def test_rules_that_its_worker_found_to_hold_do_not_pass_what_others_look_at_too() -> None:
    """One part of the rules is looked at where the task ran, the other where its commits are: all of them must hold."""
    lab, lease = running(task("a", has_validation=True), task("b"))
    passed = attempt.Verdict(is_passed=True)

    lab.complete(lease, verdict=passed)
    lab.complete(lab.claim(lab.attempt("b"), "w1"), verdict=passed)

    assert (task_state(lab.job("a")), task_state(lab.job("b"))) == ("validating", "completed")
    lab.do(job.Validate(id="r1/a", is_passed=False, details="rule scope: found lib/x, wanted src/**"))
    assert task_state(lab.job("a")) == "failed"
    lab.verified()


def test_a_broken_rule_fails_an_attempt_that_has_no_job() -> None:
    """No job would record it; repeated results are recorded once."""
    lab = Lab()
    lab.register("w1")
    lab.enqueue("q")
    lease = lab.claim(lab.unit.attempt("q"), "w1")
    lab.send(attempt.Start, lease)
    broken = attempt.Verdict(is_passed=False, details="rule tidy: found exit code 1, wanted exit code 0")

    for _ in range(2):
        lab.complete(lease, verdict=broken)

    error = lab.unit.attempt("q").error
    assert lab.unit.attempt("q").state == attempt.FAILED
    assert error is not None
    assert (error.code, error.line, error.is_retryable) == ("VALIDATION_FAILED", broken.details, False)
    lab.verified()


# -- invariants


def _every_order(id: str) -> list[Command]:
    failure = Failure(code="X", failure_class="INFRA", is_retryable=True, rule="x")
    return [
        job.Schedule(id=id),
        job.OpenApproval(id=id),
        job.Begin(id=id, worker_id="w1"),
        job.AttemptSucceeded(id=id),
        job.AttemptFailed(id=id, failure=failure),
        job.RetryDue(id=id),
        job.Validate(id=id, is_passed=True),
        job.Validate(id=id, is_passed=False),
        job.Approve(id=id, actor="user:ada"),
        job.Reject(id=id, actor="user:ada"),
        job.ExpireApproval(id=id),
        job.Cancel(id=id, reason=job.JOB_CANCELED),
        CancelJob(id=id, actor="user:ada"),
    ]


@pytest.mark.proves("WST-TI2")
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
def test_nothing_moves_a_task_that_is_over(end: str) -> None:
    """An outcome that could change later would be no outcome."""
    lab, lease = running(task("a"), task("b"))
    if end == "cancelled":
        lab.do(CancelJob(id="r1/a", actor="user:ada"))
        lab.send(attempt.CancelAck, lease)
    else:
        lab.complete(lease, ok=end == "completed")
    over, events = lab.job("a"), len(lab.log)
    assert task_state(over) == end
    assert {type(each) for each in _every_order("r1/a")} >= set(job.MACHINE.commands) - {job.Create}

    for order in _every_order("r1/a"):
        with suppress(Refused):
            lab.do(order)

    assert (lab.job("a"), len(lab.log)) == (over, events)


@pytest.mark.proves("WST-TI3")
def test_only_a_running_task_has_a_worker() -> None:
    """Who asks where a task runs must never be sent to a worker that has something else to do."""
    lab = fleet(task("a", max_attempts=2, has_validation=True))
    seen = {task_state(lab.job("a")): lab.job("a").worker_id}

    lab.fail(lab.claim(lab.attempt("a")))
    seen[task_state(lab.job("a"))] = lab.job("a").worker_id
    lab.after(600).do(job.RetryDue(id="r1/a"))
    lease = lab.claim(lab.attempt("a"))
    seen[task_state(lab.job("a"))] = lab.job("a").worker_id
    lab.complete(lease)
    seen[task_state(lab.job("a"))] = lab.job("a").worker_id
    lab.do(job.Validate(id="r1/a", is_passed=True))
    seen[task_state(lab.job("a"))] = lab.job("a").worker_id

    assert seen == {"queued": "", "retrying": "", "running": "w1", "validating": "", "completed": ""}
    assert [line["to_state"] for line in exported(lab, "r1/a") if "worker_id" in line["metadata"]] == [
        "running",
        "running",
    ]


@pytest.mark.proves("WST-TI5")
def test_created_started_and_completed_stay_in_order_under_a_clock_that_jumps_back() -> None:
    """Durations are computed from these times; a negative one would be nonsense."""
    lab = fleet(task("a"))
    lab.after(-3600)
    lease = lab.claim(lab.attempt("a"))
    lab.after(-3600)

    lab.complete(lease)

    done = lab.job("a")
    assert 0 < done.created_at <= done.started_at <= done.completed_at
    assert exported(lab, "r1/a")[-1]["metadata"]["duration_seconds"] >= 0
    lab.verified()


@pytest.mark.proves("WST-TI6")
def test_a_dependency_that_was_allowed_to_fail_counts_as_met() -> None:
    """The plan said that its failure does not matter."""
    lab = fleet(task("a", is_required=False), task("must"), task("b", "a", "must"))
    lab.work("a", ok=False)
    assert task_state(lab.job("b")) == "pending"

    lab.work("must")

    assert task_state(lab.job("b")) == "queued"
    assert exported(lab, "r1/b")[0]["metadata"]["depends_on"] == ["r1/must"]
    lab.verified()


@pytest.mark.proves("WST-TG3", "WST-TI4")
@pytest.mark.parametrize(
    ("rule", "to", "changes"),
    [
        ("WST-TG3", attempt.SUCCEEDED, {"exit_code": 3}),
        ("WST-TI4", job.RETRYING, {"retry_count": 2}),
        ("WST-TI4", job.RETRYING, {"max_retries": 9}),
    ],
)
def test_the_verifier_believes_no_log_that_breaks_a_guard_of_a_task(
    rule: str, to: str, changes: dict[str, object]
) -> None:
    """A log that is read later must prove by itself that its tasks kept the rules."""
    lab = fleet(task("a", max_attempts=2))
    lab.fail(lab.claim(lab.attempt("a")))
    lab.after(600).do(job.RetryDue(id="r1/a"))
    lab.work("a")
    lines = lab.canonical()
    number = next(n for n, raw in enumerate(lines, 1) if msgspec.json.decode(raw)["to"] == to)
    line = msgspec.json.decode(lines[number - 1])
    line["metadata"].update(changes)
    lines[number - 1] = msgspec.json.encode(line)

    violations = verify(lines).violations

    assert (number, rule) in {(each.line, each.rule) for each in violations}
    lab.verified()
