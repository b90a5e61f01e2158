"""Logs that break the invariants about events, attempts, leases and workers: each is legal up to its last step."""

from __future__ import annotations

from tests.simulation.log_builder import LATE, SECOND, START, TTL, LogBuilder, breaks

# -- every event


@breaks("order")
def a_gap_in_the_log(log: LogBuilder) -> None:
    log.worker()
    log.add_event("worker", "w", "SHUTDOWN", "shutdown_requested", _seq=7)


@breaks("rev")
def a_skipped_rev(log: LogBuilder) -> None:
    log.worker()
    log.add_event("worker", "w", "SHUTDOWN", "shutdown_requested", _rev=4)


@breaks("continuity")
def an_event_from_another_state(log: LogBuilder) -> None:
    log.worker()
    log.add_event("worker", "w", "SHUTDOWN", "max_timeout_exceeded", _from_="UNRESPONSIVE")


@breaks("time")
def an_event_before_the_last_one(log: LogBuilder) -> None:
    log.worker()
    log.add_event("worker", "w", "SHUTDOWN", "shutdown_requested", _at=START - 1)


@breaks("clock")
def an_event_in_the_future(log: LogBuilder) -> None:
    log.worker()
    log.add_event("worker", "w", "SHUTDOWN", "shutdown_requested", _at=log.now + 1)


@breaks("terminal")
def an_event_after_a_terminal_state(log: LogBuilder) -> None:
    log.worker()
    log.add_event("worker", "w", "SHUTDOWN", "shutdown_requested")
    log.add_event("worker", "w", "IDLE", "health_check_recovered")


@breaks("legal")
def an_unknown_transition(log: LogBuilder) -> None:
    log.create()
    log.run("RUNNING", "first_attempt_active")


@breaks("legal")
def a_transition_with_another_trigger(log: LogBuilder) -> None:
    log.create()
    log.run("QUEUED", "run_created", jobs=0)


@breaks("actor")
def a_worker_approves(log: LogBuilder) -> None:
    log.plan({"name": "a", "kind": "approval"})
    log.add_event("job", "r/a", "SUCCEEDED", "approved", "worker:w")


@breaks("identity")
def a_run_of_another_tenant(log: LogBuilder) -> None:
    log.create()
    log.add_event("run", "r", "PLANNING", "cancel_requested", "user:u", _tenant="other")


@breaks("identity")
def a_job_of_another_tenant(log: LogBuilder) -> None:
    log.create()
    log.add_event("job", "r/a", "PENDING", "created", _tenant="other", kind="task", needs=[], is_required=True)


@breaks("repeated")
def a_request_carried_out_twice(log: LogBuilder) -> None:
    log.create()
    log.add_event("run", "r", "PLANNING", "cancel_requested", "user:u", _request_id="q")
    log.commit()
    log.add_event("run", "r", "PLANNING", "cancel_requested", "user:u", _request_id="q")


# -- attempts and leases


@breaks("held")
def a_leased_attempt_without_a_lease(log: LogBuilder) -> None:
    log.worker()
    log.plan()
    log.add_event("attempt", "r/a.1", "LEASED", "claimed", "worker:w", claims=1)


@breaks("held")
def a_stale_attempt_with_a_live_lease(log: LogBuilder) -> None:
    log.start_run()
    log.add_event("attempt", "r/a.1", "STALE", "stalled", reason="LEASE_EXPIRED", lost_leases=1)


@breaks("one-lease")
def two_leases_at_once(log: LogBuilder) -> None:
    log.plan()
    log.claim(worker="u")
    lease = {"number": 2, "worker_id": "v", "from": None, "to": "GRANTED"}
    lease |= {"accept_by": log.now + 30 * SECOND, "expires_at": log.now + TTL * SECOND}
    log.add_event("attempt", "r/a.1", "STARTING", "acknowledged", "worker:u", claims=2, lease=lease)


@breaks("token")
def a_reused_lease_number(log: LogBuilder) -> None:
    log.start_run()
    log.wait(TTL)
    log.lose_lease()
    log.add_event("attempt", "r/a.1", "QUEUED", "requeued", run_at=log.now)
    log.commit()
    log.grant(claims=1)


@breaks("term")
def a_lease_longer_than_the_ttl(log: LogBuilder) -> None:
    log.worker()
    log.plan()
    log.grant(expires_at=log.now + (TTL + 1) * SECOND)


@breaks("term")
def a_renewal_longer_than_the_ttl(log: LogBuilder) -> None:
    log.start_run()
    log.renew(expires_at=log.now + 2 * TTL * SECOND)


@breaks("expiry")
def an_early_expiry(log: LogBuilder) -> None:
    log.start_run()
    log.wait(TTL - 1)
    log.lose_lease()


@breaks("revived")
def a_heartbeat_after_expiry(log: LogBuilder) -> None:
    log.start_run()
    log.wait(TTL)
    log.renew()


@breaks("shortened")
def a_shortened_lease(log: LogBuilder) -> None:
    log.start_run()
    log.renew(expires_at=log.now + (TTL - 1) * SECOND)


@breaks("accept-window")
def an_early_end_of_the_accept_window(log: LogBuilder) -> None:
    log.worker()
    log.plan()
    log.claim()
    log.wait(29)
    log.lose_lease(reason="NOT_ACCEPTED")


@breaks("accept-window")
def an_accepted_lease_revoked_as_not_accepted(log: LogBuilder) -> None:
    log.start_run()
    log.wait(31)
    log.lose_lease(reason="NOT_ACCEPTED")


@breaks("fence")
def a_heartbeat_of_another_worker(log: LogBuilder) -> None:
    log.start_run()
    log.renew(worker="other")


@breaks("fence-gap")
def a_claim_before_the_fence(log: LogBuilder) -> None:
    log.start_run()
    log.lose_lease(reason="STALLED")
    log.commit()
    log.grant()


@breaks("fence-gap")
def a_requeue_before_the_fence(log: LogBuilder) -> None:
    log.start_run()
    log.lose_lease(reason="STALLED")
    log.add_event("attempt", "r/a.1", "QUEUED", "requeued", run_at=log.now)


def _silent(log: LogBuilder, reassign_at: int = 0) -> None:
    """Let the worker become unresponsive; with `reassign_at`, mark its attempt. Part of a commit."""
    log.start_run()
    log.add_event("worker", "w", "UNRESPONSIVE", "health_check_timeout", attempts=["r/a.1"])
    if reassign_at:
        log.add_event("attempt", "r/a.1", "RUNNING", "marked_for_reassignment", worker_id="w", reassign_at=reassign_at)


@breaks("silence")
def a_lease_ended_by_silence(log: LogBuilder) -> None:
    _silent(log)
    log.end("a", "STALE", "stalled", "REVOKED", "orchestrator", reason="STALLED", lost_leases=1)


@breaks("requeue")
def a_lease_ended_for_a_lost_worker(log: LogBuilder) -> None:
    log.start_run()
    log.end("a", "STALE", "stalled", "REVOKED", "orchestrator", reason="WORKER_LOST", lost_leases=1)


@breaks("silence")
def a_silent_worker_whose_attempt_is_not_marked(log: LogBuilder) -> None:
    _silent(log)
    log.commit()


@breaks("silence")
def a_mark_with_another_time_than_the_end_of_the_lease(log: LogBuilder) -> None:
    _silent(log, reassign_at=log.now)


@breaks("silence")
def a_silent_worker_given_up_with_a_lease(log: LogBuilder) -> None:
    _silent(log)
    log.add_event("worker", "w", "SHUTDOWN", "max_timeout_exceeded")


@breaks("silence")
def a_heartbeat_of_a_silent_worker(log: LogBuilder) -> None:
    _silent(log)
    log.renew()


@breaks("labels")
def a_claim_without_the_labels(log: LogBuilder) -> None:
    log.worker()
    log.create()
    log.job()
    log.run("QUEUED", "plan_returned", jobs=1)
    log.queue(queue_key="gpu")
    log.commit()
    log.grant()


@breaks("drained")
def a_claim_by_a_leaving_worker(log: LogBuilder) -> None:
    log.worker(slots=2)
    log.plan({"name": "a"}, {"name": "b"})
    log.claim("a")
    log.add_event("worker", "w", "BUSY", "shutdown_requested", "user:u", tasks=1)
    log.commit()
    log.grant("b")


@breaks("slots")
def one_lease_too_many(log: LogBuilder) -> None:
    log.worker()
    log.plan({"name": "a"}, {"name": "b"})
    log.claim("a")
    log.grant("b")


@breaks("worker")
def a_busy_worker_without_leases(log: LogBuilder) -> None:
    log.worker()
    log.add_event("worker", "w", "BUSY", "task_assigned", tasks=0)
    log.commit()


@breaks("worker")
def a_wrong_number_of_tasks(log: LogBuilder) -> None:
    log.worker(slots=2)
    log.plan()
    log.grant()
    log.add_event("job", "r/a", "RUNNING", "worker_started", worker_id="w")
    log.run("RUNNING", "first_attempt_active")
    log.add_event("worker", "w", "BUSY", "task_assigned", tasks=2)
    log.commit()


@breaks("lost-leases")
def a_lost_lease_not_counted(log: LogBuilder) -> None:
    log.start_run()
    log.wait(TTL)
    log.lose_lease(lost=0)


@breaks("lost-leases")
def an_attempt_failed_before_its_limit(log: LogBuilder) -> None:
    log.start_run()
    log.wait(TTL)
    log.lose_lease()
    log.add_event("attempt", "r/a.1", "FAILED", "failed", claims=2)


@breaks("requeue")
def a_lost_attempt_not_requeued(log: LogBuilder) -> None:
    log.start_run()
    log.wait(TTL)
    log.lose_lease()
    log.commit()


@breaks("requeue")
def an_attempt_stale_after_too_many_lost_leases(log: LogBuilder) -> None:
    log.start_run()
    log.attempt().max_lost_leases = 0
    log.lose_lease(reason="STALLED")
    log.commit()


@breaks("timeout")
def an_early_job_timeout(log: LogBuilder) -> None:
    log.start_run()
    log.wait(TTL - 1)
    log.end("a", "TIMED_OUT", "failed", "REVOKED", "orchestrator", claims=2)


@breaks("timeout")
def an_early_run_timeout(log: LogBuilder) -> None:
    log.start_run()
    log.run("TIMEOUT", "run_timed_out")


@breaks("cancel-deadline")
def an_early_forced_cancel(log: LogBuilder) -> None:
    log.start_run()
    log.add_event("attempt", "r/a.1", "CANCEL_REQUESTED", "cancel_requested", cancel_by=log.now + 30 * SECOND)
    log.wait(29)
    log.end("a", "CANCELED", "failed", "REVOKED", "orchestrator", claims=2)


@breaks("late")
def a_late_expiry(log: LogBuilder) -> None:
    log.start_run()
    log.wait(TTL + LATE)
    log.lose_lease()


@breaks("late")
def a_missed_deadline(log: LogBuilder) -> None:
    log.plan({"name": "a", "kind": "approval", "seconds": 60})
    log.wait(60 + LATE)
    log.worker()


@breaks("unclaimed")
def an_attempt_left_unclaimed(log: LogBuilder) -> None:
    log.checker.polling_worker_ids["w"] = None
    log.worker()
    log.wait(1)
    log.plan()
    log.wait(2 * 20 + 151)
    log.grant()
