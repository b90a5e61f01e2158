"""Logs that break the invariants about jobs, runs and acknowledgements: each is legal up to its last step."""

from __future__ import annotations

from typing import Any

from tests.simulation.log_builder import SECOND, LogBuilder, breaks

# -- jobs and runs


@breaks("after-end")
def a_claim_after_the_cancel(log: LogBuilder) -> None:
    log.worker()
    log.plan()
    log.run("CANCEL_REQUESTED", "cancel_requested", "user:u")
    log.grant()


@breaks("after-end")
def a_start_after_a_cancel_during_planning(log: LogBuilder) -> None:
    log.create()
    log.run("PLANNING", "cancel_requested", "user:u")
    log.commit()
    log.job()
    log.run("QUEUED", "plan_returned", jobs=1)
    log.queue()


@breaks("plan")
def a_plan_that_waits_for_its_group_after_its_deadline(log: LogBuilder) -> None:
    log.create()
    log.wait(61)
    log.run("PLANNING", "group_awaited", concurrency_group="g")


@breaks("orphan")
def an_attempt_of_no_job(log: LogBuilder) -> None:
    log.create()
    lease: dict[str, Any] = {"index": 1, "job_id": "r/x", "timeout_seconds": 60, "max_lost_leases": 1}
    log.add_event("attempt", "r/x.1", "QUEUED", "enqueued", **lease)


@breaks("attempts")
def one_attempt_too_many(log: LogBuilder) -> None:
    log.worker()
    log.create()
    log.job(max_attempts=1)
    log.run("QUEUED", "plan_returned", jobs=1)
    log.queue(index=1)
    log.commit()
    log.checker.entities["r/a.1"].state = "FAILED"
    log.checker.entities["r/a"].state = "RETRYING"
    log.queue(index=2)


@breaks("retry")
def the_users_own_failure_is_retried(log: LogBuilder) -> None:
    log.start_run()
    log.fail("USER", is_retryable=False)
    log.add_event("job", "r/a", "RETRYING", "execution_failed", next_run_at=log.now + 20 * SECOND)


@breaks("retry")
def what_should_be_retried_fails(log: LogBuilder) -> None:
    log.start_run()
    log.fail("INFRA")
    log.add_event("job", "r/a", "FAILED", "execution_failed")


@breaks("backoff")
def a_retry_without_backoff(log: LogBuilder) -> None:
    log.start_run()
    log.fail("INFRA")
    log.add_event("job", "r/a", "RETRYING", "execution_failed", next_run_at=log.now + 10 * SECOND)


@breaks("backoff")
def an_early_retry(log: LogBuilder) -> None:
    log.start_run()
    log.fail("INFRA")
    log.add_event("job", "r/a", "RETRYING", "execution_failed", next_run_at=log.now + 20 * SECOND)
    log.commit()
    log.wait(19)
    log.queue(index=2)


@breaks("approval")
def an_attempt_of_an_approval(log: LogBuilder) -> None:
    log.create()
    log.job(kind="approval")
    log.run("QUEUED", "plan_returned", jobs=1)
    log.queue()


@breaks("approval")
def an_approval_expired_early(log: LogBuilder) -> None:
    log.plan({"name": "a", "kind": "approval", "seconds": 60})
    log.wait(59)
    log.add_event("job", "r/a", "FAILED", "approval_expired", reason="APPROVAL_EXPIRED")


@breaks("approval")
def too_few_approvals(log: LogBuilder) -> None:
    log.plan({"name": "a", "kind": "approval", "approvers": 2})
    log.add_event("job", "r/a", "SUCCEEDED", "approved", "user:u")


@breaks("approval")
def two_approvals_by_one_person(log: LogBuilder) -> None:
    log.plan({"name": "a", "kind": "approval", "approvers": 3})
    log.add_event("job", "r/a", "WAITING_APPROVAL", "approval_given", "user:u")
    log.add_event("job", "r/a", "WAITING_APPROVAL", "approval_given", "user:u")


@breaks("approval")
def an_open_approval_with_enough_approvals(log: LogBuilder) -> None:
    log.plan({"name": "a", "kind": "approval"})
    log.add_event("job", "r/a", "WAITING_APPROVAL", "approval_given", "user:u")


@breaks("needs")
def a_start_before_a_need_is_met(log: LogBuilder) -> None:
    log.create()
    log.job("a")
    log.job("b", needs=("a",))
    log.run("QUEUED", "plan_returned", jobs=2)
    log.queue("b")


@breaks("needs")
def a_ready_job_that_does_not_start(log: LogBuilder) -> None:
    log.create()
    log.job("a")
    log.run("QUEUED", "plan_returned", jobs=1)
    log.commit()


@breaks("blocked")
def a_job_blocked_without_a_reason(log: LogBuilder) -> None:
    log.plan({"name": "a"}, {"name": "b", "needs": ("a",)})
    log.add_event("job", "r/b", "CANCELED", "user_cancelled", reason="BLOCKED")


@breaks("validation")
def a_validation_decided_at_once(log: LogBuilder) -> None:
    log.worker()
    log.plan({"name": "a", "has_validation": True})
    log.claim()
    log.start()
    log.succeed()


@breaks("validation")
def a_missing_validation_that_does_not_end(log: LogBuilder) -> None:
    log.start_run()
    log.finish()
    log.add_event("job", "r/a", "VALIDATING", "execution_completed", attempt_index=1)
    log.commit()


@breaks("outcome")
def a_job_open_after_its_last_attempt(log: LogBuilder) -> None:
    log.start_run()
    log.finish()
    log.commit()


@breaks("outcome")
def a_success_with_an_open_job(log: LogBuilder) -> None:
    log.start_run()
    log.run("VALIDATING", "all_jobs_done")
    log.run("SUCCESS", "all_required_succeeded")


@breaks("outcome")
def a_run_without_open_jobs_that_does_not_end(log: LogBuilder) -> None:
    log.start_run()
    log.succeed()
    log.commit()


@breaks("fail-fast")
def a_failure_before_all_jobs_ended(log: LogBuilder) -> None:
    log.worker()
    log.plan({"name": "a"}, {"name": "b"})
    log.claim()
    log.start()
    log.fail("USER", is_retryable=False)
    log.add_event("job", "r/a", "FAILED", "execution_failed")
    log.run("FAILED", "required_job_failed")


@breaks("fail-fast")
def a_fail_fast_run_that_waits(log: LogBuilder) -> None:
    log.worker()
    log.plan({"name": "a"}, {"name": "b"}, is_fail_fast=True)
    log.claim()
    log.start()
    log.fail("USER", is_retryable=False)
    log.add_event("job", "r/a", "FAILED", "execution_failed")
    log.commit()


@breaks("decided")
def a_decided_run_that_does_not_begin_to_wait(log: LogBuilder) -> None:
    log.plan({"name": "a", "is_required": False})


@breaks("decided")
def a_wait_for_optional_jobs_with_a_required_one_open(log: LogBuilder) -> None:
    log.plan({"name": "a"}, {"name": "b", "is_required": False})
    log.run("QUEUED", "optional_wait_began")


@breaks("decided")
def a_wait_for_optional_jobs_that_ends_early(log: LogBuilder) -> None:
    log.plan_optional()
    log.wait(599)
    log.run("QUEUED", "optional_wait_ended", cause="wait_over")


@breaks("decided")
def an_optional_job_that_outlasts_the_wait_for_it(log: LogBuilder) -> None:
    log.plan_optional()
    log.wait(600)
    log.run("QUEUED", "optional_wait_ended", cause="wait_over")
    log.commit()


@breaks("late")
def a_decided_run_that_waits_for_ever(log: LogBuilder) -> None:
    log.plan_optional()
    log.wait(600 + 3600)
    log.commit()


@breaks("blocked")
def an_optional_job_that_a_registered_worker_could_run(log: LogBuilder) -> None:
    log.worker()
    log.plan_optional()
    log.run("QUEUED", "optional_wait_ended", cause="no_worker")
    log.cancel_queued("NOT_NEEDED")


@breaks("waiting")
def a_waiting_run_without_approvals(log: LogBuilder) -> None:
    log.start_run()
    log.run("WAITING_APPROVAL", "approval_gate_reached")
    log.commit()


@breaks("cancel")
def a_cancel_that_misses_a_job(log: LogBuilder) -> None:
    log.start_run()
    log.run("CANCEL_REQUESTED", "cancel_requested", "user:u")
    log.commit()


@breaks("cancel")
def a_cancel_request_without_a_lease(log: LogBuilder) -> None:
    log.plan()
    log.add_event("attempt", "r/a.1", "CANCEL_REQUESTED", "cancel_requested", cancel_by=log.now, claims=1)
    log.commit()


@breaks("plan")
def a_late_plan(log: LogBuilder) -> None:
    log.create()
    log.wait(60)
    log.run("QUEUED", "plan_returned", jobs=0)


@breaks("conclusion")
def a_wrong_conclusion(log: LogBuilder) -> None:
    log.start_run()
    log.succeed()
    log.run("VALIDATING", "all_jobs_done")
    log.run("SUCCESS", "all_required_succeeded")
    log.run("REPORTED", "statuses_published", "reporter", conclusion="FAILED")


# -- acknowledgements


@breaks("acknowledged")
def an_acknowledged_cancel_not_in_the_log(log: LogBuilder) -> None:
    log.create()
    log.acknowledgements.check_accepted("cancel", "r")


@breaks("acknowledged")
def an_acknowledged_lease_not_in_the_log(log: LogBuilder) -> None:
    log.plan()
    log.acknowledgements.check_response("/lease", b"", 200, b'{"leases": [{"lease_id": "r/a.1.1.secret"}]}')


@breaks("acknowledged")
def an_acknowledged_result_not_in_the_log(log: LogBuilder) -> None:
    log.start_run()
    message = b'{"type": "Complete", "lease_id": "r/a.1.1.secret", "status": "SUCCEEDED"}'
    log.acknowledgements.check_response("/messages", message, 200, b'{"type": "CompleteAck", "accepted": true}')


@breaks("stale-rev")
def an_accepted_command_with_an_old_rev(log: LogBuilder) -> None:
    log.create()
    log.add_event("run", "r", "PLANNING", "cancel_requested", "user:u", _request_id="q")
    log.commit()
    log.acknowledgements.check_accepted("cancel", "r", "q", expected_rev=1)


@breaks("idempotent")
def a_refused_repetition(log: LogBuilder) -> None:
    log.acknowledgements.reject_refused_repetition("cancel", "r", "q")


@breaks("reused")
def an_accepted_reuse_of_a_request_id(log: LogBuilder) -> None:
    log.acknowledgements.reject_reused_id("cancel", "r", "q")


@breaks("liveness")
def a_run_left_open(log: LogBuilder) -> None:
    log.start_run()
    log.checker.check_end()


BROKEN = {"is_passed": False, "details": "rule a: found 1, wanted 0"}


@breaks("verdict")
def an_ignored_failed_rule(log: LogBuilder) -> None:
    log.start_run()
    log.finish(verdict=BROKEN)
    log.add_event("job", "r/a", "VALIDATING", "execution_completed", attempt_index=1)
    log.add_event("job", "r/a", "SUCCEEDED", "validation_passed")


@breaks("verdict")
def a_failed_rule_with_other_details(log: LogBuilder) -> None:
    log.start_run()
    log.finish(verdict=BROKEN)
    log.add_event("job", "r/a", "VALIDATING", "execution_completed", attempt_index=1)
    log.add_event("job", "r/a", "FAILED", "validation_failed", details="another")


@breaks("verdict")
def a_failed_rule_that_waits_for_validation(log: LogBuilder) -> None:
    log.worker()
    log.plan({"name": "a", "has_validation": True})
    log.claim()
    log.start()
    log.finish(verdict=BROKEN)
    log.add_event("job", "r/a", "VALIDATING", "execution_completed", attempt_index=1)
    log.commit()


@breaks("verdict")
def a_failed_validation_with_passed_rules(log: LogBuilder) -> None:
    log.start_run()
    log.finish(verdict={"is_passed": True})
    log.add_event("job", "r/a", "VALIDATING", "execution_completed", attempt_index=1)
    log.add_event("job", "r/a", "FAILED", "validation_failed")
