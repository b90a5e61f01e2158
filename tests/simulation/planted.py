"""Searches for planted mistakes: the simulator must find each of them.

`python -m tests.simulation.planted [WORDS …]` searches from seed 0, prints which invariant found which mistake with
which seed, and writes that as lines of JSON to `planted.jsonl` beside this file. `replay` in a line is the seed and the
hours of a cheap history in which the same invariant finds the mistake: the test plays only that one.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import time
from multiprocessing import Pool
from pathlib import Path
from typing import Any, Final, NamedTuple

from deltaci.simulation.history import History, Simulation
from deltaci.simulation.scenario import draw_scenario
from tests.simulation import (
    planted_core,
    planted_engine,
    planted_job_order,
    planted_leases,
    planted_rules,
    planted_runner,
    planted_worker_failures,
)
from tests.simulation.planting import FAULTS, Fault

__all__ = [
    "FAULTS",
    "TABLE",
    "planted_core",
    "planted_engine",
    "planted_job_order",
    "planted_leases",
    "planted_rules",
    "planted_runner",
    "planted_worker_failures",
    "play",
    "recorded_replays",
    "search",
]

MODULE: Final = "tests.simulation.planted"
TABLE: Final = Path(__file__).with_name("planted.jsonl")
MAX_SEEDS: Final = 400
RUNS_AN_HOUR: Final = 5.0  # More than usual: mistakes show where something happens.
HOURS: Final = (1.0, 1.0, 1.0, 3.0)  # Most mistakes show soon; some need a longer history.
REPLAY_SEEDS: Final = 30
REPLAY_HOURS: Final = (0.25, 0.5, 1.0)
CHEAP_SECONDS: Final = 0.05  # A history that costs less CPU time is cheap enough: stop the search.


class Replay(NamedTuple):
    """A history that is known to find a mistake."""

    seed: int
    hours: float


def hours_of(seed: int) -> float:
    """Return the length of the history that a search plays with this seed."""
    return HOURS[seed % len(HOURS)]


def play(fault: Fault, replay: Replay) -> History:
    """Play a history with this mistake, until an invariant is broken."""
    with fault.planted():
        return Simulation(draw_scenario(replay.seed, replay.hours, RUNS_AN_HOUR)).run()


def search(fault: Fault, seeds: int = MAX_SEEDS) -> dict[str, Any] | None:
    """Return the first seed that finds the mistake."""
    started_at = time.process_time()
    for seed in range(seeds):
        history = play(fault, Replay(seed, hours_of(seed)))
        if history.invariant:
            cpu_seconds = round(time.process_time() - started_at, 2)
            result = {"invariant": history.invariant, "seed": seed, "cpu_seconds": cpu_seconds}
            return {"fault": fault.name, "sentence": fault.sentence, **result, "message": history.message}
    return None


def cheapest(fault: Fault, row: dict[str, Any]) -> Replay:
    """Return the cheapest of some short histories in which the same invariant finds the mistake."""
    best, best_seconds = Replay(row["seed"], hours_of(row["seed"])), math.inf
    for replay in (best, *itertools.starmap(Replay, itertools.product(range(REPLAY_SEEDS), REPLAY_HOURS))):
        history = play(fault, replay)
        if history.invariant == row["invariant"] and history.cpu_seconds < best_seconds:
            best, best_seconds = replay, history.cpu_seconds
        if best_seconds < CHEAP_SECONDS:
            break
    return best


def recorded_replays() -> dict[str, Replay]:
    """Return the cheap history that is recorded for each mistake."""
    rows = map(json.loads, TABLE.read_text().splitlines())
    return {row["fault"]: Replay(*row["replay"]) for row in rows}


def _search_by_name(name: str) -> tuple[str, dict[str, Any] | None]:
    row = search(FAULTS[name])
    return name, row and row | {"replay": cheapest(FAULTS[name], row)}


def main(words: list[str]) -> int:
    """Search for the mistakes whose names contain one of these words, or for all."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The iteration order of sets of strings is part of a history.
        os.execve(sys.executable, [sys.executable, "-m", MODULE, *words], {**os.environ, "PYTHONHASHSEED": "0"})
    old_rows = {row["fault"]: row for row in map(json.loads, TABLE.read_text().splitlines())} if TABLE.exists() else {}
    rows: dict[str, dict[str, Any]] = {name: row for name, row in old_rows.items() if name in FAULTS}
    chosen = [name for name in FAULTS if not words or any(word in name for word in words)]
    missed: list[str] = []
    with Pool() as pool:
        for name, row in pool.imap(_search_by_name, chosen):
            if row is None:
                missed.append(name)
                rows.pop(name, None)
                print(f"{name:45} NOT FOUND in {MAX_SEEDS} seeds", flush=True)
            else:
                rows[name] = row
                print(f"{name:45} {row['invariant']:16} seed {row['seed']:3}  {row['cpu_seconds']:6.1f} s", flush=True)
    TABLE.write_text("".join(json.dumps(rows[name]) + "\n" for name in FAULTS if name in rows))
    print(f"{len(rows)} of {len(FAULTS)} mistakes are found; not found: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
