"""Run the test suite, give each failed test a second try, and report what passed only then.

    python -m scripts.run_tests [--phases TEXT] [pytest arguments]

A failed test is run once more, alone, after the others. If it passes, it is unstable: the run is still green, the test
and its first failure are printed last, and both are appended to `unstable-tests.jsonl` with the commit. Three unstable
tests make the run red. A failure is final, and not tried again, where chance cannot be the cause or must not be an
excuse: in tests that have a seed, and for a broken invariant, a lost or doubled job or an overlap (`FINAL_FOLDERS`,
`FINAL_WORDS`, and the marker `final`).

The module is also the pytest plugin that collects the failures.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parent.parent
RECORD: Final = "unstable-tests.jsonl"
FAILURES_FILE: Final = "DELTACI_TEST_FAILURES"  # The environment variable that names the file for the failures.

MAX_UNSTABLE: Final = 2
MAX_RETRIES: Final = 10  # With more failures than this, the run is red whatever a second try says.
TESTS_FAILED: Final = 1  # pytest's exit status.

# Tests with a seed fail the same way again; a test of crashes that loses a job must be looked at.
FINAL_FOLDERS: Final = ("tests/simulation/", "tests/fuzz/", "tests/chaos/", "tests/crash/")
FINAL_WORDS: Final = re.compile(
    r"InvariantBroken|\binvariants?\b|\boverlap|\b(?:lost|doubled|duplicated) (?:job|run|attempt|event|line)s?\b"
    r"|\bran twice\b|\btwo leases\b|\blost_leases\b|\billegal\b",
    re.IGNORECASE,
)


# Files whose tests wait for real processes, and files that keep browsers busy: run first and mixed, so that the
# processors have something to do all the time and no long file is left for the end.
FIRST: Final = re.compile(r"tests/(browser|e2e|workstreams|conformance|merging|crash)/|tests/test_bench\.py")


# --- The plugin ----------------------------------------------------------------------------------


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files for `--dist loadfile`, which hands them out one by one."""
    items.sort(key=lambda item: (0, item.path.stem, item.path) if FIRST.match(item.nodeid) else (1, "", Path()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note on the report of a failure that it is final because the test is marked so."""
    report = yield
    if report.failed and item.get_closest_marker("final"):
        report.user_properties.append(("final", "the test is marked as final"))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Append a failure to the file that the parent process reads."""
    path = os.environ.get(FAILURES_FILE)
    if not path or not report.failed or os.environ.get("PYTEST_XDIST_WORKER"):
        return
    output = "\n".join([report.longreprtext, *(f"--- {title}\n{text}" for title, text in report.sections)])
    final = dict(report.user_properties).get("final") or _final_by_text(report.nodeid, report.longreprtext)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({"test": report.nodeid, "output": output, "final": final}) + "\n")


def _final_by_text(test: str, failure: str) -> str:
    """Return why this failure is not tried again; an empty string if it is."""
    if test.startswith(FINAL_FOLDERS):
        return f"tests in {test[: test.index('/', len('tests/'))]} have a seed or count what was lost"
    errors = "\n".join(line for line in failure.splitlines() if line.startswith("E "))
    match = FINAL_WORDS.search(errors)
    return f"it reports {match[0]!r}" if match else ""


# --- The driver ----------------------------------------------------------------------------------


class Failure(NamedTuple):
    """A failed test, the output of its failure, and why it is not tried again, if it is not."""

    test: str
    output: str
    final: str


def run_pytest(arguments: Sequence[str], root: Path) -> tuple[int, list[Failure]]:
    """Run pytest with these arguments; return its exit status and one failure for each failed test."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "failures.jsonl")
        file.touch()
        command = [sys.executable, "-m", "pytest", "-p", "scripts.run_tests", *arguments]
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        # The order of a set of strings depends on the hash seed, and a simulated history on that order.
        environment = {**os.environ, FAILURES_FILE: str(file), "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
        environment.pop("PYTEST_XDIST_WORKER", None)  # Set where a test runs this program.
        status = subprocess.run(command, cwd=root, env=environment, check=False).returncode
        failures = {
            failure.test: failure
            for failure in (Failure(**json.loads(line)) for line in reversed(file.read_text("utf-8").splitlines()))
        }
        return status, list(failures.values())[::-1]


def retry(failures: Iterable[Failure], root: Path) -> tuple[list[Failure], list[Failure]]:
    """Run each failed test alone; return the failures that stay and those of tests that passed this time."""
    broken, unstable = list[Failure](), list[Failure]()
    for failure in failures:
        if failure.final:
            broken.append(failure)
            continue
        print(f"\n=== second try, alone: {failure.test}", flush=True)
        status, _ = run_pytest(["-q", "-p", "no:xdist", "-p", "no:cacheprovider", failure.test], root)
        (broken if status else unstable).append(failure)
    return broken, unstable


def record(unstable: Iterable[Failure], root: Path) -> None:
    """Append each unstable test with the commit and its output to the record."""
    answer = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    commit = answer.stdout.strip() or "unknown"
    with open(root / RECORD, "a", encoding="utf-8") as file:
        for failure in unstable:
            entry: dict[str, Any] = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit}
            file.write(json.dumps(entry | {"test": failure.test, "output": failure.output}) + "\n")


def report(broken: Sequence[Failure], unstable: Sequence[Failure]) -> int:
    """Print the outcome of the second tries; return the exit status of the run."""
    print()
    for failure in broken:
        print(f"FAILED: {failure.test} ({failure.final or 'failed twice'})")
    for failure in unstable:
        print(f"UNSTABLE: {failure.test}\n{failure.output}\n")
    for failure in unstable:
        print(f"UNSTABLE: {failure.test} failed, then passed alone; repair it first ({RECORD} has the output)")
    if len(unstable) > MAX_UNSTABLE:
        print(f"{len(unstable)} unstable tests; at most {MAX_UNSTABLE} are allowed")
    return TESTS_FAILED if broken or len(unstable) > MAX_UNSTABLE else 0


def cpu_seconds() -> float:
    """Return the CPU time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    """Run the tests, the second tries and the report; return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts.run_tests", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--phases", default="", help="a line for each earlier phase, printed before the tests' own")
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder that has the tests (default: this project)")
    options, arguments = parser.parse_known_args()
    started = time.monotonic()
    status, failures = run_pytest(arguments, options.root)
    broken, unstable = list[Failure](), list[Failure]()
    if status == TESTS_FAILED and failures:
        if len(failures) > MAX_RETRIES:
            print(f"\n{len(failures)} tests failed; not trying again more than {MAX_RETRIES}")
            broken = failures
        else:
            broken, unstable = retry(failures, options.root)
        record(unstable, options.root)
    wall = time.monotonic() - started
    phases = options.phases.replace("\\n", "\n")
    print(f"\n{phases}{'tests':8} {wall:6.1f} s, CPU {cpu_seconds():6.1f} s")
    return report(broken, unstable) if failures and status == TESTS_FAILED else status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
