"""How fast time goes by in the simulator, with every invariant and the digest on.

The limit is the bare loop: how many steps that do nothing it makes in a second.
"""

import time

from msgspec import structs

from bench.figures import Figure
from deltaci.simulation.history import Simulation
from deltaci.simulation.scenario import draw_scenario
from deltaci.simulation.virtual_time import VirtualLoop

SEEDS = range(8)
HOURS = 12.0
FAULTS_AN_HOUR = 22.0
RUNS_AN_HOUR = 1.0
SERVERS, RUNNERS = 2, 5
GOAL_HOURS = 50.0
EMPTY_STEPS = 300_000


def run() -> list[Figure]:
    """Measure whole histories of one size."""
    Simulation(draw_scenario(1000, 1.0)).run()  # Warm up.
    histories = []
    for seed in SEEDS:
        scenario = structs.replace(
            draw_scenario(seed, HOURS, RUNS_AN_HOUR, FAULTS_AN_HOUR), servers=SERVERS, runners=RUNNERS
        )
        histories.append(Simulation(scenario).run())
    spent = sum(history.cpu_seconds for history in histories)
    hours = sum(history.hours for history in histories)
    steps = sum(history.steps for history in histories) / spent
    limit = _empty_steps_a_second()
    return [
        Figure("simulated hours a CPU second", hours / spent, "h/s", {"goal": hours / spent / GOAL_HOURS}),
        Figure("steps a CPU second", steps, "/s", {"bare loop": steps / limit}),
        Figure("events checked a CPU second", sum(history.events for history in histories) / spent, "/s"),
        Figure("faults an hour", sum(history.faults for history in histories) / hours, "/h"),
        Figure("messages an hour", sum(history.messages for history in histories) / hours, "/h"),
        Figure("events an hour", sum(history.events for history in histories) / hours, "/h"),
        Figure("histories that broke a promise", sum(bool(history.invariant) for history in histories), ""),
    ]


def _empty_steps_a_second() -> float:
    loop = VirtualLoop()  # type: ignore[abstract]
    left = EMPTY_STEPS

    def step() -> None:
        nonlocal left
        left -= 1
        loop.call_outside(1.0, step)

    loop.call_outside(1.0, step)
    began = time.process_time()
    loop.run(lambda: left <= 0)
    return EMPTY_STEPS / (time.process_time() - began)
