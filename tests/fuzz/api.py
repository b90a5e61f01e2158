"""Lets schemathesis loose on a real server, by the document that the server itself serves, with every check on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from tests.fuzz.prey import prey

ROOT: Final = Path(__file__).parents[2]
EVERY_PHASE: Final = "examples,coverage,fuzzing,stateful"
MAX_RESPONSE_SECONDS: Final = 5
SPARE_SECONDS: Final = 400  # On a machine that is busy with other things.
# What counts as a refusal: schemathesis' own list, and 413, with which we refuse what is too much.
CONFIG: Final = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, "5xx"]
[checks.missing_required_header]
expected-statuses = [400, 401]
"""


class Found(NamedTuple):
    """What came out of it."""

    cases: int
    failures: int
    told: str


def fuzz_api(
    folder: Path, seed: int, *, examples: int, phases: str = EVERY_PHASE, is_known: bool = True, seconds: int = 0
) -> Found:
    """One run against a server of its own, by a runner or by a stranger. The server must come through it unharmed."""
    with prey(folder) as here:
        config, report = folder / "schemathesis.toml", folder / "report.json"
        config.write_text(CONFIG, encoding="utf-8")
        words = [
            *("--config-file", str(config), "run", f"{here.url}/openapi.json", "--no-color", "--warnings", "off"),
            *("--checks", "all", "--mode", "all", "--phases", phases, "--max-examples", str(examples)),
            *("--seed", str(seed), "--generation-database", "none", "--continue-on-failure"),
            *("--max-response-time", str(MAX_RESPONSE_SECONDS), "--request-timeout", str(2 * MAX_RESPONSE_SECONDS)),
            *("--report", "json", "--report-json-path", str(report)),
            *(("--header", f"Authorization: Bearer {here.credential}") if is_known else ()),
            *(("--max-time", str(seconds)) if seconds else ()),
        ]
        hooks = {"SCHEMATHESIS_HOOKS": "tests.fuzz.hooks", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        known = {"FUZZ_FOLDER": str(folder), "FUZZ_URL": here.url, "FUZZ_CREDENTIAL": here.credential}
        done = subprocess.run(
            [sys.executable, "-c", "import schemathesis.cli; schemathesis.cli.schemathesis()", *words],
            cwd=folder,
            env={**os.environ, **hooks, **known, "FUZZ_SEED": str(seed)},
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
        text += f"\nthe server said: {trouble[-5000:]}\n{report_of_log.summary()}"
    if done.returncode and not failures:
        failures = 1
    return Found(int(told["test_cases"]["generated"]), failures, f"seed {seed}\n{text}")


def _only_failures(text: str) -> str:
    """What people need to see: not what went well, and no body of a megabyte."""
    lines = [line[:500] for line in text.splitlines()]
    start = next((at for at, line in enumerate(lines) if "ERRORS ==" in line or "FAILURES ==" in line), 0)
    return "\n".join(lines[start : start + 200])
