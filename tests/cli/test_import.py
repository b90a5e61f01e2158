"""`deltaci import`: what it writes, what it tells, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from deltaci.cli.app import app

GOOD = "name: CI\non: [push]\njobs:\n  test: {runs-on: ubuntu-latest, steps: [{run: make test}]}\n"
MIXED = (
    "on: release\njobs:\n  test: {runs-on: ubuntu-latest, steps: [{run: make test}]}\n"
    "  deploy:\n    runs-on: ubuntu-latest\n    steps:\n      - uses: some/action@v1\n"
)
WRITTEN = """\
# From ci.yml, by 'deltaci import'.
name: CI
on:
  push: {}
timeout-minutes: 50400
jobs:
  test:
    runs-on: [linux]
    defaults:
      run:
        shell: "bash -e {0}"
    checkout: false
    steps: [make test]
    timeout-minutes: 360
    network: true
"""


def run(*arguments: str) -> Result:
    """The command, called."""
    return CliRunner().invoke(app, [*arguments])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The workflows of a repository of its own."""
    monkeypatch.chdir(tmp_path)
    workflows = tmp_path / ".github" / "workflows"
    workflows.mkdir(parents=True)
    return workflows


def test_one_workflow_becomes_the_pipeline_file(folder: Path) -> None:
    """And passes the linter."""
    (folder / "ci.yml").write_text(GOOD)

    result = run("import")

    assert (result.exit_code, result.stdout) == (
        0,
        ".github/workflows/ci.yml: written to .deltaci.yml, 1 of 1 jobs\n  test: supported\n",
    )
    assert Path(".deltaci.yml").read_text() == WRITTEN
    assert run("lint").exit_code == 0


def test_nothing_is_written_over(folder: Path) -> None:
    """Unless it is asked for."""
    (folder / "ci.yml").write_text(GOOD)
    Path(".deltaci.yml").write_text("mine")

    result = run("import")

    assert result.exit_code == 2
    assert ".deltaci.yml already exists; nothing was written" in result.stderr
    assert Path(".deltaci.yml").read_text() == "mine"
    assert run("import", "--force").exit_code == 0
    assert Path(".deltaci.yml").read_text() == WRITTEN


def test_a_workflow_with_an_unsupported_job_is_not_written(folder: Path) -> None:
    """The others are; the report says for each job whether it is supported."""
    (folder / "ci.yml").write_text(GOOD)
    (folder / "release.yaml").write_text(MIXED)

    result = run("import", ".")

    assert result.exit_code == 1
    assert [path.name for path in Path(".deltaci").iterdir()] == ["ci.yml"]
    lines = result.stdout.splitlines()
    assert lines[2:5] == [
        ".github/workflows/release.yaml: not written, 1 of 2 jobs can run here",
        "  test: supported",
        "  deploy: unsupported",
    ]
    assert (
        ".github/workflows/release.yaml:7:15: the action 'some/action'; only some of GitHub's own actions are "
        "supported: use a command" in lines
    )


def test_a_part_of_it_is_written_if_that_is_asked_for(folder: Path) -> None:
    """What was left out stands at the top; what nothing starts here is started by hand."""
    (folder / "release.yml").write_text(MIXED)

    result = run("import", "--partial", "-o", "out/x.yml")

    text = Path("out/x.yml").read_text()
    assert result.exit_code == 1
    assert text.startswith("# From release.yml, by 'deltaci import'.\n# Left out, as it cannot run here: deploy\n")
    assert "on:\n  manual: {}\n" in text
    assert run("lint", "out/x.yml").exit_code == 0


def test_a_report_for_programs(folder: Path) -> None:
    """With the reasons for each job."""
    (folder / "release.yml").write_text(MIXED)

    told = msgspec.json.decode(run("import", "--json").stdout)

    [file] = told["files"]
    assert (told["good"], file["written"]) == (False, None)
    assert [(job["job"], job["inside"], len(job["reasons"])) for job in file["jobs"]] == [
        ("test", True, 0),
        ("deploy", False, 1),
    ]
    assert file["jobs"][1]["reasons"][0]["line"] == 7


def test_what_the_linter_would_refuse_is_not_written(folder: Path) -> None:
    """GitHub takes an axis that is not there for nothing; our own files must not have one."""
    (folder / "ci.yml").write_text(GOOD.replace("make test", "'make ${{ matrix.mode }}'"))

    result = run("import")

    assert (result.exit_code, Path(".deltaci.yml").exists()) == (1, False)
    assert "  test: supported" in result.stdout
    assert "the axis 'mode', which does not exist; this job has no matrix" in result.stdout


def test_to_standard_output(folder: Path) -> None:
    """The file alone; the report goes to standard error."""
    (folder / "ci.yml").write_text(GOOD)

    result = run("import", ".github/workflows/ci.yml", "-o", "-")

    assert result.exit_code == 0
    assert result.stdout == WRITTEN
    assert "test: supported" in result.stderr


def test_actions_beside_it_are_read(folder: Path) -> None:
    """From the same repository, and from nowhere else."""
    (folder / "ci.yml").write_text(GOOD.replace("{run: make test}", "{uses: ./act}"))
    (folder.parents[1] / "act").mkdir()
    (folder.parents[1] / "act" / "action.yml").write_text("runs: {using: composite, steps: [{run: a, shell: sh}]}")
    (folder / "bad.yml").write_text(GOOD.replace("{run: make test}", "{uses: ./../act}"))

    assert run("lint", ".github/workflows/ci.yml").exit_code == 0
    assert run("lint", ".github/workflows/bad.yml").exit_code == 1


@pytest.mark.parametrize(
    "arguments", [("nowhere.yml",), (".github/workflows",), (".github/workflows/a.yml", "-o", "-", "--json")]
)
def test_what_cannot_be_done_at_all(folder: Path, arguments: tuple[str, ...]) -> None:
    """Exit code 2, and nothing on standard output."""
    if len(arguments) > 1:
        (folder / "a.yml").write_text(GOOD)

    result = run("import", *arguments)

    assert (result.exit_code, result.stdout) == (2, "")


def test_the_linter_takes_workflows(folder: Path) -> None:
    """By where they are, or because it is told so."""
    (folder / "release.yml").write_text(MIXED)
    Path("elsewhere.yml").write_text(GOOD.replace("run: make test", "uses: actions/checkout@v4"))

    result = run("lint", ".github/workflows/release.yml")

    assert result.exit_code == 1
    assert result.stdout.endswith("release.yml: 1 problem, 2 warnings; 1 of 2 jobs can run here\n")
    assert run("lint", "elsewhere.yml").exit_code == 1
    assert run("lint", "elsewhere.yml", "--github").stdout == "elsewhere.yml: ok, 1 job\n"
