"""For each promise about events, attempts, leases and workers a log that breaks it: legal up to its last step."""

from __future__ import annotations

from tests.simulation.log_builder import LATE, SECOND, START, TTL, Log, breaks

# -- every event


@breaks("order")
def a_gap_in_the_log(log: Log) -> None:
    log.worker()
    log.say("worker", "w", "SHUTDOWN", "shutdown_requested", _seq=7)


@breaks("rev")
def a_rev_that_is_left_out(log: Log) -> None:
    log.worker()
    log.say("worker", "w", "SHUTDOWN", "shutdown_requested", _rev=4)


@breaks("continuity")
def a_step_from_elsewhere(log: Log) -> None:
    log.worker()
    log.say("worker", "w", "SHUTDOWN", "max_timeout_exceeded", _from_="UNRESPONSIVE")


@breaks("time")
def time_goes_back(log: Log) -> None:
    log.worker()
    log.say("worker", "w", "SHUTDOWN", "shutdown_requested", _at=START - 1)


@breaks("clock")
def something_from_the_future(log: Log) -> None:
    log.worker()
    log.say("worker", "w", "SHUTDOWN", "shutdown_requested", _at=log.now + 1)


@breaks("terminal")
def life_after_the_end(log: Log) -> None:
    log.worker()
    log.say("worker", "w", "SHUTDOWN", "shutdown_requested")
    log.say("worker", "w", "IDLE", "health_check_recovered")


@breaks("legal")
def a_step_that_is_none(log: Log) -> None:
    log.create()
    log.run("RUNNING", "first_attempt_active")


@breaks("legal")
def a_step_under_another_word(log: Log) -> None:
    log.create()
    log.run("QUEUED", "run_created", jobs=0)


@breaks("actor")
def a_worker_approves(log: Log) -> None:
    log.plan({"name": "a", "kind": "approval"})
    log.say("job", "r/a", "SUCCEEDED", "approved", "worker:w")


@breaks("identity")
def a_run_changes_its_tenant(log: Log) -> None:
    log.create()
    log.say("run", "r", "PLANNING", "cancel_requested", "user:u", _tenant="other")


@breaks("identity")
def a_job_of_another_tenant(log: Log) -> None:
    log.create()
    log.say("job", "r/a", "PENDING", "created", _tenant="other", kind="task", needs=[], is_required=True)


@breaks("repeated")
def a_request_that_counts_twice(log: Log) -> None:
    log.create()
    log.say("run", "r", "PLANNING", "cancel_requested", "user:u", _request_id="q")
    log.settle()
    log.say("run", "r", "PLANNING", "cancel_requested", "user:u", _request_id="q")


# -- attempts and leases


@breaks("held")
def held_by_nobody(log: Log) -> None:
    log.worker()
    log.plan()
    log.say("attempt", "r/a.1", "LEASED", "claimed", "worker:w", claims=1)


@breaks("held")
def a_lease_that_outlives_its_attempt(log: Log) -> None:
    log.work()
    log.say("attempt", "r/a.1", "STALE", "stalled", reason="LEASE_EXPIRED", lost_leases=1)


@breaks("one-lease")
def two_leases_at_once(log: Log) -> None:
    log.plan()
    log.claim(worker="u")
    told = {"number": 2, "worker_id": "v", "from": None, "to": "GRANTED"}
    told |= {"accept_by": log.now + 30 * SECOND, "expires_at": log.now + TTL * SECOND}
    log.say("attempt", "r/a.1", "STARTING", "heartbeat", "worker:u", claims=2, lease=told)


@breaks("token")
def a_number_that_is_used_again(log: Log) -> None:
    log.work()
    log.wait(TTL)
    log.lose()
    log.say("attempt", "r/a.1", "QUEUED", "requeued", run_at=log.now)
    log.settle()
    log.grant(claims=1)


@breaks("term")
def a_lease_for_too_long(log: Log) -> None:
    log.worker()
    log.plan()
    log.grant(expires_at=log.now + (TTL + 1) * SECOND)


@breaks("term")
def a_renewal_for_too_long(log: Log) -> None:
    log.work()
    log.renew(expires_at=log.now + 2 * TTL * SECOND)


@breaks("expiry")
def a_lease_expires_early(log: Log) -> None:
    log.work()
    log.wait(TTL - 1)
    log.lose()


@breaks("revived")
def a_word_after_the_lease(log: Log) -> None:
    log.work()
    log.wait(TTL)
    log.renew()


@breaks("shortened")
def a_lease_gets_shorter(log: Log) -> None:
    log.work()
    log.renew(expires_at=log.now + (TTL - 1) * SECOND)


@breaks("accept-window")
def a_window_that_closes_early(log: Log) -> None:
    log.worker()
    log.plan()
    log.claim()
    log.wait(29)
    log.lose(reason="NOT_ACCEPTED")


@breaks("accept-window")
def a_lease_that_was_accepted_after_all(log: Log) -> None:
    log.work()
    log.wait(31)
    log.lose(reason="NOT_ACCEPTED")


@breaks("fence")
def another_worker_speaks(log: Log) -> None:
    log.work()
    log.renew(worker="other")


@breaks("fence-gap")
def claimed_while_the_other_may_run(log: Log) -> None:
    log.work()
    log.lose(reason="STALLED")
    log.settle()
    log.grant()


@breaks("fence-gap")
def queued_for_too_early(log: Log) -> None:
    log.work()
    log.lose(reason="WORKER_LOST")
    log.say("attempt", "r/a.1", "QUEUED", "requeued", run_at=log.now)


@breaks("labels")
def work_for_another_kind_of_worker(log: Log) -> None:
    log.worker()
    log.create()
    log.job()
    log.run("QUEUED", "plan_returned", jobs=1)
    log.queue(queue_key="gpu")
    log.settle()
    log.grant()


@breaks("drained")
def work_for_one_that_leaves(log: Log) -> None:
    log.worker(places=2)
    log.plan({"name": "a"}, {"name": "b"})
    log.claim("a")
    log.say("worker", "w", "BUSY", "shutdown_requested", "user:u", tasks=1)
    log.settle()
    log.grant("b")


@breaks("slots")
def one_lease_too_many(log: Log) -> None:
    log.worker()
    log.plan({"name": "a"}, {"name": "b"})
    log.claim("a")
    log.grant("b")


@breaks("worker")
def busy_with_nothing(log: Log) -> None:
    log.worker()
    log.say("worker", "w", "BUSY", "task_assigned", tasks=0)
    log.settle()


@breaks("worker")
def a_worker_that_counts_wrongly(log: Log) -> None:
    log.worker(places=2)
    log.plan()
    log.grant()
    log.say("job", "r/a", "RUNNING", "worker_started", worker_id="w")
    log.run("RUNNING", "first_attempt_active")
    log.say("worker", "w", "BUSY", "task_assigned", tasks=2)
    log.settle()


@breaks("lost-leases")
def a_loss_that_is_not_counted(log: Log) -> None:
    log.work()
    log.wait(TTL)
    log.lose(lost=0)


@breaks("lost-leases")
def given_up_too_soon(log: Log) -> None:
    log.work()
    log.wait(TTL)
    log.lose()
    log.say("attempt", "r/a.1", "FAILED", "failed", claims=2)


@breaks("requeue")
def lost_and_left_there(log: Log) -> None:
    log.work()
    log.wait(TTL)
    log.lose()
    log.settle()


@breaks("timeout")
def a_job_is_timed_out_early(log: Log) -> None:
    log.work()
    log.wait(TTL - 1)
    log.end("a", "TIMED_OUT", "failed", "REVOKED", "orchestrator", claims=2)


@breaks("timeout")
def a_run_is_timed_out_early(log: Log) -> None:
    log.work()
    log.run("TIMEOUT", "run_timed_out")


@breaks("cancel-deadline")
def a_runner_gets_no_time_to_stop(log: Log) -> None:
    log.work()
    log.say("attempt", "r/a.1", "CANCEL_REQUESTED", "cancel_requested", cancel_by=log.now + 30 * SECOND)
    log.wait(29)
    log.end("a", "CANCELED", "failed", "REVOKED", "orchestrator", claims=2)


@breaks("late")
def an_expiry_that_comes_late(log: Log) -> None:
    log.work()
    log.wait(TTL + LATE)
    log.lose()


@breaks("late")
def a_deadline_that_nobody_sees(log: Log) -> None:
    log.plan({"name": "a", "kind": "approval", "seconds": 60})
    log.wait(60 + LATE)
    log.worker()


@breaks("unclaimed")
def nobody_takes_it(log: Log) -> None:
    log.checker.polling_workers["w"] = None
    log.worker()
    log.wait(1)
    log.plan()
    log.wait(2 * 20 + 151)
    log.grant()
