"""The rules of docs/spec/orchestration.md about attempts, their leases and the fence."""

from __future__ import annotations

import pytest

from deltaci.core import attempt, ids, job, lease, run, worker
from deltaci.core.attempt import Attempt, LeasedCommand
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import CancelJob
from deltaci.core.events import ORCHESTRATOR
from deltaci.core.instants import SECOND
from deltaci.core.machine import Command
from tests.spec.scenes import ID, MESSAGES, MICROSECOND, leased_job, revoke
from tests.support.lab import Lab, Lease, task

# What a runner says, one message after another, until its attempt is in this state.
ENDS = (attempt.SUCCEEDED, attempt.FAILED, attempt.CANCELED, attempt.TIMED_OUT)


def ended(state: str) -> tuple[Lab, Lease]:
    """The same, its attempt over."""
    lab, granted = leased_job(attempt.RUNNING)
    if state == attempt.CANCELED:
        lab.cancel_run()
        lab.send(attempt.CancelAck, granted)
    elif state == attempt.TIMED_OUT:
        lab.after(attempt.TIMEOUT_SECONDS).do(attempt.TimeOut(id=ID))
    else:
        lab.complete(granted, ok=state == attempt.SUCCEEDED)
    assert lab.attempt("build").state == state
    return lab, granted


def lease_steps(lab: Lab, id: str = ID) -> list[str]:
    """The states that the leases of an attempt went through, renewals left out."""
    changes = [event.metadata["lease"] for event in lab.log if event.entity_id == id and "lease" in event.metadata]
    return [each["to"] for each in changes if each["from"] != each["to"]]


# -- from CREATED to an end


@pytest.mark.proves("ORC-A1")
def test_there_is_no_attempt_before_its_job_is_queued_and_never_the_same_one_twice() -> None:
    """A runner must not find work whose dependencies are open."""
    lab = Lab().plan(task("build"), task("test", "build"))

    early = lab.refused(attempt.Grant(id="r1/test.1", actor="worker:w1", fingerprint="f"))
    again = lab.refused(NewRecord(id=ID, record=Attempt(id=ID)))

    assert (early.code, again.code) == ("not_found", "bad_request")


@pytest.mark.proves("ORC-A1")
def test_an_attempt_is_created_by_being_published() -> None:
    """An attempt that no worker can claim would be a job that is never done."""
    lab = Lab().plan(task("build", queue_key="linux", timeout_seconds=77))

    born = lab.last(ID)
    assert (born.from_, born.to, born.trigger, born.actor) == ("CREATED", "QUEUED", "enqueued", ORCHESTRATOR)
    assert (born.rev, born.metadata["job_id"], born.metadata["index"]) == (1, "r1/build", 1)
    assert (lab.attempt("build").queue_key, lab.attempt("build").timeout_seconds) == ("linux", 77)
    lab.verified()


@pytest.mark.proves("ORC-A2", "ORC-LF1")
@pytest.mark.parametrize("state", attempt.ACTIVE_STATES)
def test_a_leased_attempt_is_not_granted_again(state: str) -> None:
    """With two live leases, two runners could finish the same attempt."""
    lab, granted = leased_job(state)
    before = lab.attempt("build").lease

    refusal = lab.refused(attempt.Grant(id=ID, actor="worker:w2", fingerprint="f"))

    assert refusal.code == "wrong_state"
    assert lab.attempt("build").lease == before
    assert before is not None
    assert before.fingerprint == granted.ref.fingerprint


@pytest.mark.proves("ORC-A2")
def test_only_a_runner_is_granted_a_queued_attempt() -> None:
    """A grant makes a lease that names its runner, and starts the job and the run."""
    lab = Lab().plan(task("build"))

    refusal = lab.refused(attempt.Grant(id=ID, actor="user:eve", fingerprint="f"))
    granted = lab.claim(lab.attempt("build"), by="w7")

    assert refusal.code == "wrong_actor"
    assert lab.steps(ID)[-2:] == [attempt.QUEUED, attempt.LEASED]
    live = lab.attempt("build").lease
    assert live is not None
    assert (live.state, live.worker_id, live.fingerprint) == (lease.GRANTED, "w7", granted.ref.fingerprint)
    assert (lab.job("build").state, lab.run().state) == (job.RUNNING, run.RUNNING)
    lab.verified()


@pytest.mark.proves("ORC-A3", "ORC-L1")
def test_ack_lease_starts_the_attempt_and_activates_the_lease() -> None:
    """Only the runner that was given the lease can take the job."""
    lab, granted = leased_job(attempt.LEASED)
    other = Lease("w2", granted.token)

    reason = lab.stale(lab.message(attempt.Ack, other))
    lab.send(attempt.Ack, granted)

    assert reason == "UNKNOWN_LEASE"
    assert lab.steps(ID)[-2:] == [attempt.LEASED, attempt.STARTING]
    assert lease_steps(lab) == [lease.GRANTED, lease.ACTIVE]
    lab.verified()


@pytest.mark.proves("ORC-A4")
@pytest.mark.parametrize("message", [attempt.Heartbeat, attempt.Start])
def test_the_first_heartbeat_or_an_explicit_report_means_that_it_runs(message: type[LeasedCommand]) -> None:
    """The job's time runs from here, so a runner's first sign of life must not be missed."""
    lab, granted = leased_job(attempt.STARTING)

    lab.after(7).send(message, granted)

    assert lab.steps(ID)[-2:] == [attempt.STARTING, attempt.RUNNING]
    assert lab.attempt("build").started_at == lab.now
    assert lab.last(ID).actor == "worker:w1"
    lab.verified()


@pytest.mark.proves("ORC-A5")
def test_only_the_runner_can_begin_the_upload() -> None:
    """Only the runner knows when its steps are over."""
    lab, granted = leased_job(attempt.RUNNING)

    refusal = lab.refused(attempt.BeginUpload(id=ID, actor="user:w1", lease=granted.ref))
    lab.send(attempt.BeginUpload, granted)

    assert refusal.code == "wrong_actor"
    assert lab.steps(ID)[-2:] == [attempt.RUNNING, attempt.UPLOADING]
    lab.verified()


@pytest.mark.proves("ORC-A5", "ORC-A6", "ORC-O2")
@pytest.mark.parametrize("state", attempt.ACTIVE_STATES)
@pytest.mark.parametrize("ok", [True, False])
def test_an_accepted_complete_ends_the_attempt_after_any_reports(state: str, ok: bool) -> None:
    """Progress is best effort: the record of a silent runner ends like any other."""
    lab, granted = leased_job(state)

    lab.complete(granted, ok=ok)

    end = attempt.SUCCEEDED if ok else attempt.FAILED
    through = [attempt.QUEUED, attempt.LEASED, attempt.STARTING, attempt.RUNNING, attempt.UPLOADING, end]
    assert lab.steps(ID) == ["CREATED", *through]
    assert lab.job("build").state == (job.SUCCEEDED if ok else job.FAILED)
    lab.verified()


@pytest.mark.proves("ORC-A6")
def test_a_complete_is_accepted_only_from_the_runner_and_only_if_consistent() -> None:
    """A result must come from the runner that executed the attempt, and a success has exit code 0."""
    lab, granted = leased_job(attempt.UPLOADING)

    forged = lab.refused(attempt.Complete(id=ID, actor="user:w1", lease=granted.ref, is_success=True, exit_code=0))
    absurd = lab.refused(lab.message(attempt.Complete, granted, is_success=True, exit_code=3))
    unproved = lab.refused(lab.message(attempt.Complete, granted, is_success=True))

    assert (forged.code, absurd.code, unproved.code) == ("wrong_actor", "bad_request", "bad_request")


# -- lost, timed out, canceled


@pytest.mark.proves("ORC-A7", "ORC-L2", "ORC-T1")
@pytest.mark.parametrize("state", attempt.ACTIVE_STATES)
def test_a_lease_does_not_expire_before_its_ttl(state: str) -> None:
    """A runner that is only slow must not lose what it was promised."""
    lab, _ = leased_job(state)

    refusal = lab.after(lease.TTL_SECONDS - MICROSECOND).refused(attempt.Expire(id=ID))

    assert refusal.code == "not_due"


@pytest.mark.proves("ORC-A7", "ORC-L2", "ORC-T1")
@pytest.mark.parametrize("state", attempt.ACTIVE_STATES)
def test_a_lost_lease_queues_the_attempt_again(state: str) -> None:
    """A runner that died must not take its job with it; the job goes on under a new lease."""
    lab, _ = leased_job(state)

    lab.after(lease.TTL_SECONDS).do(attempt.Expire(id=ID))
    queued = lab.attempt("build")
    lab.claim(queued, by="w2")

    assert lab.steps(ID)[-4:] == [state, attempt.STALE, attempt.QUEUED, attempt.LEASED]
    before = lease.GRANTED if state == attempt.LEASED else lease.ACTIVE
    assert lease_steps(lab)[-3:] == [before, lease.EXPIRED, lease.GRANTED]
    assert (queued.lease, queued.lost_leases, lab.attempt("build").claims) == (None, 1, 2)
    assert (lab.job("build").state, lab.job("build").attempts) == (job.RUNNING, 1)
    lab.verified()


@pytest.mark.proves("ORC-A7", "ORC-O3")
def test_a_lost_attempt_is_tried_again_only_while_that_is_allowed() -> None:
    """A job that kills every runner must not go round for ever."""
    lab, _ = leased_job(attempt.LEASED)
    lab.after(lease.TTL_SECONDS).do(attempt.Expire(id=ID))

    for number in range(attempt.MAX_LOST_LEASES):
        lab.register(f"v{number}")
        lab.claim(lab.attempt("build"), by=f"v{number}")
        lab.after(lease.TTL_SECONDS).do(attempt.Expire(id=ID))

    assert lab.steps(ID)[-2:] == [attempt.STALE, attempt.FAILED]
    error = lab.attempt("build").error
    assert error is not None
    assert (error.code, error.is_retryable) == ("LEASE_LOST", True)
    assert lab.job("build").state == job.FAILED
    lab.verified()


@pytest.mark.proves("ORC-A8", "ORC-T2")
@pytest.mark.parametrize("state", [attempt.RUNNING, attempt.UPLOADING])
def test_an_attempt_does_not_time_out_early(state: str) -> None:
    """The job's time is set by its plan and runs from the moment it runs."""
    lab, granted = leased_job(attempt.STARTING, timeout_seconds=50)

    waiting = lab.after(60).refused(attempt.TimeOut(id=ID))
    for message in MESSAGES[state][1:]:
        lab.send(message, granted)
    early = lab.after(50 - MICROSECOND).refused(attempt.TimeOut(id=ID))

    assert (waiting.code, early.code) == ("wrong_state", "not_due")


@pytest.mark.proves("ORC-A8", "ORC-T2", "ORC-L5")
def test_an_attempt_that_exceeds_the_jobs_timeout_is_timed_out_and_its_lease_revoked() -> None:
    """Heartbeats prove that a runner lives, not that its job will ever end."""
    lab, granted = leased_job(attempt.RUNNING, timeout_seconds=50)
    lab.after(49).send(attempt.Heartbeat, granted)

    lab.after(1).do(attempt.TimeOut(id=ID))

    assert lab.steps(ID)[-2:] == [attempt.RUNNING, attempt.TIMED_OUT]
    assert lease_steps(lab) == [lease.GRANTED, lease.ACTIVE, lease.REVOKED]
    assert lab.stale(lab.message(attempt.Complete, granted, is_success=True, exit_code=0)) == "LEASE_REVOKED"
    assert lab.job("build").state == job.FAILED
    lab.verified()


@pytest.mark.proves("ORC-A9")
@pytest.mark.parametrize("state", [attempt.QUEUED, *attempt.ACTIVE_STATES])
@pytest.mark.parametrize("command", [run.Cancel(id="r1", actor="user:ada"), CancelJob(id="r1/build", actor="user:ada")])
def test_a_cancel_of_the_run_or_of_the_job_reaches_an_attempt_in_every_live_state(state: str, command: Command) -> None:
    """A person who cancels need not know how far the job is."""
    lab = Lab().plan(task("build")) if state == attempt.QUEUED else leased_job(state)[0]

    lab.do(command)

    asked = next(event for event in lab.log if event.entity_id == ID and event.to == attempt.CANCEL_REQUESTED)
    assert (asked.from_, asked.actor) == (state, "user:ada")
    assert asked.metadata["cancel_by"] == lab.now + lease.CANCEL_SECONDS * SECOND
    lab.verified()


@pytest.mark.proves("ORC-A10", "ORC-L4")
def test_a_cancel_is_not_finalized_before_it_was_requested_nor_before_its_deadline() -> None:
    """A runner that still has time to stop may still be writing what it has."""
    lab, granted = leased_job(attempt.RUNNING)

    unasked = lab.refused(lab.message(attempt.CancelAck, granted))
    unforced = lab.refused(attempt.ForceCancel(id=ID))
    lab.cancel_run()
    early = lab.after(lease.CANCEL_SECONDS - MICROSECOND).refused(attempt.ForceCancel(id=ID))

    assert (unasked.code, unforced.code, early.code) == ("cancel_not_requested", "wrong_state", "not_due")
    assert lab.attempt("build").state == attempt.CANCEL_REQUESTED


@pytest.mark.proves("ORC-A10", "ORC-C2", "ORC-L4")
@pytest.mark.parametrize("state", attempt.ACTIVE_STATES)
def test_cancel_ack_finalizes_a_requested_cancel(state: str) -> None:
    """The runner itself proves that nothing runs any more, so its lease ends well."""
    lab, granted = leased_job(state)
    lab.cancel_run()

    lab.send(attempt.CancelAck, granted)

    assert lab.steps(ID)[-2:] == [attempt.CANCEL_REQUESTED, attempt.CANCELED]
    assert lease_steps(lab) == [lease.GRANTED, lease.ACTIVE, lease.CANCELED]
    assert (lab.job("build").state, lab.run().state) == (job.CANCELED, run.CANCELED)
    lab.verified()


@pytest.mark.proves("ORC-A12")
@pytest.mark.parametrize("state", ENDS)
def test_no_transition_leaves_the_end_of_an_attempt(state: str) -> None:
    """A retry is a new attempt, so an ended one stays what it was, timed out or not."""
    lab, granted = ended(state)

    commands: tuple[Command, ...] = (
        attempt.Grant(id=ID, actor="worker:w2", fingerprint="f"),
        attempt.Expire(id=ID),
        attempt.RevokeUnaccepted(id=ID),
        attempt.Stall(id=ID),
        attempt.Requeue(id=ID),
        attempt.TimeOut(id=ID),
        attempt.Cancel(id=ID, reason="LATE"),
        attempt.ForceCancel(id=ID),
    )
    codes = {lab.after(9999).refused(command).code for command in commands}
    says = (attempt.Ack, attempt.Start, attempt.Extend, attempt.Heartbeat, attempt.BeginUpload)
    codes |= {lab.refused(lab.message(message, granted)).code for message in says}

    assert codes == {"wrong_state", "stale_lease"}
    assert state in attempt.TERMINAL
    assert lab.attempt("build").state == state


# -- leases and the fence


@pytest.mark.proves("ORC-L3")
def test_an_accepted_complete_completes_an_active_lease() -> None:
    """The lease ends with the result, so that its runner is free and its token worthless."""
    lab, granted = leased_job(attempt.RUNNING)

    lab.complete(granted)

    assert lease_steps(lab) == [lease.GRANTED, lease.ACTIVE, lease.COMPLETED]
    assert lab.worker_record("w1").state == worker.IDLE
    assert lab.stale(lab.message(attempt.Heartbeat, granted)) == "LEASE_COMPLETED"
    lab.verified()


@pytest.mark.proves("ORC-L5")
@pytest.mark.parametrize("actor", ["worker:w1", "worker:w2"])
def test_a_runner_cannot_revoke_a_lease(actor: str) -> None:
    """Taking the right back is for the orchestrator alone."""
    lab, _ = leased_job(attempt.LEASED)

    refusals = [
        lab.refused(command)
        for command in (attempt.RevokeUnaccepted(id=ID, actor=actor), attempt.Stall(id=ID, actor=actor))
    ]

    assert {refusal.code for refusal in refusals} == {"wrong_actor"}


@pytest.mark.proves("ORC-L5")
@pytest.mark.parametrize("state", attempt.ACTIVE_STATES)
def test_an_operator_revokes_the_lease_of_an_untrusted_worker(state: str) -> None:
    """Whether the lease was acknowledged or not, its runner must not finish the attempt any more."""
    lab, granted = leased_job(state)

    revoke(lab)

    before = lease.GRANTED if state == attempt.LEASED else lease.ACTIVE
    assert lease_steps(lab)[-2:] == [before, lease.REVOKED]
    assert lab.stale(lab.message(attempt.Complete, granted, is_success=True, exit_code=0)) == "LEASE_REVOKED"
    lab.verified()


@pytest.mark.proves("ORC-LF1")
def test_one_attempt_has_one_live_lease_however_often_it_is_lost() -> None:
    """A new lease is granted only after the old one ended, and the log shows it."""
    lab, _ = leased_job(attempt.RUNNING)

    for name in ("w2", "w3"):
        lab.after(lease.TTL_SECONDS).do(attempt.Expire(id=ID))
        lab.send(attempt.Ack, lab.claim(lab.attempt("build"), by=name))

    life = [lease.GRANTED, lease.ACTIVE, lease.EXPIRED]
    assert lease_steps(lab) == [*life, *life, *life[:2]]
    numbers = [e.metadata["lease"]["number"] for e in lab.log if e.metadata.get("lease", {}).get("to") == "GRANTED"]
    assert numbers == [1, 2, 3]
    lab.verified()


@pytest.mark.proves("ORC-LF2")
@pytest.mark.parametrize("message", [attempt.Complete, attempt.CancelAck])
@pytest.mark.parametrize("end", ["expired", "revoked", "replaced", "forged"])
def test_complete_and_cancel_ack_count_only_under_the_active_lease(message: type[LeasedCommand], end: str) -> None:
    """Only the current owner knows the state of the attempt."""
    lab, granted = leased_job(attempt.RUNNING)
    if end == "forged":
        granted = Lease("w1", ids.lease_id(ID, 1, "another-secret-of-16"))
    elif end == "expired":
        lab.after(lease.TTL_SECONDS)
    else:
        revoke(lab)
    if end == "replaced":
        lab.after(lease.TTL_SECONDS).claim(lab.attempt("build"), by="w2")
    fields = {"is_success": True, "exit_code": 0} if message is attempt.Complete else {}

    reason = lab.stale(lab.message(message, granted, **fields))

    wanted = {"expired": "LEASE_EXPIRED", "forged": "UNKNOWN_LEASE"}
    assert reason == wanted.get(end, "LEASE_REVOKED")


@pytest.mark.proves("ORC-LF3", "ORC-LF2")
@pytest.mark.parametrize("ok", [True, False])
def test_a_zombie_cannot_complete_its_successors_attempt(ok: bool) -> None:
    """A runner that slept past its lease must not touch the result of the next one."""
    lab, old = leased_job(attempt.RUNNING)
    lab.after(lease.TTL_SECONDS).do(attempt.Expire(id=ID))
    new = lab.claim(lab.attempt("build"), by="w2")

    during = lab.stale(lab.message(attempt.Complete, old, is_success=not ok))
    lab.complete(new, ok=ok)
    afterwards = lab.stale(lab.message(attempt.Complete, old, is_success=not ok))

    assert (during, afterwards) == ("LEASE_EXPIRED", "LEASE_REPLACED")
    assert lab.attempt("build").state == (attempt.SUCCEEDED if ok else attempt.FAILED)
    assert lab.job("build").state == (job.SUCCEEDED if ok else job.FAILED)
    lab.verified()


@pytest.mark.proves("ORC-LF3")
@pytest.mark.parametrize("state", [lease.EXPIRED, lease.REVOKED])
@pytest.mark.parametrize(
    "message",
    [attempt.Ack, attempt.Start, attempt.Extend, attempt.Heartbeat, attempt.BeginUpload, attempt.CancelAck],
)
def test_any_message_under_an_expired_or_revoked_lease_is_stale(state: str, message: type[LeasedCommand]) -> None:
    """An ended lease stays ended."""
    lab, granted = leased_job(attempt.RUNNING)
    if state == lease.EXPIRED:
        lab.after(lease.TTL_SECONDS).do(attempt.Expire(id=ID))
    else:
        revoke(lab)

    assert lab.stale(lab.message(message, granted)) == f"LEASE_{state}"
    assert lab.attempt("build").state == (attempt.QUEUED if state == lease.EXPIRED else attempt.STALE)
