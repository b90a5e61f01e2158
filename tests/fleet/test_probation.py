"""A quarantined worker is resumed after a while, because it may be the only one."""

from __future__ import annotations

import pytest

from deltaci.core import worker
from deltaci.core.instants import SECOND
from deltaci.core.worker import DRAINED, IDLE, QUARANTINED, Resume, Worker
from deltaci.fleet.health import HEALTH_SECONDS, MAX_MISSED_CHECKS, PROBATION_SECONDS, HealthLimits, next_command

NOW = 10**9 * SECOND
PROBATION_START = NOW - PROBATION_SECONDS * SECOND


def worker_on_hold(hold: str, since: int) -> Worker:
    """Return a worker that has been on hold since this time."""
    return Worker(id="w1", tenant="t", state=IDLE, rev=7, hold=hold, hold_reason="why", held_at=since, created_at=1)


@pytest.mark.parametrize(
    ("hold", "since", "last_seen_at"),
    [
        (QUARANTINED, PROBATION_START + 1, NOW),  # not long enough
        (QUARANTINED, PROBATION_START, NOW - MAX_MISSED_CHECKS * HEALTH_SECONDS * SECOND),  # silent
        (DRAINED, PROBATION_START, NOW),  # by a person
        ("", 0, NOW),
    ],
)
def test_no_other_worker_is_resumed(hold: str, since: int, last_seen_at: int) -> None:
    """A drain ends only when a person resumes the worker."""
    assert not isinstance(next_command(worker_on_hold(hold, since), last_seen_at, 0, NOW, HealthLimits()), Resume)


@pytest.mark.proves("WST-KH2")
def test_a_worker_is_resumed_after_its_probation() -> None:
    """Only at the expected revision, so that a concurrent change is not overruled."""
    command = next_command(worker_on_hold(QUARANTINED, PROBATION_START), NOW, 0, NOW, HealthLimits())

    assert command == worker.Resume(id="w1", expected_rev=7)
