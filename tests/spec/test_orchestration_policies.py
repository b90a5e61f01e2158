"""The rules of docs/spec/orchestration.md about cancellation, retries, timeouts, repeats and ownership."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from deltaci.core import attempt, backoff, failures, ids, job, lease, run, worker
from deltaci.core.attempt import LeasedCommand
from deltaci.core.decide import CancelJob, Plan
from deltaci.core.events import ORCHESTRATOR, actor_kind
from deltaci.core.failures import Facts
from deltaci.core.instants import SECOND
from deltaci.core.machine import Command
from tests.spec.scenes import ID, MICROSECOND
from tests.support.lab import Lab, Lease, gate, task


def running(*others: Any, **spec: Any) -> tuple[Lab, Lease]:
    """A run whose job `build` is executed by worker w1."""
    lab = Lab()
    lab.register("w1")
    lab.plan(task("build", **spec), *others)
    granted = lab.claim(lab.attempt("build"))
    lab.send(attempt.Heartbeat, granted)
    return lab, granted


def canceling(**spec: Any) -> tuple[Lab, Lease]:
    """The same, asked to stop."""
    lab, granted = running(**spec)
    lab.cancel_run()
    return lab, granted


# -- cancellation


@pytest.mark.proves("ORC-C1")
def test_no_work_starts_in_a_run_that_is_being_canceled() -> None:
    """A cancel that lets new jobs begin would never end."""
    lab = Lab().plan(task("build"), task("lint"), task("test", "lint"), task("slow", max_attempts=2))
    lab.fail(lab.claim(lab.attempt("slow"), by="w3"))
    lab.claim(lab.attempt("build"))
    lab.cancel_run()

    queued = lab.refused(attempt.Grant(id="r1/lint.1", actor="worker:w2", fingerprint="f"))
    retry = lab.after(600).refused(job.RetryDue(id="r1/slow"))

    assert (queued.code, retry.code) == ("wrong_state", "wrong_state")
    assert {lab.job(name).state for name in ("lint", "test", "slow")} == {job.CANCELED}
    assert lab.run().state == run.CANCEL_REQUESTED


@pytest.mark.proves("ORC-C1")
def test_a_cancel_moves_the_run_and_its_active_jobs_and_the_next_heartbeat_informs_the_runner() -> None:
    """The response to a heartbeat has the cancel and its deadline."""
    lab, granted = running(task("lint"))
    other = lab.claim(lab.attempt("lint"), by="w2")

    lab.cancel_run()
    answer = lab.after(1).send(attempt.Heartbeat, granted)

    states = {lab.run().state, lab.attempt("build").state, lab.attempt("lint").state}
    assert states == {"CANCEL_REQUESTED"}
    assert (answer.state, answer.cancel_reason) == (attempt.CANCEL_REQUESTED, job.RUN_CANCELED)
    assert answer.cancel_by == lab.now + (lease.CANCEL_SECONDS - 1) * SECOND
    assert lab.send(attempt.Heartbeat, other).state == attempt.CANCEL_REQUESTED
    lab.verified()


@pytest.mark.proves("ORC-C2", "ORC-T4", "ORC-A10")
def test_an_unacknowledged_cancel_is_forced_at_its_deadline() -> None:
    """Otherwise a runner that hangs would block its run; heartbeats do not delay the deadline."""
    lab, granted = canceling()
    lab.after(lease.CANCEL_SECONDS - MICROSECOND).send(attempt.Heartbeat, granted)
    early = lab.refused(attempt.ForceCancel(id=ID))

    lab.after(MICROSECOND).do(attempt.ForceCancel(id=ID))

    assert early.code == "not_due"
    forced = next(event for event in lab.log if event.entity_id == ID and event.to == attempt.CANCELED)
    assert (forced.actor, forced.metadata["is_forced"]) == (ORCHESTRATOR, True)
    assert forced.metadata["lease"]["to"] == lease.REVOKED
    assert (lab.job("build").state, lab.run().state) == (job.CANCELED, run.CANCELED)
    lab.verified()


@pytest.mark.proves("ORC-C3")
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_queued_job_without_a_live_lease_is_canceled_at_once(is_lost: bool) -> None:
    """No runner has to stop, so there is nothing to wait for: neither fresh nor after a lost lease."""
    lab = Lab().plan(task("build"))
    if is_lost:
        lab.claim(lab.attempt("build"))
        lab.after(lease.TTL_SECONDS).do(attempt.Expire(id=ID))

    decision = lab.do(run.Cancel(id="r1", actor="user:ada"))

    assert lab.steps(ID)[-3:] == [attempt.QUEUED, attempt.CANCEL_REQUESTED, attempt.CANCELED]
    assert lab.run().state == run.CANCELED
    assert {event.at for event in decision.events} == {lab.now}
    lab.verified()


@pytest.mark.proves("ORC-C4")
def test_a_forced_cancel_keeps_the_reports_of_the_attempt() -> None:
    """They show what the runner did before it hung."""
    lab, granted = canceling(work={"steps": ["make"]})
    before, events = lab.attempt("build"), list(lab.log)

    lab.after(lease.CANCEL_SECONDS).do(attempt.ForceCancel(id=ID))

    record = lab.attempt("build")
    fields = record.__struct_fields__
    changed = {name for name in fields if getattr(record, name) != getattr(before, name)}
    assert changed == {"state", "rev", "updated_at", "lease", "ended_lease", "claims", "fence_until", "error"}
    assert (record.spec, record.started_at, record.index) == ({"steps": ["make"]}, before.started_at, 1)
    assert record.ended_lease is not None
    assert record.ended_lease.worker_id == granted.worker_id
    assert lab.log[: len(events)] == events
    lab.verified()


@pytest.mark.proves("ORC-C5")
@pytest.mark.parametrize("ok", [True, False])
def test_a_late_complete_after_a_forced_cancel_is_not_accepted(ok: bool) -> None:
    """The run was already called canceled; a result that arrives now cannot change that."""
    lab, granted = canceling()
    lab.after(lease.CANCEL_SECONDS).do(attempt.ForceCancel(id=ID))

    complete = lab.stale(lab.message(attempt.Complete, granted, is_success=ok))
    acknowledged = lab.stale(lab.message(attempt.CancelAck, granted))

    assert (complete, acknowledged) == ("LEASE_REVOKED", "LEASE_REVOKED")
    assert lab.attempt("build").state == attempt.CANCELED


# -- retries


@pytest.mark.proves("ORC-Y2")
@pytest.mark.parametrize(
    "facts",
    [
        Facts(exit_code=1, log_tail=("main.c:3:1: error: expected ';' before '}' token",)),
        Facts(exit_code=1, failed_tests=("test_sum",)),
        Facts(exit_code=1, failed_tests=("test_sum", "test_net"), flaky_tests=("test_net",)),
        Facts(exit_code=1, log_tail=("app.py:1:1: F401 'os' imported but unused",)),
    ],
    ids=["compilation", "test", "one of two is flaky", "lint"],
)
def test_a_failure_that_would_come_again_is_never_retried(facts: Facts) -> None:
    """A retry of what the change itself broke costs time and hides nothing."""
    lab, granted = running(max_attempts=5)

    lab.complete(granted, ok=False, facts=facts)

    assert (lab.job("build").state, lab.job("build").attempts) == (job.FAILED, 1)
    assert lab.refused(job.RetryDue(id="r1/build")).code == "wrong_state"
    lab.verified()


@pytest.mark.proves("ORC-Y1")
@pytest.mark.parametrize("actor", ["worker:w1", "user:ada"])
def test_only_the_orchestrator_can_order_a_retry(actor: str) -> None:
    """Otherwise a runner or a person could bypass the limits on retries."""
    lab, granted = running(max_attempts=2)
    lab.fail(granted)

    refusal = lab.after(600).refused(job.RetryDue(id="r1/build", actor=actor))

    assert refusal.code == "wrong_actor"


@pytest.mark.proves("ORC-Y1", "ORC-A11")
@pytest.mark.parametrize(
    ("facts", "failure_class"),
    [
        (Facts(exit_code=1, log_tail=("curl: (6) Could not resolve host: example.org",)), failures.INFRA),
        (Facts(exit_code=1, log_tail=("write: No space left on device",)), failures.INFRA),
        (Facts(signal=9), failures.INFRA),
        (Facts(error_code="RUNNER_STARTUP"), failures.INFRA),
        (Facts(error_code="CACHE_FETCH"), failures.TOOLING),
        (Facts(error_code="REGISTRY_FETCH"), failures.TOOLING),
        (Facts(exit_code=1, failed_tests=("test_net",), flaky_tests=("test_net",)), failures.FLAKY),
    ],
)
def test_a_transient_failure_is_retried_by_rule(facts: Facts, failure_class: str) -> None:
    """What went wrong around the change is not the change's fault, and the event says so."""
    lab, granted = running(max_attempts=2)

    lab.complete(granted, ok=False, facts=facts)
    told = lab.last("r1/build").metadata
    early = lab.refused(job.RetryDue(id="r1/build"))
    lab.after(600).do(job.RetryDue(id="r1/build"))

    assert (told["failure_class"], early.code) == (failure_class, "not_due")
    assert lab.steps("r1/build")[-3:] == [job.RUNNING, job.RETRYING, job.QUEUED]
    lab.verified()


@pytest.mark.proves("ORC-A11", "ORC-Y3", "ORC-Y4", "ORC-Y5")
@pytest.mark.parametrize("end", [attempt.FAILED, attempt.TIMED_OUT])
def test_a_retry_is_a_new_attempt_that_can_be_leased_and_the_old_one_stays_as_it_ended(end: str) -> None:
    """Each attempt keeps its own life, so nothing of the first is lost and nothing of it decides."""
    lab, granted = running(max_attempts=2)
    if end == attempt.FAILED:
        lab.fail(granted)
    else:
        lab.after(attempt.TIMEOUT_SECONDS).do(attempt.TimeOut(id=ID))
    old = lab.attempt("build")
    between = (old.state, lab.job("build").state, lab.run().state)

    lab.after(600).do(job.RetryDue(id="r1/build"))
    fresh = lab.attempt("build")
    lab.complete(lab.claim(fresh, by="w2"))

    assert between == (end, job.RETRYING, run.RUNNING)
    assert (fresh.id, fresh.index, fresh.state, fresh.claims) == ("r1/build.2", old.index + 1, attempt.QUEUED, 0)
    assert lab.attempt("build", 1) == old
    assert (lab.job("build").state, lab.run().state) == (job.SUCCEEDED, run.SUCCESS)
    lab.verified()


@pytest.mark.proves("ORC-A11", "ORC-O3")
def test_retries_end_when_no_attempt_remains() -> None:
    """A failure that never goes away must not be retried for ever."""
    lab, granted = running(max_attempts=3)

    for _ in range(2):
        lab.fail(granted)
        lab.after(600).do(job.RetryDue(id="r1/build"))
        granted = lab.claim(lab.attempt("build"))
    lab.fail(granted)

    assert (lab.job("build").state, lab.job("build").attempts) == (job.FAILED, 3)
    assert lab.run().state == run.FAILED
    lab.verified()


@pytest.mark.proves("ORC-O3")
@pytest.mark.parametrize("silence", [attempt.ForceCancel, attempt.Expire, attempt.RevokeUnaccepted])
def test_every_cancellation_ends_within_a_limit_of_time(silence: type[Command]) -> None:
    """For any failure of a runner, one of the orchestrator's own limits ends the wait."""
    lab = Lab().plan(task("build"))
    granted = lab.claim(lab.attempt("build"))
    if silence is not attempt.RevokeUnaccepted:
        lab.send(attempt.Ack, granted)
    lab.cancel_run()

    lab.after(max(lease.TTL_SECONDS, lease.ACCEPT_SECONDS, lease.CANCEL_SECONDS)).do(silence(id=ID))

    assert (lab.attempt("build").state, lab.run().state) == (attempt.CANCELED, run.CANCELED)
    lab.verified()


# -- timeouts


TIMEOUTS: list[tuple[str, Command, float, str]] = [
    ("leased", attempt.RevokeUnaccepted(id=ID), lease.ACCEPT_SECONDS, ID),
    ("leased", attempt.Expire(id=ID), lease.TTL_SECONDS, ID),
    ("running", attempt.Expire(id=ID), lease.TTL_SECONDS, ID),
    ("running", attempt.TimeOut(id=ID), attempt.TIMEOUT_SECONDS, ID),
    ("running", run.TimeOut(id="r1"), run.TIMEOUT_SECONDS, "r1"),
    ("canceling", attempt.ForceCancel(id=ID), lease.CANCEL_SECONDS, ID),
    ("retrying", job.RetryDue(id="r1/build"), 2 * backoff.BASE_DELAY_SECONDS, "r1/build"),
    ("asking", job.ExpireApproval(id="r1/build"), 40, "r1/build"),
    ("planning", run.TimeOutPlanning(id="r1"), run.PLANNING_SECONDS, "r1"),
]


def waiting(what: str) -> Lab:
    """A run that waits for something that may never come."""
    lab = Lab()
    if what == "planning":
        lab.create()
        lab.do(run.BeginPlanning(id="r1"))
        return lab
    lab.plan(gate("build", approval_seconds=40) if what == "asking" else task("build", max_attempts=2))
    if what != "asking":
        granted = lab.claim(lab.attempt("build"))
        if what != "leased":
            lab.send(attempt.Heartbeat, granted)
        if what == "canceling":
            lab.cancel_run()
        if what == "retrying":
            lab.fail(granted)
    return lab


@pytest.mark.proves("ORC-T5")
@pytest.mark.parametrize(("what", "command", "seconds", "id"), TIMEOUTS)
def test_a_timeout_is_a_transition_of_the_orchestrator_and_time_alone_changes_nothing(
    what: str, command: Command, seconds: float, id: str
) -> None:
    """A deadline that acts by itself would leave a state that no event explains."""
    lab = waiting(what)
    record = lab.unit.records[id]
    assert record is not None
    state = record.state

    early = lab.after(seconds - MICROSECOND).refused(command)
    foreign = lab.after(MICROSECOND).refused(msgspec.structs.replace(command, actor="worker:w1"))
    records, events = dict(lab.unit.records), len(lab.log)
    lab.after(10 * seconds)
    assert (lab.unit.records, len(lab.log)) == (records, events)
    lab.after(-10 * seconds).do(command)

    first = lab.log[events]
    assert (early.code, foreign.code) == ("not_due", "wrong_actor")
    assert (first.entity_id, first.from_, first.actor) == (id, state, ORCHESTRATOR)
    assert first.to != state
    lab.verified()


# -- repeats


def sent(message: type[LeasedCommand]) -> tuple[Lab, LeasedCommand]:
    """A message that was sent and applied, its answer lost."""
    lab, granted = canceling() if message is attempt.CancelAck else running()
    if message is attempt.Ack:
        granted = lab.claim(lab.enqueue("q1"), by="w2")
    fields: dict[str, Any] = {"is_success": True, "exit_code": 0} if issubclass(message, attempt.Outcome) else {}
    said = lab.message(message, granted, request_id="m1", **fields)
    lab.do(said)
    return lab, said


SAYS = [
    attempt.Ack,
    attempt.Start,
    attempt.Extend,
    attempt.Heartbeat,
    attempt.BeginUpload,
    attempt.Complete,
    attempt.Finish,
    attempt.CancelAck,
]


@pytest.mark.proves("ORC-I2", "ORC-I4")
@pytest.mark.parametrize("message", SAYS)
def test_a_runner_message_that_is_sent_again_has_no_further_effect(message: type[LeasedCommand]) -> None:
    """A lost answer looks like a lost message, so runners must be free to repeat themselves."""
    lab, said = sent(message)
    records = dict(lab.unit.records)

    again = lab.after(5).do(said)

    assert (again.events, again.changed) == ([], {})
    assert lab.unit.records == records
    lab.verified()


@pytest.mark.proves("ORC-I2")
@pytest.mark.parametrize("message", [m for m in SAYS if m not in (attempt.Extend, attempt.Heartbeat)])
def test_a_report_that_is_repeated_under_another_request_changes_nothing_either(message: type[LeasedCommand]) -> None:
    """The record already has the report."""
    lab, said = sent(message)

    again = lab.after(5).do(msgspec.structs.replace(said, request_id="m2"))

    assert (again.events, again.changed) == ([], {})


@pytest.mark.proves("ORC-I3")
def test_a_repeated_delivery_grants_no_second_lease() -> None:
    """The queue delivers at least once, and a worker that receives a dispatch twice holds one lease."""
    lab = Lab().plan(task("build"))
    token = ids.lease_id(ID, 1, "a-secret-of-16-characters")
    grant = attempt.Grant(id=ID, actor="worker:w1", fingerprint=ids.lease_fingerprint(token), request_id="delivery-1")
    lab.do(grant)
    first = lab.attempt("build").lease

    again = lab.after(1).do(grant)
    other = lab.refused(msgspec.structs.replace(grant, actor="worker:w2", request_id="delivery-2"))

    assert (again.events, lab.attempt("build").lease, lab.attempt("build").claims) == ([], first, 1)
    assert other.code == "wrong_state"
    lab.verified()


@pytest.mark.proves("ORC-I3")
def test_a_delivery_that_is_processed_again_after_the_end_has_no_effect() -> None:
    """A queue may redeliver what was finished long ago."""
    lab, granted = running()
    lab.complete(granted)

    grant_refusal = lab.refused(attempt.Grant(id=ID, actor="worker:w2", fingerprint="f"))
    plan_refusal = lab.refused(Plan(id="r1", jobs=(task("build"),)))

    assert (grant_refusal.code, plan_refusal.code) == ("wrong_state", "wrong_state")


@pytest.mark.proves("ORC-I4")
def test_one_request_id_stands_for_one_logical_message() -> None:
    """The same id with other content is a mistake and never a repeat; another id is another message."""
    lab, granted = running()
    lab.do(lab.message(attempt.Heartbeat, granted, request_id="m1"))
    rev = lab.attempt("build").rev

    reused = lab.refused(lab.message(attempt.BeginUpload, granted, request_id="m1"))
    lab.after(1).do(lab.message(attempt.Heartbeat, granted, request_id="m2"))

    assert reused.code == "request_id_reused"
    assert lab.attempt("build").rev == rev + 1


@pytest.mark.proves("ORC-I5")
def test_every_accepted_message_leaves_one_event_by_which_its_repeat_is_found() -> None:
    """The log tells who asked for what, and the record which requests it has seen."""
    lab, granted = running()

    for request in ("m1", "m2"):
        lab.after(1).do(lab.message(attempt.Heartbeat, granted, request_id=request))
    lab.do(CancelJob(id="r1/build", actor="user:ada", request_id="c1"))

    requests = [(e.request_id, e.actor, e.to) for e in lab.log if e.entity_id == ID and e.request_id]
    assert requests == [
        ("m1", "worker:w1", attempt.RUNNING),
        ("m2", "worker:w1", attempt.RUNNING),
        ("c1", "user:ada", attempt.CANCEL_REQUESTED),
    ]
    assert [known.partition(" ")[0] for known in lab.attempt("build").requests] == ["m1", "m2", "c1"]
    assert [e.rev for e in lab.log if e.entity_id == ID] == list(range(1, lab.attempt("build").rev + 1))


# -- ownership


@pytest.mark.proves("ORC-O1")
@pytest.mark.parametrize("actor", ["worker:w1", "user:ada", "reporter"])
@pytest.mark.parametrize(
    "command",
    [
        run.BeginPlanning(id="r1"),
        run.TimeOutPlanning(id="r1"),
        run.AllDone(id="r1"),
        run.Fail(id="r1"),
        run.TimeOut(id="r1"),
        run.FinishCancel(id="r1"),
        job.Begin(id="r1/build", worker_id="w1"),
        job.AttemptSucceeded(id="r1/build"),
        job.Validate(id="r1/build", is_passed=True),
        attempt.Expire(id=ID),
        attempt.TimeOut(id=ID),
        attempt.ForceCancel(id=ID),
    ],
)
def test_what_belongs_to_the_orchestrator_is_refused_from_anyone_else(command: Command, actor: str) -> None:
    """A state changes because the orchestrator accepted the change, and for no other reason."""
    lab, _ = running()

    refusal = lab.after(run.TIMEOUT_SECONDS).refused(msgspec.structs.replace(command, actor=actor))

    assert refusal.code == "wrong_actor"


@pytest.mark.proves("ORC-O2")
def test_no_outcome_depends_on_progress_reports() -> None:
    """Two runners did the same, one of them in silence; their jobs must end the same."""
    lab, talkative = running(task("lint"))
    silent = lab.claim(lab.attempt("lint"), by="w2")
    lab.after(1).send(attempt.BeginUpload, talkative)

    lab.complete(talkative, result="report")
    lab.complete(silent, result="report")

    ends = [(a.state, a.result, a.error) for a in (lab.attempt("build"), lab.attempt("lint"))]
    assert ends[0] == ends[1] == (attempt.SUCCEEDED, "report", None)
    assert lab.steps("r1/build") == lab.steps("r1/lint")
    assert {actor_kind(e.actor) for e in lab.log if e.entity in ("job", "run")} == {ORCHESTRATOR}
    assert lab.worker_record("w1").state == worker.IDLE
    lab.verified()
