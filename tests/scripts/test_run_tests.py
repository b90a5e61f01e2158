"""`scripts/run_tests.py` gives a failed test a second try, but never excuses a failure that chance cannot explain."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FLAKY = """
from pathlib import Path
def test_flaky():
    mark = Path(__file__).with_suffix(".tried")
    is_second = mark.exists()
    mark.touch()
    assert is_second, "only the second try passes"
"""


class Run(NamedTuple):
    """What a run of some tests came to."""

    status: int
    output: str
    recorded: list[dict[str, str]]


def run(folder: Path, *words: str, **files: str) -> Run:
    """Run these test files, named like `core__test_one`, in a project of their own."""
    for name, text in files.items():
        path = folder / "tests" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "scripts.run_tests",
        "--root",
        str(folder),
        "-p",
        "no:cacheprovider",
        *words,
        "tests",
    ]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # They take a second to import.
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    record = folder / "unstable-tests.jsonl"
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    return Run(done.returncode, done.stdout + done.stderr, [json.loads(line) for line in lines])


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    """A second try is no way around a failure."""
    result = run(tmp_path, core__test_one="def test_broken(): assert 1 == 2\n")

    assert result.status == 1
    assert "FAILED: tests/core/test_one.py::test_broken (it failed twice)" in result.output
    assert not result.recorded


def test_three_unstable_tests_fail_the_run(tmp_path: Path) -> None:
    """So many are no accident."""
    result = run(tmp_path, a__test_one=FLAKY, b__test_two=FLAKY, c__test_three=FLAKY)

    assert result.status == 1
    assert "3 unstable tests; at most 2 are allowed" in result.output
    assert len(result.recorded) == 3


def test_what_has_a_seed_or_reports_a_broken_promise_is_not_tried_again(tmp_path: Path) -> None:
    """It would fail the same way, or be excused."""
    overlap = FLAKY.replace("only the second try passes", "overlap of 0.2 s")
    marked = "import pytest\npytestmark = pytest.mark.final\n" + FLAKY
    result = run(tmp_path, simulation__test_one=FLAKY, core__test_two=overlap, core__test_three=marked)

    assert result.status == 1
    assert "=== second run" not in result.output
    assert "tests/simulation/test_one.py::test_flaky (tests in tests/simulation have a seed" in result.output
    assert "tests/core/test_two.py::test_flaky (it reports 'overlap')" in result.output
    assert "tests/core/test_three.py::test_flaky (the test is marked as final)" in result.output


def test_an_unstable_test_leaves_the_run_green_and_is_printed_last_and_recorded(tmp_path: Path) -> None:
    """Nobody loses a run by chance, and nobody overlooks the test."""
    result = run(tmp_path, core__test_one=FLAKY, core__test_two="def test_good(): pass\n")

    assert result.status == 0, result.output
    last = result.output.strip().splitlines()[-1]
    assert last.startswith("UNSTABLE: tests/core/test_one.py::test_flaky failed, then passed alone")
    assert result.output.rindex("AssertionError: only the second try passes") > result.output.index("tests   ")
    [entry] = result.recorded
    assert (entry["test"], bool(entry["commit"])) == ("tests/core/test_one.py::test_flaky", True)
    assert "only the second try passes" in entry["output"]


@pytest.mark.parametrize("words", [(), ("-p", "xdist.plugin", "-n", "2")], ids=["one process", "workers"])
def test_tests_that_cannot_be_collected_fail_the_run(tmp_path: Path, words: tuple[str, ...]) -> None:
    """They did not run, so a second run of other tests must not make the result green."""
    result = run(tmp_path, *words, core__test_one="import nothing_of_this_name\n", core__test_two=FLAKY)

    assert result.status in (1, 2)
    assert (
        "UNSTABLE" not in result.output or "FAILED: tests/core/test_one.py (it could not be collected)" in result.output
    )


def test_a_final_failure_in_the_teardown_is_final(tmp_path: Path) -> None:
    """The body failed first, by chance perhaps; what the teardown found did not come by chance."""
    teardown = (
        "import pytest\n@pytest.fixture(autouse=True)\ndef check():\n    yield\n    assert False, 'lost 2 jobs'\n"
    )
    result = run(tmp_path, core__test_one=teardown + FLAKY)

    assert result.status == 1
    assert "FAILED: tests/core/test_one.py::test_flaky (it reports 'lost 2 jobs')" in result.output
