"""The worker rules of docs/spec/workstreams.md, each proved on the real core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from deltaci.audit.verify import verify
from deltaci.core import attempt, job, worker
from deltaci.core.decide import CancelJob
from deltaci.core.errors import Refused
from deltaci.core.status.workstreams import worker_state
from tests.spec.logs import exported, last_step
from tests.spec.scenes import busy, grant
from tests.support.lab import Lab, Lease, task

Change = Callable[[dict[str, Any]], object]


# -- registration


@pytest.mark.proves("WST-KG1")
def test_a_worker_that_offers_no_place_is_not_registered() -> None:
    """A worker that cannot take a single task would only look like one."""
    lab = Lab()

    with pytest.raises(Refused, match="bad_request"):
        lab.register("w1", slots=0)

    assert lab.unit.worker("w1") is None
    assert lab.log == []


@pytest.mark.proves("WST-KG1")
@pytest.mark.parametrize("missing", ["labels", "max_concurrent_tasks"])
def test_the_verifier_refuses_an_idle_worker_without_capabilities(missing: str) -> None:
    """Its possible tasks would be unknown."""
    lab = Lab()
    lab.register("w1", labels=("gpu",))
    lines = [msgspec.json.decode(raw) for raw in lab.canonical()]
    del lines[1]["metadata"][missing]

    violations = verify([msgspec.json.encode(line) for line in lines]).violations

    assert [(each.line, each.rule) for each in violations] == [(2, "WST-KG1")]


@pytest.mark.proves("WST-K1", "WST-KG1")
def test_a_registered_worker_is_idle_with_its_capabilities_and_can_get_work() -> None:
    """It is in the pool from its first moment, with the capabilities that it registered."""
    lab = Lab()
    lab.plan(task("a", queue_key="gpu"))

    lab.register("w1", slots=2, labels=("gpu", "linux"))

    assert last_step(lab, "w1") == ("initializing", "idle", "registration_complete", "info")
    assert exported(lab, "w1")[0]["metadata"] == {
        "export_version": 2,
        "labels": ["gpu", "linux"],
        "max_concurrent_tasks": 2,
    }
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


@pytest.mark.proves("WST-KG2", "WST-TG2")
@pytest.mark.parametrize("is_registered", [False, True])
@pytest.mark.parametrize("labels", [(), ("gpu",), ("linux",)])
def test_a_lease_is_granted_only_to_who_offers_every_label_that_the_task_needs(
    is_registered: bool, labels: tuple[str, ...]
) -> None:
    """The plain queue also serves owners that are not registered; they must be just as able."""
    lab = Lab()
    lab.plan(task("a", queue_key="gpu,linux"))
    if is_registered:
        lab.register("w1", labels=("gpu", "linux"))
    asked = attempt.Grant(id="r1/a.1", actor="worker:w1", fingerprint="f", labels=labels)

    refusal = lab.refused(asked)
    lab.do(msgspec.structs.replace(asked, labels=("gpu", "linux", "x64")))

    assert refusal.code == "not_eligible"
    assert {"gpu", "linux"} - set(labels) == {word for word in ("gpu", "linux") if word in refusal.message}
    assert lab.job("a").worker_id == "w1"
    lab.verified()


@pytest.mark.proves("WST-KI1")
@pytest.mark.parametrize("places", [1, 2, 3])
def test_a_worker_gets_no_more_tasks_than_it_has_places(places: int) -> None:
    """It knows best how much it can carry."""
    names = [f"t{index}" for index in range(places)]
    lab, leases = busy(*names, slots=places)

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
    lab.register("w1", slots=2, labels=("gpu", "linux"))
    lab.plan(task("a", queue_key="gpu"))

    lab.claim(lab.attempt("a"))

    assert last_step(lab, "w1") == ("idle", "busy", "task_assigned", "info")
    assert exported(lab, "w1")[-1]["metadata"]["tasks"] == 1
    assert lab.worker_record("w1").tasks == (lab.attempt("a").id,)
    assert (lab.job("a").state, lab.job("a").worker_id) == (job.RUNNING, "w1")
    lab.verified()


# -- the end of a task


@pytest.mark.proves("WST-KG3")
def test_a_worker_stays_busy_until_its_last_task_is_over() -> None:
    """A worker with two places and one task is not idle; a shutdown must still wait for it."""
    lab, (first, second) = busy("a", "b", slots=2)

    lab.complete(first)

    assert worker_state(lab.worker_record("w1")) == "busy"
    lab.complete(second)
    assert worker_state(lab.worker_record("w1")) == "idle"
    assert [line["to_state"] for line in exported(lab, "w1")] == ["idle", "busy", "idle"]
    lab.verified()


def _finish(lab: Lab, granted: Lease, how: str) -> None:
    id = lab.attempt("a").id
    if how in ("success", "failure"):
        lab.complete(granted, ok=how == "success")
    elif how == "cancel":
        lab.do(CancelJob(id="r1/a", actor="user:ada"))
        lab.send(attempt.CancelAck, granted)
    elif how == "expiry":
        lab.after(120).do(attempt.Expire(id=id))
    else:
        for _ in range(60):
            lab.after(60).send(attempt.Heartbeat, granted)
        lab.do(attempt.TimeOut(id=id))


@pytest.mark.proves("WST-K3", "WST-KG3", "WST-KA3")
@pytest.mark.parametrize("how", ["success", "failure", "cancel", "expiry", "timeout"])
def test_however_a_task_ends_its_worker_is_idle_again_and_takes_the_next(how: str) -> None:
    """A place that is not given back is lost for ever."""
    lab, (granted,) = busy("a")

    _finish(lab, granted, how)

    assert last_step(lab, "w1") == ("busy", "idle", "task_completed", "info")
    assert exported(lab, "w1")[-1]["metadata"]["tasks"] == 0
    assert lab.worker_record("w1").tasks == ()
    lab.claim(lab.attempt("spare"))
    assert worker_state(lab.worker_record("w1")) == "busy"
    lab.verified()


# -- shutdown


@pytest.mark.proves("WST-K7")
def test_an_idle_worker_shuts_down_at_once_and_never_works_again() -> None:
    """There is nothing to wait for."""
    lab = Lab()
    lab.register("w1")
    lab.plan(task("a"))

    lab.do(worker.Shutdown(id="w1", actor="user:ada"))

    assert last_step(lab, "w1") == ("idle", "shutdown", "shutdown_requested", "info")
    assert lab.refused(grant(lab, "a")).code == "wrong_state"
    lab.verified()


@pytest.mark.proves("WST-K8", "WST-KI3")
def test_a_busy_worker_finishes_its_tasks_before_it_shuts_down() -> None:
    """Work that is nearly done is not thrown away, and no new work is added to it."""
    lab, (first, second) = busy("a", "b", slots=3)

    lab.do(worker.Shutdown(id="w1", actor="user:ada"))

    assert worker_state(lab.worker_record("w1")) == "busy"
    assert lab.refused(grant(lab, "spare")).code == "not_eligible"
    lab.send(attempt.Heartbeat, second)
    lab.complete(first)
    assert worker_state(lab.worker_record("w1")) == "busy"
    lab.complete(second)
    assert last_step(lab, "w1") == ("busy", "shutdown", "shutdown_requested", "info")
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
    lease = lab.claim(lab.attempt("a"))
    lab.after(1).do(worker.Shutdown(id="w1"))
    lab.after(1).complete(lease)
    lines = [msgspec.json.decode(raw) for raw in lab.canonical()]
    at = [(line["entity"], line["to"]) for line in lines]
    change(lines[at.index(changed)])

    violations = verify([msgspec.json.encode(line) for line in lines]).violations

    assert (at.index(reported) + 1, rule) in {(each.line, each.rule) for each in violations}


@pytest.mark.proves("WST-KG3", "WST-KI1")
@pytest.mark.parametrize(("rule", "to", "tasks"), [("WST-KI1", "busy", 2), ("WST-KG3", "idle", 1)])
def test_the_verifier_reads_the_same_from_document_003s_log(rule: str, to: str, tasks: int) -> None:
    """The count in the event must fit the worker's places and its state."""
    lab, (granted,) = busy("a")
    lab.complete(granted)
    lines = [msgspec.json.decode(raw) for raw in lab.transitions()]
    number = max(n for n, line in enumerate(lines, 1) if (line["entity_id"], line["to_state"]) == ("w1", to))
    lines[number - 1]["metadata"]["tasks"] = tasks

    violations = verify([msgspec.json.encode(line) for line in lines]).violations

    assert [(each.line, each.rule) for each in violations] == [(number, rule)]
