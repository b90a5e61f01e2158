"""Document 003 over long random histories; the quick version is in `tests/spec/test_workstreams_properties.py`."""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec
from hypothesis import strategies as st

from deltaci.audit.verify import verify
from tests.fuzz.profile import fuzzed, only_in_fuzz
from tests.support.forged_transitions import Forgery, detectable
from tests.support.workstream_derivation import Derivation
from tests.support.workstream_histories import Fleet
from tests.support.workstream_invariants import Invariants

FORGERIES: Final = 20  # Of one log.


@only_in_fuzz
@fuzzed(20, randomness=st.randoms(use_true_random=False), steps=st.integers(0, 300))
def test_workers_die_and_return(randomness: Random, steps: int) -> None:
    """Check all invariants and the derivation after each decision; at the end all work has ended."""
    history = Fleet(randomness, Derivation, Invariants).go(steps).calm()

    assert not history.stuck()
    history.lab.verified()


@only_in_fuzz
@fuzzed(15, randomness=st.randoms(use_true_random=False), steps=st.integers(20, 120))
def test_a_transition_is_forged(randomness: Random, steps: int) -> None:
    """The validator rejects every detectable forgery."""
    lines = [msgspec.json.decode(line) for line in Fleet(randomness).go(steps).calm().lab.transitions()]
    forgeries: list[Forgery] = list(detectable(lines))
    for forgery in randomness.sample(forgeries, k=min(FORGERIES, len(forgeries))):
        assert not verify([msgspec.json.encode(line) for line in forgery.lines], "transitions").is_legal, forgery.kind
