"""Which gates a person's word is for, when only the run was named."""

from __future__ import annotations

import pytest

from deltaci.core import job
from deltaci.core.approvals import Gate
from deltaci.core.errors import Refused
from deltaci.core.job import Job, select_gates
from tests.lab import Lab, gate, task


def jobs(lab: Lab, *names: str) -> list[Job]:
    """These jobs as they are now."""
    return [lab.job(name) for name in names]


def named(found: list[Job]) -> list[str]:
    """Their names."""
    return [each.spec.name for each in found]


def test_what_is_no_gate_and_what_does_not_wait_is_refused() -> None:
    """A task is nobody's to approve, and a gate only once it is reached."""
    lab = Lab().plan(task("a"), gate("g", "a"))
    every = jobs(lab, "a", "g")

    for name in ("a", "none"):
        with pytest.raises(Refused, match="there is no approval"):
            select_gates(every, job.Approve, "ada", name)
    for order in (job.Approve, job.Reject):
        with pytest.raises(Refused, match="nothing in this run waits"):
            select_gates(every, order, "ada")


@pytest.mark.proves("STP-P1", "STP-P2")
def test_all_that_wait_are_meant_and_a_repeat_means_what_the_same_person_approved() -> None:
    """Whoever lost the answer asks again; whoever comes late did not approve it."""
    lab = Lab().plan(gate("g", gate=Gate(approvers=2)), gate("h"))
    assert named(select_gates(jobs(lab, "g", "h"), job.Approve, "ada")) == ["g", "h"]

    for person in ("ada", "bob"):
        lab.do(job.Approve(id="r1/g", actor=f"user:{person}"))
    lab.do(job.Approve(id="r1/h", actor="user:ada"))
    every = jobs(lab, "g", "h")

    assert named(select_gates(every, job.Approve, "ada")) == ["g", "h"]
    assert named(select_gates(every, job.Approve, "bob")) == ["g"]
    assert named(select_gates(every, job.Approve, "eve", "h")) == ["h"]
    for order, person in ((job.Approve, "eve"), (job.Reject, "ada")):
        with pytest.raises(Refused, match="nothing in this run waits"):
            select_gates(every, order, person)
