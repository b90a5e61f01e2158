"""Workers that are drained, quarantined and resumed, and what costs one its trust: docs/spec/workstreams.md, Holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from deltaci.audit.verify import verify
from deltaci.core import attempt, lease, worker
from deltaci.core.decide import CancelJob
from deltaci.core.failures import Facts
from deltaci.core.machine import Command
from deltaci.core.worker import (
    DRAINED,
    QUARANTINED,
    REPEATED_INFRA_FAILURES,
    Drain,
    Quarantine,
    Resume,
    UpdateCapabilities,
)
from tests.spec.scenes import busy, grant
from tests.support.lab import TENANT, Lab, Lease, task

Line = dict[str, Any]
NAMES = "abcdefgh"


def drain(reason: str = "new disk", actor: str = "user:ada") -> Drain:
    """Drain w1: it takes no new tasks."""
    return Drain(id="w1", actor=actor, reason=reason)


def fleet(*, places: int = 1, **spec: Any) -> Lab:
    """Return a lab with w1 and eight queued tasks."""
    lab = Lab()
    lab.register("w1", slots=places)
    return lab.plan(*(task(name, **spec) for name in NAMES), is_fail_fast=False)


def hold(lab: Lab) -> tuple[str, str, int]:
    """What holds w1, why, and its troubles."""
    known = lab.worker_record("w1")
    return known.hold, known.hold_reason, known.infra_failures


def expire(lab: Lab, granted: Lease) -> None:
    """Let the lease expire."""
    lab.after(lease.TTL_SECONDS).do(attempt.Expire(id=granted.ref.attempt_id))


def lose(lab: Lab, *names: str) -> None:
    """w1 loses these tasks, one after the other."""
    for name in names:
        granted = lab.claim(lab.attempt(name))
        lab.send(attempt.Ack, granted)
        expire(lab, granted)


def doubted() -> Lab:
    """w1 had one trouble too many."""
    lab = fleet()
    lose(lab, *"abc")
    return lab


def worker_events(lab: Lab) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the events of w1 without the usual fields."""
    usual = ("registered", "registration_complete", "task_assigned")
    events = [event for event in lab.log if event.entity == "worker" and event.trigger not in usual]
    return [(event.trigger, event.severity, event.metadata) for event in events]


# -- drained and resumed


@pytest.mark.proves("WST-KH1", "WST-KH2", "WST-KH3")
@pytest.mark.parametrize(
    ("order", "code"),
    [
        (Drain(id="w1", actor="worker:w1", reason="tired"), "wrong_actor"),
        (Resume(id="w1", actor="worker:w1"), "wrong_actor"),
        (Quarantine(id="w1", actor="user:ada", reason="slow"), "wrong_actor"),
        (Quarantine(id="w1", reason=REPEATED_INFRA_FAILURES), "bad_request"),
        (Drain(id="w2", actor="user:ada", reason="who?"), "not_found"),
    ],
)
def test_who_may_not_hold_a_worker_is_refused(order: Command, code: str) -> None:
    """A worker does not decide whether it is trusted, a person does not find it untrusted, and nothing is made up."""
    lab = Lab()
    lab.register("w1")

    assert lab.refused(order).code == code


@pytest.mark.proves("WST-KH1", "WST-KH2")
@pytest.mark.parametrize("order", [drain(), Quarantine(id="w1", reason="slow"), Resume(id="w1")])
def test_a_worker_that_is_gone_is_not_held(order: Command) -> None:
    """There is nothing to keep from it, and nothing to give it back."""
    lab = Lab()
    lab.register("w1")
    lab.do(worker.Shutdown(id="w1"))

    assert lab.refused(order).code == "wrong_state"


@pytest.mark.proves("WST-KH1")
@pytest.mark.parametrize("actor", ["user:ada", "orchestrator"])
def test_a_drained_worker_finishes_its_tasks_and_gets_no_new_ones(actor: str) -> None:
    """Its disk can be replaced without losing work."""
    lab, [granted] = busy("a", slots=2)

    lab.after(1).do(drain(actor=actor))
    refusal = lab.refused(grant(lab, "spare"))
    lab.after(1).complete(granted)

    assert refusal.code == "not_eligible"
    assert refusal.message == (
        "worker w1 is drained (new disk) and gets no new work; resume it, or choose another worker"
    )
    known = lab.worker_record("w1")
    assert (known.state, known.hold, known.hold_reason) == (worker.IDLE, DRAINED, "new disk")
    assert lab.refused(grant(lab, "spare")).code == "not_eligible"
    assert ("drained", "info", {"hold": DRAINED, "reason": "new disk"}) in worker_events(lab)
    lab.verified()


@pytest.mark.proves("WST-KH1")
def test_a_silent_worker_can_be_drained_and_stays_drained_when_it_returns() -> None:
    """The order to drain does not depend on its answers."""
    lab, _ = busy("a")
    lab.after(10).do(worker.MissHealthChecks(id="w1"))

    lab.do(drain())
    lab.after(100).do(worker.Recover(id="w1", actor="worker:w1"))

    assert lab.refused(grant(lab, "spare")).code == "not_eligible"
    assert lab.steps("w1")[-3:] == [worker.UNRESPONSIVE, worker.IDLE, worker.BUSY]
    lab.verified()


@pytest.mark.proves("WST-KH2")
def test_a_resumed_worker_is_assigned_work_again() -> None:
    """The disk is in."""
    lab, _ = busy(slots=1)
    lab.do(drain())
    held_at = lab.worker_record("w1").held_at

    lab.after(60).do(Resume(id="w1", actor="user:bob"))

    lab.claim(lab.attempt("spare"))
    assert (held_at, hold(lab), lab.worker_record("w1").held_at) == (lab.now - 60_000_000, ("", "", 0), 0)
    assert worker_events(lab)[-1] == ("resumed", "info", {"hold": "", "was": DRAINED})
    lab.verified()


@pytest.mark.proves("WST-KH1", "WST-KH2", "MOD-10")
def test_what_holds_already_and_what_is_not_held_changes_nothing() -> None:
    """The first reason stands, and nothing is written for nothing."""
    lab = Lab()
    lab.register("w1")

    assert not lab.do(Resume(id="w1")).changed
    lab.do(drain())
    assert not lab.do(drain("another reason", "user:bob")).changed
    assert not lab.do(Quarantine(id="w1", reason="slow")).changed
    assert hold(lab) == (DRAINED, "new disk", 0)
    lab.do(Resume(id="w1"))
    lab.do(Quarantine(id="w1", reason="slow"))
    assert not lab.do(Quarantine(id="w1", reason="slower")).changed

    assert hold(lab) == (QUARANTINED, "slow", 0)
    lab.verified()


@pytest.mark.proves("WST-KH1", "WST-KH2")
@pytest.mark.parametrize("is_drained", [False, True])
def test_a_runner_that_registers_anew_ends_a_quarantine_but_not_a_drain(is_drained: bool) -> None:
    """A new registration restores trust; the decision of a person stays."""
    lab = doubted()
    if is_drained:
        lab.do(drain("for good"))
    came_in = UpdateCapabilities(id="w1", tenant=TENANT, token_at=lab.now)

    lab.after(1).do(msgspec.structs.replace(came_in, token_at=0, slots=2))
    assert hold(lab)[0] == (DRAINED if is_drained else QUARANTINED)
    lab.after(1).do(came_in)

    assert hold(lab) == ((DRAINED, "for good", 3) if is_drained else ("", "", 0))
    resumed = {} if is_drained else {"hold": "", "was": QUARANTINED}
    assert worker_events(lab)[-1] == (
        "capabilities_registered",
        "info",
        {"labels": [], "max_concurrent_tasks": 2, **resumed},
    )
    lab.verified()


# -- troubles


@pytest.mark.proves("WST-KH3", "WST-KH4")
def test_three_consecutive_worker_failures_cause_a_quarantine_at_once() -> None:
    """A broken machine is fast: it takes one job after the other and breaks them all."""
    lab = fleet()
    lose(lab, *"ab")
    assert hold(lab) == ("", "", 2)

    lose(lab, "c")

    assert hold(lab) == (QUARANTINED, REPEATED_INFRA_FAILURES, 3)
    assert worker_events(lab)[-2:] == [
        ("task_completed", "info", {"attempt_id": "r1/c.1", "tasks": 0, "troubles": 3}),
        ("quarantined", "warning", {"hold": QUARANTINED, "reason": REPEATED_INFRA_FAILURES, "troubles": 3}),
    ]
    [at] = {event.at for event in lab.log[-5:] if event.entity == "worker"}
    assert at == lab.worker_record("w1").held_at
    refusal = lab.refused(grant(lab, "d"))
    assert refusal.code == "not_eligible"
    assert "is quarantined (REPEATED_TROUBLES)" in refusal.message
    lab.verified()


def lost_unaccepted(lab: Lab, name: str) -> None:
    lab.claim(lab.attempt(name))
    lab.after(lease.ACCEPT_SECONDS).do(attempt.RevokeUnaccepted(id=lab.attempt(name).id))


def lost_in_silence(lab: Lab, name: str) -> None:
    lab.claim(lab.attempt(name))
    lab.after(1).do(worker.MissHealthChecks(id="w1"))
    lab.after(lease.TTL_SECONDS).do(attempt.Expire(id=lab.attempt(name).id))
    lab.after(1).do(worker.Recover(id="w1"))


def failed(code: str) -> Callable[[Lab, str], None]:
    """The task ends with this error."""

    def fail(lab: Lab, name: str) -> None:
        lab.fail(lab.claim(lab.attempt(name)), code)

    return fail


def printed(lab: Lab, name: str) -> None:
    facts = Facts(exit_code=1, log_tail=("503 Service Unavailable",))
    lab.complete(lab.claim(lab.attempt(name)), ok=False, facts=facts)


def succeeded(lab: Lab, name: str) -> None:
    lab.work(name)


def timed_out(lab: Lab, name: str) -> None:
    granted = lab.claim(lab.attempt(name), ttl_seconds=90_000)
    lab.send(attempt.Heartbeat, granted)
    lab.after(attempt.TIMEOUT_SECONDS).do(attempt.TimeOut(id=granted.ref.attempt_id))


def handed_back(lab: Lab, name: str) -> None:
    lab.claim(lab.attempt(name))
    lab.do(attempt.Stall(id=lab.attempt(name).id, reason=attempt.HANDED_BACK))


def stalled(lab: Lab, name: str) -> None:
    lab.claim(lab.attempt(name))
    lab.do(attempt.Stall(id=lab.attempt(name).id, actor="user:ada"))


def canceled(lab: Lab, name: str) -> None:
    granted = lab.claim(lab.attempt(name))
    lab.do(CancelJob(id=f"r1/{name}", actor="user:ada"))
    lab.send(attempt.CancelAck, granted)


@pytest.mark.proves("WST-KH4")
@pytest.mark.parametrize(
    ("end", "troubles"),
    [
        (lose, 3),
        (lost_unaccepted, 3),
        (lost_in_silence, 3),
        (failed("RUNNER_STARTUP"), 3),
        (failed("CHECKOUT"), 3),
        (failed("CACHE_FETCH"), 0),
        (failed("BAD_SPEC"), 0),
        (failed("IMAGE_PULL"), 2),
        (printed, 2),
        (succeeded, 0),
        (failed("TIMED_OUT"), 2),
        (timed_out, 2),
        (handed_back, 2),
        (stalled, 2),
        (canceled, 2),
    ],
)
def test_which_outcomes_count_as_worker_failures_and_which_reset_the_count(
    end: Callable[[Lab, str], None], troubles: int
) -> None:
    """Only failures of a worker's infrastructure count against it, and a success resets the count."""
    lab = fleet()
    lose(lab, *"ab")

    end(lab, "c")

    assert hold(lab)[2] == troubles
    assert hold(lab)[0] == (QUARANTINED if troubles == 3 else "")
    lab.verified()


@pytest.mark.proves("WST-KH4")
def test_what_was_held_at_the_same_time_is_lost_together_and_counts_once() -> None:
    """A cable that was pulled once is one trouble, for a machine of many places as for one of a single place."""
    lab = fleet(places=4)
    leases = [lab.claim(lab.attempt(name)) for name in "abcd"]
    for granted in leases:
        lab.send(attempt.Ack, granted)

    for granted in leases[:3]:
        expire(lab, granted)

    assert hold(lab) == ("", "", 1)
    lose(lab, "e")  # This one it took after the trouble.
    assert hold(lab) == ("", "", 2)
    lab.do(attempt.Expire(id=leases[3].ref.attempt_id))
    assert (hold(lab), lab.worker_record("w1").excused) == (("", "", 2), ())
    lose(lab, "f")
    assert hold(lab) == (QUARANTINED, REPEATED_INFRA_FAILURES, 3)
    lab.verified()


@pytest.mark.proves("WST-KH4")
def test_the_same_attempt_that_is_lost_again_counts_again() -> None:
    """It was claimed after the trouble, by a worker that knew nothing of it."""
    lab = fleet(max_lost_leases=9)

    lose(lab, *"aaa")

    assert hold(lab) == (QUARANTINED, REPEATED_INFRA_FAILURES, 3)
    lab.verified()


@pytest.mark.proves("WST-KH3")
def test_a_worker_that_is_drained_or_leaves_is_not_quarantined() -> None:
    """It takes nothing new anyway, and why it does not shall stay known."""
    lab, leases = busy("a", "b", slots=2)
    lab.do(drain())
    lab.do(Resume(id="w1"))
    lab.do(worker.Shutdown(id="w1", actor="user:ada"))
    for granted in leases:
        expire(lab, granted)
    left = fleet()
    lose(left, *"ab")
    granted = left.claim(left.attempt("c"))
    left.do(drain())
    expire(left, granted)

    assert lab.worker_record("w1").state == worker.SHUTDOWN
    assert hold(left) == (DRAINED, "new disk", 3)
    left.do(Resume(id="w1"))
    assert hold(left) == ("", "", 0)
    lab.verified()
    left.verified()


@pytest.mark.proves("WST-KH3")
def test_a_quarantined_worker_finishes_what_it_has_and_stays_quarantined() -> None:
    """That one job goes well says little after three that did not."""
    lab = fleet(places=2)
    kept = lab.claim(lab.attempt("h"), ttl_seconds=9000)
    lab.send(attempt.Ack, kept)
    lose(lab, *"abc")

    lab.complete(kept)

    assert lab.job("h").state == "SUCCEEDED"
    assert hold(lab) == (QUARANTINED, REPEATED_INFRA_FAILURES, 0)
    assert lab.refused(grant(lab, "d")).code == "not_eligible"
    lab.verified()


# -- the log


def altered(lab: Lab, trigger: str, change: Callable[[Line], object]) -> set[str]:
    """Which rules break when the last line of this kind says something else."""
    log = [msgspec.json.decode(line) for line in lab.canonical()]
    change(next(line for line in reversed(log) if line["trigger"] == trigger))
    return {violation.rule for violation in verify([msgspec.json.encode(line) for line in log]).violations}


@pytest.mark.proves("WST-KH1", "WST-KH2", "WST-KH3", "WST-KH4", "WST-V2")
@pytest.mark.parametrize(
    ("trigger", "changes", "rule"),
    [
        ("drained", {"hold": QUARANTINED}, "WST-KH1"),
        ("drained", {"was": DRAINED}, "WST-KH1"),
        ("drained", {"reason": None}, "WST-KH1"),
        ("resumed", {"was": QUARANTINED}, "WST-KH2"),
        ("resumed", {"hold": DRAINED}, "WST-KH2"),
        ("quarantined", {"reason": "slow"}, "WST-KH3"),
        ("quarantined", {"troubles": 2}, "WST-KH3"),
        ("task_completed", {"troubles": 4}, "WST-KH4"),
        ("task_completed", {"troubles": None}, "WST-KH4"),
        ("capabilities_registered", {"hold": DRAINED}, "WST-KH2"),
        ("capabilities_registered", {"hold": None, "was": None}, "WST-KH1"),
        ("task_assigned", {"hold": ""}, "WST-KH2"),
    ],
)
def test_a_log_that_contradicts_a_hold_is_not_legal(trigger: str, changes: Line, rule: str) -> None:
    """Holds must be consistent from the first line to the last."""
    lab = doubted()
    lab.after(1).do(UpdateCapabilities(id="w1", tenant=TENANT, token_at=lab.now))
    lab.after(1).claim(lab.attempt("d"))
    if trigger in ("drained", "resumed"):
        lab.after(1).do(drain())
        lab.after(1).do(Resume(id="w1"))
    lab.verified()

    found = altered(lab, trigger, lambda line: line["metadata"].update(changes))

    assert rule in found


@pytest.mark.proves("WST-KH3")
def test_a_log_in_which_the_quarantine_does_not_follow_at_once_is_not_legal() -> None:
    """Between the third trouble and the quarantine it could have been given something."""
    assert "WST-KH3" in altered(doubted(), "quarantined", lambda line: line.update(at="2031-01-01T00:00:00.000000Z"))


@pytest.mark.proves("WST-KH1", "WST-E4")
def test_document_003_has_no_step_for_a_hold_but_the_next_step_contains_it() -> None:
    """A hold is no state of the document; a reader of the file still learns why an idle worker stays idle."""
    lab, [granted] = busy("a", slots=2)
    lab.after(1).do(drain())
    lab.after(1).complete(granted)

    lines = [msgspec.json.decode(line) for line in lab.transitions()]
    of = [line for line in lines if line["entity_id"] == "w1"]

    assert [line["trigger"] for line in of] == ["registration_complete", "task_assigned", "task_completed"]
    assert of[-1]["metadata"]["hold"] == DRAINED
