"""Every mistake that is planted in the real code is found by some promise, soon.

`python -m tests.simulation.planted` searches for all of them from seed 0 and writes down where they are found, in
`planted.jsonl`. Here each is looked for where it was found last; when histories have changed since, anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from deltaci.simulation.checker.history_checker import INVARIANTS
from deltaci.simulation.history import Simulation
from deltaci.simulation.scenario import draw_scenario
from tests.simulation.planted import FAULTS, caught, known, search


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_mistake_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    """A simulator that finds nothing shows nothing, unless it finds what is there."""
    fault = FAULTS[name]
    seed = known().get(name)
    invariant, message = caught(fault, seed) if seed is not None else ("", "")
    if not invariant:
        found = search(fault)
        assert found is not None, f"nobody notices: {fault.sentence}"
        invariant, message = found["invariant"], found["message"]
        record_property("figure", f"planted: {name!r} is at another seed now; run python -m tests.simulation.planted")

    assert invariant in INVARIANTS
    assert not re.search(r"\b(Attribute|Key|Name|Type)Error\(", message), f"what is planted does not work: {message}"


def test_a_mistake_is_gone_afterwards() -> None:
    """What was planted does not stay: the same seeds are legal again."""
    for fault in FAULTS.values():
        with fault.planted():
            pass

    assert {Simulation(draw_scenario(seed, hours=1.0)).run().invariant for seed in range(3)} == {""}


def test_there_are_many_kinds_of_mistakes() -> None:
    """They say what is wrong, and are found by many promises."""
    assert len(FAULTS) >= 80
    assert all(fault.sentence.endswith(".") for fault in FAULTS.values())
