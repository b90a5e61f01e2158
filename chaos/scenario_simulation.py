"""Runs whole histories in the simulator: every fault that it knows, every invariant, every transition."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, Final

from chaos.rows import Row, measured
from chaos.stage import Stage
from deltaci.simulation.checker.history_checker import INVARIANTS
from deltaci.simulation.scenario import draw_scenario
from tests.simulation.planted import FAULTS, MAX_SEEDS, TABLE

FAULT: Final = "everything in the simulator"
HOURS: Final = 2.0


async def run(stage: Stage) -> AsyncIterator[Row]:
    """Some seeds, in a process of their own; and what is known of the mistakes that were planted."""
    seeds = stage.size(300, 2)
    *histories, summary = [told async for told in _told(stage, seeds)]
    times: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for history in histories:
        kinds = [fault.kind for fault in draw_scenario(history["seed"], HOURS).faults]
        times.update(kinds)
        wrong.update(set(kinds) if history["invariant"] else ())
    for kind, count in sorted(times.items()):
        told = f"{count} times"
        yield measured(FAULT, kind, f"all {len(INVARIANTS)} invariants", wrong[kind], "histories broken", 0, told)
    said = f"{len(histories)} histories of {HOURS:g} h with the seeds from 0, {summary['faults']} faults"
    acknowledged = f"{summary['acknowledged']} acknowledgements compared with the log"
    yield measured(FAULT, said, f"all {len(INVARIANTS)} invariants", len(summary["broken"]), "broken", 0, acknowledged)
    untaken = "; ".join(summary["unvisited"][:3]) or f"all {summary['edges']} are made"
    taken = "every transition is made"
    yield measured(FAULT, said, taken, len(summary["unvisited"]), "not made", None if stage.is_quick else 0, untaken)
    speed = summary["hours"] / summary["cpu_seconds"]
    yield measured(FAULT, said, "how fast time goes by", speed, "simulated hours a CPU second")
    rows = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]
    known = {row["fault"] for row in rows if row["seed"] < MAX_SEEDS}
    missing = [name for name in FAULTS if name not in known]
    found = Counter(row["invariant"] for row in rows)
    note = "found by " + ", ".join(f"{name} ({count})" for name, count in found.most_common())
    planted = f"{len(FAULTS)} mistakes planted in the real code, one at a time"
    note = "; ".join((*missing, note))
    yield measured(FAULT, planted, f"each is found within {MAX_SEEDS} seeds", len(missing), "not found", 0, note)


async def _told(stage: Stage, seeds: int) -> AsyncIterator[dict[str, Any]]:
    words = ("sim", "--seeds", str(seeds), "--hours", f"{HOURS:g}", "--no-shrink", "--json")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "deltaci",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        limit=1 << 24,
    )
    assert process.stdout is not None
    count = 0
    try:
        async for line in process.stdout:
            count += 1
            if count % 25 == 0:
                stage.log(f"{count} of {seeds} histories")
            yield json.loads(line)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
