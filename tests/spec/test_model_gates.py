"""The rules of docs/spec/model.md about approval gates, each proved on the real core."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaci.audit.verify import verify
from deltaci.core import attempt, job, run
from deltaci.core.approvals import MAX_APPROVERS, Approval, Gate, refusal_reason
from deltaci.core.decide import CancelJob, Plan
from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.core.job import Approve, Job, Reject
from deltaci.core.machine import Command
from tests.spec.logs import Line, altered, line_of
from tests.spec.scenes import attempts_in, status
from tests.support.lab import START, Lab, gate, task
from tests.support.log_mutations import mutants

ID = "r1/g"


def asked(started_by: str = "ada", approval_seconds: int = 0, **fields: Any) -> Lab:
    """A run that waits at a gate, with one job behind it."""
    specs = gate("g", gate=Gate(**fields), approval_seconds=approval_seconds), task("b", "g")
    return Lab().plan(*specs, started_by=started_by)


def approve(who: str, **fields: Any) -> Approve:
    """A person approves."""
    return Approve(id=ID, actor=f"user:{who}", **fields)


def reject(who: str, **fields: Any) -> Reject:
    """A person rejects."""
    return Reject(id=ID, actor=f"user:{who}", **fields)


# -- who


@given(
    st.builds(Gate, role=st.sampled_from(("", "ops")), approvers=st.integers(1, 2), not_by_starter=st.booleans()),
    st.sampled_from(("", "ada", "bob")),
    st.sampled_from(((), ("ops",), ("dev",))),
    st.sampled_from((Approve, Reject)),
)
def test_the_people_who_are_shown_as_approvers_can_approve_and_no_others(
    gate: Gate, who: str, roles: tuple[str, ...], order: type[Approve] | type[Reject]
) -> None:
    """A button that is refused, or one that is missing, would be wrong."""
    lab = asked(started_by="ada", role=gate.role, approvers=gate.approvers, not_by_starter=gate.not_by_starter)
    told = refusal_reason(gate, who, roles, "ada", approves=order is Approve)
    command = order(id=ID, actor=f"user:{who}", roles=roles)

    if told:
        assert lab.refused(command).code == "not_allowed"
    else:
        assert lab.do(command).events


@pytest.mark.proves("MOD-G1")
@pytest.mark.parametrize("roles", [(), ("dev",), ("dev", "OPS", "op", "")])
def test_only_people_with_the_role_of_a_gate_decide_it(roles: tuple[str, ...]) -> None:
    """A role that counts for nothing protects nothing."""
    lab = asked(role="ops")

    for wrong in (approve("bob", roles=roles), reject("bob", roles=roles)):
        refusal = lab.refused(wrong)
        assert refusal.code == "not_allowed"
        assert "the role 'ops'" in refusal.message
        assert "0 of 1 approvals are given" in refusal.message

    lab.do(approve("bob", roles=(*roles, "ops")))
    assert status(lab, "g") == "SUCCEEDED"
    lab.verified()


@pytest.mark.proves("MOD-G1")
@pytest.mark.parametrize("fields", [{"role": "ops"}, {"approvers": 2}, {"not_by_starter": True}])
def test_a_person_without_a_name_decides_no_special_gate(fields: dict[str, Any]) -> None:
    """Two persons without names could not be told apart."""
    lab = asked(**fields)

    assert lab.refused(Approve(id=ID, actor="user", roles=("ops",))).code == "not_allowed"
    assert lab.refused(Reject(id=ID, actor="user:", roles=("ops",))).code == "not_allowed"


@pytest.mark.proves("MOD-G3")
def test_the_person_who_started_the_run_may_reject_but_not_approve() -> None:
    """Four eyes: another person must approve."""
    lab = asked(not_by_starter=True)

    refusal = lab.refused(approve("ada"))
    assert refusal.code == "not_allowed"
    assert "user:ada, with no role, may not approve job r1/g: it is approved by others than" in refusal.message
    lab.do(reject("ada"))

    assert status(lab, "g") == "FAILED"
    lab.verified()


@pytest.mark.proves("MOD-G3")
@pytest.mark.parametrize("started_by", ["", "bob"])
def test_other_people_may_approve(started_by: str) -> None:
    """A run that no person started excludes no approver."""
    lab = asked(started_by, not_by_starter=True)

    lab.do(approve("ada"))

    assert status(lab, "g") == "SUCCEEDED"
    lab.verified()


@pytest.mark.proves("STP-W1", "STP-W2", "MOD-G2")
@pytest.mark.parametrize("actor", ["worker:w1", "orchestrator", "reporter"])
def test_a_worker_can_do_nothing_for_a_gate_that_waits_for_more_people(actor: str) -> None:
    """Half an approval is none, and the rest of it is not work."""
    lab = asked(approvers=2)
    lab.register("w1")
    lab.do(approve("bob"))

    for wrong in (Approve(id=ID, actor=actor), Reject(id=ID, actor=actor)):
        assert lab.refused(wrong).code == "wrong_actor"
    for order in (job.Begin(id=ID, worker_id="w1"), job.AttemptSucceeded(id=ID), job.Schedule(id=ID)):
        assert lab.refused(order).code == "wrong_state"
    assert lab.refused(job.Validate(id=ID, is_passed=True)).code == "wrong_state"
    assert lab.refused(attempt.Grant(id=f"{ID}.1", actor="worker:w1", fingerprint="f")).code == "not_found"

    assert attempts_in(lab) == set()
    assert status(lab, "g") == "WAITING_APPROVAL"


# -- how many


@pytest.mark.proves("MOD-G2")
def test_a_gate_waits_for_so_many_different_people() -> None:
    """Each approval is on record; the last one lets the run go on."""
    lab = asked(approvers=3)

    for given_, who in enumerate(("bob", "cyd"), start=1):
        decision = lab.after(1).do(approve(who, comment=f"{who} says yes"))
        [event] = decision.events
        assert (event.from_, event.to, event.trigger) == ("WAITING_APPROVAL", "WAITING_APPROVAL", "approval_given")
        assert event.rev == 2 + given_
        assert event.metadata == {
            "comment": f"{who} says yes",
            "plan_hash": "hash",
            "approvers": ["bob", "cyd"][:given_],
            "approvals": given_,
            "needed": 3,
        }
        assert (status(lab), status(lab, "g"), status(lab, "b")) == ("WAITING_APPROVAL", "WAITING_APPROVAL", "PENDING")
    lab.after(1).do(approve("dan"))

    last = lab.last(ID)
    assert (last.to, last.trigger, last.metadata["approvers"]) == ("SUCCEEDED", "approved", ["bob", "cyd", "dan"])
    assert [(approval.person, approval.comment) for approval in lab.job("g").approvals] == [
        ("bob", "bob says yes"),
        ("cyd", "cyd says yes"),
        ("dan", ""),
    ]
    assert (status(lab), lab.job("b").state) == ("RUNNING", "QUEUED")
    lab.verified()


@pytest.mark.proves("MOD-G2", "STP-P2")
def test_the_same_person_again_changes_nothing() -> None:
    """Not by another request, not with another comment."""
    lab = asked(approvers=2)
    lab.do(approve("bob", request_id="one"))
    before = dict(lab.unit.records)

    for again in (approve("bob", request_id="one"), approve("bob", request_id="two"), approve("bob", comment="please")):
        decision = lab.after(1).do(again)
        assert (decision.events, decision.changed) == ([], {})

    assert lab.unit.records == before
    assert status(lab, "g") == "WAITING_APPROVAL"


@pytest.mark.proves("MOD-G2")
def test_one_rejection_is_enough() -> None:
    """Also when others approved before, who are named."""
    lab = asked(approvers=3)
    lab.do(approve("bob"))

    lab.do(reject("cyd", comment="not today"))

    metadata = {"reason": "REJECTED", "comment": "not today", "plan_hash": "hash", "approvers": ["bob"]}
    assert (lab.last(ID).trigger, lab.last(ID).metadata) == ("rejected", metadata)
    assert status(lab) == "FAILED"
    lab.verified()


@pytest.mark.proves("MOD-G2")
def test_an_approval_does_not_move_the_end_of_the_wait() -> None:
    """The deadline of a gate is independent of its decisions."""
    lab = asked(approvers=2, approval_seconds=60)
    lab.after(59).do(approve("bob"))

    lab.after(1).do(job.ExpireApproval(id=ID))

    assert (lab.job("g").state, lab.job("g").reason) == (job.FAILED, "APPROVAL_EXPIRED")
    assert len(lab.job("g").approvals) == 1
    lab.verified()


# -- for what


@pytest.mark.proves("MOD-G4")
@pytest.mark.parametrize("order", [approve, reject])
def test_a_decision_about_another_plan_is_refused(order: Any) -> None:
    """An approval of one plan is not an approval of another."""
    lab = asked(approvers=2)
    lab.do(approve("cyd", plan_hash="hash"))

    refusal = lab.refused(order("bob", plan_hash="older"))
    assert refusal.code == "plan_changed"
    assert "belongs to plan hash, not to older" in refusal.message
    lab.do(order("bob", plan_hash="hash"))
    if order is approve:
        assert lab.refused(approve("bob", plan_hash="older")).code == "plan_changed"

    assert lab.last(ID).metadata["plan_hash"] == "hash"
    lab.verified()


@pytest.mark.proves("MOD-G4")
def test_a_plain_gate_records_the_plan_hash_of_a_decision_that_named_it() -> None:
    """For a decision without a plan hash, nothing changes."""
    silent, named = Lab().plan(gate("g")), Lab().plan(gate("g"))

    silent.do(approve("bob", comment="fine"))
    named.do(approve("bob", plan_hash="hash"))

    assert silent.last(ID).metadata == {"comment": "fine"}
    assert named.last(ID).metadata == {"comment": "", "plan_hash": "hash"}
    for lab in (silent, named):
        lab.verified()


@pytest.mark.proves("MOD-G4")
def test_a_gate_knows_its_plan_and_its_starter_and_a_task_does_not() -> None:
    """What is not needed is not stored."""
    lab = asked()

    assert (lab.job("g").plan_hash, lab.job("g").started_by) == ("hash", "ada")
    assert (lab.job("b").plan_hash, lab.job("b").started_by) == ("", "")


@pytest.mark.proves("MOD-G1")
def test_a_job_that_was_stored_before_there_were_gates_can_still_be_read() -> None:
    """Records outlive versions."""
    lab = Lab().plan(gate("g"))
    row = msgspec.json.decode(msgspec.json.encode(lab.job("g")))
    spec = next(field for field in row if isinstance(field, dict))
    del spec["gate"]

    old = msgspec.json.decode(msgspec.json.encode(row[:-5]), type=Job)

    assert (old.spec, old.approvals, old.plan_hash) == (gate("g"), (), "")


# -- the log


def tampered(lab: Lab, to: str, **told: Any) -> set[str]:
    """The rules that the log breaks when the gate's step to this state tells something else."""
    number = line_of(lab, ID, to)
    return altered(lab.canonical(), lambda log: log[number]["metadata"].update(told))


@pytest.mark.proves("MOD-G5")
def test_the_creation_event_of_a_special_gate_has_its_properties() -> None:
    """The one of a plain gate has none."""
    born = [
        next(event for event in lab.log if event.entity_id == ID).metadata
        for lab in (asked(), asked(role="ops", approvers=2, not_by_starter=True))
    ]

    assert {key: value for key, value in born[1].items() if key not in born[0]} == {
        "role": "ops",
        "approvers": 2,
        "not_by_starter": True,
        "started_by": "ada",
    }


@pytest.mark.proves("MOD-G5", "MOD-G2")
def test_the_verifier_finds_a_gate_with_too_few_or_too_many_approvals() -> None:
    """The birth says how many there must be."""
    lab = asked(approvers=3)
    for who in ("bob", "cyd", "dan"):
        lab.after(1).do(approve(who))
    lab.verified()

    assert "MOD-G2" in tampered(lab, "PENDING", approvers=4)
    assert "MOD-G2" in tampered(lab, "PENDING", approvers=2)
    assert tampered(lab, "PENDING", approvers=1) >= {"MOD-G1"}
    assert tampered(lab, "PENDING", approvers=MAX_APPROVERS + 1) >= {"MOD-G1"}
    assert tampered(lab, "SUCCEEDED", approvers=["bob", "cyd"]) == {"MOD-G2"}
    assert tampered(lab, "SUCCEEDED", approvals=3, needed=3) == {"MOD-G2"}


@pytest.mark.proves("MOD-G5", "MOD-G2")
def test_the_verifier_finds_one_person_who_counts_twice() -> None:
    """Also if the events claim otherwise."""
    lab = asked(approvers=2)
    lab.do(approve("bob"))
    lab.after(1).do(approve("cyd"))
    number = line_of(lab, ID, "SUCCEEDED")

    def forge(log: list[Line]) -> None:
        log[number]["actor"] = "user:bob"
        log[number]["metadata"]["approvers"] = ["bob", "bob"]

    assert altered(lab.canonical(), forge) == {"MOD-G2"}


@pytest.mark.proves("MOD-G5", "MOD-G3")
def test_the_verifier_finds_an_approval_by_the_starter() -> None:
    """And a gate that does not say who that is."""
    lab = asked(started_by="ada", not_by_starter=True)
    lab.do(approve("bob"))

    assert tampered(lab, "PENDING", started_by="bob") == {"MOD-G3"}
    assert tampered(lab, "PENDING", started_by=None) == {"MOD-G3"}
    assert tampered(lab, "PENDING", not_by_starter=False) == {"MOD-G3"}


@pytest.mark.proves("MOD-G5", "MOD-G4")
def test_the_verifier_finds_a_decision_for_another_plan() -> None:
    """The run's own event names its plan."""
    lab = asked(role="ops")
    lab.do(approve("bob", roles=("ops",)))

    assert tampered(lab, "SUCCEEDED", plan_hash="another") == {"MOD-G4"}


@pytest.mark.proves("MOD-G5", "MOD-G1")
def test_the_verifier_finds_a_task_with_a_gate() -> None:
    """It could never be approved."""
    lab = Lab().plan(task("g"))

    assert tampered(lab, "PENDING", role="ops") == {"MOD-G1"}


@pytest.mark.proves("MOD-G5", "MOD-E5")
def test_no_mutant_of_a_gates_log_is_legal() -> None:
    """Every change of such a log that can be argued about is found."""
    lab = asked(started_by="ada", role="ops", approvers=3, not_by_starter=True)
    for who in ("bob", "cyd", "dan"):
        lab.after(1).do(approve(who, roles=("ops",)))
    lab.after(1).work("b")
    lab.verified()

    found = list(mutants(lab.canonical()))
    legal = [each.description for each in found if verify([msgspec.json.encode(line) for line in each.lines]).is_legal]

    assert len(found) > 1000
    assert legal == []


# -- any sequence

WHO = ("ada", "bob", "cyd", "dan", "eve")
DECISION = st.builds(
    lambda order, who, roles, plan_hash: order(who, roles=roles, plan_hash=plan_hash),
    st.sampled_from([approve] * 5 + [reject]),
    st.sampled_from(WHO),
    st.sampled_from([("ops",), ("ops",), ("dev", "ops"), ("dev",), ()]),
    st.sampled_from(["", "", "hash", "older"]),
)
OTHER = st.sampled_from(
    [job.ExpireApproval(id=ID), CancelJob(id=ID, actor="user:ada"), run.Cancel(id="r1", actor="user:bob")]
)
GATES = st.builds(Gate, role=st.sampled_from(["", "ops"]), approvers=st.integers(1, 4), not_by_starter=st.booleans())


def may(of: Gate, order: Command) -> bool:
    """Whether this person's decision counts, by the words of the rules."""
    assert isinstance(order, Approve | Reject)
    is_barred = of.not_by_starter and isinstance(order, Approve) and order.actor == "user:ada"
    return order.plan_hash != "older" and (not of.role or of.role in order.roles) and not is_barred


@pytest.mark.proves("MOD-G1", "MOD-G2", "MOD-G3", "MOD-G4", "MOD-8")
@settings(max_examples=200, deadline=None)
@given(of=GATES, orders=st.lists(DECISION | DECISION | OTHER, max_size=12), seconds=st.sampled_from([0, 5, 60]))
def test_a_gate_opens_for_exactly_its_approvers_after_any_commands(
    of: Gate, orders: list[Command], seconds: int
) -> None:
    """After any sequence of decisions, expiries and cancels, the gate follows its rules and shows it."""
    lab = Lab().plan(gate("g", gate=of, approval_seconds=seconds), task("b", "g"), started_by="ada")
    state, people = "WAITING_APPROVAL", list[str]()
    for order in orders:
        lab.after(1)
        try:
            lab.do(order)
        except Refused:
            assert state != "WAITING_APPROVAL" or not isinstance(order, Approve | Reject) or not may(of, order)
        if state == "WAITING_APPROVAL":
            if isinstance(order, Approve) and may(of, order):
                people += [] if order.actor in people else [order.actor]
                state = "SUCCEEDED" if len(people) == of.approvers else state
            elif (isinstance(order, Reject) and may(of, order)) or (
                isinstance(order, job.ExpireApproval) and 0 < seconds * SECOND <= lab.now - START
            ):
                state = "FAILED"
            elif isinstance(order, CancelJob | run.Cancel):
                state = "CANCELED"
        assert lab.job("g").state == state
        assert [f"user:{approval.person}" for approval in lab.job("g").approvals] == people
    assert (state == "SUCCEEDED") == (len(people) == of.approvers)
    assert all(isinstance(approval, Approval) for approval in lab.job("g").approvals)
    lab.verified()


@pytest.mark.proves("MOD-G4", "MOD-T1")
def test_a_plan_of_its_own_has_gates_of_its_own() -> None:
    """An approval in one run opens no gate of another, though it has the same plan."""
    lab = asked()
    lab.plan(gate("g"), id="r2")
    lab.do(approve("bob"))

    assert lab.job("g", "r2").state == job.WAITING_APPROVAL
    assert lab.refused(Plan(id="r1", jobs=(gate("g"),), plan_hash="new")).code == "wrong_state"
