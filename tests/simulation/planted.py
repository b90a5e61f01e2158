"""The simulator must be able to fail: mistakes that somebody could have made, each found by some promise.

`python -m tests.simulation.planted [WORDS …]` searches from seed 0, prints which promise found which mistake with which
seed, and writes that as lines of JSON to `planted.jsonl` beside this file, from where the test knows where to look.
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
    "known",
    "planted_core",
    "planted_engine",
    "planted_job_order",
    "planted_leases",
    "planted_rules",
    "planted_runner",
    "planted_worker_failures",
    "search",
]

MODULE: Final = "tests.simulation.planted"
TABLE: Final = Path(__file__).with_name("planted.jsonl")
MOST_SEEDS: Final = 400
RUNS_AN_HOUR: Final = 5.0  # More than usual: mistakes show where something is done.
HOURS: Final = (1.0, 1.0, 1.0, 3.0)  # Most mistakes show soon; some need a longer history.


def caught(fault: Fault, seed: int) -> tuple[str, str]:
    """The promise that is broken in this history with the mistake in it, and how; empty if none is."""
    with fault.planted():
        history = Simulation(draw_scenario(seed, HOURS[seed % len(HOURS)], RUNS_AN_HOUR)).run()
    return history.invariant, history.message


def search(fault: Fault, seeds: int = MOST_SEEDS) -> dict[str, Any] | None:
    """The first seed that finds it."""
    began = time.process_time()
    for seed in range(seeds):
        invariant, message = caught(fault, seed)
        if invariant:
            spent = round(time.process_time() - began, 2)
            found = {"invariant": invariant, "seed": seed, "cpu_seconds": spent, "message": message}
            return {"fault": fault.name, "sentence": fault.sentence, **found}
    return None


def known() -> dict[str, int]:
    """Where each mistake was found the last time that somebody searched."""
    rows = map(json.loads, TABLE.read_text().splitlines())
    return {row["fault"]: row["seed"] for row in rows}


def _searched(name: str) -> tuple[str, dict[str, Any] | None]:
    return name, search(FAULTS[name])


def main(words: list[str]) -> int:
    """Search for those whose names have one of these words in them, or for all."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order in which Python walks through sets of texts is part of a history.
        os.execve(sys.executable, [sys.executable, "-m", MODULE, *words], {**os.environ, "PYTHONHASHSEED": "0"})
    old = {row["fault"]: row for row in map(json.loads, TABLE.read_text().splitlines())} if TABLE.exists() else {}
    rows: dict[str, dict[str, Any]] = {name: row for name, row in old.items() if name in FAULTS}
    wanted = [name for name in FAULTS if not words or any(word in name for word in words)]
    missed: list[str] = []
    with Pool() as pool:
        for name, row in pool.imap(_searched, wanted):
            if row is None:
                missed.append(name)
                rows.pop(name, None)
                print(f"{name:45} NOT FOUND in {MOST_SEEDS} seeds", flush=True)
            else:
                rows[name] = row
                print(f"{name:45} {row['invariant']:16} seed {row['seed']:3}  {row['cpu_seconds']:6.1f} s", flush=True)
    TABLE.write_text("".join(json.dumps(rows[name]) + "\n" for name in FAULTS if name in rows))
    print(f"{len(rows)} of {len(FAULTS)} mistakes are found; not found: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
