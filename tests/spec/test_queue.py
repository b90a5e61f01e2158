"""The rules of docs/spec/queue.md, each proved on the real core."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from deltaci.audit.verify import verify
from deltaci.core import attempt, lease
from deltaci.core.errors import InvariantBroken
from deltaci.core.instants import rfc3339
from deltaci.core.machine import Command
from deltaci.core.status.queue import check_invariants, job_status
from tests.spec.logs import altered, decoded
from tests.spec.scenes import OPERATIONS, OWNED, operation
from tests.support.lab import START, Lab, Lease

STATUSES: Final = ("queued", "claimed", "running", "succeeded", "failed", "stalled")

# The page's table of operations.
ALLOWED: Final = {
    ("claimNext", "queued"): "claimed",
    ("claimNext", "stalled"): "claimed",
    ("start", "claimed"): "running",
    ("heartbeat", "claimed"): "claimed",
    ("heartbeat", "running"): "running",
    ("complete", "running"): "succeeded",
    ("fail", "running"): "failed",
    ("stall", "claimed"): "stalled",
    ("stall", "running"): "stalled",
    ("requeueStalled", "stalled"): "queued",
}

# A message whose outcome the record already shows is a success without change, whatever its request id.
REFLECTED: Final = {("start", "running"), ("complete", "succeeded"), ("fail", "failed")}


def job_in(status: str) -> tuple[Lab, Lease]:
    """A job that reached this status the shortest way, and the last lease that it had."""
    lab = Lab()
    lab.enqueue()
    if status == "queued":
        return lab, Lease("w1", f"q1.1.{'x' * 16}")
    claimed = lab.claim(lab.queued(), by="w1")
    if status == "stalled":
        lab.do(attempt.Stall(id="q1"))
    elif status != "claimed":
        lab.send(attempt.Start, claimed)
        if status in ("succeeded", "failed"):
            lab.send(attempt.Finish, claimed, is_success=status == "succeeded", exit_code=int(status == "failed"))
    return lab, claimed


# -- transitions


@pytest.mark.proves("QUE-T12", "QUE-C6")
@pytest.mark.parametrize(
    ("name", "status"), [(o, s) for o in OPERATIONS for s in STATUSES if (o, s) not in {*ALLOWED, *REFLECTED}]
)
def test_an_operation_is_refused_in_every_status_that_the_table_does_not_name(name: str, status: str) -> None:
    """A queue that lets anything else through cannot promise what its statuses mean."""
    lab, granted = job_in(status)

    lab.refused(operation(lab, name, granted))

    assert job_status(lab.queued()) == status


@pytest.mark.proves("QUE-T12", "QUE-R2")
@pytest.mark.parametrize(("name", "status"), sorted(REFLECTED))
def test_a_message_with_the_recorded_outcome_changes_nothing(name: str, status: str) -> None:
    """A worker whose response was lost repeats its message, which must neither fail nor count twice."""
    lab, granted = job_in(status)
    before = lab.queued()

    decision = lab.do(operation(lab, name, granted))

    assert (decision.events, decision.changed) == ([], {})
    assert lab.queued() == before


@pytest.mark.proves("QUE-T12")
@pytest.mark.parametrize(("source", "target"), [(s, t) for s in (None, *STATUSES) for t in STATUSES])
def test_the_verifier_accepts_only_the_transitions_of_the_table(source: str | None, target: str) -> None:
    """One table judges every log of job events."""
    legal = {(None, "queued")} | {(source, target) for (_, source), target in ALLOWED.items()}
    kinds = {"queued": "enqueued" if source is None else "requeued", "running": "started"}
    kind = "heartbeat" if source == target else kinds.get(target, target)
    who = "worker:w1"
    line = {"type": kind, "job_id": "q1", "at": "2026-01-04T08:00:00Z", "actor": who, "attempt": 1, "rev": 1}

    report = verify([msgspec.json.encode({**line, "from_status": source, "to_status": target})])

    wrong = [violation.found for violation in report.violations if violation.rule == "QUE-T12"]
    assert any(f"{source} → {target} by" in found for found in wrong) == ((source, target) not in legal)


@pytest.mark.proves("QUE-T1", "QUE-A1", "QUE-S1")
def test_enqueue_creates_a_queued_job_without_an_owner() -> None:
    """It has no claim, so that any worker can claim it."""
    lab = Lab()

    made = lab.enqueue()

    assert (job_status(made), made.claims, made.lease) == ("queued", 0, None)
    lab.claim(made, by="anybody")
    assert job_status(lab.queued()) == "claimed"


@pytest.mark.proves("QUE-T2", "QUE-A2")
def test_a_claim_takes_a_queued_job_and_counts_one_attempt() -> None:
    """Document 004 counts claims, so that a poisonous job can be seen."""
    lab = Lab()
    lab.enqueue()

    lab.claim(lab.queued(), by="w1")

    assert job_status(lab.queued()) == "claimed"
    assert lab.queued().claims == 1
    lab.verified()


@pytest.mark.proves("QUE-E1", "QUE-R1")
@pytest.mark.parametrize(
    ("name", "status"),
    [
        pytest.param("claimNext", "queued", marks=pytest.mark.proves("QUE-T2")),
        pytest.param("claimNext", "stalled", marks=pytest.mark.proves("QUE-T3")),
        pytest.param("start", "claimed", marks=pytest.mark.proves("QUE-T4")),
        pytest.param("heartbeat", "claimed", marks=pytest.mark.proves("QUE-T5")),
        pytest.param("heartbeat", "running", marks=pytest.mark.proves("QUE-T6")),
        pytest.param("complete", "running", marks=pytest.mark.proves("QUE-T7")),
        pytest.param("fail", "running", marks=pytest.mark.proves("QUE-T8")),
        pytest.param("stall", "claimed", marks=pytest.mark.proves("QUE-T9")),
        pytest.param("stall", "running", marks=pytest.mark.proves("QUE-T10")),
        pytest.param("requeueStalled", "stalled", marks=pytest.mark.proves("QUE-T11")),
    ],
)
def test_an_operation_leads_where_the_table_says_and_appends_its_event(name: str, status: str) -> None:
    """The table of operations is the contract: where it leads, that `rev` grows, and what is written down."""
    lab, granted = job_in(status)
    before, target = lab.queued(), ALLOWED[name, status]
    exported = len(lab.job_events())
    lab.after(120 if status == "stalled" else 1)

    decision = lab.do(operation(lab, name, granted, request_id="q-1"))

    appended = [msgspec.json.decode(line) for line in lab.job_events()[exported:]]
    assert job_status(lab.queued()) == target
    assert lab.queued().rev == before.rev + len(decision.events) > before.rev
    assert [(line["from_status"], line["to_status"]) for line in appended][-1] == (status, target)
    assert {line["at"] for line in appended} == {rfc3339(lab.now)}
    assert {line["request_id"] for line in appended} == {"q-1"}
    who = {"claimNext": "worker:w2", "stall": "orchestrator", "requeueStalled": "orchestrator"}.get(name, "worker:w1")
    assert {line["actor"] for line in appended} == {who}
    lab.verified()


@pytest.mark.proves("QUE-T5", "QUE-T6", "QUE-S3", "QUE-R1")
@pytest.mark.parametrize("status", ["claimed", "running"])
def test_a_heartbeat_keeps_the_status_and_extends_the_lease(status: str) -> None:
    """A worker that says that it lives keeps the job, whether or not it started it."""
    lab, granted = job_in(status)
    before = lab.queued()

    after = lab.after(100).send(attempt.Extend, granted)

    assert job_status(after) == status
    assert after.lease is not None
    assert after.lease.expires_at == START + 220_000_000
    assert after.rev > before.rev
    assert lab.after(119).refused(attempt.Expire(id="q1")).code == "not_due"


@pytest.mark.proves("QUE-S3", "QUE-S6")
def test_an_owner_that_does_not_heartbeat_loses_the_job() -> None:
    """A running job whose owner is silent would otherwise be stuck forever."""
    lab, granted = job_in("running")

    lab.after(120).do(attempt.Expire(id="q1"))

    assert lab.steps("q1")[-2:] == [attempt.STALE, attempt.QUEUED]
    assert lab.stale(lab.message(attempt.Extend, granted)) == "LEASE_EXPIRED"


HANDED_BACK: Final = attempt.Stall(id="q1", reason=attempt.HANDED_BACK)


@pytest.mark.proves("QUE-T3", "QUE-T11", "QUE-S6", "QUE-L2", "MOD-5")
@pytest.mark.parametrize("is_requeued", [False, True])
def test_a_stalled_job_is_claimed_again_only_when_its_old_lease_would_have_ended(is_requeued: bool) -> None:
    """Its owner may still be at work until then, whether the job is reclaimed directly or through the queue."""
    lab, granted = job_in("running")
    lab.after(10).do(attempt.Stall(id="q1"))
    assert not lab.do(attempt.Requeue(id="q1")).events

    early = lab.after(109.999999).refused(operation(lab, "claimNext", granted))
    lab.after(0.000001)
    if is_requeued:
        lab.do(attempt.Requeue(id="q1"))
    lab.claim(lab.queued(), by="w2")

    assert early.code == "not_due"
    assert lab.steps("q1")[-2:] == [attempt.QUEUED if is_requeued else attempt.STALE, attempt.LEASED]
    lab.verified()
    claim = [n for n, line in enumerate(decoded(lab.canonical())) if line["to"] in ("LEASED", "GRANTED")][-2:]
    early_at = {"at": "2026-01-04T08:01:59.999999Z"}
    assert "QUE-S1" in altered(lab.canonical(), lambda log: [log[n].update(early_at) for n in claim])


@pytest.mark.proves("QUE-T3", "QUE-B2", "MOD-5")
@pytest.mark.parametrize(
    ("order", "after"), [(HANDED_BACK, 10), (attempt.RevokeUnaccepted(id="q1"), 30), (attempt.Expire(id="q1"), 120)]
)
def test_a_job_without_a_possible_worker_is_claimed_again_at_once(order: Command, after: int) -> None:
    """Its owner released it, never accepted it or lost its lease: there is no reason to wait."""
    lab, granted = job_in("claimed")

    lab.after(after).do(order)
    lab.do(operation(lab, "claimNext", granted))

    assert job_status(lab.queued()) == "claimed"
    assert lab.queued().claims == 2
    lab.verified()


def test_a_released_job_is_queued_in_the_same_decision() -> None:
    """A server that dies between two decisions would leave it stale for ever."""
    lab, _ = job_in("running")

    lab.after(10).do(HANDED_BACK)

    assert lab.steps("q1")[-2:] == [attempt.STALE, attempt.QUEUED]
    assert lab.queued().lost_leases == 0
    lab.verified()


@pytest.mark.proves("QUE-T7", "QUE-N4")
def test_who_completes_a_job_through_the_queue_need_not_name_an_exit_code() -> None:
    """Document 004 knows none: to complete is to say that it ended well, and that is what is recorded."""
    lab, granted = job_in("running")

    ended = lab.send(attempt.Finish, granted, is_success=True, report={"summary": "done"})

    assert (job_status(ended), ended.result, ended.report) == ("succeeded", {}, {"summary": "done"})
    assert lab.last("q1").metadata["exit_code"] == 0
    lab.verified()


# -- what a status means


@pytest.mark.proves("QUE-S2")
@pytest.mark.parametrize("status", ["claimed", "running"])
def test_a_job_that_one_worker_has_is_refused_to_every_other(status: str) -> None:
    """Exclusive means that a second claim fails, not that it is shared."""
    lab, _ = job_in(status)

    refusal = lab.refused(operation(lab, "claimNext", Lease("w2", "")))

    assert refusal.code == "wrong_state"
    granted = lab.queued().lease
    assert granted is not None
    assert granted.worker_id == "w1"


@pytest.mark.proves("QUE-S2")
def test_a_claimed_job_has_an_active_lease_and_is_not_started() -> None:
    """Between the claim and the start the worker is responsible, but no execution is promised."""
    lab, _ = job_in("claimed")

    made = lab.queued()

    assert lease.is_live(made.lease)
    assert (made.started_at, made.times_out_at) == (0, 0)


@pytest.mark.proves("QUE-S6", "QUE-T3")
@pytest.mark.parametrize("name", OWNED)
def test_the_last_owner_of_a_stalled_job_is_no_longer_trusted(name: str) -> None:
    """Recovery must never lead to a silent second execution, so the old owner's word is worth nothing."""
    lab, granted = job_in("stalled")

    assert lab.stale(operation(lab, name, granted)) == "LEASE_REVOKED"

    lab.after(120).claim(lab.queued(), by="w2")
    assert lab.stale(operation(lab, name, granted)) == "LEASE_REVOKED"
    assert job_status(lab.queued()) == "claimed"


@pytest.mark.proves("QUE-S6")
def test_a_stalled_job_is_not_over() -> None:
    """Orphaned is a state to recover from: by a reclaim or by the queue."""
    for name in ("claimNext", "requeueStalled"):
        lab, granted = job_in("stalled")

        lab.after(120).do(operation(lab, name, granted))

        assert job_status(lab.queued()) == ALLOWED[name, "stalled"]


# -- what a status must hold

HOLDS: Final = {
    "queued": set[str](),
    "claimed": {"lease"},
    "running": {"lease"},
    "succeeded": {"result"},
    "failed": {"error"},
    "stalled": set[str](),
}
FIELDS: Final = ("lease", "result", "error")
STATUS_RULES: Final = [
    pytest.param("queued", marks=pytest.mark.proves("QUE-N1")),
    pytest.param("claimed", marks=pytest.mark.proves("QUE-N2")),
    pytest.param("running", marks=pytest.mark.proves("QUE-N3")),
    pytest.param("succeeded", marks=pytest.mark.proves("QUE-N4", "QUE-S4")),
    pytest.param("failed", marks=pytest.mark.proves("QUE-N5", "QUE-S5")),
    pytest.param("stalled", marks=pytest.mark.proves("QUE-N6")),
]


@pytest.mark.parametrize("status", STATUS_RULES)
def test_a_status_with_a_field_too_many_or_too_few_is_an_internal_error(status: str) -> None:
    """Readers of a status rely on its fields."""
    proper = job_in(status)[0].queued()
    filled: dict[str, Any] = {
        "lease": job_in("running")[0].queued().lease,
        "result": {},
        "error": job_in("failed")[0].queued().error,
    }

    for field in FIELDS:
        value = None if getattr(proper, field) is not None else filled[field]
        broken = msgspec.structs.replace(proper, **{field: value})
        with pytest.raises(InvariantBroken, match=status):
            check_invariants(broken)


@pytest.mark.parametrize("status", STATUS_RULES)
def test_a_status_holds_exactly_the_fields_of_the_table(status: str) -> None:
    """The owner is the lease's worker, so one table says who owns, what came out and what went wrong."""
    lab, _ = job_in(status)

    made = lab.queued()

    assert job_status(made) == status
    assert {field for field in FIELDS if getattr(made, field) is not None} == HOLDS[status]
    check_invariants(made)
    lab.verified()


@pytest.mark.proves("QUE-N5")
def test_the_verifier_finds_a_failure_without_an_error() -> None:
    """A failure without a reason helps no reader."""
    lines = job_in("failed")[0].canonical()

    rules = altered(lines, lambda log: log[-2]["metadata"].pop("error"))

    assert rules == {"QUE-N5"}
