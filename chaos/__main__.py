"""Runs the fault scenarios: `python -m chaos`, or some with `python -m chaos NAME …`; `--list` names them.

Prints one table per scenario and writes the same rows to `chaos/out/NAME.json`. Exits with 1 if an invariant is broken
and with 2 if there is no scenario of that name. Scenarios that this machine cannot run are reported as such.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from chaos.rows import NotRun, Row, broken, not_run, table
from chaos.stage import Stage

HERE: Final = Path(__file__).parent
OUT: Final = HERE / "out"
PREFIX: Final = "scenario_"
SCENARIO_SECONDS: Final = 600.0

Scenario = Callable[[Stage], AsyncIterator[Row]]


def names() -> list[str]:
    """Return the names of all scenarios."""
    return sorted(path.stem.removeprefix(PREFIX) for path in HERE.glob(f"{PREFIX}*.py"))


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen scenarios."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description="Faults on real processes.")
    parser.add_argument("name", nargs="*", help="run only these")
    parser.add_argument("--list", action="store_true", help="name the scenarios and stop")
    parser.add_argument("--quick", action="store_true", help="test the scenarios only: tiny, and nothing is written")
    options = parser.parse_args(arguments)
    if options.list:
        print(*names(), sep="\n")
        return 0
    for name in options.name:
        if name not in names():
            parser.error(f"no scenario {name!r}; there are: {', '.join(names())}")

    logging.disable()  # This process loses its connections too; servers and runners log to files.
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Clean up also after SIGTERM.
    console, all_hold, began = Console(), True, time.monotonic()
    for name in options.name or names():
        print(f"{name} …", file=sys.stderr, flush=True)
        rows = play(name, is_quick=options.quick)
        console.print(table(name, rows))
        all_hold = all_hold and all(row.ok is not False for row in rows)
        if not options.quick:
            console.print(f"written to {save(name, rows).relative_to(HERE.parent)}")
    console.print(
        f"{'every invariant held' if all_hold else 'AN INVARIANT IS BROKEN'} ({time.monotonic() - began:.0f} s)"
    )
    return 0 if all_hold else 1


def play(name: str, *, is_quick: bool = False) -> list[Row]:
    """Run one scenario in this process; its folder is kept only if something is broken."""
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{name[:20]}-"))
    folder.chmod(0o755)  # PostgreSQL runs under another account.
    module = importlib.import_module(f"chaos.{PREFIX}{name}")
    try:
        rows = asyncio.run(collect(module.FAULT, module.run, Stage(folder, is_quick=is_quick)))
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if all(row.ok is not False for row in rows):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"its files are in {folder}", file=sys.stderr)
    return rows


async def collect(fault: str, run: Scenario, stage: Stage) -> list[Row]:
    """Collect the scenario's rows. If it fails, a failed row is added to those before."""
    rows: list[Row] = []
    try:
        async with asyncio.timeout(SCENARIO_SECONDS):
            async for row in run(stage):
                stage.log(f"{row.invariant or row.injected}: {row.figure} {row.unit} {row.note}")
                rows.append(row)
    except NotRun as why:
        rows.append(not_run(fault, "", str(why)))
    except Exception as error:
        traceback.print_exc()
        rows.append(broken(fault, f"{type(error).__name__}: {error}"))
    return rows


def save(name: str, rows: Sequence[Row]) -> Path:
    """Write the rows of the latest run, with date, commit and machine."""
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{name}.json"
    at, commit, machine = datetime.now(UTC).strftime("%Y-%m-%d"), _commit(), _machine()
    stamped = [msgspec.structs.replace(row, at=at, commit=commit, machine=machine) for row in rows]
    path.write_bytes(msgspec.json.format(msgspec.json.encode(stamped)) + b"\n")
    return path


def _commit() -> str:
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True, check=False
    )
    return told.stdout.strip()


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {python}"


if __name__ == "__main__":
    raise SystemExit(main())
