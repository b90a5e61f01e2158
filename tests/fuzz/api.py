"""Lets schemathesis loose on a real server, by the document that the server itself serves, with every check on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from tests.fuzz.people import settle
from tests.fuzz.prey import Prey, prey
from tests.fuzz.profile import SCALE

ROOT: Final = Path(__file__).parents[2]
EVERY_PHASE: Final = "examples,coverage,fuzzing,stateful"
MAX_RESPONSE_SECONDS: Final = 5 if SCALE > 1 else 30  # `make test` runs beside other tests.
REACHED: Final = "reached.txt"
SPARE_SECONDS: Final = 1800  # Only a server that hangs takes as long.
# What counts as a refusal: schemathesis' own list, and 413, with which we refuse what is too much. What fits may be
# answered with 416 as well: whether there are such bytes depends on the file.
CONFIG: Final = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, "5xx"]
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 401, 403, 404, 409, 416, 429, "5xx"]
[checks.missing_required_header]
expected-statuses = [400, 401]
"""


class Found(NamedTuple):
    """What came out of it."""

    cases: int
    failures: int
    told: str
    reached: frozenset[str]  # Of what people may ask: where a request got what it asked for.


class Asker(NamedTuple):
    """Who asks, what about, and with which knowledge of what is there."""

    part: str
    token: str
    hooks: str
    environment: dict[str, str]


def runner(here: Prey, *, is_known: bool = True) -> Asker:
    """A runner, or somebody who would like to be one."""
    known = {"FUZZ_FOLDER": str(here.folder), "FUZZ_CREDENTIAL": here.credential}
    return Asker("runner protocol", here.credential if is_known else "", "tests.fuzz.hooks", known)


def person(here: Prey, name: str) -> Asker:
    """One of the people, by name."""
    people = settle(here)
    own = " ".join(token.split("_")[1] for token in (people.admin, people.reader))
    known = {"FUZZ_ADMIN": people.admin, "FUZZ_OWN_KEYS": own, "FUZZ_REACHED": str(here.folder / REACHED)}
    return Asker("api", getattr(people, name), "tests.fuzz.people_hooks", known)


def fuzz_api(
    folder: Path, seed: int, *, examples: int, phases: str = EVERY_PHASE, who: str = "runner", seconds: int = 0
) -> Found:
    """One run against a server of its own, by a runner, a person or a stranger. It must come through it unharmed."""
    is_runner = "runner" in who
    with prey(folder, has_work=is_runner) as here:
        asker = runner(here, is_known=who == "runner") if is_runner else person(here, who)
        config, report = folder / "schemathesis.toml", folder / "report.json"
        config.write_text(CONFIG, encoding="utf-8")
        words = [
            *("--config-file", str(config), "run", f"{here.url}/openapi.json", "--no-color", "--warnings", "off"),
            *("--include-tag", asker.part, *(("--include-tag", "about") if is_runner else ())),
            *("--checks", "all", "--mode", "all", "--phases", phases, "--max-examples", str(examples)),
            *("--seed", str(seed), "--generation-database", "none", "--continue-on-failure"),
            *("--max-response-time", str(MAX_RESPONSE_SECONDS), "--request-timeout", str(2 * MAX_RESPONSE_SECONDS)),
            *("--report", "json", "--report-json-path", str(report)),
            *(("--header", f"Authorization: Bearer {asker.token}") if asker.token else ()),
            *(("--max-time", str(seconds)) if seconds else ()),
        ]
        known = {"SCHEMATHESIS_HOOKS": asker.hooks, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **asker.environment}
        done = subprocess.run(
            [sys.executable, "-c", "import schemathesis.cli; schemathesis.cli.schemathesis()", *words],
            cwd=folder,
            env={**os.environ, **known, "PYTHONHASHSEED": "0", "FUZZ_URL": here.url, "FUZZ_SEED": str(seed)},
            capture_output=True,
            timeout=seconds + SPARE_SECONDS + 4 * examples,
            check=False,
        )
    told = json.loads(report.read_bytes()) if report.exists() else {"test_cases": {"generated": 0}}
    text = _only_failures((done.stdout + done.stderr).decode(errors="replace"))
    failures = len(told.get("failures", ())) + len(told.get("errors", ()))
    trouble = here.complaints()
    report_of_log = here.verified()
    if trouble or not report_of_log.is_legal:
        failures += 1
        text += f"\nthe server said: {trouble[-5000:]}\n{report_of_log.summary()}: {report_of_log.violations[:3]}"
    if done.returncode and not failures:
        failures = 1
    reached = folder / REACHED
    labels = frozenset(reached.read_text(encoding="utf-8").splitlines() if reached.exists() else ())
    return Found(int(told["test_cases"]["generated"]), failures, f"seed {seed}\n{text}", labels)


def _only_failures(text: str) -> str:
    """What people need to see: not what went well, and no body of a megabyte."""
    lines = [line[:500] for line in text.splitlines()]
    start = next((at for at, line in enumerate(lines) if "ERRORS ==" in line or "FAILURES ==" in line), 0)
    return "\n".join(lines[start : start + 200])
