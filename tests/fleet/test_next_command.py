"""`health.next_command` for every state of a worker and every length of silence."""

from __future__ import annotations

import pytest

from deltaci.core import worker
from deltaci.core.instants import SECOND
from deltaci.core.worker import BUSY, IDLE, SHUTDOWN, UNRESPONSIVE, Worker
from deltaci.fleet.health import HealthLimits, next_command, silence

NOW = 1_000_000 * SECOND
LIMITS = HealthLimits(health_seconds=20, max_missed_checks=3, max_silent_seconds=600)


def command_name(state: str, seconds: float, *, updated: float = 10_000, since: int = 0) -> str:
    """Return the command for a worker that was last seen and last changed so many seconds ago."""
    record = Worker(id="w", state=state, rev=7, updated_at=NOW - round(updated * SECOND))
    command = next_command(record, NOW - round(seconds * SECOND), since, NOW, LIMITS)
    assert command is None or (command.id, command.expected_rev) == ("w", 7)
    return type(command).__name__ if command is not None else ""


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
def test_each_command_is_due_after_its_silence(state: str, seconds: float, expected: str) -> None:
    """A worker that was shut down gets none."""
    assert command_name(state, seconds) == expected


def test_every_state_of_the_machine_is_covered() -> None:
    """A new state needs a row in the table above."""
    assert set(worker.MACHINE.states) == {worker.INITIALIZING, IDLE, BUSY, UNRESPONSIVE, SHUTDOWN}
    assert all(command_name(worker.INITIALIZING, seconds) == "" for seconds in (0, 60, 100_000))


def test_only_a_later_message_lets_a_worker_recover() -> None:
    """A message from before the worker became unresponsive proves nothing."""
    assert command_name(UNRESPONSIVE, 5, updated=5) == ""
    assert command_name(UNRESPONSIVE, 5, updated=6) == "Recover"


def test_silence_is_measured_only_while_a_message_could_arrive() -> None:
    """Not before the server observed, nor before the worker was created, nor in a future that the clock has left."""
    created_lately = Worker(id="w", state=BUSY, created_at=NOW - 5 * SECOND)
    created_in_future = Worker(id="w", state=BUSY, created_at=NOW + 5 * SECOND)

    assert silence(created_lately, 0, 0, NOW) == 5 * SECOND
    assert silence(created_lately, 0, NOW - SECOND, NOW) == SECOND
    assert silence(created_in_future, NOW - 9 * SECOND, 0, NOW) == 9 * SECOND
    assert command_name(BUSY, 100_000, since=NOW - 59 * SECOND) == ""
    assert command_name(BUSY, 100_000, since=NOW - 60 * SECOND) == "MissHealthChecks"


def test_a_worker_is_never_shut_down_before_it_is_unresponsive() -> None:
    """Also if the configured maximum is shorter."""
    limits = HealthLimits(health_seconds=20, max_missed_checks=3, max_silent_seconds=1)
    assert limits.shut_down_after == limits.unresponsive_after == 60 * SECOND
