"""For each promise about workers that are held, and jobs that they lost, a log that breaks it."""

from __future__ import annotations

from tests.simulation.log_builder import SECOND, TTL, Log, breaks


def troubled(log: Log, times: int) -> None:
    """The worker loses its job so often, each time in a commit of its own."""
    log.worker()
    log.create()
    log.job()
    log.run("QUEUED", "plan_returned", jobs=1)
    log.queue(max_lost_leases=9)
    log.settle()
    for number in range(times):
        log.claim()
        log.start()
        log.wait(TTL)
        log.lose(lost=number + 1)
        log.say("attempt", "r/a.1", "QUEUED", "requeued", run_at=log.now)
        if number + 1 < times:
            log.settle()


# -- held


@breaks("hold")
def something_new_for_one_that_is_drained(log: Log) -> None:
    log.worker()
    log.plan()
    log.hold(reason="disk")
    log.settle()
    log.grant()


@breaks("hold")
def something_new_for_one_in_quarantine(log: Log) -> None:
    log.worker()
    log.plan()
    log.hold("quarantined", "QUARANTINED", reason="slow")
    log.settle()
    log.grant()


@breaks("hold")
def drained_twice(log: Log) -> None:
    log.worker()
    log.hold(reason="disk")
    log.hold(reason="another")


@breaks("hold")
def quarantined_although_it_is_drained(log: Log) -> None:
    log.worker()
    log.hold(reason="disk")
    log.hold("quarantined", "QUARANTINED", reason="slow")


@breaks("hold")
def let_go_without_a_hold(log: Log) -> None:
    log.worker()
    log.hold("resumed", "")


@breaks("hold")
def a_drain_that_ends_when_the_runner_comes_in_again(log: Log) -> None:
    log.worker()
    log.hold(reason="disk")
    log.hold("capabilities_registered", "", labels=[], max_concurrent_tasks=1)


@breaks("hold")
def a_drain_under_another_word(log: Log) -> None:
    log.worker()
    log.hold("drained", "QUARANTINED", reason="disk")


# -- troubles


@breaks("troubles")
def trusted_after_three_troubles(log: Log) -> None:
    troubled(log, 3)
    log.settle()


@breaks("troubles")
def quarantined_after_two(log: Log) -> None:
    troubled(log, 2)
    log.hold("quarantined", "QUARANTINED", reason="REPEATED_TROUBLES", troubles=2)


@breaks("troubles")
def quarantined_for_something_else_after_three(log: Log) -> None:
    troubled(log, 3)
    log.hold("quarantined", "QUARANTINED", reason="slow", troubles=3)


@breaks("troubles")
def a_trouble_that_nobody_counts(log: Log) -> None:
    log.work()
    log.wait(TTL)
    log.lose(troubles=0)
    log.say("attempt", "r/a.1", "QUEUED", "requeued", run_at=log.now)
    log.settle()


@breaks("troubles")
def a_success_that_does_not_forgive(log: Log) -> None:
    troubled(log, 2)
    log.settle()
    log.claim()
    log.start()
    log.renew("a", "UPLOADING")
    log.end("a", "SUCCEEDED", "succeeded", "COMPLETED", exit_code=0)
    log.free(troubles=2)
    log.say("job", "r/a", "VALIDATING", "execution_completed", attempt_index=1)
    log.say("job", "r/a", "SUCCEEDED", "validation_passed")
    log.run("VALIDATING", "all_jobs_done")
    log.run("SUCCESS", "all_required_succeeded")
    log.settle()


# -- avoided


@breaks("avoided")
def nobody_gets_what_only_its_loser_could_take(log: Log) -> None:
    troubled(log, 1)
    log.settle()
    log.wait(1)
    log.acknowledgements.check_denied_claim("r/a.1", "w", {}, log.now)


@breaks("avoided")
def the_same_again_for_who_lost_it(log: Log) -> None:
    log.worker("v")
    troubled(log, 1)
    log.settle()
    log.claim()
    log.acknowledgements.check_claim("r/a.1", "w", {"v": frozenset()})


@breaks("avoided")
def the_next_attempt_for_who_failed_the_first(log: Log) -> None:
    log.worker("v")
    log.work()
    log.fail("INFRA")
    log.say("job", "r/a", "RETRYING", "execution_failed", next_run_at=log.now + 20 * SECOND)
    log.settle()
    log.wait(20)
    log.queue(index=2)
    log.settle()
    log.grant(index=2)
    log.acknowledgements.check_claim("r/a.2", "w", {"v": frozenset()})
