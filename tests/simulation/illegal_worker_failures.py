"""Logs that break the invariants about holds, failures and lost jobs of workers: each is legal up to its last step."""

from __future__ import annotations

from tests.simulation.log_builder import SECOND, TTL, LogBuilder, breaks


def lose_leases(log: LogBuilder, times: int) -> None:
    """Lose the worker's lease so many times, each in a commit of its own."""
    log.worker()
    log.create()
    log.job()
    log.run("QUEUED", "plan_returned", jobs=1)
    log.queue(max_lost_leases=9)
    log.commit()
    for count in range(times):
        log.claim()
        log.start()
        log.wait(TTL)
        log.lose_lease(lost=count + 1)
        log.add_event("attempt", "r/a.1", "QUEUED", "requeued", run_at=log.now)
        if count + 1 < times:
            log.commit()


# -- holds


@breaks("hold")
def a_claim_by_a_drained_worker(log: LogBuilder) -> None:
    log.worker()
    log.plan()
    log.add_hold(reason="disk")
    log.commit()
    log.grant()


@breaks("hold")
def a_claim_by_a_quarantined_worker(log: LogBuilder) -> None:
    log.worker()
    log.plan()
    log.add_hold("quarantined", "QUARANTINED", reason="slow")
    log.commit()
    log.grant()


@breaks("hold")
def a_second_drain(log: LogBuilder) -> None:
    log.worker()
    log.add_hold(reason="disk")
    log.add_hold(reason="another")


@breaks("hold")
def a_quarantine_of_a_drained_worker(log: LogBuilder) -> None:
    log.worker()
    log.add_hold(reason="disk")
    log.add_hold("quarantined", "QUARANTINED", reason="slow")


@breaks("hold")
def a_resume_without_a_hold(log: LogBuilder) -> None:
    log.worker()
    log.add_hold("resumed", "")


@breaks("hold")
def a_drain_ended_by_registration(log: LogBuilder) -> None:
    log.worker()
    log.add_hold(reason="disk")
    log.add_hold("capabilities_registered", "", labels=[], max_concurrent_tasks=1)


@breaks("hold")
def a_drain_recorded_as_a_quarantine(log: LogBuilder) -> None:
    log.worker()
    log.add_hold("drained", "QUARANTINED", reason="disk")


# -- infrastructure failures


@breaks("troubles")
def no_quarantine_after_three_failures(log: LogBuilder) -> None:
    lose_leases(log, 3)
    log.commit()


@breaks("troubles")
def a_quarantine_after_two_failures(log: LogBuilder) -> None:
    lose_leases(log, 2)
    log.add_hold("quarantined", "QUARANTINED", reason="REPEATED_TROUBLES", troubles=2)


@breaks("troubles")
def a_quarantine_for_another_reason_after_three_failures(log: LogBuilder) -> None:
    lose_leases(log, 3)
    log.add_hold("quarantined", "QUARANTINED", reason="slow", troubles=3)


@breaks("troubles")
def a_failure_not_counted(log: LogBuilder) -> None:
    log.start_run()
    log.wait(TTL)
    log.lose_lease(troubles=0)
    log.add_event("attempt", "r/a.1", "QUEUED", "requeued", run_at=log.now)
    log.commit()


@breaks("troubles")
def a_success_that_does_not_reset_the_count(log: LogBuilder) -> None:
    lose_leases(log, 2)
    log.commit()
    log.claim()
    log.start()
    log.renew("a", "UPLOADING", "upload_began")
    log.end("a", "SUCCEEDED", "succeeded", "COMPLETED", exit_code=0)
    log.release_worker(troubles=2)
    log.add_event("job", "r/a", "VALIDATING", "execution_completed", attempt_index=1)
    log.add_event("job", "r/a", "SUCCEEDED", "validation_passed")
    log.run("VALIDATING", "all_jobs_done")
    log.run("SUCCESS", "all_required_succeeded")
    log.commit()


# -- jobs that a worker lost


@breaks("avoided")
def an_attempt_refused_to_its_only_worker(log: LogBuilder) -> None:
    lose_leases(log, 1)
    log.commit()
    log.wait(1)
    log.acknowledgements.check_denied_claim("r/a.1", "w", {}, log.now)


@breaks("avoided")
def the_same_attempt_for_its_loser(log: LogBuilder) -> None:
    log.worker("v")
    lose_leases(log, 1)
    log.commit()
    log.claim()
    log.acknowledgements.check_claim("r/a.1", "w", {"v": frozenset()})


@breaks("avoided")
def the_next_attempt_for_the_loser(log: LogBuilder) -> None:
    log.worker("v")
    log.start_run()
    log.fail("INFRA")
    log.add_event("job", "r/a", "RETRYING", "execution_failed", next_run_at=log.now + 20 * SECOND)
    log.commit()
    log.wait(20)
    log.queue(index=2)
    log.commit()
    log.grant(index=2)
    log.acknowledgements.check_claim("r/a.2", "w", {"v": frozenset()})
