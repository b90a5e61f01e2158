"""Searches for planted mistakes: the simulator must find each of them.

`python -m tests.simulation.planted [WORDS …]` searches from seed 0, prints which invariant found which mistake with
which seed, and writes that as lines of JSON to `planted.jsonl` beside this file, where the test reads it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from multiprocessing import Pool
from pathlib import Path
from typing import Any, Final

from deltaci.simulation.history import Simulation
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
    "caught",
    "planted_core",
    "planted_engine",
    "planted_job_order",
    "planted_leases",
    "planted_rules",
    "planted_runner",
    "planted_worker_failures",
    "recorded_seeds",
    "search",
]

MODULE: Final = "tests.simulation.planted"
TABLE: Final = Path(__file__).with_name("planted.jsonl")
MAX_SEEDS: Final = 400
RUNS_AN_HOUR: Final = 5.0  # More than usual: mistakes show where something happens.
HOURS: Final = (1.0, 1.0, 1.0, 3.0)  # Most mistakes show soon; some need a longer history.


def caught(fault: Fault, seed: int) -> tuple[str, str]:
    """Return the invariant and the message of a history with this mistake; empty if no invariant is broken."""
    with fault.planted():
        history = Simulation(draw_scenario(seed, HOURS[seed % len(HOURS)], RUNS_AN_HOUR)).run()
    return history.invariant, history.message


def search(fault: Fault, seeds: int = MAX_SEEDS) -> dict[str, Any] | None:
    """Return the first seed that finds the mistake."""
    started_at = time.process_time()
    for seed in range(seeds):
        invariant, message = caught(fault, seed)
        if invariant:
            cpu_seconds = round(time.process_time() - started_at, 2)
            result = {"invariant": invariant, "seed": seed, "cpu_seconds": cpu_seconds, "message": message}
            return {"fault": fault.name, "sentence": fault.sentence, **result}
    return None


def recorded_seeds() -> dict[str, int]:
    """Return the seed that found each mistake in the last search."""
    rows = map(json.loads, TABLE.read_text().splitlines())
    return {row["fault"]: row["seed"] for row in rows}


def _search_by_name(name: str) -> tuple[str, dict[str, Any] | None]:
    return name, search(FAULTS[name])


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
