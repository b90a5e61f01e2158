"""The rules of docs/spec/runner-protocol.md that the core decides, each proved on the real core."""

from __future__ import annotations

import msgspec
import pytest

from deltaci.core import attempt, ids, job, lease, run, worker
from deltaci.core.attempt import LeasedCommand
from deltaci.core.cascade import NewRecord
from deltaci.core.errors import StaleLease
from deltaci.core.failures import Facts
from deltaci.core.instants import SECOND
from deltaci.core.machine import Command
from deltaci.core.worker import Worker
from tests.spec.scenes import ID, MESSAGES, grant, leased_job, live
from tests.support.lab import Lab, Lease, task

SAYS: list[type[LeasedCommand]] = [
    attempt.Ack,
    attempt.Start,
    attempt.Extend,
    attempt.Heartbeat,
    attempt.BeginUpload,
    attempt.Complete,
    attempt.Finish,
    attempt.CancelAck,
]


def message(lab: Lab, kind: type[LeasedCommand], granted: Lease) -> LeasedCommand:
    """A message of this kind with everything that it needs."""
    fields = {"is_success": True, "exit_code": 0} if issubclass(kind, attempt.Outcome) else {}
    return lab.message(kind, granted, **fields)


# -- key ideas


@pytest.mark.proves("PRO-K1")
@pytest.mark.parametrize("kind", SAYS)
def test_a_runner_without_the_lease_can_do_nothing_with_an_attempt(kind: type[LeasedCommand]) -> None:
    """Execution needs a lease: knowing the attempt, its number and even its token is not enough."""
    lab, granted = leased_job(attempt.RUNNING)
    queued = lab.enqueue("q1")

    stolen = lab.stale(message(lab, kind, Lease("w2", granted.token)))
    guessed = lab.stale(message(lab, kind, Lease("w2", ids.lease_id(queued.id, 1, "a-guess-of-16-chars"))))

    assert (stolen, guessed) == ("UNKNOWN_LEASE", "UNKNOWN_LEASE")


@pytest.mark.proves("PRO-K1", "PRO-D1", "PRO-D2")
def test_a_runner_that_heartbeats_at_its_interval_keeps_its_lease() -> None:
    """The TTL leaves room for several heartbeats, so that one lost message loses nothing."""
    lab, granted = leased_job()

    for _ in range(2 * lease.TTL_SECONDS // lease.HEARTBEAT_SECONDS):
        lab.after(lease.HEARTBEAT_SECONDS).send(attempt.Heartbeat, granted)
        assert lab.refused(attempt.Expire(id=ID)).code == "not_due"

    assert (lease.TTL_SECONDS, lease.HEARTBEAT_SECONDS) == (120, 20)
    assert live(lab).expires_at == lab.now + 120 * SECOND
    assert lab.complete(granted).state == attempt.SUCCEEDED
    lab.verified()


@pytest.mark.proves("PRO-K2", "PRO-K3", "PRO-F3")
def test_of_several_runners_with_the_same_job_only_the_current_lease_finalizes_it() -> None:
    """Delivery is at least once; the fence makes the end happen once."""
    lab, first = leased_job()
    lab.after(lease.TTL_SECONDS).do(attempt.Expire(id=ID))
    second = lab.claim(lab.attempt("build"), by="w2")

    third = lab.refused(attempt.Grant(id=ID, actor="worker:w3", fingerprint="f"))
    stale = lab.stale(message(lab, attempt.Complete, first))
    lab.complete(second, ok=False)
    late = lab.stale(message(lab, attempt.Complete, first))

    assert (third.code, stale, late) == ("wrong_state", "LEASE_EXPIRED", "LEASE_REPLACED")
    ends = [event.to for event in lab.log if event.entity_id == ID and event.to in attempt.TERMINAL]
    assert ends == [attempt.FAILED]
    lab.verified()


@pytest.mark.proves("PRO-K4", "PRO-Q11")
def test_a_cancel_has_two_phases() -> None:
    """The orchestrator asks, the runner answers; in between it is known that it was asked."""
    lab, granted = leased_job()

    lab.cancel_run()
    asked = (lab.run().state, lab.attempt("build").state, live(lab).state)
    lab.send(attempt.CancelAck, granted)

    assert asked == (run.CANCEL_REQUESTED, attempt.CANCEL_REQUESTED, lease.ACTIVE)
    assert (lab.run().state, lab.attempt("build").state) == (run.CANCELED, attempt.CANCELED)
    assert lab.last(ID).actor == "worker:w1"
    lab.verified()


# -- identities


@pytest.mark.proves("PRO-N1")
def test_a_runner_id_is_unique_and_a_runner_takes_one_job_it_is_able_to_do() -> None:
    """Two runners with one id could act for each other; labels keep jobs from unsuitable runners."""
    lab = Lab()
    lab.register("w1", labels=("linux", "x64"))
    lab.plan(task("build", queue_key=worker.queue_key(("linux",))), task("lint"), task("sign", queue_key="macos"))

    twin = lab.refused(NewRecord(id="w1", record=Worker(id="w1")))
    unable = lab.refused(grant(lab, "sign"))
    granted = lab.claim(lab.attempt("build"), by="w1")
    second = lab.refused(grant(lab, "lint"))
    lab.complete(granted)
    lab.claim(lab.attempt("lint"), by="w1")

    assert (twin.code, unable.code, second.code) == ("bad_request", "not_eligible", "worker_full")
    assert lab.worker_record("w1").tasks == ("r1/lint.1",)
    assert lab.worker_record("w1").labels == ("linux", "x64")
    lab.verified()


@pytest.mark.proves("PRO-N2")
def test_a_job_id_is_unique_across_runs_and_names_the_run_that_owns_it() -> None:
    """Two runs may plan jobs of the same name; their records never meet."""
    lab = Lab().plan(task("build"), id="r1").plan(task("build"), id="r2")

    lab.work("build", run_id="r1")
    again = lab.refused(NewRecord(id="r1/build", record=lab.job("build", "r2")))

    first, second = lab.job("build", "r1"), lab.job("build", "r2")
    assert again.code == "bad_request"
    assert (first.id, first.run_id, second.id, second.run_id) == ("r1/build", "r1", "r2/build", "r2")
    assert (first.state, second.state) == (job.SUCCEEDED, job.QUEUED)
    assert lab.attempt("build", run_id="r2").run_id == "r2"
    lab.verified()


@pytest.mark.proves("PRO-N3")
def test_a_lease_id_cannot_be_guessed_from_what_others_can_see() -> None:
    """The attempt and the number are in every log, so the secret alone must make the difference."""
    lab, granted = leased_job()

    guess = lab.stale(message(lab, attempt.Heartbeat, Lease("w1", ids.lease_id(ID, 1, "0" * 32))))
    with pytest.raises(StaleLease) as short:
        ids.lease_ref(ids.lease_id(ID, 1, "0" * 15))

    assert (guess, short.value.reason) == ("UNKNOWN_LEASE", "UNKNOWN_LEASE")
    assert lab.send(attempt.Heartbeat, granted).state == attempt.RUNNING


@pytest.mark.proves("PRO-N3")
def test_each_lease_has_its_own_id_and_its_own_ttl() -> None:
    """A lease that was granted for a shorter time expires after that time."""
    lab = Lab().plan(task("build"), task("lint"))
    short = lab.claim(lab.attempt("build"), by="w1", ttl_seconds=10)
    long = lab.claim(lab.attempt("lint"), by="w2")

    lab.after(10).do(attempt.Expire(id=ID))
    early = lab.refused(attempt.Expire(id="r1/lint.1"))
    again = lab.claim(lab.attempt("build"), by="w3")

    assert early.code == "not_due"
    assert len({short.token, long.token, again.token}) == 3
    names = [each["entity_id"] for each in map(msgspec.json.decode, lab.canonical()) if each["to"] == lease.GRANTED]
    assert names == ["r1/build.1#1", "r1/lint.1#1", "r1/build.1#2"]
    lab.verified()


# -- authority


@pytest.mark.proves("PRO-U1")
@pytest.mark.parametrize(
    "command",
    [
        attempt.Expire(id=ID),
        attempt.RevokeUnaccepted(id=ID),
        attempt.Stall(id=ID),
        attempt.Requeue(id=ID),
        attempt.TimeOut(id=ID),
        attempt.Cancel(id=ID, reason="MINE"),
        attempt.ForceCancel(id=ID),
        job.AttemptSucceeded(id="r1/build"),
        job.Validate(id="r1/build", is_passed=True),
        job.RetryDue(id="r1/build"),
        job.Cancel(id="r1/build", reason="MINE"),
        run.Cancel(id="r1"),
        run.FinishCancel(id="r1"),
    ],
)
def test_a_runner_cannot_decide_what_is_the_orchestrators(command: Command) -> None:
    """Leases, final statuses, retries and the end of a cancellation are not the runner's to write."""
    lab, _ = leased_job()

    refusal = lab.after(9999).refused(msgspec.structs.replace(command, actor="worker:w1"))

    assert refusal.code == "wrong_actor"


@pytest.mark.proves("PRO-U1")
def test_the_orchestrator_decides_over_the_report_of_a_runner() -> None:
    """After a requested cancel, a reported success is recorded, and the attempt is canceled."""
    lab, granted = leased_job()
    lab.cancel_run()

    ended = lab.complete(granted, ok=True)

    assert ended.state == attempt.CANCELED
    assert attempt.complete_answer(ended) == (False, "CANCEL_REQUESTED")
    assert lab.job("build").state == job.CANCELED


@pytest.mark.proves("PRO-U2")
@pytest.mark.parametrize("actor", ["user:w1", "reporter:w1"])
def test_only_the_runner_can_report_what_was_executed(actor: str) -> None:
    """Even with the runner's token, a result from another actor is invented."""
    lab, granted = leased_job()
    said = message(lab, attempt.Complete, granted)

    refusal = lab.refused(msgspec.structs.replace(said, actor=actor))

    assert refusal.code == "wrong_actor"


@pytest.mark.proves("PRO-U2")
@pytest.mark.parametrize("exit_code", [0, 3])
def test_the_runners_word_on_exit_code_and_artifacts_is_recorded_as_it_was_given(exit_code: int) -> None:
    """The orchestrator was not there: it judges the result and never rewrites it."""
    lab, granted = leased_job(attempt.LEASED)
    brought = {"artifacts": [{"type": "junit", "uri": "s3://bucket/junit.xml"}], "summary": "3 of 40 failed"}
    output = None if exit_code else {"output": "42"}

    ended = lab.complete(granted, ok=not exit_code, exit_code=exit_code, result=output, report=brought)

    told = next(event for event in lab.log if event.entity_id == ID and event.to == ended.state)
    assert (ended.state, told.metadata["exit_code"]) == ("FAILED" if exit_code else "SUCCEEDED", exit_code)
    assert (ended.result, ended.report) == (output, brought)
    lab.verified()


@pytest.mark.proves("PRO-U2")
@pytest.mark.parametrize("kind", [attempt.CancelAck, attempt.Complete, attempt.Finish])
def test_what_a_runner_brings_along_is_kept_when_it_was_asked_to_stop(kind: type[LeasedCommand]) -> None:
    """A partial log is all that remains of a canceled attempt."""
    lab, granted = leased_job()
    lab.cancel_run()
    said = msgspec.structs.replace(message(lab, kind, granted), report={"artifacts": [{"type": "log", "uri": "x"}]})

    lab.do(said)

    ended = lab.attempt("build")
    assert (ended.state, ended.report) == (attempt.CANCELED, {"artifacts": [{"type": "log", "uri": "x"}]})
    lab.verified()


def reached(state: str) -> tuple[Lab, Lease]:
    """An attempt of the plain queue in any of its states, with the last lease that was granted."""
    lab = Lab()
    granted = lab.claim(lab.enqueue("q1"))
    for said in MESSAGES.get(state, MESSAGES[attempt.RUNNING]):
        lab.send(said, granted)
    if state in (attempt.STALE, attempt.QUEUED):
        lab.do(attempt.Stall(id="q1"))
    if state == attempt.QUEUED:
        lab.after(lease.TTL_SECONDS).do(attempt.Requeue(id="q1"))
    if state in (attempt.CANCEL_REQUESTED, attempt.CANCELED):
        lab.do(attempt.Cancel(id="q1", reason="TEST"))
    if state == attempt.CANCELED:
        lab.send(attempt.CancelAck, granted)
    if state == attempt.TIMED_OUT:
        lab.after(attempt.TIMEOUT_SECONDS).do(attempt.TimeOut(id="q1"))
    if state in (attempt.SUCCEEDED, attempt.FAILED):
        lab.complete(granted, ok=state == attempt.SUCCEEDED)
    assert lab.queued().state == state
    return lab, granted


@pytest.mark.proves("PRO-U3")
@pytest.mark.parametrize("state", [state for state in attempt.MACHINE.states if state != attempt.CREATED])
def test_a_message_for_which_no_rule_exists_is_refused(state: str) -> None:
    """Undefined behaviour must not be relied on."""
    lab, granted = reached(state)
    orders: list[Command] = [message(lab, kind, granted) for kind in SAYS]
    orders += [attempt.Grant(id="q1", actor="worker:w2", fingerprint="f"), attempt.Cancel(id="q1", reason="TEST")]
    orders += [
        kind(id="q1")
        for kind in (
            attempt.Expire,
            attempt.RevokeUnaccepted,
            attempt.Stall,
            attempt.Requeue,
            attempt.TimeOut,
            attempt.ForceCancel,
        )
    ]
    table = attempt.MACHINE
    unruled = [
        order for order in orders if not (table.rule(state, type(order)) or table.implied_step(state, type(order)))
    ]
    if state in attempt.TERMINAL:  # A repeat of the very message that ended it is recognised, and changes nothing.
        repeated = (attempt.Complete, attempt.Finish, attempt.CancelAck)
        unruled = [each for each in unruled if not isinstance(each, repeated)]

    codes = {lab.refused(each).code for each in unruled}

    assert unruled
    assert codes <= {"wrong_state", "stale_lease"}


# -- hard rules


@pytest.mark.proves("PRO-H3")
@pytest.mark.parametrize("kind", SAYS)
@pytest.mark.parametrize(
    "token", ["r1/none.1.1.a-guess-of-16-chars", "r1/build.1.2.a-guess-of-16-chars", "r1/build.1.a-guess-of-16-chars"]
)
def test_a_message_with_an_unknown_lease_id_is_stale(token: str, kind: type[LeasedCommand]) -> None:
    """A runner must stop in the same way whether its attempt is unknown, or only its lease, or neither makes sense."""
    lab, _ = leased_job()

    assert lab.stale(message(lab, kind, Lease("w1", token))) == "UNKNOWN_LEASE"


@pytest.mark.proves("PRO-H3")
@pytest.mark.parametrize("kind", SAYS)
def test_a_message_with_an_expired_lease_id_is_stale(kind: type[LeasedCommand]) -> None:
    """Before and after the expiry is recorded."""
    lab, granted = leased_job()
    lab.after(lease.TTL_SECONDS)

    unnoticed = lab.stale(message(lab, kind, granted))
    lab.do(attempt.Expire(id=ID))

    assert (unnoticed, lab.stale(message(lab, kind, granted))) == ("LEASE_EXPIRED", "LEASE_EXPIRED")


# -- retries


@pytest.mark.proves("PRO-Y1", "PRO-Y2")
@pytest.mark.parametrize("claim", [{"is_retryable": True}, {"retry": "please", "failure_class": "INFRA"}])
def test_a_runner_reports_facts_and_cannot_call_its_failure_retryable(claim: dict[str, object]) -> None:
    """Otherwise it could bypass the limits on retries: its report is stored and not obeyed."""
    fields = set(attempt.Complete.__struct_fields__) - set(attempt.LeasedCommand.__struct_fields__)
    lab, granted = leased_job(max_attempts=3)

    ended = lab.complete(granted, ok=False, exit_code=1, result=claim, report=claim)

    assert fields == {"is_success", "exit_code", "result", "report", "facts", "rules", "verdict"}
    assert ended.error is not None
    assert (ended.error.is_retryable, ended.report, ended.result) == (False, claim, None)
    assert lab.job("build").state == job.FAILED
    lab.verified()


@pytest.mark.proves("PRO-Y1", "PRO-Y2")
@pytest.mark.parametrize(("flaky", "state"), [((), job.FAILED), (("test_net",), job.RETRYING)])
def test_the_same_report_is_retried_or_not_by_what_the_orchestrator_knows(flaky: tuple[str, ...], state: str) -> None:
    """The exit code and the failed tests are the runner's; which tests are flaky it cannot know."""
    lab, granted = leased_job(max_attempts=3)

    lab.complete(granted, ok=False, exit_code=1, facts=Facts(failed_tests=("test_net",), flaky_tests=flaky))

    assert lab.job("build").state == state
    assert lab.last("r1/build").actor == "orchestrator"
    lab.verified()
