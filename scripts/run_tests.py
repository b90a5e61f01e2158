"""Run the test suite, run each failed test a second time, and report the tests that passed only then.

    python -m scripts.run_tests [--phases TEXT] [--root FOLDER] [pytest arguments]

A failed test is run once more, alone, after the others. If it passes, it is unstable: the run is still green, the test
and its first failure are printed last, and both are appended to `unstable-tests.jsonl` with the commit. Three unstable
tests make the run red. A failure is final, and its test is not run again, in the folders of FINAL_FOLDERS, if the test
is marked `final`, if the failure reports a broken invariant, a lost or doubled job or an overlap (FINAL_WORDS), and if
a file cannot be collected.

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
MAX_RETRIES: Final = 10  # With more failures than this, no test is run again, and the run is red.
TESTS_FAILED: Final = 1  # pytest's exit status.

# Tests with a seed fail the same way again; a test of crashes that loses a job must be looked at.
FINAL_FOLDERS: Final = ("tests/simulation/", "tests/fuzz/", "tests/chaos/", "tests/crash/")
FINAL_WORDS: Final = re.compile(
    r"InvariantBroken|\binvariants?\b|\boverlap"
    r"|\b(?:lost|doubled|duplicated) (?:\d+ )?(?:job|run|attempt|event|line)s?\b"
    r"|\b(?:job|run|attempt|event|line)s? (?:is|are|was|were) (?:lost|doubled|duplicated)\b"
    r"|\bran twice\b|\btwo leases\b|\blost_leases\b|\billegal\b",
    re.IGNORECASE,
)


# Files whose tests wait for real processes, and files that keep browsers busy: run first and mixed, so that the
# processors have something to do all the time and no long file is left for the end.
FIRST: Final = re.compile(r"tests/(bench|browser|conformance|controllers/(merge_queue|workstreams)|crash|e2e)/")


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
    if report.failed:
        output = "\n".join([report.longreprtext, *(f"--- {title}\n{text}" for title, text in report.sections)])
        final = dict(report.user_properties).get("final") or _final_by_text(report.nodeid, report.longreprtext)
        _append(report.nodeid, output, str(final))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Append a file that cannot be collected: its tests did not run, so the run must not be green."""
    if report.failed:
        _append(report.nodeid, report.longreprtext, "it could not be collected")


def _append(test: str, output: str, final: str) -> None:
    """Append a failure to the file, once: workers of pytest-xdist leave it to the process that started them."""
    path = os.environ.get(FAILURES_FILE)
    if path and not os.environ.get("PYTEST_XDIST_WORKER"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"test": test, "output": output, "final": final}) + "\n")


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
        with subprocess.Popen(command, cwd=root, env=environment) as process:
            try:
                status = process.wait()
            except KeyboardInterrupt:
                process.wait()  # pytest received the same Ctrl-C, and stops the processes of its tests.
                raise
        return status, merged(Failure(**json.loads(line)) for line in file.read_text("utf-8").splitlines())


def merged(reports: Iterable[Failure]) -> list[Failure]:
    """Return one failure for each test, which may have failed in its body and again in its teardown."""
    failures: dict[str, Failure] = {}
    for report in reports:
        first = failures.get(report.test, Failure(report.test, "", ""))
        output = f"{first.output}\n{report.output}".strip()
        failures[report.test] = Failure(report.test, output, first.final or report.final)
    return list(failures.values())


def retry(failures: Iterable[Failure], root: Path) -> tuple[list[Failure], list[Failure]]:
    """Run each failed test alone; return the failures of those that failed again and of those that passed."""
    broken, unstable = list[Failure](), list[Failure]()
    for failure in failures:
        if failure.final:
            broken.append(failure)
            continue
        print(f"\n=== second run, alone: {failure.test}", flush=True)
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
        print(f"FAILED: {failure.test} ({failure.final or 'it failed twice'})")
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
    parser = argparse.ArgumentParser(
        prog="scripts.run_tests",
        usage="python -m scripts.run_tests [--phases TEXT] [--root FOLDER] [pytest arguments]",
        description=__doc__.splitlines()[0] if __doc__ else "",
        allow_abbrev=False,
    )
    parser.add_argument("--phases", default="", help="a line for each earlier phase, printed before the tests' own")
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder that has the tests (default: this project)")
    options, arguments = parser.parse_known_args()
    started = time.monotonic()
    status, failures = run_pytest(arguments, options.root)
    broken, unstable = list[Failure](), list[Failure]()
    if status == TESTS_FAILED and failures:
        if len(failures) > MAX_RETRIES:
            print(f"\n{len(failures)} tests failed; failed tests are run again only if there are at most {MAX_RETRIES}")
            broken = [failure._replace(final=failure.final or "it was not run again") for failure in failures]
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
