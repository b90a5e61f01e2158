"""The rules of docs/spec/queue.md about concurrency, repeats, numbers, events and boundaries."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import deltaci.core
from deltaci.core import attempt, ids, lease
from deltaci.core.attempt import Attempt
from deltaci.core.events import Event
from deltaci.core.failures import Facts
from deltaci.core.machine import Command
from deltaci.core.status.queue import check_invariants, job_status
from tests.spec.logs import altered
from tests.spec.scenes import OPERATIONS, OWNED, operation
from tests.support.lab import START, Lab, Lease

TYPES: Final = {"enqueued", "claimed", "started", "heartbeat", "succeeded", "failed", "stalled", "requeued"}
FROM: Final = {"claimNext": "queued", "start": "claimed", "requeueStalled": "stalled"}  # The others: running.


def ready_for(name: str) -> tuple[Lab, Lease]:
    """A job to which this operation applies, with the lease of its owner."""
    lab = Lab()
    lab.enqueue()
    status = FROM.get(name, "running")
    if status == "queued":
        return lab, Lease("w1", "")
    claimed = lab.claim(lab.queued(), by="w1")
    if status == "running":
        lab.send(attempt.Start, claimed)
    elif status == "stalled":
        lab.do(attempt.Stall(id="q1"))
        lab.after(120)
    return lab, claimed


def whole_life() -> Lab:
    """A job that is stalled, reclaimed, requeued, claimed once more and completed, each in its own time."""
    lab, _ = ready_for("stall")
    lab.after(1).do(attempt.Stall(id="q1", request_id="stall-1"))
    lab.after(120).claim(lab.queued(), by="w2")
    lab.after(1).do(attempt.Stall(id="q1", request_id="stall-2"))
    lab.after(120).do(attempt.Requeue(id="q1"))
    claimed = lab.after(1).claim(lab.queued(), by="w3")
    lab.after(1).send(attempt.Extend, claimed)
    lab.after(1).complete(claimed)
    return lab


def job_events(lab: Lab) -> list[dict[str, Any]]:
    """The job's events in document 004's form."""
    return [msgspec.json.decode(line) for line in lab.job_events()]


# -- concurrency


@pytest.mark.proves("QUE-C1")
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_is_refused_on_another_rev_and_accepted_on_the_expected_one(name: str) -> None:
    """A caller with an older record must read it again: this separates concurrent writers."""
    lab, granted = ready_for(name)
    rev = lab.queued().rev

    for other in (rev - 1, rev + 1):
        assert lab.refused(operation(lab, name, granted, expected_rev=other)).code == "stale_rev"

    assert lab.do(operation(lab, name, granted, expected_rev=rev)).events


@pytest.mark.proves("QUE-C2")
def test_only_the_owner_may_finish_a_job() -> None:
    """A runner without a grant must not finish the job, even with a correct token."""
    lab = Lab()
    lab.enqueue()
    claimed = lab.claim(lab.queued(), by="w1")
    claimed.worker_id = "w2"

    reason = lab.stale(lab.message(attempt.Complete, claimed, is_success=True, exit_code=0))

    assert reason == "UNKNOWN_LEASE"
    assert job_status(lab.queued()) == "claimed"


@pytest.mark.proves("QUE-C2")
@pytest.mark.parametrize("name", OWNED)
@pytest.mark.parametrize("actor", ["worker:w2", "orchestrator", "user:ada", "reporter"])
def test_an_operation_of_the_owner_is_refused_to_everyone_else(name: str, actor: str) -> None:
    """Even the right lease in the wrong hands, or no worker at all, must not change the job."""
    lab, granted = ready_for(name)
    stolen = msgspec.structs.replace(operation(lab, name, granted), actor=actor)

    lab.refused(stolen)

    assert lab.do(operation(lab, name, granted)).events


@pytest.mark.proves("QUE-C2")
@pytest.mark.parametrize("number", [2, 3, 4])
def test_the_verifier_finds_a_job_event_that_is_not_its_owners(number: int) -> None:
    """A log in which a stranger starts, keeps or finishes a job shows a broken queue."""
    lab, granted = ready_for("complete")
    lab.do(operation(lab, "heartbeat", granted))
    lab.complete(granted)

    rules = altered(lab.job_events(), lambda log: log[number].update(actor="worker:w9"))

    assert job_events(lab)[number]["type"] in ("heartbeat", "started", "succeeded")
    assert rules == {"QUE-C2"}


@pytest.mark.proves("QUE-C3")
@pytest.mark.parametrize("name", ["stall", "requeueStalled"])
def test_a_system_transition_needs_no_owner_but_the_right_rev_and_source(name: str) -> None:
    """The system speaks when no owner can; it must still not overwrite what it has not seen."""
    lab, granted = ready_for(name)
    rev = lab.queued().rev

    assert lab.refused(operation(lab, name, granted, expected_rev=rev - 1)).code == "stale_rev"
    lab.do(operation(lab, name, granted, expected_rev=rev))

    assert lab.last("q1").actor == "orchestrator"
    assert lab.refused(operation(lab, name, granted)).code == "wrong_state"


# -- repeats


@pytest.mark.proves("QUE-C4")
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_carries_its_request_id_into_the_record_and_the_events(name: str) -> None:
    """A retry can only be recognised by the id that the first try left behind."""
    lab, granted = ready_for(name)

    decision = lab.do(operation(lab, name, granted, request_id="q-1"))

    assert {event.request_id for event in decision.events} == {"q-1"}
    assert [request.partition(" ")[0] for request in lab.queued().requests] == ["q-1"]


@pytest.mark.proves("QUE-C5", "QUE-R2")
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_repeat_with_the_same_request_id_is_a_success_that_changes_nothing(name: str) -> None:
    """Networks deliver twice: no claim may be counted again and no terminal write made again."""
    lab, granted = ready_for(name)
    again = operation(lab, name, granted, request_id="q-1")
    lab.do(again)
    before, written = lab.queued(), len(lab.log)

    decision = lab.after(1).do(again)

    assert (decision.events, decision.changed) == ([], {})
    assert (lab.queued(), len(lab.log)) == (before, written)
    lab.verified()


@pytest.mark.proves("QUE-C5", "QUE-C1", "QUE-R2")
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_repeat_is_recognised_with_any_expected_rev(name: str) -> None:
    """The caller may have read the record in between; the first try has increased its rev."""
    lab, granted = ready_for(name)
    rev = lab.queued().rev
    lab.do(operation(lab, name, granted, request_id="q-1", expected_rev=rev))
    before = lab.queued()

    for expected in (rev, before.rev, before.rev + 7, None):
        decision = lab.do(operation(lab, name, granted, request_id="q-1", expected_rev=expected))
        assert (decision.events, decision.changed) == ([], {})

    assert lab.queued() == before


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in ("start", "complete", "fail")])
def test_a_second_request_with_another_id_is_no_repeat(name: str) -> None:
    """What only looks the same must be judged anew: a heartbeat counts again, a second claim is refused."""
    lab, granted = ready_for(name)
    lab.do(operation(lab, name, granted, request_id="q-1"))

    other = operation(lab, name, granted, request_id="q-2")

    if name == "heartbeat":
        assert lab.do(other).events
    else:
        assert lab.refused(other).code == "wrong_state"


def test_a_request_id_that_was_used_for_something_else_is_refused() -> None:
    """Answering it with success would hide an order that was never carried out."""
    lab, granted = ready_for("stall")
    lab.do(operation(lab, "heartbeat", granted, request_id="q-1"))

    refusal = lab.refused(attempt.Stall(id="q1", request_id="q-1"))

    assert refusal.code == "request_id_reused"


@pytest.mark.proves("QUE-C5")
def test_the_verifier_finds_a_request_that_was_applied_twice() -> None:
    """A repeat that appends an event was not recognised."""
    lab = whole_life()
    stalls = [n for n, line in enumerate(job_events(lab)) if line["type"] == "stalled"]

    assert altered(lab.job_events(), lambda log: log[stalls[1]].update(request_id="stall-1")) == {"QUE-C5"}


@pytest.mark.proves("QUE-C6")
@pytest.mark.parametrize("is_success", [True, False])
def test_a_finished_job_never_changes_again(is_success: bool) -> None:
    """Others have already acted on the outcome."""
    lab, granted = ready_for("complete")
    lab.send(attempt.Finish, granted, is_success=is_success)
    final = lab.queued()
    opposite = lab.message(attempt.Finish, granted, is_success=not is_success)
    system = (attempt.Stall, attempt.Requeue, attempt.Expire, attempt.RevokeUnaccepted, attempt.TimeOut)

    lab.after(10_000)
    lab.refused(opposite)
    lab.refused(lab.message(attempt.Complete, granted, is_success=not is_success))
    lab.refused(operation(lab, "heartbeat", granted))
    lab.refused(operation(lab, "claimNext", granted))
    lab.refused(attempt.Cancel(id="q1", reason="too late"))
    lab.refused(attempt.ForceCancel(id="q1"))
    for order in system:
        lab.refused(order(id="q1"))

    assert lab.queued() == final


@pytest.mark.proves("QUE-C6")
def test_the_verifier_finds_an_event_after_the_end() -> None:
    """A finished job must not be reopened."""
    lab = whole_life()

    rules = altered(lab.job_events(), lambda log: log.append({**log[-1], "rev": log[-1]["rev"] + 1}))

    assert rules == {"QUE-C6"}


# -- attempt and revision


@pytest.mark.proves("QUE-A1", "QUE-A2", "QUE-A3")
def test_the_count_starts_at_zero_and_grows_by_one_exactly_at_a_claim() -> None:
    """Only a claim is a new try, including the claim of a stalled job."""
    lab = whole_life()

    counts = [(line["type"], line["attempt"]) for line in job_events(lab)]

    expected = 0
    for kind, count in counts:
        expected += kind == "claimed"
        assert count == expected
    assert counts[0] == ("enqueued", 0)
    assert [count for kind, count in counts if kind == "claimed"] == [1, 2, 3]
    assert {kind for kind, _ in counts} >= {"started", "heartbeat", "stalled", "requeued", "succeeded"}
    assert lab.queued().claims == 3


@pytest.mark.proves("QUE-A3")
@pytest.mark.parametrize("name", [*OWNED, "stall", "requeueStalled"])
def test_no_operation_but_the_claim_changes_the_count(name: str) -> None:
    """The count must say how often the job was claimed."""
    lab, granted = ready_for(name)

    lab.do(operation(lab, name, granted))

    assert lab.queued().claims == 1


@pytest.mark.parametrize(
    ("kind", "shift"),
    [
        pytest.param("enqueued", 1, marks=pytest.mark.proves("QUE-A1")),
        pytest.param("claimed", -1, marks=pytest.mark.proves("QUE-A2")),
        pytest.param("started", 1, marks=pytest.mark.proves("QUE-A3")),
        pytest.param("heartbeat", 1, marks=pytest.mark.proves("QUE-A3")),
        pytest.param("stalled", 1, marks=pytest.mark.proves("QUE-A3")),
        pytest.param("requeued", -1, marks=pytest.mark.proves("QUE-A3")),
        pytest.param("succeeded", 1, marks=pytest.mark.proves("QUE-A3")),
    ],
)
def test_the_verifier_finds_a_count_that_is_wrong(kind: str, shift: int) -> None:
    """A log whose counts do not add up hides a claim or invents one."""
    lab = whole_life()
    number = next(n for n, line in enumerate(job_events(lab)) if line["type"] == kind)

    rules = altered(lab.job_events(), lambda log: log[number].update(attempt=log[number]["attempt"] + shift))

    assert rules == {{"enqueued": "QUE-A1", "claimed": "QUE-A2"}.get(kind, "QUE-A3")}


@pytest.mark.proves("QUE-A2", "QUE-A3")
@pytest.mark.parametrize(
    ("to", "claims", "rule"), [(attempt.LEASED, 7, "QUE-A2"), (attempt.RUNNING, 2, "QUE-A3"), ("STALE", 2, "QUE-A3")]
)
def test_the_verifier_finds_a_claim_that_the_canonical_log_counts_wrongly(to: str, claims: int, rule: str) -> None:
    """Our own form of the log is held to the same count."""
    lab = whole_life()
    number = next(n for n, line in enumerate(map(msgspec.json.decode, lab.canonical())) if line["to"] == to)

    assert rule in altered(lab.canonical(), lambda log: log[number]["metadata"].update(claims=claims))


@pytest.mark.proves("QUE-R1")
def test_rev_counts_every_accepted_change_one_by_one() -> None:
    """A reader that sees the same `rev` has missed nothing."""
    lab = whole_life()

    assert [event.rev for event in lab.log] == list(range(1, len(lab.log) + 1))
    assert [line["rev"] for line in job_events(lab)] == list(range(1, len(lab.job_events()) + 1))
    assert lab.queued().rev == len(lab.log)
    assert altered(lab.job_events(), lambda log: log[-1].update(rev=log[-1]["rev"] + 1)) == {"QUE-R1"}


# -- events


@pytest.mark.proves("QUE-E2", "QUE-E1")
def test_every_job_event_has_one_of_the_fixed_types() -> None:
    """Tools know these eight types, so that a cancel and a timeout must use them too."""
    lab = whole_life()
    lab.enqueue("q2")
    lab.do(attempt.Cancel(id="q2", reason="why"))
    lab.enqueue("q3", timeout_seconds=60)
    lab.send(attempt.Start, lab.claim(lab.queued("q3"), by="w1"))
    lab.after(60).do(attempt.TimeOut(id="q3"))

    words = {line["type"] for line in job_events(lab)}

    assert words == TYPES
    assert "QUE-T12" in altered(lab.job_events(), lambda log: log[1].update(type="taken"))


@pytest.mark.proves("QUE-E1")
@pytest.mark.parametrize("field", ["type", "job_id", "from_status", "to_status", "at", "actor", "attempt", "rev"])
def test_a_job_event_without_one_of_its_fields_is_not_legal(field: str) -> None:
    """An event that does not say who did what, from where, to where and when is no evidence."""
    lines = whole_life().job_events()

    assert "QUE-E1" in altered(lines, lambda log: log[3].pop(field))


# -- boundaries


@pytest.mark.proves("QUE-B2")
@pytest.mark.parametrize(("ttl", "accept"), [(1, 1), (120, 30), (86_400, 3_600)])
def test_how_long_a_lease_lasts_is_decided_outside_the_contract(ttl: int, accept: int) -> None:
    """The contract defines stalled; the granting server sets the duration, and the stalling one the moment."""
    lab = Lab()
    lab.enqueue()

    lab.claim(lab.queued(), ttl_seconds=ttl, accept_seconds=accept)

    granted = lab.queued().lease
    assert granted is not None
    assert (granted.expires_at, granted.accept_by) == (START + ttl * 1_000_000, START + accept * 1_000_000)
    lab.do(attempt.Stall(id="q1"))
    assert job_status(lab.queued()) == "stalled"


@pytest.mark.proves("QUE-B3")
def test_the_lifecycle_needs_nothing_but_the_record() -> None:
    """Any queue and worker can use it, with any storage."""
    events: list[Event] = []
    token = ids.lease_id("q1", 1, "s" * 16)
    mine: dict[str, Any] = {"id": "q1", "actor": "worker:w1", "lease": ids.lease_ref(token)}
    record = Attempt(id="q1")
    orders: tuple[Command, ...] = (
        attempt.Publish(id="q1"),
        attempt.Grant(id="q1", actor="worker:w1", fingerprint=ids.lease_fingerprint(token)),
        attempt.Start(**mine),
        attempt.Extend(**mine),
        attempt.Finish(**mine, is_success=False, facts=Facts(exit_code=1)),
    )

    statuses = []
    for at, order in enumerate(orders, START):
        record = attempt.decide(record, order, at, events)
        check_invariants(record)
        statuses.append(job_status(record))

    assert statuses == ["queued", "claimed", "running", "running", "failed"]
    assert lease.is_live(record.lease) is False


@pytest.mark.proves("QUE-B3")
def test_the_core_imports_nothing_of_the_project_but_itself() -> None:
    """Code that does not know any storage cannot depend on one."""
    root = Path(str(deltaci.core.__file__)).parent
    trees = [ast.parse(path.read_text("utf-8")) for path in root.rglob("*.py")]

    imported = {
        name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }

    assert {name for name in imported if name.startswith("deltaci") and not name.startswith("deltaci.core")} == set()
    assert not {name.partition(".")[0] for name in imported} & {"sqlite3", "psycopg", "asyncpg", "os", "socket"}
