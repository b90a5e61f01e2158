"""For each promise about what ties jobs together a log that breaks it: legal up to its last step."""

from __future__ import annotations

from tests.simulation.log_builder import Log, breaks

KIN = {"family": "os", "is_family_fail_fast": True, "max_attempts": 1}


@breaks("after")
def begun_before_what_comes_before_it(log: Log) -> None:
    log.plan({"name": "a"}, {"name": "b", "after": ["r/a"]})
    log.queue("b")


@breaks("after")
def not_begun_although_all_before_it_is_over(log: Log) -> None:
    log.plan({"name": "a"}, {"name": "b", "after": ["r/a"]}, {"name": "c"})
    log.checker.entities["r/a.1"].state = "CANCELED"
    log.say("job", "r/a", "CANCELED", "user_cancelled", "user:u", reason="JOB_CANCELED")
    log.settle()


@breaks("blocked")
def blocked_by_what_it_only_comes_after(log: Log) -> None:
    log.plan({"name": "a"}, {"name": "b", "after": ["r/a"]})
    log.checker.entities["r/a.1"].state = "CANCELED"
    log.say("job", "r/a", "CANCELED", "user_cancelled", "user:u", reason="JOB_CANCELED")
    log.say("job", "r/b", "CANCELED", "user_cancelled", reason="BLOCKED")


@breaks("family")
def a_family_that_goes_on(log: Log) -> None:
    log.worker()
    log.plan({"name": "a", **KIN}, {"name": "b", **KIN})
    log.claim()
    log.start()
    log.fail()
    log.say("job", "r/a", "FAILED", "execution_failed")
    log.settle()


@breaks("blocked")
def not_needed_in_another_family(log: Log) -> None:
    log.worker()
    log.plan({"name": "a", **KIN}, {"name": "b", "family": "other"}, {"name": "c"})
    log.claim()
    log.start()
    log.fail()
    log.say("job", "r/a", "FAILED", "execution_failed")
    log.checker.entities["r/b.1"].state = "CANCELED"
    log.say("job", "r/b", "CANCELED", "user_cancelled", reason="NOT_NEEDED")


@breaks("group")
def two_of_a_group_at_once(log: Log) -> None:
    log.worker(places=2)
    log.plan({"name": "a", "group": "g"}, {"name": "b", "group": "g"})
    log.claim()
    log.grant("b")


@breaks("group")
def another_one_while_the_first_may_still_run(log: Log) -> None:
    log.worker()
    log.plan({"name": "a", "group": "g"}, {"name": "b", "group": "g"})
    log.claim()
    log.start()
    log.lose("a", "STALLED")
    log.say("attempt", "r/a.1", "QUEUED", "requeued", run_at=log.attempt().fence_until)
    log.settle()
    log.grant("b")


@breaks("retry")
def retried_on_a_class_that_it_does_not_name(log: Log) -> None:
    log.worker()
    log.plan({"name": "a", "retry_on": ["FLAKY"]})
    log.claim()
    log.start()
    log.fail("INFRA")
    log.say("job", "r/a", "RETRYING", "execution_failed", next_run_at=log.now + 20_000_000)
