"""The worker rules of docs/spec/workstreams.md, each proved on the real core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from deltaci.core import attempt, job, lease, worker
from deltaci.core.decide import CancelJob
from deltaci.core.errors import Refused
from deltaci.core.machine import Command
from deltaci.core.verify import verify
from deltaci.core.views.workstreams import worker_state
from tests.lab import Lab, Lease, task

Change = Callable[[dict[str, Any]], object]


def exported(lab: Lab, id: str = "w1") -> list[dict[str, Any]]:
    """What document 003 reads about one entity."""
    return [line for line in map(msgspec.json.decode, lab.transitions()) if line["entity_id"] == id]


def last_step(lab: Lab) -> tuple[str, str, str, str]:
    """The newest transition of w1, as document 003 reads it."""
    line = exported(lab)[-1]
    return line["from_state"], line["to_state"], line["trigger"], line["severity"]


def grant(lab: Lab, name: str, by: str = "w1") -> attempt.Grant:
    """A worker asks for a task."""
    return attempt.Grant(id=lab.attempt(name).id, actor=f"worker:{by}", fingerprint="f")


def busy(*names: str, places: int = 1) -> tuple[Lab, list[Lease]]:
    """w1 is busy with these tasks; `spare` still waits for somebody."""
    lab = Lab()
    lab.register("w1", places=places)
    lab.plan(*map(task, names), task("spare"))
    leases = [lab.claim(lab.attempt(name)) for name in names]
    for held in leases:
        lab.say(attempt.Heartbeat, held)
    return lab, leases


def silent() -> tuple[Lab, Lease]:
    """w1 was busy with `a` and is unresponsive."""
    lab, (held,) = busy("a")
    lab.after(10).do(worker.MissHealthChecks(id="w1"))
    return lab, held


# -- registration


@pytest.mark.proves("WST-KG1")
def test_a_worker_that_offers_no_place_is_not_registered() -> None:
    """A worker that cannot take a single task would only look like one."""
    lab = Lab()

    with pytest.raises(Refused, match="bad_request"):
        lab.register("w1", places=0)

    assert lab.world.worker("w1") is None
    assert lab.log == []


@pytest.mark.proves("WST-KG1")
@pytest.mark.parametrize("missing", ["labels", "max_concurrent_tasks"])
def test_the_verifier_takes_no_idle_worker_without_capabilities(missing: str) -> None:
    """Nobody could say which tasks it may be given."""
    lab = Lab()
    lab.register("w1", labels=("gpu",))
    lines = [msgspec.json.decode(raw) for raw in lab.canonical()]
    del lines[1]["metadata"][missing]

    found = verify([msgspec.json.encode(line) for line in lines]).violations

    assert [(each.line, each.rule) for each in found] == [(2, "WST-KG1")]


@pytest.mark.proves("WST-K1", "WST-KG1")
def test_a_registered_worker_is_idle_tells_what_it_can_and_may_be_given_work() -> None:
    """It is in the pool from its first moment, with the capabilities that the orchestrator then holds it to."""
    lab = Lab()
    lab.plan(task("a", queue_key="gpu"))

    lab.register("w1", places=2, labels=("gpu", "linux"))

    assert last_step(lab) == ("initializing", "idle", "registration_complete", "info")
    assert exported(lab)[0]["metadata"] == {"labels": ["gpu", "linux"], "max_concurrent_tasks": 2}
    lab.claim(lab.attempt("a"))
    assert lab.job("a").worker_id == "w1"
    lab.verified()


# -- assignment


@pytest.mark.proves("WST-KG2")
@pytest.mark.parametrize("labels", [(), ("linux",), ("gp", "u"), ("GPU",)])
def test_a_worker_is_not_assigned_a_task_that_it_is_not_capable_of(labels: tuple[str, ...]) -> None:
    """Capabilities are compared as whole words; nearly is not enough."""
    lab = Lab()
    lab.register("w1", labels=labels)
    lab.plan(task("a", queue_key="gpu,linux"))

    refusal = lab.refused(grant(lab, "a"))

    assert refusal.code == "not_eligible"
    assert "gpu" in refusal.message
    assert worker_state(lab.worker_record("w1")) == "idle"


@pytest.mark.proves("WST-KI1")
@pytest.mark.parametrize("places", [1, 2, 3])
def test_a_worker_gets_no_more_tasks_than_it_has_places(places: int) -> None:
    """It knows best how much it can carry."""
    names = [f"t{index}" for index in range(places)]
    lab, leases = busy(*names, places=places)

    refusal = lab.refused(grant(lab, "spare"))

    assert refusal.code == "worker_full"
    assert len(lab.worker_record("w1").tasks) == places
    lab.complete(leases[0])
    lab.claim(lab.attempt("spare"))
    assert lab.attempt("spare").id in lab.worker_record("w1").tasks
    lab.verified()


@pytest.mark.proves("WST-K2", "WST-KG2", "WST-KA2")
def test_an_assignment_starts_the_task_and_counts_it() -> None:
    """How much of the worker is in use can be read from the event alone."""
    lab = Lab()
    lab.register("w1", places=2, labels=("gpu", "linux"))
    lab.plan(task("a", queue_key="gpu"))

    lab.claim(lab.attempt("a"))

    assert last_step(lab) == ("idle", "busy", "task_assigned", "info")
    assert exported(lab)[-1]["metadata"]["tasks"] == 1
    assert lab.worker_record("w1").tasks == (lab.attempt("a").id,)
    assert (lab.job("a").state, lab.job("a").worker_id) == (job.RUNNING, "w1")
    lab.verified()


# -- the end of a task


@pytest.mark.proves("WST-KG3")
def test_a_worker_stays_busy_until_its_last_task_is_over() -> None:
    """A worker with two places and one task is not idle; a shutdown must still wait for it."""
    lab, (first, second) = busy("a", "b", places=2)

    lab.complete(first)

    assert worker_state(lab.worker_record("w1")) == "busy"
    lab.complete(second)
    assert worker_state(lab.worker_record("w1")) == "idle"
    assert [line["to_state"] for line in exported(lab)] == ["idle", "busy", "idle"]
    lab.verified()


def _finish(lab: Lab, held: Lease, how: str) -> None:
    id = lab.attempt("a").id
    if how in ("success", "failure"):
        lab.complete(held, ok=how == "success")
    elif how == "cancel":
        lab.do(CancelJob(id="r1/a", actor="user:ada"))
        lab.say(attempt.CancelAck, held)
    elif how == "expiry":
        lab.after(120).do(attempt.Expire(id=id))
    else:
        for _ in range(60):
            lab.after(60).say(attempt.Heartbeat, held)
        lab.do(attempt.TimeOut(id=id))


@pytest.mark.proves("WST-K3", "WST-KG3", "WST-KA3")
@pytest.mark.parametrize("how", ["success", "failure", "cancel", "expiry", "timeout"])
def test_however_a_task_ends_its_worker_is_idle_again_and_takes_the_next(how: str) -> None:
    """A place that is not given back is lost for ever."""
    lab, (held,) = busy("a")

    _finish(lab, held, how)

    assert last_step(lab) == ("busy", "idle", "task_completed", "info")
    assert exported(lab)[-1]["metadata"]["tasks"] == 0
    assert lab.worker_record("w1").tasks == ()
    lab.claim(lab.attempt("spare"))
    assert worker_state(lab.worker_record("w1")) == "busy"
    lab.verified()


# -- silence


@pytest.mark.proves("WST-K4", "WST-KI4")
def test_a_silent_worker_loses_all_that_it_held_and_its_tasks_go_to_others() -> None:
    """Its task is queued again, but not before its old lease would have ended: two never run it together."""
    lab, leases = busy("a", "b", places=2)
    lab.register("w2", places=2)

    lab.after(10).do(worker.MissHealthChecks(id="w1"))

    assert last_step(lab) == ("busy", "unresponsive", "health_check_timeout", "error")
    assert lab.worker_record("w1").tasks == ()
    for name in "ab":
        lost = lab.attempt(name)
        assert (lost.state, lost.lease, lost.ended_lease and lost.ended_lease.state) == (
            attempt.QUEUED,
            None,
            lease.REVOKED,
        )
        assert lab.refused(grant(lab, name, "w2")).code == "not_due"
    assert {lab.stale(lab.message(attempt.Complete, held, is_success=True)) for held in leases} == {"LEASE_REVOKED"}
    lab.after(110)
    for name in "ab":
        lab.claim(lab.attempt(name), by="w2")
        assert lab.job(name).worker_id == "w2"
    lab.verified()


@pytest.mark.proves("WST-KI2")
def test_a_heartbeat_of_a_silent_worker_does_not_count() -> None:
    """Its lease is gone; to keep a task alive it would need one."""
    lab, held = silent()

    reason = lab.stale(lab.message(attempt.Heartbeat, held))

    assert reason == "LEASE_REVOKED"
    assert worker_state(lab.worker_record("w1")) == "unresponsive"


@pytest.mark.proves("WST-KI2", "WST-KG5")
def test_a_heartbeat_that_counts_makes_its_worker_idle_first() -> None:
    """A runner that still has to stop a task speaks under a live lease; by speaking it has recovered."""
    lab, (held,) = busy("a")
    lab.do(CancelJob(id="r1/a", actor="user:ada"))
    lab.do(worker.MissHealthChecks(id="w1"))
    assert worker_state(lab.worker_record("w1")) == "unresponsive"

    lab.say(attempt.Heartbeat, held)

    assert worker_state(lab.worker_record("w1")) == "idle"
    lines = lab.canonical()
    recovery = next(n for n, raw in enumerate(lines) if b"health_check_recovered" in raw)
    found = verify(lines[:recovery] + lines[recovery + 1 :]).violations
    assert [(each.line, each.rule) for each in found] == [(recovery + 1, "WST-KI2")]
    lab.verified()


@pytest.mark.proves("WST-KG5")
def test_a_silent_worker_gets_no_work_and_nobody_can_speak_for_it() -> None:
    """Only its own answer shows that it is back; neither time nor a person does."""
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

    lab.do(worker.Recover(id="w1", actor="worker:w1"))

    assert last_step(lab) == ("unresponsive", "idle", "health_check_recovered", "info")
    assert lab.worker_record("w1").tasks == ()
    lab.claim(lab.attempt("spare"))
    assert worker_state(lab.worker_record("w1")) == "busy"
    lab.verified()


@pytest.mark.proves("WST-K6", "WST-KI4")
def test_a_worker_that_stays_silent_is_given_up_and_holds_nothing() -> None:
    """Its tasks were handed on when it fell silent; nothing is left behind."""
    lab, held = silent()

    lab.do(worker.GiveUp(id="w1"))

    assert last_step(lab) == ("unresponsive", "shutdown", "max_timeout_exceeded", "info")
    assert lab.worker_record("w1").tasks == ()
    assert lab.attempt("a").lease is None
    assert lab.stale(lab.message(attempt.Heartbeat, held)) == "LEASE_REVOKED"
    assert lab.refused(grant(lab, "spare")).code == "wrong_state"
    lab.verified()


@pytest.mark.proves("WST-K4", "WST-K5", "WST-K6")
@pytest.mark.parametrize("order", [worker.Recover, worker.GiveUp])
@pytest.mark.parametrize("state", ["idle", "busy", "shutdown"])
def test_only_a_silent_worker_recovers_or_is_given_up(state: str, order: type[Command]) -> None:
    """An answer to a question that nobody asked changes nothing."""
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


# -- shutdown


@pytest.mark.proves("WST-K7")
def test_an_idle_worker_shuts_down_at_once_and_never_works_again() -> None:
    """There is nothing to wait for."""
    lab = Lab()
    lab.register("w1")
    lab.plan(task("a"))

    lab.do(worker.Shutdown(id="w1", actor="user:ada"))

    assert last_step(lab) == ("idle", "shutdown", "shutdown_requested", "info")
    assert lab.refused(grant(lab, "a")).code == "wrong_state"
    lab.verified()


@pytest.mark.proves("WST-K8", "WST-KI3")
def test_a_busy_worker_finishes_its_tasks_before_it_shuts_down() -> None:
    """Work that is nearly done is not thrown away, and no new work is added to it."""
    lab, (first, second) = busy("a", "b", places=3)

    lab.do(worker.Shutdown(id="w1", actor="user:ada"))

    assert worker_state(lab.worker_record("w1")) == "busy"
    assert lab.refused(grant(lab, "spare")).code == "not_eligible"
    lab.say(attempt.Heartbeat, second)
    lab.complete(first)
    assert worker_state(lab.worker_record("w1")) == "busy"
    lab.complete(second)
    assert last_step(lab) == ("busy", "shutdown", "shutdown_requested", "info")
    assert {lab.job(name).state for name in "ab"} == {job.SUCCEEDED}
    lab.verified()


# -- what the verifier says about a worker


@pytest.mark.proves("WST-KG2", "WST-KI1", "WST-K8")
@pytest.mark.parametrize(
    ("rule", "change", "changed", "reported"),
    [
        ("WST-KG2", lambda line: line["metadata"].update(labels=[]), ("worker", "IDLE"), ("attempt", "LEASED")),
        ("WST-KI1", lambda line: line["metadata"].update(tasks=2), ("worker", "BUSY"), ("worker", "BUSY")),
        ("WST-K8", lambda line: line.update(to="IDLE", trigger="task_completed"), *[("worker", "SHUTDOWN")] * 2),
    ],
)
def test_the_verifier_finds_a_worker_that_broke_its_rules(
    rule: str, change: Change, changed: tuple[str, str], reported: tuple[str, str]
) -> None:
    """What a worker was and what it held is checked against its leases, not against its word."""
    lab = Lab()
    lab.register("w1", labels=("gpu",))
    lab.plan(task("a", queue_key="gpu"))
    held = lab.claim(lab.attempt("a"))
    lab.after(1).do(worker.Shutdown(id="w1"))
    lab.after(1).complete(held)
    lines = [msgspec.json.decode(raw) for raw in lab.canonical()]
    at = [(line["entity"], line["to"]) for line in lines]
    change(lines[at.index(changed)])

    found = verify([msgspec.json.encode(line) for line in lines]).violations

    assert (at.index(reported) + 1, rule) in {(each.line, each.rule) for each in found}


@pytest.mark.proves("WST-KG3", "WST-KI1")
@pytest.mark.parametrize(("rule", "to", "tasks"), [("WST-KI1", "busy", 2), ("WST-KG3", "idle", 1)])
def test_the_verifier_reads_the_same_from_document_003s_log(rule: str, to: str, tasks: int) -> None:
    """The count in the event must fit the worker's places and its state."""
    lab, (held,) = busy("a")
    lab.complete(held)
    lines = [msgspec.json.decode(raw) for raw in lab.transitions()]
    number = max(n for n, line in enumerate(lines, 1) if (line["entity_id"], line["to_state"]) == ("w1", to))
    lines[number - 1]["metadata"]["tasks"] = tasks

    found = verify([msgspec.json.encode(line) for line in lines]).violations

    assert [(each.line, each.rule) for each in found] == [(number, rule)]
