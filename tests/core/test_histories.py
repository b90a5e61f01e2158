"""Random histories: the log is always legal, and all work ends."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaci.audit.verify.canonical import LEGAL
from tests.support.budget import budget
from tests.support.histories import History

FIXED_SEEDS = range(450)
FIRST_SEEDS = (
    5,
    33,
    53,
    65,
    154,
    155,
    199,
    208,
    243,
    397,
    431,
)  # Together they use every rule; if not, all seeds are tried.
ONLY_IN_OLD_LOGS = {("run", "WAITING_APPROVAL", "TIMEOUT", "run_timed_out")}
# Histories change no resources: see test_resource.py.
RULES = {legal for legal in LEGAL if legal[0] not in ("lease", "resource")} - ONLY_IN_OLD_LOGS
MIN_SEEDS = budget(60, 450)


@settings(max_examples=budget(25, 60), deadline=None, suppress_health_check=list(HealthCheck))
@given(randomness=st.randoms(use_true_random=False), steps=st.integers(min_value=0, max_value=150))
def test_every_random_history_verifies_and_ends(randomness: Random, steps: int) -> None:
    """With retries, cancels, lost leases, approvals, duplicates and reordering, in every view of the log."""
    history = History(randomness).go(steps).calm()

    history.lab.verified()
    assert not history.stuck()


@pytest.mark.proves("ORC-O1", "MOD-V1", "MOD-E5")
def test_fixed_histories_use_every_rule() -> None:
    """A rule that no history uses is not tested by them."""
    used = set[tuple[str, str | None, str, str]]()

    for number, seed in enumerate((*FIRST_SEEDS, *FIXED_SEEDS)):
        if number >= MIN_SEEDS and used >= RULES:
            break
        history = History(Random(seed)).go(150).calm()
        history.lab.verified()
        assert not history.stuck(), f"seed {seed}: {history.stuck()}"
        used.update((event.entity, event.from_, event.to, event.trigger) for event in history.lab.log)

    assert RULES - used == set()
