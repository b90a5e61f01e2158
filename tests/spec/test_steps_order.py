"""The rules of docs/spec/steps.md about the order of steps, each proved on the real core."""

from __future__ import annotations

import pytest

from deltaci.core import graph, job
from tests.spec.scenes import attempts_in, status
from tests.support.lab import Lab, task


def sequence(*names: str) -> Lab:
    """A run from a template without dependencies: one step after the other."""
    return Lab().plan(*(task(name, *needs) for name, needs in graph.chain(names).items()))


@pytest.mark.proves("STP-O1")
def test_steps_are_created_in_the_order_of_the_template() -> None:
    """The position in the template is the order that people see."""
    names = ["build", "alpha", "zeta", "deploy"]

    lab = sequence(*names)

    births = [event.entity_id for event in lab.log if event.entity == "job" and event.from_ is None]
    assert births == [f"r1/{name}" for name in names]


@pytest.mark.proves("STP-O2", "STP-O3")
def test_a_step_can_be_claimed_only_when_all_earlier_ones_succeeded() -> None:
    """A template without dependencies is a promise of strict order, one step after the other."""
    names = ("a", "b", "c", "d")
    lab = sequence(*names)

    for position, name in enumerate(names):
        done = [status(lab, earlier) for earlier in names[:position]]
        assert done == ["SUCCEEDED"] * position
        assert attempts_in(lab) == {f"r1/{each}.1" for each in names[: position + 1]}
        assert {status(lab, later) for later in names[position:]} == {"PENDING"}
        for later in names[position + 1 :]:
            assert lab.refused(job.Schedule(id=f"r1/{later}")).code == "not_eligible"
        lab.work(name)

    assert status(lab) == "SUCCEEDED"
    lab.verified()


@pytest.mark.proves("STP-O3")
@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_a_template_is_a_graph_whose_dependencies_form_a_chain(length: int) -> None:
    """The strict order needs no rule of its own: it is the simplest graph."""
    names = [f"s{number}" for number in range(length)]

    needs = graph.chain(names)

    assert list(needs) == names
    assert list(needs.values()) == [(), *((name,) for name in names[:-1])][:length]


@pytest.mark.proves("STP-O2")
def test_a_failed_step_keeps_all_later_ones_from_being_claimed() -> None:
    """What comes after relies on what came before."""
    lab = sequence("a", "b", "c")

    lab.work("a", ok=False)

    assert [status(lab, name) for name in ("a", "b", "c")] == ["FAILED", "CANCELED", "CANCELED"]
    assert attempts_in(lab) == {"r1/a.1"}
    lab.verified()
