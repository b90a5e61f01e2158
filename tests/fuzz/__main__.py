"""`make fuzz`: all targets, round after round with new seeds and many more examples, and a table of what came out.

python -m tests.fuzz --minutes 5        for so long
python -m tests.fuzz --seed 123         one round, with this seed: the same examples again
python -m tests.fuzz --only archive     only targets with this word, or all of these words, in their names
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
OUT: Final = ROOT / "chaos" / "out" / "fuzz.json"
SCALES: Final = (2, 4, 8)  # The first round is short, so that every target had its turn before the time is over.
WORKERS: Final = 2
ROUND_SECONDS: Final = 1800
FAILURES: Final = 1  # As pytest says it.
NOTHING_FITS: Final = 5
INVARIANT: Final = "no traceback, no 5xx, no hang, no memory without end; what is refused changes nothing"


class Tally:
    """What all rounds found, by target."""

    def __init__(self) -> None:
        self.examples: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.seeds: dict[str, set[int]] = {}

    def add(self, seed: int, examples: dict[str, int], failed: Iterator[str]) -> None:
        """One round."""
        self.examples.update(examples)
        for name in failed:
            self.failures[name] += 1
            self.seeds.setdefault(name, set()).add(seed)

    def rows(self) -> list[dict[str, Any]]:
        """For the page about reliability."""
        return [
            {
                "fault": "hostile input",
                "injected": f"{name}: {self.examples[name]:,} inputs",
                "invariant": INVARIANT,
                "figure": self.failures[name],
                "unit": "failures",
                "limit": 0,
                "ok": not self.failures[name],
                "note": f"again: make fuzz SEED={min(self.seeds[name])}" if name in self.seeds else "",
            }
            for name in sorted(self.examples | self.failures)
        ]


def one_round(seed: int, scale: float, only: list[str], tally: Tally) -> str:
    """Every target once. What pytest says, if something failed."""
    with tempfile.TemporaryDirectory() as folder:
        report, counts = Path(folder, "report.xml"), Path(folder, "counts")
        counts.mkdir()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(WORKERS), "tests/fuzz"),
                *("--dist", "worksteal", f"--junitxml={report}", *(("-k", " and ".join(only)) if only else ())),
            ],
            cwd=ROOT,
            env={**os.environ, "FUZZ_SEED": str(seed), "FUZZ_SCALE": str(scale), "FUZZ_COUNTS": str(counts)},
            capture_output=True,
            timeout=ROUND_SECONDS,
            check=False,
        )
        if done.returncode == NOTHING_FITS:
            sys.exit(f"make fuzz: no target has {' and '.join(map(repr, only))} in its name; leave ONLY out for all")
        if done.returncode not in (0, FAILURES):
            sys.exit(f"make fuzz: pytest itself failed\n{done.stdout.decode(errors='replace')[-20_000:]}")
        examples: Counter[str] = Counter()
        for path in counts.iterdir():
            examples.update(json.loads(path.read_text(encoding="utf-8")))
        tally.add(seed, examples, _failed(report))
        return done.stdout.decode(errors="replace") if done.returncode else ""


def _failed(report: Path) -> Iterator[str]:
    for case in ET.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            name = case.get("name", "").partition("[")[0].removeprefix("test_").replace("_", " ")
            yield f"{case.get('classname', '').rpartition('.')[2].removeprefix('test_')}: {name}"


def main() -> int:
    """Fuzz, and say what came out."""
    parser = argparse.ArgumentParser(prog="make fuzz", description="Fuzz everything that reads what others write.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    only = re.findall(r"\w+", asked.only)
    tally, until, number = Tally(), time.monotonic() + asked.minutes * 60, 0
    while not number or (not asked.seed and time.monotonic() < until):
        seed = asked.seed or random.SystemRandom().randrange(1, 2**31)
        scale = SCALES[0] if asked.seed else SCALES[min(number, len(SCALES) - 1)]
        print(f"round {number + 1}: seed {seed}, {scale} times the examples of 'make test' …", flush=True)
        said = one_round(seed, scale, only, tally)
        if said:
            print(said[-20_000:], flush=True)
        number += 1
    rows = tally.rows()
    if not only:  # Some of the targets must not take the place of all of them.
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    width = max((len(row["injected"]) for row in rows), default=0)
    print(f"\n{'target':<{width}}  {'failures':>8}")
    for row in rows:
        print(f"{row['injected']:<{width}}  {row['figure']:>8}  {row['note']}")
    failures = sum(row["figure"] for row in rows)
    inputs = sum(tally.examples.values())
    print(f"\n{inputs:,} inputs to {len(rows)} targets in {number} rounds: {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
