"""Logs that break the invariants about relations between jobs: each is legal up to its last step."""

from __future__ import annotations

from tests.simulation.log_builder import SECOND, TTL, LogBuilder, breaks

KIN = {"family": "os", "is_family_fail_fast": True, "max_attempts": 1}


@breaks("after")
def a_start_before_an_earlier_job_ended(log: LogBuilder) -> None:
    log.plan({"name": "a"}, {"name": "b", "after": ["r/a"]})
    log.queue("b")


@breaks("after")
def a_job_that_does_not_start_after_all_earlier_ones(log: LogBuilder) -> None:
    log.plan({"name": "a"}, {"name": "b", "after": ["r/a"]}, {"name": "c"})
    log.checker.entities["r/a.1"].state = "CANCELED"
    log.add_event("job", "r/a", "CANCELED", "user_cancelled", "user:u", reason="JOB_CANCELED")
    log.commit()


@breaks("blocked")
def a_job_blocked_by_an_earlier_job(log: LogBuilder) -> None:
    log.plan({"name": "a"}, {"name": "b", "after": ["r/a"]})
    log.checker.entities["r/a.1"].state = "CANCELED"
    log.add_event("job", "r/a", "CANCELED", "user_cancelled", "user:u", reason="JOB_CANCELED")
    log.add_event("job", "r/b", "CANCELED", "user_cancelled", reason="BLOCKED")


@breaks("family")
def a_family_that_continues_after_a_failure(log: LogBuilder) -> None:
    log.worker()
    log.plan({"name": "a", **KIN}, {"name": "b", **KIN})
    log.claim()
    log.start()
    log.fail()
    log.add_event("job", "r/a", "FAILED", "execution_failed")
    log.commit()


@breaks("blocked")
def a_job_not_needed_because_of_another_family(log: LogBuilder) -> None:
    log.worker()
    log.plan({"name": "a", **KIN}, {"name": "b", "family": "other"}, {"name": "c"})
    log.claim()
    log.start()
    log.fail()
    log.add_event("job", "r/a", "FAILED", "execution_failed")
    log.checker.entities["r/b.1"].state = "CANCELED"
    log.add_event("job", "r/b", "CANCELED", "user_cancelled", reason="NOT_NEEDED")


@breaks("group")
def two_leases_of_one_group(log: LogBuilder) -> None:
    log.worker(slots=2)
    log.plan({"name": "a", "group": "g"}, {"name": "b", "group": "g"})
    log.claim()
    log.grant("b")


@breaks("group")
def a_lease_of_a_group_before_the_fence(log: LogBuilder) -> None:
    log.worker()
    log.plan({"name": "a", "group": "g"}, {"name": "b", "group": "g"})
    log.claim()
    log.start()
    log.lose_lease("a", "STALLED")
    log.commit()
    log.grant("b")


@breaks("group")
def a_lease_of_a_group_before_the_fence_of_a_forced_cancel(log: LogBuilder) -> None:
    log.worker()
    log.plan({"name": "a", "group": "g"}, {"name": "b", "group": "g"})
    log.claim()
    log.start()
    log.add_event("attempt", "r/a.1", "CANCEL_REQUESTED", "cancel_requested", cancel_by=log.now + 30 * SECOND)
    log.wait(30)
    log.end("a", "CANCELED", "failed", "REVOKED", "orchestrator", claims=2)
    log.release_worker()
    log.add_event("job", "r/a", "CANCELED", "user_cancelled", "user:u", reason="JOB_CANCELED")
    log.commit()
    log.wait(TTL - 31)
    log.grant("b")


@breaks("group")
def a_lease_of_a_group_before_the_fence_of_a_timeout(log: LogBuilder) -> None:
    log.worker()
    log.plan({"name": "a", "group": "g"}, {"name": "b", "group": "g"})
    log.claim()
    log.start()
    for _ in range(6):
        log.wait(100)
        if log.now < log.attempt().started_at + log.attempt().timeout_us:
            log.renew()
    error = {"code": "TIMED_OUT", "failure_class": "INFRA", "is_retryable": True}
    log.end("a", "TIMED_OUT", "failed", "REVOKED", "orchestrator", claims=2, error=error)
    log.release_worker()
    log.wait(1)
    log.grant("b")


@breaks("retry")
def a_retry_on_an_unlisted_class(log: LogBuilder) -> None:
    log.worker()
    log.plan({"name": "a", "retry_on": ["FLAKY"]})
    log.claim()
    log.start()
    log.fail("INFRA")
    log.add_event("job", "r/a", "RETRYING", "execution_failed", next_run_at=log.now + 20_000_000)
