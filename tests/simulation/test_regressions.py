"""Scenarios in which something went wrong once, as short as possible."""

from __future__ import annotations

import pytest
from msgspec import structs

from deltaci.simulation.history import History, Simulation
from deltaci.simulation.scenario import Fault, Scenario, UserAction, draw_scenario
from tests.simulation.planted_runner import WITHOUT_SUPERVISOR
from tests.simulation.planting import patched

RUNNERS = 5
OUTAGE_SECONDS = 1200.0
PAUSE_SECONDS = 8.0  # On average, between two requests of a runner to an unreachable server.


def minimal_scenario(*faults: Fault, actions: tuple[UserAction, ...] = (), hours: float = 1.0) -> Scenario:
    """Return a scenario with one server, some runners, and only these faults and actions."""
    return structs.replace(
        draw_scenario(0, hours),
        servers=1,
        runners=RUNNERS,
        slots=1,
        ttl_seconds=60,
        poll_seconds=60.0,
        wait_seconds=60.0,
        credential_seconds=900,
        actions=actions,
        probabilities=dict.fromkeys(draw_scenario(0, hours).probabilities, 0.0),
        faults=faults,
        has_clock_jumps=any("store clock" in fault.kind for fault in faults),
    )


def check_legal(scenario: Scenario) -> History:
    """Play the scenario and check that it breaks no invariant."""
    history = Simulation(scenario).run()
    assert history.invariant == "", history.message
    return history


def test_runners_back_off_during_an_outage() -> None:
    """Every runner asked an unreachable server once a second; now they back off."""
    without_outage = check_legal(minimal_scenario())

    with_outage = check_legal(minimal_scenario(Fault(at=600.0, kind="kill server", target=0, seconds=OUTAGE_SECONDS)))

    assert with_outage.messages - without_outage.messages < RUNNERS * OUTAGE_SECONDS / PAUSE_SECONDS


def test_a_dying_keeper_causes_no_other_error_while_waiting_for_work() -> None:
    """The pending claim request was abandoned, and its error was logged when it failed."""
    check_legal(
        minimal_scenario(*(Fault(at=100.0 * n, kind="kill keeper", target=2 * n, seconds=30.0) for n in range(1, 20)))
    )


def test_a_runner_returns_to_a_store_whose_clock_is_ahead() -> None:
    """Its token seemed older than its last registration, whose time came from another clock."""
    faults = (
        Fault(at=300.0, kind="store clock forward", target=0, seconds=600.0),
        *(Fault(at=600.0, kind="crash machine", target=2 * n, seconds=10.0) for n in range(RUNNERS)),
    )

    history = check_legal(minimal_scenario(*faults, actions=(UserAction(900.0, "run", 0),)))

    assert history.acknowledged > 0


def test_a_machine_that_wakes_late_starts_no_step_under_a_lost_lease() -> None:
    """A runner that woke with its keeper started the next step under a lease that another runner had by then."""
    actions = tuple(UserAction(60.0 * n, "run", n) for n in range(10))
    faults = tuple(Fault(at=90.0 * n, kind="freeze machine", target=2 * n + 1, seconds=300.0) for n in range(1, 12))

    check_legal(minimal_scenario(*faults, actions=actions))


@pytest.mark.proves("MOD-L7")
@pytest.mark.parametrize(
    ("seed", "invariants"),
    [
        pytest.param(301, {"self-stop"}, id="a-runner-hangs-and-its-keeper-is-killed"),
        # The step overlaps one of the next lease if that is still running.
        pytest.param(384, {"overlap", "unowned"}, id="a-frozen-machine-starts-a-step-after-its-lease"),
    ],
)
def test_a_job_ends_with_its_lease_without_runner_and_keeper(seed: int, invariants: set[str]) -> None:
    """Only the keeper ended jobs in time. Now the supervisor of the job knows the deadline, too."""
    scenario = draw_scenario(seed, hours=6.0)
    with patched(WITHOUT_SUPERVISOR):
        assert Simulation(scenario).run().invariant in invariants

    check_legal(scenario)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(3864, id="a-message-counts-while-another-server-finds-its-worker-unresponsive"),
        pytest.param(4033, id="a-timer-hides-that-a-heartbeat-was-decided-from-an-old-record"),
        pytest.param(4044, id="a-step-begins-while-its-machine-is-waking-up"),
    ],
)
def test_what_two_servers_or_a_waking_machine_do_at_once(seed: int) -> None:
    """The first two were mistakes of the write path. In the third one the simulated machine recorded a step twice."""
    check_legal(draw_scenario(4_000_000 + seed, hours=6.0))
