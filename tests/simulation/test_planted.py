"""Every mistake that is planted in the real code is found by some invariant.

`python -m tests.simulation.planted` searches for all of them from seed 0 and records a short history for each in
`planted.jsonl`. The test plays that first; if histories have changed since, it searches all seeds.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from deltaci.simulation.checker.history_checker import INVARIANTS
from deltaci.simulation.history import Simulation
from deltaci.simulation.scenario import draw_scenario
from tests.simulation.planted import FAULTS, play, recorded_replays, search

REPLAYS = recorded_replays()


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_mistake_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    """A simulator is only worth something if it finds mistakes that are there."""
    fault = FAULTS[name]
    replay = REPLAYS.get(name)
    history = play(fault, replay) if replay else None
    invariant, message = (history.invariant, history.message) if history else ("", "")
    if not invariant:
        row = search(fault)
        assert row is not None, f"not found: {fault.sentence}"
        invariant, message = row["invariant"], row["message"]
        record_property("figure", f"planted: {name!r} is at another seed now; run python -m tests.simulation.planted")

    assert invariant in INVARIANTS
    assert not re.search(r"\b(Attribute|Key|Name|Type)Error\(", message), f"what is planted does not work: {message}"


def test_patches_are_removed() -> None:
    """The same seeds are legal again after every patch was removed."""
    for fault in FAULTS.values():
        with fault.planted():
            pass

    assert {Simulation(draw_scenario(seed, hours=1.0)).run().invariant for seed in range(3)} == {""}


def test_there_are_many_mistakes() -> None:
    assert len(FAULTS) >= 80
    assert all(fault.sentence.endswith(".") for fault in FAULTS.values())
