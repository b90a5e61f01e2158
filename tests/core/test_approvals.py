"""The gates that a decision is about if only the run is named."""

from __future__ import annotations

import pytest

from deltaci.core import job
from deltaci.core.approvals import Gate
from deltaci.core.errors import Refused
from deltaci.core.job import Job, select_gates
from tests.support.lab import Lab, gate, task


def jobs(lab: Lab, *names: str) -> list[Job]:
    """Return the current records of these jobs."""
    return [lab.job(name) for name in names]


def names(gates: list[Job]) -> list[str]:
    return [gate.spec.name for gate in gates]


def test_a_task_and_a_gate_that_does_not_wait_are_refused() -> None:
    """Only a gate can be approved, and only after it is reached."""
    lab = Lab().plan(task("a"), gate("g", "a"))
    records = jobs(lab, "a", "g")

    for name in ("a", "none"):
        with pytest.raises(Refused, match="there is no approval"):
            select_gates(records, job.Approve, "ada", name)
    for command in (job.Approve, job.Reject):
        with pytest.raises(Refused, match="nothing in this run waits"):
            select_gates(records, command, "ada")


@pytest.mark.proves("STP-P1", "STP-P2")
def test_a_decision_is_about_all_waiting_gates_and_a_repeat_about_those_the_person_approved() -> None:
    """A person whose answer was lost repeats the request; another person has nothing left to approve."""
    lab = Lab().plan(gate("g", gate=Gate(approvers=2)), gate("h"))
    assert names(select_gates(jobs(lab, "g", "h"), job.Approve, "ada")) == ["g", "h"]

    for person in ("ada", "bob"):
        lab.do(job.Approve(id="r1/g", actor=f"user:{person}"))
    lab.do(job.Approve(id="r1/h", actor="user:ada"))
    records = jobs(lab, "g", "h")

    assert names(select_gates(records, job.Approve, "ada")) == ["g", "h"]
    assert names(select_gates(records, job.Approve, "bob")) == ["g"]
    assert names(select_gates(records, job.Approve, "eve", "h")) == ["h"]
    for command, person in ((job.Approve, "eve"), (job.Reject, "ada")):
        with pytest.raises(Refused, match="nothing in this run waits"):
            select_gates(records, command, person)
