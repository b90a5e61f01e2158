"""For each promise about jobs, runs and acknowledgements a log that breaks it: legal up to its last step."""

from __future__ import annotations

from typing import Any

from tests.simulation.log_builder import SECOND, Log, breaks

# -- jobs and runs


@breaks("after-end")
def claimed_after_the_cancel(log: Log) -> None:
    log.worker()
    log.plan()
    log.run("CANCEL_REQUESTED", "cancel_requested", "user:u")
    log.grant()


@breaks("after-end")
def begun_after_an_early_cancel(log: Log) -> None:
    log.create()
    log.run("PLANNING", "cancel_requested", "user:u")
    log.settle()
    log.job()
    log.run("QUEUED", "plan_returned", jobs=1)
    log.queue()


@breaks("orphan")
def an_attempt_of_no_job(log: Log) -> None:
    log.create()
    told: dict[str, Any] = {"index": 1, "job_id": "r/x", "timeout_seconds": 60, "max_lost_leases": 1}
    log.say("attempt", "r/x.1", "QUEUED", "enqueued", **told)


@breaks("attempts")
def one_attempt_too_many(log: Log) -> None:
    log.worker()
    log.create()
    log.job(max_attempts=1)
    log.run("QUEUED", "plan_returned", jobs=1)
    log.queue(index=1)
    log.settle()
    log.checker.entities["r/a.1"].state = "FAILED"
    log.checker.entities["r/a"].state = "RETRYING"
    log.queue(index=2)


@breaks("retry")
def the_users_own_failure_is_retried(log: Log) -> None:
    log.work()
    log.fail("USER", is_retryable=False)
    log.say("job", "r/a", "RETRYING", "execution_failed", next_run_at=log.now + 20 * SECOND)


@breaks("retry")
def what_should_be_retried_fails(log: Log) -> None:
    log.work()
    log.fail("INFRA")
    log.say("job", "r/a", "FAILED", "execution_failed")


@breaks("backoff")
def a_retry_that_does_not_wait(log: Log) -> None:
    log.work()
    log.fail("INFRA")
    log.say("job", "r/a", "RETRYING", "execution_failed", next_run_at=log.now + 10 * SECOND)


@breaks("backoff")
def a_retry_before_its_time(log: Log) -> None:
    log.work()
    log.fail("INFRA")
    log.say("job", "r/a", "RETRYING", "execution_failed", next_run_at=log.now + 20 * SECOND)
    log.settle()
    log.wait(19)
    log.queue(index=2)


@breaks("approval")
def an_approval_is_executed(log: Log) -> None:
    log.create()
    log.job(kind="approval")
    log.run("QUEUED", "plan_returned", jobs=1)
    log.queue()


@breaks("approval")
def decided_by_nobody(log: Log) -> None:
    log.plan({"name": "a", "kind": "approval", "seconds": 60})
    log.wait(59)
    log.say("job", "r/a", "FAILED", "rejected", reason="APPROVAL_EXPIRED")


@breaks("approval")
def approved_by_too_few(log: Log) -> None:
    log.plan({"name": "a", "kind": "approval", "approvers": 2})
    log.say("job", "r/a", "SUCCEEDED", "approved", "user:u")


@breaks("approval")
def approved_twice_by_the_same(log: Log) -> None:
    log.plan({"name": "a", "kind": "approval", "approvers": 3})
    log.say("job", "r/a", "WAITING_APPROVAL", "approval_given", "user:u")
    log.say("job", "r/a", "WAITING_APPROVAL", "approval_given", "user:u")


@breaks("approval")
def approved_by_enough_and_still_open(log: Log) -> None:
    log.plan({"name": "a", "kind": "approval"})
    log.say("job", "r/a", "WAITING_APPROVAL", "approval_given", "user:u")


@breaks("needs")
def begun_too_early(log: Log) -> None:
    log.create()
    log.job("a")
    log.job("b", needs=("a",))
    log.run("QUEUED", "plan_returned", jobs=2)
    log.queue("b")


@breaks("needs")
def ready_and_not_begun(log: Log) -> None:
    log.create()
    log.job("a")
    log.run("QUEUED", "plan_returned", jobs=1)
    log.settle()


@breaks("blocked")
def canceled_for_no_reason(log: Log) -> None:
    log.plan({"name": "a"}, {"name": "b", "needs": ("a",)})
    log.say("job", "r/b", "CANCELED", "user_cancelled", reason="BLOCKED")


@breaks("validation")
def rules_that_nobody_ran(log: Log) -> None:
    log.worker()
    log.plan({"name": "a", "has_validation": True})
    log.claim()
    log.start()
    log.succeed()


@breaks("validation")
def no_rules_and_not_valid(log: Log) -> None:
    log.work()
    log.finish()
    log.say("job", "r/a", "VALIDATING", "execution_completed", attempt_index=1)
    log.settle()


@breaks("outcome")
def a_job_that_goes_on_after_its_attempt(log: Log) -> None:
    log.work()
    log.finish()
    log.settle()


@breaks("outcome")
def a_run_that_succeeds_too_soon(log: Log) -> None:
    log.work()
    log.run("VALIDATING", "all_jobs_done")
    log.run("SUCCESS", "all_required_succeeded")


@breaks("outcome")
def a_run_that_never_ends(log: Log) -> None:
    log.work()
    log.succeed()
    log.settle()


@breaks("fail-fast")
def a_run_that_does_not_wait(log: Log) -> None:
    log.worker()
    log.plan({"name": "a"}, {"name": "b"})
    log.claim()
    log.start()
    log.fail("USER", is_retryable=False)
    log.say("job", "r/a", "FAILED", "execution_failed")
    log.run("FAILED", "required_job_failed")


@breaks("fail-fast")
def a_run_that_should_not_wait(log: Log) -> None:
    log.worker()
    log.plan({"name": "a"}, {"name": "b"}, is_fail_fast=True)
    log.claim()
    log.start()
    log.fail("USER", is_retryable=False)
    log.say("job", "r/a", "FAILED", "execution_failed")
    log.settle()


@breaks("waiting")
def waiting_for_no_reason(log: Log) -> None:
    log.work()
    log.run("WAITING_APPROVAL", "approval_gate_reached")
    log.settle()


@breaks("cancel")
def a_cancel_that_reaches_nobody(log: Log) -> None:
    log.work()
    log.run("CANCEL_REQUESTED", "cancel_requested", "user:u")
    log.settle()


@breaks("cancel")
def stopping_what_nobody_has(log: Log) -> None:
    log.plan()
    log.say("attempt", "r/a.1", "CANCEL_REQUESTED", "cancel_requested", cancel_by=log.now, claims=1)
    log.settle()


@breaks("plan")
def a_plan_that_comes_late(log: Log) -> None:
    log.create()
    log.wait(60)
    log.run("QUEUED", "plan_returned", jobs=0)


@breaks("conclusion")
def another_outcome_is_reported(log: Log) -> None:
    log.work()
    log.succeed()
    log.run("VALIDATING", "all_jobs_done")
    log.run("SUCCESS", "all_required_succeeded")
    log.run("REPORTED", "statuses_published", "reporter", conclusion="FAILED")


# -- what was said


@breaks("acknowledged")
def a_cancel_that_is_not_there(log: Log) -> None:
    log.create()
    log.acknowledgements.check_accepted("cancel", "r")


@breaks("acknowledged")
def a_lease_that_was_never_granted(log: Log) -> None:
    log.plan()
    log.acknowledgements.check_response("/lease", b"", 200, b'{"leases": [{"lease_id": "r/a.1.1.secret"}]}')


@breaks("acknowledged")
def a_result_that_is_not_there(log: Log) -> None:
    log.work()
    said = b'{"type": "Complete", "lease_id": "r/a.1.1.secret", "status": "SUCCEEDED"}'
    log.acknowledgements.check_response("/messages", said, 200, b'{"type": "CompleteAck", "accepted": true}')


@breaks("stale-rev")
def decided_by_an_old_rev(log: Log) -> None:
    log.create()
    log.say("run", "r", "PLANNING", "cancel_requested", "user:u", _request_id="q")
    log.settle()
    log.acknowledgements.check_accepted("cancel", "r", "q", expected_rev=1)


@breaks("idempotent")
def a_repetition_is_refused(log: Log) -> None:
    log.acknowledgements.reject_refused_repetition("cancel", "r", "q")


@breaks("reused")
def another_request_under_its_id(log: Log) -> None:
    log.acknowledgements.reject_reused_id("cancel", "r", "q")


@breaks("liveness")
def something_is_left(log: Log) -> None:
    log.work()
    log.checker.check_end()


BROKEN = {"is_passed": False, "details": "rule a: found 1, wanted 0"}


@breaks("verdict")
def a_broken_rule_that_is_ignored(log: Log) -> None:
    log.work()
    log.finish(verdict=BROKEN)
    log.say("job", "r/a", "VALIDATING", "execution_completed", attempt_index=1)
    log.say("job", "r/a", "SUCCEEDED", "validation_passed")


@breaks("verdict")
def a_broken_rule_that_is_told_otherwise(log: Log) -> None:
    log.work()
    log.finish(verdict=BROKEN)
    log.say("job", "r/a", "VALIDATING", "execution_completed", attempt_index=1)
    log.say("job", "r/a", "FAILED", "validation_failed", details="another")


@breaks("verdict")
def a_broken_rule_that_waits_for_somebody(log: Log) -> None:
    log.worker()
    log.plan({"name": "a", "has_validation": True})
    log.claim()
    log.start()
    log.finish(verdict=BROKEN)
    log.say("job", "r/a", "VALIDATING", "execution_completed", attempt_index=1)
    log.settle()


@breaks("verdict")
def rules_that_held_and_fail_nevertheless(log: Log) -> None:
    log.work()
    log.finish(verdict={"is_passed": True})
    log.say("job", "r/a", "VALIDATING", "execution_completed", attempt_index=1)
    log.say("job", "r/a", "FAILED", "validation_failed")
