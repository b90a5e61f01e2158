"""Histories in which something went wrong once: each is told again, as short as it can be."""

from __future__ import annotations

from msgspec import structs

from deltaci.simulation.history import History, Simulation
from deltaci.simulation.scenario import Fault, Scenario, UserAction, draw_scenario

RUNNERS = 5
OUTAGE_SECONDS = 1200.0
PAUSE_SECONDS = 8.0  # On average, between two things that a runner says to a server that is away.


def plain(*faults: Fault, actions: tuple[UserAction, ...] = (), hours: float = 1.0) -> Scenario:
    """One server, some runners, and only what is named here."""
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


def legal(mix: Scenario) -> History:
    """It breaks no promise."""
    history = Simulation(mix).run()
    assert history.invariant == "", history.message
    return history


def test_an_outage_is_no_reason_for_a_storm() -> None:
    """Runners asked a server that was away once a second, each of them; now they ask less and less."""
    quiet = legal(plain())

    cut = legal(plain(Fault(at=600.0, kind="kill server", target=0, seconds=OUTAGE_SECONDS)))

    assert cut.messages - quiet.messages < RUNNERS * OUTAGE_SECONDS / PAUSE_SECONDS


def test_a_runner_whose_keeper_dies_while_it_waits_for_work_meets_no_other_error() -> None:
    """The request that waited for work was left alone, and complained about it when it broke off."""
    legal(plain(*(Fault(at=100.0 * n, kind="kill keeper", target=2 * n, seconds=30.0) for n in range(1, 20))))


def test_a_runner_returns_to_a_store_whose_clock_is_ahead() -> None:
    """Its token seemed older than the last time that it came in, because that was written by another clock."""
    faults = (
        Fault(at=300.0, kind="store clock forward", target=0, seconds=600.0),
        *(Fault(at=600.0, kind="crash machine", target=2 * n, seconds=10.0) for n in range(RUNNERS)),
    )

    history = legal(plain(*faults, actions=(UserAction(900.0, "run", 0),)))

    assert history.acknowledged > 0


def test_a_machine_that_wakes_up_late_runs_nothing_of_what_is_anothers() -> None:
    """A runner that woke together with its keeper began the next step under a lease that was another's by then."""
    actions = tuple(UserAction(60.0 * n, "run", n) for n in range(10))
    faults = tuple(Fault(at=90.0 * n, kind="freeze machine", target=2 * n + 1, seconds=300.0) for n in range(1, 12))

    legal(plain(*faults, actions=actions))
