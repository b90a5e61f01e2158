"""`deltaci lint`: what people see and what programs get."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from deltaci.cli.app import app

GOOD = "jobs:\n  test:\n    steps: [make test]\n"
BAD = "jobs:\n  test:\n    runs_on: linux\n    steps: [make test]\n"


def lint(*arguments: str, text: str | bytes | None = None) -> Result:
    """The command, called."""
    return CliRunner().invoke(app, ["lint", *arguments], input=text)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_good_file_is_good(here: Path) -> None:
    """Exit code 0, and one line."""
    (here / ".deltaci.yml").write_text(GOOD)

    result = lint()

    assert (result.exit_code, result.stdout) == (0, ".deltaci.yml: ok, 1 job\n")


def test_a_problem_is_shown_with_its_line_and_a_caret(here: Path) -> None:
    """Exit code 1."""
    (here / "ci.yml").write_text(BAD)

    result = lint("ci.yml")

    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "ci.yml:3:5: the key 'runs_on', which a job does not have; did you mean 'runs-on'?",
        "  3 |     runs_on: linux",
        "    |     ^",
        "ci.yml: 1 problem",
    ]


def test_without_a_name_all_files_of_a_repository_are_checked(here: Path) -> None:
    """The one at its root, and those in the folder, in order."""
    (here / ".deltaci").mkdir()
    for name in (".deltaci.yml", ".deltaci/b.yml", ".deltaci/a.yml"):
        (here / name).write_text(BAD if name.endswith("a.yml") else GOOD)

    result = lint("--json")

    told = msgspec.json.decode(result.stdout)
    assert result.exit_code == 1
    assert told["good"] is False
    assert [(file["file"], file["good"]) for file in told["files"]] == [
        (".deltaci.yml", True),
        (".deltaci/a.yml", False),
        (".deltaci/b.yml", True),
    ]
    [problem] = told["files"][1]["problems"]
    assert (problem["line"], problem["column"], problem["nearest"], problem["is_warning"]) == (3, 5, "runs-on", False)


def test_a_warning_is_shown_and_the_file_is_good() -> None:
    """From standard input, too."""
    result = lint("-", text=GOOD + "env: {DEBUG: yes}\n")

    assert result.exit_code == 0
    assert result.stdout.startswith("-:4:14: warning: 'yes' is a text here")
    assert result.stdout.endswith("-: ok, 1 job, 1 warning\n")


@pytest.mark.parametrize("arguments", [(), ("nowhere.yml",), (".",), ("--wrong",)])
def test_what_cannot_be_read_is_no_problem_of_a_file(arguments: tuple[str, ...]) -> None:
    """Exit code 2, and nothing on standard output."""
    result = lint(*arguments)

    assert (result.exit_code, result.stdout) == (2, "")


def test_bytes_that_are_no_text_are_a_problem() -> None:
    """Shown as well as they can be."""
    result = lint("-", text=b"jobs:\n  \xff\xfe\n")

    assert result.exit_code == 1
    assert "-:2:3: the byte 0xff, which is not UTF-8" in result.stdout


def test_a_workstream_file_is_told_by_its_key(tmp_path: Path) -> None:
    """It is checked as what it is, with the line that is wrong."""
    good, bad = tmp_path / "good.yml", tmp_path / "bad.yml"
    good.write_text("workstream: x\ntasks: [{name: a, run: make}]\n")
    bad.write_text("workstream: x\ntasks:\n  - {name: a, run: make, need: b}\n")

    fine, wrong = lint(str(good)), lint(str(bad))

    assert (fine.exit_code, fine.stdout) == (0, f"{good}: ok, 1 task\n")
    assert wrong.exit_code == 1
    assert f"{bad}:3:26: the key 'need', which a task does not have; did you mean 'needs'?" in wrong.stdout
    assert "\n  3 |   - {name: a, run: make, need: b}\n    |                          ^" in wrong.stdout
