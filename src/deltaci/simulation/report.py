"""Plays histories one after the other, and prints the results as text or as JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from deltaci.simulation.checker.transitions import Edge
from deltaci.simulation.coverage import ALL_EDGES, unvisited
from deltaci.simulation.history import History, Simulation
from deltaci.simulation.scenario import Scenario, draw_scenario
from deltaci.simulation.shrink import Shrinker, describe

FOLDER: Final = Path(".state/sim")  # For shrunk scenarios of broken histories.


MAX_LISTED: Final = 10


class BadScenario(Exception):
    """Raised when a file contains no scenario."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of all histories. `unvisited` lists the transitions of the machines that no history made."""

    histories: int
    broken: list[int]
    hours: float
    faults: int
    acknowledged: int
    cpu_seconds: float
    edges: int
    unvisited: list[str]


def read_scenario(scenario_path: Path) -> Scenario:
    """Read a scenario from a JSON file. Raise `BadScenario` if it contains none."""
    try:
        return msgspec.json.decode(scenario_path.read_bytes(), type=Scenario)
    except (OSError, msgspec.DecodeError) as error:
        raise BadScenario(
            f"{scenario_path} contains no scenario: {error}; 'deltaci sim' writes one to {FOLDER} when a seed fails"
        ) from None


def scenarios(seed: int, seed_count: int, minutes: float, hours: float, runs_an_hour: float) -> Iterator[Scenario]:
    """Yield the scenarios of `seed_count` consecutive seeds, or of as many as fit into `minutes` if that is not 0."""
    end_at = time.monotonic() + minutes * 60
    current_seed = seed
    while (time.monotonic() < end_at) if minutes else (current_seed < seed + seed_count):
        yield draw_scenario(current_seed, hours, runs_an_hour)
        current_seed += 1


def play(scenarios: Iterable[Scenario], *, shrinks: bool, as_json: bool) -> Summary:
    """Play each scenario and print its result. Print a summary at the end, also after Ctrl-C, and return it."""
    histories: list[History] = []
    edges: set[Edge] = set()
    try:
        for scenario in scenarios:
            simulation = Simulation(scenario)
            history = simulation.run()
            histories.append(history)
            edges |= history.edges
            _print_history(history, scenario, as_json=as_json)
            if history.invariant and shrinks:
                _shrink_and_print(scenario, history, as_json=as_json)
            elif history.invariant:
                _print_scenario(scenario, simulation, as_json=as_json)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    summary = _summarize(histories, edges)
    _print_summary(summary, as_json=as_json)
    return summary


def _shrink_and_print(scenario: Scenario, history: History, *, as_json: bool) -> None:
    """Shrink a scenario that broke an invariant, write it to a file and print it."""
    shrinker = Shrinker(scenario, history)
    shrunk_scenario = shrinker.run()
    FOLDER.mkdir(parents=True, exist_ok=True)
    scenario_path = FOLDER / f"seed-{scenario.seed}.json"
    scenario_path.write_bytes(msgspec.json.format(msgspec.json.encode(shrunk_scenario)))
    if not as_json:
        print(f"  shrunk: deltaci sim --mix {scenario_path}")
        print(f"  {shrinker.history.message}")
    simulation = Simulation(shrunk_scenario)
    simulation.run()
    _print_scenario(shrunk_scenario, simulation, as_json=as_json)


def _print_scenario(scenario: Scenario, simulation: Simulation, *, as_json: bool) -> None:
    """Print the actions, faults and last events of a scenario; to stderr if the results are printed as JSON."""
    for description_line in describe(scenario, simulation.log):
        print(f"  {description_line}", file=sys.stderr if as_json else sys.stdout, flush=True)


def _print_history(history: History, scenario: Scenario, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(history).decode() + "\n")
        sys.stdout.flush()
    elif history.invariant:
        print(f"seed {history.seed}: {history.message}", flush=True)
        print(f"  repeat: deltaci sim --seed {history.seed} --seeds 1 --hours {scenario.hours:g}", flush=True)
    else:
        print(
            f"seed {history.seed}: legal; {history.hours:.1f} h, {history.events} events, {history.messages} messages, "
            f"{history.faults} faults, digest {history.digest}",
            flush=True,
        )


def _summarize(histories: list[History], edges: set[Edge]) -> Summary:
    return Summary(
        histories=len(histories),
        broken=[history.seed for history in histories if history.invariant],
        hours=sum(history.hours for history in histories),
        faults=sum(history.faults for history in histories),
        acknowledged=sum(history.acknowledged for history in histories),
        cpu_seconds=sum(history.cpu_seconds for history in histories),
        edges=len(edges & ALL_EDGES),
        unvisited=unvisited(edges),
    )


def _print_summary(summary: Summary, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(summary).decode() + "\n")
        return
    hours_per_cpu_second = summary.hours / max(summary.cpu_seconds, 1e-9)
    print(
        f"{summary.histories} histories, {len(summary.broken)} broken; {summary.hours:.0f} simulated hours with "
        f"{summary.faults} faults in {summary.cpu_seconds:.1f} s of CPU: {hours_per_cpu_second:.1f} h/s"
    )
    print(f"{summary.edges} of {len(ALL_EDGES)} transitions were made; {summary.acknowledged} acknowledgements")
    for transition in summary.unvisited[:MAX_LISTED]:
        print(f"  not made: {transition}")
    if len(summary.unvisited) > MAX_LISTED:
        print(
            f"  and {len(summary.unvisited) - MAX_LISTED} others (--json lists all); more seeds make more transitions"
        )
