"""What follows from silence, without a server: every state of a worker, and every length of silence."""

from __future__ import annotations

import pytest

from deltaci.core import worker
from deltaci.core.instants import SECOND
from deltaci.core.worker import BUSY, IDLE, SHUTDOWN, UNRESPONSIVE, Worker
from deltaci.fleet.health import HealthLimits, next_command, silence

NOW = 1_000_000 * SECOND
LIMITS = HealthLimits(health_seconds=20, max_missed_checks=3, max_silent_seconds=600)


def said(state: str, seconds: float, *, updated: float = 10_000, since: int = 0) -> str:
    """Which order follows for a worker that was heard so long ago, and changed so long ago."""
    record = Worker(id="w", state=state, rev=7, updated_at=NOW - round(updated * SECOND))
    found = next_command(record, NOW - round(seconds * SECOND), since, NOW, LIMITS)
    assert found is None or (found.id, found.expected_rev) == ("w", 7)
    return type(found).__name__ if found is not None else ""


@pytest.mark.proves("WST-KG4")
@pytest.mark.parametrize(
    ("state", "seconds", "expected"),
    [
        (BUSY, 0, ""),
        (BUSY, 59.9, ""),
        (BUSY, 60, "MissHealthChecks"),
        (BUSY, 100_000, "MissHealthChecks"),
        (IDLE, 60, ""),
        (IDLE, 599.9, ""),
        (IDLE, 600, "Shutdown"),
        (UNRESPONSIVE, 100, ""),
        (UNRESPONSIVE, 599.9, ""),
        (UNRESPONSIVE, 600, "GiveUp"),
        (UNRESPONSIVE, 5, "Recover"),
        (SHUTDOWN, 100_000, ""),
    ],
)
def test_what_follows_from_silence(state: str, seconds: float, expected: str) -> None:
    """Each order is due at its time, and none is for a worker that is gone."""
    assert said(state, seconds) == expected


def test_every_state_has_its_row() -> None:
    """A new state of the machine must be thought of here."""
    assert set(worker.MACHINE.states) == {worker.INITIALIZING, IDLE, BUSY, UNRESPONSIVE, SHUTDOWN}
    assert all(said(worker.INITIALIZING, seconds) == "" for seconds in (0, 60, 100_000))


def test_one_has_recovered_only_by_what_it_said_afterwards() -> None:
    """What was heard before it was found silent is why it was found silent."""
    assert said(UNRESPONSIVE, 5, updated=5) == ""
    assert said(UNRESPONSIVE, 5, updated=6) == "Recover"


def test_nobody_was_silent_before_somebody_could_hear() -> None:
    """Neither before the server listened, nor before the worker was born, nor in a future that is none any more."""
    fresh = Worker(id="w", state=BUSY, created_at=NOW - 5 * SECOND)
    ahead = Worker(id="w", state=BUSY, created_at=NOW + 5 * SECOND)

    assert silence(fresh, 0, 0, NOW) == 5 * SECOND
    assert silence(fresh, 0, NOW - SECOND, NOW) == SECOND
    assert silence(ahead, NOW - 9 * SECOND, 0, NOW) == 9 * SECOND
    assert said(BUSY, 100_000, since=NOW - 59 * SECOND) == ""
    assert said(BUSY, 100_000, since=NOW - 60 * SECOND) == "MissHealthChecks"


def test_the_maximum_is_never_less_than_what_makes_one_silent() -> None:
    """Whatever was set: nobody is presumed gone before it has missed its checks."""
    odd = HealthLimits(health_seconds=20, max_missed_checks=3, max_silent_seconds=1)
    assert odd.shut_down_after == odd.unresponsive_after == 60 * SECOND
