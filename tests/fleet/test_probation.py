"""One that is quarantined is tried once more after a while: it may be the only one there is."""

from __future__ import annotations

import pytest

from deltaci.core import worker
from deltaci.core.instants import SECOND
from deltaci.core.worker import DRAINED, IDLE, QUARANTINED, Resume, Worker
from deltaci.fleet.health import HEALTH_SECONDS, MAX_MISSED_CHECKS, PROBATION_SECONDS, HealthLimits, next_command

NOW = 10**9 * SECOND
SERVED = NOW - PROBATION_SECONDS * SECOND


def held(hold: str, at: int) -> Worker:
    """A worker that is held since then."""
    return Worker(id="w1", tenant="t", state=IDLE, rev=7, hold=hold, hold_reason="why", held_at=at, created_at=1)


@pytest.mark.parametrize(
    ("hold", "since", "heard"),
    [
        (QUARANTINED, SERVED + 1, NOW),  # not long enough
        (QUARANTINED, SERVED, NOW - MAX_MISSED_CHECKS * HEALTH_SECONDS * SECOND),  # and it must be there
        (DRAINED, SERVED, NOW),  # somebody wants it so
        ("", 0, NOW),
    ],
)
def test_nobody_else_is_resumed(hold: str, since: int, heard: int) -> None:
    """A drain ends only by a person's word."""
    assert not isinstance(next_command(held(hold, since), heard, 0, NOW, HealthLimits()), Resume)


@pytest.mark.proves("WST-KH2")
def test_who_was_quarantined_for_long_enough_is_resumed() -> None:
    """By the orchestrator, once: who was faster, or quarantined it anew, is not overruled."""
    found = next_command(held(QUARANTINED, SERVED), NOW, 0, NOW, HealthLimits())

    assert found == worker.Resume(id="w1", expected_rev=7)
