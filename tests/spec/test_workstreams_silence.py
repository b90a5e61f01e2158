"""The rules of docs/spec/workstreams.md about workers that fall silent, come back or are given up."""

from __future__ import annotations

from typing import Any

import pytest

from deltaci.core import attempt, lease, worker
from deltaci.core.decide import CancelJob, decide
from deltaci.core.errors import NotLoaded
from deltaci.core.instants import SECOND
from deltaci.core.machine import Command
from deltaci.core.status.workstreams import worker_state
from deltaci.core.unit_of_work import UnitOfWork
from tests.spec.logs import altered, decoded, exported, last_step, violations
from tests.spec.scenes import busy, grant
from tests.support.lab import START, Lab, Lease, task


def silent() -> tuple[Lab, Lease]:
    """w1 was busy with `a` and is unresponsive."""
    lab, (granted,) = busy("a")
    lab.after(10).do(worker.MissHealthChecks(id="w1"))
    return lab, granted


# -- silence


@pytest.mark.proves("WST-K4", "WST-KA4", "MOD-12")
def test_a_silent_worker_keeps_its_leases_which_are_marked_with_their_ends() -> None:
    """An attempt whose cancel was requested is not marked, because it goes to no other worker."""
    lab, leases = busy("a", "b", "c", slots=3)
    lab.do(CancelJob(id="r1/c", actor="user:ada"))
    lab.after(30).send(attempt.Heartbeat, leases[1])

    decision = lab.after(10).do(worker.MissHealthChecks(id="w1"))

    assert last_step(lab, "w1") == ("busy", "unresponsive", "health_check_timeout", "error")
    assert [(event.entity_id, event.trigger, event.metadata) for event in decision.events] == [
        ("w1", "health_check_timeout", {"attempts": ["r1/a.1", "r1/b.1", "r1/c.1"]}),
        ("r1/a.1", "marked_for_reassignment", {"reassign_at": START + 120 * SECOND, "worker_id": "w1"}),
        ("r1/b.1", "marked_for_reassignment", {"reassign_at": START + 150 * SECOND, "worker_id": "w1"}),
    ]
    assert lab.worker_record("w1").tasks == ("r1/a.1", "r1/b.1", "r1/c.1")
    assert [lab.attempt(name).state for name in "abc"] == ["RUNNING", "RUNNING", "CANCEL_REQUESTED"]
    assert lab.refused(attempt.Expire(id="r1/a.1")).code == "not_due"
    lab.verified()


@pytest.mark.proves("WST-K4", "MOD-12")
def test_an_unaccepted_lease_of_a_silent_worker_is_marked_with_the_end_of_its_accept_window() -> None:
    """A lease that is not acknowledged ends with its accept window, before its TTL."""
    lab = Lab().plan(task("a"))
    lab.register("w1")
    lab.claim(lab.attempt("a"))

    decision = lab.after(10).do(worker.MissHealthChecks(id="w1"))

    assert decision.events[-1].metadata["reassign_at"] == START + 30 * SECOND
    lab.after(20).do(attempt.RevokeUnaccepted(id="r1/a.1"))
    assert lab.attempt("a").state == attempt.QUEUED
    lab.verified()


@pytest.mark.proves("WST-KA4")
@pytest.mark.parametrize("change", ["missing", "earlier", "of another", "not silent", "given up"])
def test_the_verifier_finds_a_wrong_mark_of_a_silent_worker(change: str) -> None:
    """A forged mark, or none, would hide when the task goes to another worker."""
    lab, _ = silent()
    lines = decoded(lab.canonical())
    number = next(n for n, line in enumerate(lines) if line["trigger"] == "marked_for_reassignment")

    def alter(log: list[dict[str, Any]]) -> None:
        if change == "missing":
            del log[number]
        elif change == "earlier":
            log[number]["metadata"]["reassign_at"] = log[number]["at"]
        elif change == "of another":
            log[number]["metadata"]["worker_id"] = "w2"
        elif change == "not silent":
            del log[number - 1]
        else:
            log.append({**log[number - 1], "seq": 99, "rev": log[number - 1]["rev"] + 1, "from": "UNRESPONSIVE"})
            log[-1].update(to="SHUTDOWN", trigger="max_timeout_exceeded", severity="info", metadata={"reason": "GONE"})

    assert ("WST-KG3" if change == "given up" else "WST-KA4") in altered(lab.canonical(), alter)


@pytest.mark.proves("MOD-12")
@pytest.mark.parametrize("is_marked", [False, True])
def test_only_older_logs_have_leases_that_ended_by_silence(is_marked: bool) -> None:
    """Earlier versions revoked the leases of a silent worker at once. A log with marks is not such a log."""
    lab, _ = silent()
    for command in (attempt.Stall, attempt.Requeue):
        lab.do(command(id="r1/a.1"))

    def as_before(log: list[dict[str, Any]]) -> None:
        [mark] = [line for line in log if line["trigger"] == "marked_for_reassignment"]
        [stalled] = [line for line in log if line["trigger"] == "stalled"]
        stalled["metadata"]["reason"] = "WORKER_LOST"
        [released] = [line for line in log if line["trigger"] == "task_completed"]
        released["metadata"]["troubles"] = 1
        if not is_marked:
            log.remove(mark)
            for line in log:
                if line["entity_id"].startswith("r1/a.1") and line["seq"] > mark["seq"]:
                    line["rev"] -= 1

    assert altered(lab.canonical(), as_before) == ({"MOD-12"} if is_marked else set())


@pytest.mark.proves("WST-KI2", "MOD-12")
@pytest.mark.parametrize("message", [attempt.Heartbeat, attempt.Extend, attempt.Start, attempt.Complete])
def test_a_message_under_a_live_lease_recovers_its_worker_first(message: type[attempt.LeasedCommand]) -> None:
    """In the same decision. The recovered worker is busy with all of its leases, and takes work again."""
    lab, leases = busy("a", "b", slots=3)
    lab.after(10).do(worker.MissHealthChecks(id="w1"))
    fields = {"is_success": True, "exit_code": 0} if message is attempt.Complete else {}

    decision = lab.after(100).do(lab.message(message, leases[0], **fields))

    assert [(event.from_, event.to) for event in decision.events[:2]] == [("UNRESPONSIVE", "IDLE"), ("IDLE", "BUSY")]
    assert lab.worker_record("w1").tasks == (("r1/b.1",) if message is attempt.Complete else ("r1/a.1", "r1/b.1"))
    lab.claim(lab.attempt("spare"))
    lab.verified()


@pytest.mark.proves("WST-KI2", "MOD-12")
def test_a_message_of_a_healthy_worker_does_not_load_its_record() -> None:
    """A heartbeat costs no more than before: only a mark on the attempt makes the decision read the worker."""
    lab, (granted,) = busy("a")
    healthy = UnitOfWork({"r1/a.1": lab.attempt("a")})
    lab.after(2).do(worker.MissHealthChecks(id="w1"))
    silent_unit = UnitOfWork({"r1/a.1": lab.attempt("a")})
    heartbeat = lab.message(attempt.Heartbeat, granted)

    assert decide(healthy, heartbeat, lab.now).events[0].trigger == "heartbeat"
    with pytest.raises(NotLoaded, match="w1"):
        decide(silent_unit, heartbeat, lab.now)


@pytest.mark.proves("WST-KI2", "WST-KG5")
def test_a_heartbeat_that_counts_makes_its_worker_recover_first() -> None:
    """A runner that still has to stop a task speaks under a live lease; by speaking it has recovered."""
    lab, (granted,) = busy("a")
    lab.do(CancelJob(id="r1/a", actor="user:ada"))
    lab.do(worker.MissHealthChecks(id="w1"))
    assert worker_state(lab.worker_record("w1")) == "unresponsive"

    lab.send(attempt.Heartbeat, granted)

    assert [line["to_state"] for line in exported(lab, "w1")][-3:] == ["unresponsive", "idle", "busy"]
    log = decoded(lab.canonical())
    back = [n for n, line in enumerate(log) if line["trigger"] == "health_check_recovered"]
    beat = max(n for n, line in enumerate(log, 1) if line["trigger"] == "heartbeat")
    assert (beat - 2, "WST-KI2") in violations([line for n, line in enumerate(log) if n not in (back[0], back[0] + 1)])
    lab.verified()


@pytest.mark.proves("WST-KI2", "WST-KG5")
def test_a_stale_or_repeated_message_does_not_recover_a_worker() -> None:
    """Neither a repeat of an earlier message nor one under an ended lease proves that the worker is back."""
    lab, (granted,) = busy("a")
    lab.do(CancelJob(id="r1/a", actor="user:ada"))
    said = lab.message(attempt.Heartbeat, granted, request_id="m1")
    lab.do(said)
    lab.after(1).do(worker.MissHealthChecks(id="w1"))

    again = lab.do(said)
    repeated = worker_state(lab.worker_record("w1"))
    reason = lab.after(200).stale(lab.message(attempt.Heartbeat, granted, request_id="m2"))

    assert (again.events, again.changed, repeated) == ([], {}, "unresponsive")
    assert reason == "LEASE_EXPIRED"
    assert worker_state(lab.worker_record("w1")) == "unresponsive"
    lab.verified()


@pytest.mark.proves("WST-KI2", "MOD-12")
def test_a_message_of_a_task_that_is_being_stopped_writes_its_worker() -> None:
    """Only the guard of this write shows that another server found the worker unresponsive at the same time."""
    lab, (granted,) = busy("a")
    lab.do(CancelJob(id="r1/a", actor="user:ada"))
    worker_before = lab.worker_record("w1")

    decision = lab.do(lab.message(attempt.Heartbeat, granted))

    assert [event.entity_id for event in decision.events] == ["r1/a.1"]
    assert decision.changed["w1"] == worker_before


# -- silence while a task is being stopped


def stopping() -> Lab:
    """w1 fell silent with `a`, which it was asked to stop, and lost `b`, whose lease ended."""
    lab, (a, _) = busy("a", "b", slots=2)
    lab.after(60).send(attempt.Heartbeat, a)
    lab.do(CancelJob(id="r1/a", actor="user:ada"))
    lab.do(worker.MissHealthChecks(id="w1"))
    lab.after(60).do(attempt.Expire(id="r1/b.1"))
    return lab


@pytest.mark.proves("WST-KI4")
@pytest.mark.parametrize("rule", ["WST-KI1", "WST-KI4", "WST-K3"])
def test_the_verifier_finds_a_silent_worker_that_does_not_release_what_it_lost(rule: str) -> None:
    """A place that is not given back, given back twice or counted wrongly is lost for ever."""
    lab = stopping()
    lines = decoded(lab.canonical())
    number = max(n for n, line in enumerate(lines) if (line["entity"], line["from"]) == ("worker", "UNRESPONSIVE"))
    changes = {"WST-KI1": {"tasks": 0}, "WST-K3": {"attempt_id": "r1/a.1"}}

    if rule == "WST-KI4":
        found = altered(lab.canonical(), lambda log: log.pop(number))
    else:
        found = altered(lab.canonical(), lambda log: log[number]["metadata"].update(changes[rule]))

    assert rule in found


@pytest.mark.proves("WST-KI1")
def test_a_worker_that_holds_nothing_is_not_busy() -> None:
    """To take up again is for who came back and still has to stop something."""
    lab = Lab()
    lab.register("w1")

    refused = lab.refused(worker.ResumeTasks(id="w1"))

    assert refused.code == "not_eligible"
    assert "w1 holds no lease" in refused.message
    assert lab.worker_record("w1").state == worker.IDLE


@pytest.mark.proves("WST-K6", "WST-KI4")
@pytest.mark.parametrize("order", [attempt.ForceCancel, attempt.Expire])
def test_a_silent_worker_is_not_shut_down_while_it_holds_a_lease(order: type[Command]) -> None:
    """A removed worker must hold no lease; the deadline of the cancel, or the end of the lease, frees the last one."""
    lab = stopping()

    early = lab.refused(worker.GiveUp(id="w1"))
    lab.after(60).do(order(id="r1/a.1"))
    granted = (worker_state(lab.worker_record("w1")), lab.worker_record("w1").tasks)
    lab.do(worker.GiveUp(id="w1"))

    assert early.code == "not_eligible"
    assert "r1/a.1" in early.message
    assert granted == ("unresponsive", ())
    assert last_step(lab, "w1") == ("unresponsive", "shutdown", "max_timeout_exceeded", "info")
    lab.verified()


@pytest.mark.proves("WST-K5", "WST-KA5", "WST-KI1")
def test_a_worker_that_comes_back_with_a_lease_is_busy_in_the_same_decision() -> None:
    """It returns to the pool with the place that it still needs taken, so that it is never given too much."""
    lab = stopping()

    decision = lab.do(worker.Recover(id="w1", actor="worker:w1"))

    steps = [(event.from_, event.to, event.trigger) for event in decision.events]
    assert steps == [("UNRESPONSIVE", "IDLE", "health_check_recovered"), ("IDLE", "BUSY", "task_assigned")]
    assert decision.events[-1].metadata == {"attempt_id": "r1/a.1", "tasks": 1}
    lab.claim(lab.attempt("spare"))
    lab.register("w2")
    lab.claim(lab.attempt("b"), by="w2")
    assert lab.worker_record("w1").tasks == ("r1/a.1", "r1/spare.1")
    lab.verified()


@pytest.mark.proves("WST-K7", "WST-K8", "WST-KI3")
@pytest.mark.parametrize("is_stopping", [False, True])
def test_a_shutdown_that_was_asked_for_survives_the_silence(is_stopping: bool) -> None:
    """It still goes when it comes back: at once, or after it has stopped what it was asked to stop."""
    lab, (granted,) = busy("a")
    lab.do(worker.Shutdown(id="w1", actor="user:ada", reason="OLD"))
    if is_stopping:
        lab.do(CancelJob(id="r1/a", actor="user:ada"))
    lab.do(worker.MissHealthChecks(id="w1"))
    if not is_stopping:
        lab.after(lease.TTL_SECONDS).do(attempt.Expire(id="r1/a.1"))

    lab.do(worker.Recover(id="w1"))

    if is_stopping:
        assert worker_state(lab.worker_record("w1")) == "busy"
        assert lab.refused(grant(lab, "spare")).code == "not_eligible"
        lab.send(attempt.CancelAck, granted)
    source = "busy" if is_stopping else "idle"
    assert last_step(lab, "w1") == (source, "shutdown", "shutdown_requested", "info")
    assert exported(lab, "w1")[-1]["metadata"]["reason"] == "OLD"
    assert lab.refused(grant(lab, "spare")).code == "wrong_state"
    lab.verified()


# -- recovery and the end


@pytest.mark.proves("WST-KG5")
def test_a_silent_worker_gets_no_work_until_its_own_message() -> None:
    """Neither time nor a person can recover it."""
    lab, _ = silent()
    lab.after(86_400)

    by_person = lab.refused(worker.Recover(id="w1", actor="user:ada"))
    asked = lab.refused(grant(lab, "spare"))

    assert (by_person.code, asked.code) == ("wrong_actor", "wrong_state")
    assert worker_state(lab.worker_record("w1")) == "unresponsive"


@pytest.mark.proves("WST-K5", "WST-KA5")
def test_a_worker_that_answers_again_is_idle_and_takes_work() -> None:
    """What it lost stays lost; it starts afresh."""
    lab, _ = silent()
    lab.after(110).do(attempt.Expire(id="r1/a.1"))

    lab.do(worker.Recover(id="w1", actor="worker:w1"))

    assert last_step(lab, "w1") == ("unresponsive", "idle", "health_check_recovered", "info")
    assert lab.worker_record("w1").tasks == ()
    lab.claim(lab.attempt("spare"))
    assert worker_state(lab.worker_record("w1")) == "busy"
    lab.verified()


@pytest.mark.proves("WST-K6", "WST-KI4")
def test_a_worker_that_stays_silent_is_given_up_and_holds_nothing() -> None:
    """Its tasks are handed on when their leases end; nothing is left behind."""
    lab, granted = silent()
    lab.after(110).do(attempt.Expire(id="r1/a.1"))

    lab.do(worker.GiveUp(id="w1"))

    assert last_step(lab, "w1") == ("unresponsive", "shutdown", "max_timeout_exceeded", "info")
    assert lab.worker_record("w1").tasks == ()
    assert lab.attempt("a").lease is None
    assert lab.stale(lab.message(attempt.Heartbeat, granted)) == "LEASE_EXPIRED"
    assert lab.refused(grant(lab, "spare")).code == "wrong_state"
    lab.verified()


@pytest.mark.proves("WST-K4", "WST-K5", "WST-K6")
@pytest.mark.parametrize("order", [worker.Recover, worker.GiveUp])
@pytest.mark.parametrize("state", ["idle", "busy", "shutdown"])
def test_only_a_silent_worker_recovers_or_is_shut_down(state: str, order: type[Command]) -> None:
    """For other workers, both commands change nothing."""
    lab = Lab()
    lab.register("w1")
    lab.plan(task("a"))
    if state == "busy":
        lab.claim(lab.attempt("a"))
    if state == "shutdown":
        lab.do(worker.Shutdown(id="w1"))

    refusal = lab.refused(order(id="w1"))

    assert refusal.code == "wrong_state"
    assert worker_state(lab.worker_record("w1")) == state
