"""The rules of docs/spec/runner-protocol.md about what messages do to a lease, stale leases, defaults and failures."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from deltaci.core import attempt, job, lease, run
from deltaci.core.attempt import LeasedCommand
from deltaci.core.decide import CancelJob
from deltaci.core.instants import SECOND
from tests.spec.logs import altered, decoded, line_of
from tests.spec.scenes import ID, MICROSECOND, leased_job, live, revoke
from tests.support.lab import Lab, Lease


def complete(lab: Lab, granted: Lease, *, ok: bool = True) -> LeasedCommand:
    """A completion that was not sent yet."""
    return lab.message(attempt.Complete, granted, is_success=ok, exit_code=0 if ok else 1)


def broken(lab: Lab, to: str, field: str, value: Any) -> set[str]:
    """The rules that the verifier finds broken once what this step of the attempt says of its lease is changed."""
    number = line_of(lab, ID, to)
    assert decoded(lab.canonical())[number]["metadata"]["lease"][field] != value
    return altered(lab.canonical(), lambda log: log[number]["metadata"]["lease"].update({field: value}))


# -- acknowledge


@pytest.mark.proves("PRO-Q3")
def test_the_acknowledgement_makes_the_job_active_under_this_lease() -> None:
    """From now on the runner must send heartbeats, and the lease cannot be revoked as unaccepted."""
    lab, granted = leased_job(attempt.LEASED)
    assert live(lab).state == lease.GRANTED

    lab.send(attempt.Ack, granted)
    refusal = lab.after(lease.ACCEPT_SECONDS).refused(attempt.RevokeUnaccepted(id=ID))

    assert (lab.attempt("build").state, live(lab).state) == (attempt.STARTING, lease.ACTIVE)
    assert live(lab).fingerprint == granted.ref.fingerprint
    assert refusal.code == "wrong_state"
    lab.verified()


@pytest.mark.proves("PRO-Q4", "PRO-D3")
def test_an_unacknowledged_lease_is_revoked_after_the_accept_window() -> None:
    """A runner that never accepted the job must not keep it for a whole TTL."""
    lab, granted = leased_job(attempt.LEASED)
    early = lab.after(30 - MICROSECOND).refused(attempt.RevokeUnaccepted(id=ID))

    lab.after(MICROSECOND).do(attempt.RevokeUnaccepted(id=ID))

    assert (early.code, lease.ACCEPT_SECONDS) == ("not_due", 30)
    assert lab.steps(ID)[-3:] == [attempt.LEASED, attempt.STALE, attempt.QUEUED]
    assert lab.stale(lab.message(attempt.Ack, granted)) == "LEASE_REVOKED"
    lab.verified()
    assert "PRO-Q4" in broken(lab, attempt.LEASED, "accept_by", "2026-01-04T08:01:00.000000Z")


# -- heartbeat


@pytest.mark.proves("PRO-Q5", "PRO-D1")
@pytest.mark.parametrize("state", [*attempt.ACTIVE_STATES, attempt.CANCEL_REQUESTED])
def test_every_heartbeat_under_a_valid_lease_renews_it(state: str) -> None:
    """Liveness is all that a heartbeat proves, so it counts in every state, even while stopping."""
    lab, granted = leased_job(attempt.RUNNING if state == attempt.CANCEL_REQUESTED else state)
    if state == attempt.CANCEL_REQUESTED:
        lab.cancel_run()

    for _ in range(3):
        lab.after(119).send(attempt.Heartbeat, granted)
        assert live(lab).expires_at == lab.now + 120 * SECOND

    assert live(lab).ttl_seconds == lease.TTL_SECONDS == 120
    lab.verified()


@pytest.mark.proves("PRO-Q5")
def test_the_verifier_finds_a_heartbeat_that_renewed_for_another_time() -> None:
    """A lease that lasts longer or shorter than it says is a fence with a hole."""
    lab, granted = leased_job(attempt.STARTING)
    lab.after(1).send(attempt.Heartbeat, granted)
    lab.verified()

    assert "PRO-Q5" in broken(lab, attempt.RUNNING, "expires_at", "2026-01-04T09:00:00.000000Z")


@pytest.mark.proves("PRO-Q6")
@pytest.mark.parametrize("is_found", [False, True])
def test_a_heartbeat_under_an_expired_lease_is_stale_and_renews_nothing(is_found: bool) -> None:
    """It does not matter whether the orchestrator has noticed the expiry yet."""
    lab, granted = leased_job()
    expires_at = live(lab).expires_at
    lab.after(120)
    if is_found:
        lab.do(attempt.Expire(id=ID))

    reason = lab.stale(lab.message(attempt.Heartbeat, granted))

    assert reason == "LEASE_EXPIRED"
    if not is_found:
        lab.do(attempt.Expire(id=ID))
    ended = lab.attempt("build").ended_lease
    assert ended is not None
    assert (ended.state, ended.expires_at) == (lease.EXPIRED, expires_at)
    assert lab.after(-60).stale(lab.message(attempt.Heartbeat, granted)) == "LEASE_EXPIRED"


# -- complete


@pytest.mark.proves("PRO-H2")
def test_a_complete_after_expiry_is_rejected_to_the_microsecond() -> None:
    """One instant belongs to the runner or to the orchestrator, and never to both."""
    (on_time, first), (too_late, second) = leased_job(), leased_job()

    on_time.after(lease.TTL_SECONDS - MICROSECOND).complete(first)
    reason = too_late.after(lease.TTL_SECONDS).stale(complete(too_late, second))

    assert on_time.attempt("build").state == attempt.SUCCEEDED
    assert reason == "LEASE_EXPIRED"
    assert too_late.do(attempt.Expire(id=ID)).events


@pytest.mark.proves("PRO-H2")
def test_the_verifier_finds_a_complete_under_an_expired_lease() -> None:
    """A log must not contain what the orchestrator should have rejected."""
    lab, granted = leased_job(attempt.STARTING)
    lab.after(1).send(attempt.Start, granted)
    lab.after(60).complete(granted)
    lab.verified()

    assert "PRO-H2" in broken(lab, attempt.RUNNING, "expires_at", "2026-01-04T08:00:30.000000Z")


@pytest.mark.proves("PRO-Q7")
@pytest.mark.parametrize("ok", [True, False])
def test_an_accepted_complete_finalizes_the_attempt_in_the_same_decision(ok: bool) -> None:
    """The response is reliable: attempt, job and run have their final states."""
    lab, granted = leased_job()

    decision = lab.do(complete(lab, granted, ok=ok))

    assert lab.attempt("build").state == (attempt.SUCCEEDED if ok else attempt.FAILED)
    assert attempt.complete_answer(lab.attempt("build")) == (True, "")
    assert lab.job("build").state == (job.SUCCEEDED if ok else job.FAILED)
    assert lab.run().state == (run.SUCCESS if ok else run.FAILED)
    assert {event.at for event in decision.events} == {lab.now}
    assert lab.stale(complete(lab, granted, ok=not ok)) == "LEASE_COMPLETED"
    lab.verified()


# -- cancel


@pytest.mark.proves("PRO-Q10", "PRO-D4")
def test_once_the_deadline_has_passed_the_job_is_canceled_without_an_acknowledgement() -> None:
    """A runner has 30 seconds for a graceful stop."""
    lab, _ = leased_job()
    lab.do(CancelJob(id="r1/build", actor="user:ada"))
    early = lab.after(30 - MICROSECOND).refused(attempt.ForceCancel(id=ID))

    lab.after(MICROSECOND).do(attempt.ForceCancel(id=ID))

    assert (early.code, lease.CANCEL_SECONDS) == ("not_due", 30)
    assert (lab.attempt("build").state, lab.job("build").state) == (attempt.CANCELED, job.CANCELED)
    lab.verified()


@pytest.mark.proves("PRO-Q11")
@pytest.mark.parametrize("state", attempt.ACTIVE_STATES)
def test_an_unrequested_cancel_ack_is_refused(state: str) -> None:
    """A runner that gives up must report a failure; it cannot cancel."""
    lab, granted = leased_job(state)

    refusal = lab.refused(lab.message(attempt.CancelAck, granted))

    assert refusal.code == "cancel_not_requested"


@pytest.mark.proves("PRO-Q11")
def test_a_cancel_ack_counts_only_while_its_lease_is_valid() -> None:
    """A runner that comes back after its lease has ended cannot prove anything about the attempt."""
    lab, granted = leased_job()
    lab.after(110).cancel_run()

    asked = lab.attempt("build").state
    reason = lab.after(10).stale(lab.message(attempt.CancelAck, granted))

    assert (asked, reason) == (attempt.CANCEL_REQUESTED, "LEASE_EXPIRED")
    lab.do(attempt.Expire(id=ID))
    assert lab.attempt("build").state == attempt.CANCELED
    lab.verified()


@pytest.mark.proves("PRO-Q12")
@pytest.mark.parametrize("ok", [True, False])
def test_a_cancel_ack_for_a_completed_job_is_stale(ok: bool) -> None:
    """The result came first and stands."""
    lab, granted = leased_job()
    lab.complete(granted, ok=ok)

    assert lab.stale(lab.message(attempt.CancelAck, granted)) == "LEASE_COMPLETED"
    assert lab.attempt("build").state == (attempt.SUCCEEDED if ok else attempt.FAILED)


# -- stale leases


def make_stale(lab: Lab, cause: str) -> None:
    """End the lease of worker w1."""
    if cause == "expired":
        lab.after(lease.TTL_SECONDS)
    elif cause == "revoked":
        revoke(lab)
    else:
        lab.do(attempt.Stall(id=ID))
        lab.send(attempt.Ack, lab.after(lease.TTL_SECONDS).claim(lab.attempt("build"), by="w2"))
        if cause == "replaced twice":
            lab.do(attempt.Stall(id=ID))
            lab.after(lease.TTL_SECONDS).claim(lab.attempt("build"), by="w3")


@pytest.mark.proves("PRO-S1", "PRO-S2", "PRO-S3", "PRO-S4", "PRO-S5")
@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ("expired", "LEASE_EXPIRED"),
        ("revoked", "LEASE_REVOKED"),
        ("replaced", "LEASE_REVOKED"),
        ("replaced twice", "LEASE_REPLACED"),
    ],
)
@pytest.mark.parametrize("kind", ["heartbeat", "success", "failure"])
def test_a_message_under_a_stale_lease_changes_nothing_and_gets_the_reason(cause: str, reason: str, kind: str) -> None:
    """Its runner must stop, and its log should have the reason."""
    lab, granted = leased_job()
    make_stale(lab, cause)
    beat = lab.message(attempt.Heartbeat, granted)

    told = lab.stale(beat if kind == "heartbeat" else complete(lab, granted, ok=kind == "success"))

    assert told == reason
    assert lab.attempt("build").state not in attempt.TERMINAL
    assert lab.job("build").state == job.RUNNING


@pytest.mark.proves("PRO-S4", "PRO-F2")
@pytest.mark.parametrize("ok", [True, False])
def test_what_a_partitioned_runner_completes_is_rejected_and_the_final_state_stays(ok: bool) -> None:
    """It may go on working behind the partition; its successor's result is the one that counts."""
    lab, cut_off = leased_job()
    lab.after(lease.TTL_SECONDS).do(attempt.Expire(id=ID))
    lab.complete(lab.claim(lab.attempt("build"), by="w2"), ok=ok)
    before = lab.attempt("build"), lab.job("build"), lab.run()

    reason = lab.stale(complete(lab, cut_off, ok=not ok))

    assert reason == "LEASE_REPLACED"
    assert (lab.attempt("build"), lab.job("build"), lab.run()) == before
    lab.verified()


@pytest.mark.proves("PRO-F2")
def test_a_partition_that_ends_within_the_ttl_costs_nothing() -> None:
    """The lease may expire, and until it does the runner is still the owner."""
    lab, granted = leased_job()

    lab.after(lease.TTL_SECONDS - 1).send(attempt.Heartbeat, granted)
    lab.after(lease.TTL_SECONDS - 1).complete(granted)

    assert (lab.attempt("build").state, lab.attempt("build").lost_leases) == (attempt.SUCCEEDED, 0)
    lab.verified()


@pytest.mark.proves("PRO-F1")
@pytest.mark.parametrize("state", attempt.ACTIVE_STATES)
def test_the_job_of_a_crashed_runner_is_queued_again_and_can_be_leased(state: str) -> None:
    """Heartbeats stop, the lease expires, and another runner ends what the first began."""
    lab, _ = leased_job(state)
    early = lab.refused(attempt.Grant(id=ID, actor="worker:w2", fingerprint="f"))

    lab.after(lease.TTL_SECONDS).do(attempt.Expire(id=ID))
    queued = lab.attempt("build").state
    lab.complete(lab.claim(lab.attempt("build"), by="w2"))

    assert (early.code, queued) == ("wrong_state", attempt.QUEUED)
    assert (lab.attempt("build").claims, lab.job("build").attempts) == (2, 1)
    assert lab.run().state == run.SUCCESS
    lab.verified()


# -- retries and secrets


@pytest.mark.proves("PRO-Y3")
def test_a_retry_is_a_new_attempt_under_a_new_lease_and_the_old_one_opens_nothing() -> None:
    """A lease names its attempt, so what was good for the first says nothing about the second."""
    lab, old = leased_job(max_attempts=2)
    lab.fail(old)
    lab.after(600).do(job.RetryDue(id="r1/build"))
    new = lab.claim(lab.attempt("build"), by="w1")

    forged = attempt.Heartbeat(id="r1/build.2", actor=old.actor, lease=old.ref)
    reason = lab.stale(forged)
    lab.complete(new)

    assert reason == "UNKNOWN_LEASE"
    assert (old.ref.attempt_id, new.ref.attempt_id) == (ID, "r1/build.2")
    assert [lab.attempt("build", index).state for index in (1, 2)] == [attempt.FAILED, attempt.SUCCEEDED]
    lab.verified()


@pytest.mark.proves("PRO-X1")
def test_no_record_no_event_and_no_export_shows_a_lease_id() -> None:
    """A lease id is enough to act for the attempt, so that the store keeps a hash and the log not even that."""
    lab, first = leased_job(max_attempts=2)
    lab.fail(first)
    lab.after(600).do(job.RetryDue(id="r1/build"))
    second = lab.claim(lab.attempt("build"))
    lab.cancel_run()

    log = b"".join([*lab.canonical(), *lab.transitions(), *lab.job_events(), msgspec.json.encode(lab.log)])
    records = msgspec.json.encode(list(lab.unit.records.values()))

    for granted in (first, second):
        secret = granted.token.rpartition(".")[2].encode()
        assert secret not in log
        assert secret not in records
        assert granted.ref.fingerprint.encode() not in log
        assert granted.ref.fingerprint.encode() in records


@pytest.mark.proves("PRO-X1")
def test_a_stale_answer_does_not_repeat_the_lease_id() -> None:
    """A refusal ends up in logs, and the token of one that was only late may still be worth something."""
    lab, granted = leased_job()
    refusals = [lab.refused(lab.message(attempt.CancelAck, granted))]
    refusals += [lab.refused(lab.message(attempt.Heartbeat, Lease("w2", granted.token)))]
    refusals += [lab.after(lease.TTL_SECONDS).refused(lab.message(attempt.Heartbeat, granted))]

    said = " ".join(str(refusal) for refusal in refusals)

    assert granted.token.rpartition(".")[2] not in said
    assert granted.ref.fingerprint not in said
