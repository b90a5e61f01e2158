"""Rules 4 and 5 of docs/spec/model.md: whose clock counts, and what becomes of a lost lease. Proved on the core."""

from __future__ import annotations

from typing import Any

import pytest

from deltaci.core import attempt, job, lease, run
from deltaci.core.errors import StaleLease
from deltaci.core.events import Event
from deltaci.core.instants import SECOND
from deltaci.core.timers import ready_at
from tests.spec.logs import altered, line_of
from tests.spec.scenes import ID, leased_job, revoke
from tests.support.lab import START, Lab, task

# -- 4: the clock


@pytest.mark.proves("MOD-4")
def test_a_clock_that_goes_backwards_does_not_shorten_a_lease() -> None:
    """A runner keeps its lease for the promised time."""
    lab, granted = leased_job()
    promised = lab.attempt("build").lease

    renewed = lab.after(-3_600).send(attempt.Heartbeat, granted).lease

    assert promised is not None
    assert renewed is not None
    assert renewed.expires_at == promised.expires_at == START + 120 * SECOND
    assert [event.at for event in lab.log] == sorted(event.at for event in lab.log)
    lab.verified()


@pytest.mark.proves("MOD-4")
def test_a_clock_that_goes_backwards_does_not_revive_a_lease() -> None:
    """What was declared over is over, even if the clock says that it is not yet."""
    lab, granted = leased_job()
    lab.after(120).do(attempt.Expire(id=ID))

    lab.after(-60)

    assert lab.stale(lab.message(attempt.Complete, granted, is_success=True, exit_code=0)) == "LEASE_EXPIRED"


@pytest.mark.proves("MOD-4")
def test_a_time_that_was_seen_counts_even_if_nothing_was_written_at_it() -> None:
    """A refused message leaves no event, yet the lease that was over then must not come back with the clock."""
    lab, granted = leased_job()
    beat = lab.message(attempt.Heartbeat, granted)

    assert lab.after(120).refused(run.TimeOut(id="nobody")).code == "not_found"

    assert lab.after(-60).stale(beat) == "LEASE_EXPIRED"
    lab.do(attempt.Expire(id=ID))
    lab.verified()


@pytest.mark.proves("MOD-4")
def test_a_record_that_was_written_after_the_end_of_its_lease_keeps_that_lease_dead() -> None:
    """The record has seen a later time than the clock shows now, and that time counts."""
    lab, granted = leased_job()
    lab.after(130).do(attempt.Cancel(id=ID, reason="why"))
    late = lab.message(attempt.CancelAck, granted)

    lab.after(-60)

    assert lab.stale(late) == "LEASE_EXPIRED"
    with pytest.raises(StaleLease):
        attempt.decide(lab.attempt("build"), late, lab.now, [])


@pytest.mark.proves("MOD-4")
def test_every_layer_by_itself_withstands_a_clock_that_goes_backwards() -> None:
    """A queue may use the attempt alone, or the lease alone, so neither relies on the other for this."""
    lab = Lab()
    lab.enqueue()
    granted = lab.claim(lab.queued(), ttl_seconds=60)
    record = lab.after(50).send(attempt.Heartbeat, granted)
    assert record.lease is not None
    events: list[Event] = []

    renewed = lease.change(record.lease, lease.Renew, START)
    decided = attempt.decide(record, lab.message(attempt.Heartbeat, granted), START, events)

    assert renewed.expires_at == record.lease.expires_at == START + 110 * SECOND
    assert (decided.updated_at, [event.at for event in events]) == (record.updated_at, [record.updated_at])


@pytest.mark.proves("MOD-4")
def test_nothing_that_a_runner_can_say_is_a_time_that_counts() -> None:
    """A runner whose clock is wrong could otherwise keep a job forever, or lose it at once.

    `sent_at` only orders the progress that is shown; see the tests of heartbeats.
    """
    fields = {"id", "actor", "request_id", "expected_rev", "lease", "tenant"}
    fields |= {"is_success", "exit_code", "result", "report", "facts", "rules", "verdict", "progress"}
    fields |= {"sequence_no", "sent_at"}
    messages = [kind for kind in attempt.MACHINE.commands if issubclass(kind, attempt.LeasedCommand)]

    assert len(messages) == 8
    assert {field for kind in messages for field in kind.__struct_fields__} == fields


@pytest.mark.proves("MOD-4")
@pytest.mark.parametrize("seconds", [60, 61])
def test_the_timeout_is_measured_by_the_store_from_running_on(seconds: int) -> None:
    """Waiting for a runner to start is not the job's fault."""
    lab = Lab().plan(task("build", timeout_seconds=60))
    granted = lab.claim(lab.attempt("build"))
    lab.after(20).send(attempt.Ack, granted)
    lab.after(50).send(attempt.Start, granted)

    assert lab.after(59.9).refused(attempt.TimeOut(id=ID)).code == "not_due"
    lab.after(seconds - 59.9).do(attempt.TimeOut(id=ID))

    assert lab.attempt("build").state == attempt.TIMED_OUT


@pytest.mark.proves("MOD-4")
def test_what_a_runner_says_about_time_is_recorded_and_nothing_relies_on_it() -> None:
    """Its clock may be years off; its report is kept as it was given, and the store's clock dates the end."""
    lab, granted = leased_job()
    timings = {"timings": {"started_at": "2001-01-01T00:00:00Z", "finished_at": "2051-01-01T00:00:00Z"}}

    ended = lab.after(7).complete(granted, report=timings)

    assert ended.report == timings
    assert (ended.started_at, ended.updated_at, lab.job("build").completed_at) == (START, lab.now, lab.now)
    lab.verified()


# -- 5: lost leases


@pytest.mark.proves("MOD-5")
def test_more_than_three_lost_leases_fail_the_attempt_as_lease_lost() -> None:
    """A job that kills every worker must stop, as a failure of the infrastructure that is worth a retry."""
    lab = Lab().plan(task("build", max_attempts=2))
    for number in range(4):
        assert lab.attempt("build").state == attempt.QUEUED
        lab.claim(lab.attempt("build"), by=f"w{number}")
        lab.after(120).do(attempt.Expire(id=ID))

    error = lab.attempt("build").error

    assert lab.attempt("build").state == attempt.FAILED
    assert error is not None
    assert (error.code, error.failure_class, error.is_retryable) == ("LEASE_LOST", "INFRA", True)
    assert lab.job("build").state == job.RETRYING
    lab.verified()


@pytest.mark.proves("MOD-5")
def test_a_worker_whose_lease_is_revoked_keeps_others_out_until_it_would_have_ended() -> None:
    """It may still be at work: two workers that respect their leases never run an attempt together."""
    lab = Lab().plan(task("build"))
    lab.register("w1")
    granted = lab.claim(lab.attempt("build"), by="w1")
    lab.send(attempt.Heartbeat, granted)

    revoke(lab.after(90))

    assert lab.stale(lab.message(attempt.Heartbeat, granted)) == "LEASE_REVOKED"
    assert (lab.attempt("build").state, lab.job("build").state) == (attempt.STALE, job.RUNNING)
    assert ready_at(lab.attempt("build")) == START + 120 * SECOND
    again = attempt.Grant(id=ID, actor="worker:w2", fingerprint="f" * 32)
    assert lab.after(29.9).refused(again).code == "not_due"
    lab.after(0.1).do(again)
    assert lab.job("build").worker_id == "w2"
    lab.verified()


@pytest.mark.proves("MOD-5")
def test_the_retry_after_a_timeout_waits_until_the_old_lease_would_have_ended() -> None:
    """The runner that exceeded its time may not know it yet."""
    lab, _ = leased_job(timeout_seconds=60, max_attempts=2, base_delay_seconds=1)

    lab.after(60).do(attempt.TimeOut(id=ID))

    assert lab.job("build").next_run_at == START + 120 * SECOND
    assert lab.after(59.9).refused(job.RetryDue(id="r1/build")).code == "not_due"
    lab.after(0.1).do(job.RetryDue(id="r1/build"))
    lab.verified()


@pytest.mark.proves("MOD-5")
@pytest.mark.parametrize("change", [{"lost_leases": 2}, {"reason": "NOT_ACCEPTED"}])
def test_the_verifier_counts_lost_leases_itself(change: dict[str, Any]) -> None:
    """A log that counts wrongly would never give up, or give up too early."""
    lab, _ = leased_job()
    lab.after(120).do(attempt.Expire(id=ID))
    number = line_of(lab, ID, attempt.STALE)

    assert "MOD-5" in altered(lab.canonical(), lambda log: log[number]["metadata"].update(change))
