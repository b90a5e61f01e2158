"""`deltaci plan` and `deltaci run` from the command line: real repositories, real processes, no server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.deployment import is_alive
from tests.local.repository import ENVIRONMENT, Repository
from tests.support.fork_server import Deltaci

SECONDS = 120

PIPELINE = """
jobs:
  build:
    steps:
      - mkdir -p out && cp source.txt out/built.txt
      - {run: 'echo "size=$(wc -c < source.txt)" >> "$DELTACI_OUTPUT"', id: measure}
    outputs: {size: '${{ steps.measure.outputs.size }}'}
    artifacts: [out/built.txt]
  test:
    needs: build
    strategy:
      fail-fast: false
      matrix: {n: [1, 2]}
    steps:
      - run: test ${{ matrix.n }} != "$(cat bad.txt)"
  report:
    needs: [build, test]
    steps:
      - {uses: download-artifact, with: {path: got}}
      - run: |
          test "${{ needs.build.outputs.size }}" = "$(wc -c < source.txt)"
          grep -r hello got
  docs:
    paths: ['docs/**']
    steps: [echo docs]
"""


class LocalCli:
    """Runs the command line in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start the command as a process of its own."""
        return Deltaci(
            arguments,
            cwd=self.folder,
            env={**ENVIRONMENT, **options.pop("env", {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )

    def deltaci(self, *arguments: str, **options: Any) -> tuple[int, str, str]:
        """Run the command. Returns its exit code, stdout and stderr."""
        with self.start(*arguments, **options) as program:
            out, err = program.communicate(timeout=SECONDS)
        assert b"Traceback" not in err, err.decode()
        return program.returncode, out.decode(), err.decode()

    def json(self, *arguments: str) -> Any:
        """Run the command with `--json` and return the parsed output."""
        code, out, err = self.deltaci(*arguments, "--json")
        assert out, (code, err)
        return json.loads(out)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    repository = Repository(tmp_path / "project")
    repository.commit(**{"source.txt": "hello\n", "bad.txt": "2", ".deltaci.yml": PIPELINE})
    return repository


@pytest.fixture
def cli(repository: Repository) -> LocalCli:
    return LocalCli(repository.folder)


def statuses(outcomes: Any) -> dict[str, str]:
    """Return the status of each job of the only run."""
    [run] = outcomes
    return {job["name"]: job["status"] for job in run["jobs"]}


# -- the event log


@pytest.mark.parametrize(("arguments", "exit_code"), [((), 1), (("--job", "build"), 0)], ids=["failed", "succeeded"])
def test_the_event_log_of_a_run_is_written_and_legal(cli: LocalCli, arguments: tuple[str, ...], exit_code: int) -> None:
    """A local run can be audited like a run of a server, also if it failed."""
    code, out, err = cli.deltaci("run", *arguments)

    assert code == exit_code, (out, err)
    [line] = [line for line in out.splitlines() if line.startswith("event log: ")]
    path = line.removeprefix("event log: ")
    assert path == ".state/local/runs/run-1/events.jsonl"
    verified = cli.deltaci("verify", path)
    assert (verified[0], verified[1].startswith("legal: ")) == (0, True), verified
    events = [json.loads(event) for event in (cli.folder / path).read_text().splitlines()]
    assert {event["to"] for event in events if event["entity_id"] == "run-1"} >= {"FAILED" if exit_code else "SUCCESS"}


def test_json_output_names_the_event_log(cli: LocalCli) -> None:
    [outcome] = cli.json("run", "--job", "build")

    assert cli.deltaci("verify", outcome["event_log"])[0] == 0


# -- refusals


def test_a_folder_without_a_pipeline_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nothing.txt").write_text("x")

    code, out, err = LocalCli(tmp_path).deltaci("run")

    assert (code, out) == (2, "")
    assert "there is no pipeline" in err


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_broken_file_is_reported_with_its_position_and_nothing_runs(
    command: str, cli: LocalCli, repository: Repository
) -> None:
    repository.write(".deltaci.yml", "jobs:\n  a:\n    step: [touch ran]\n")

    code, out, _ = cli.deltaci(command)

    assert code == 1
    assert ".deltaci.yml:3:5: the key 'step'" in out
    assert "did you mean 'steps'?" in out
    assert not (repository.folder / "ran").exists()


def test_unknown_names_are_refused(cli: LocalCli) -> None:
    for arguments, expected in (
        (("run", "--job", "tset"), "tset"),
        (("run", "--matrix", "m=1"), "m"),
        (("run", "--matrix", "m"), "NAME=VALUE"),
        (("plan", "--event", "pusch"), "did you mean 'push'"),
        (("plan", "--base", "nowhere"), "nowhere"),
        (("plan", "--file", "nowhere.yml"), "nowhere.yml"),
        (("run", "--secret", "NOT_SET"), "NOT_SET"),
        (("run", "--failed"), "no earlier run"),
    ):
        code, out, err = cli.deltaci(*arguments)
        assert code in (1, 2), arguments
        assert expected in err + out, (arguments, out, err)


# -- plans


def test_a_plan_gives_a_reason_for_every_job(cli: LocalCli, repository: Repository) -> None:
    repository.git("switch", "--quiet", "-c", "topic")
    repository.write("source.txt", "other\n")

    code, out, _ = cli.deltaci("plan")

    assert code == 0
    assert "left out  docs" in out
    assert "no changed file matches its paths" in out
    assert "run       test (1)" in out


def test_the_same_files_have_the_same_plan(cli: LocalCli, repository: Repository) -> None:
    [first] = cli.json("plan", "--all")["pipelines"]
    [second] = cli.json("plan", "--all")["pipelines"]
    repository.write("source.txt", "other\n")
    [third] = cli.json("plan", "--all")["pipelines"]

    assert first == second
    assert first["hash"] != third["hash"]  # It is the plan of another commit.


# -- runs


def test_failed_only_repeats_the_jobs_that_did_not_succeed(cli: LocalCli, repository: Repository) -> None:
    """Outputs and artifacts of jobs that succeeded earlier are available to the jobs that run again."""
    code, out, _ = cli.deltaci("run")
    assert code == 1
    assert "✗ test (2)" in out
    assert "✓ test (1)" in out
    assert "■ report" in out

    repository.write("bad.txt", "3")
    outcomes = cli.json("run", "--failed")

    assert statuses(outcomes) == {"test (2)": "SUCCEEDED", "report": "SUCCEEDED"}
    assert {job["name"]: job["code"] for job in outcomes[0]["left_out"]} == {
        "build": "succeeded_before",
        "test (1)": "succeeded_before",
        "docs": "succeeded_before",
    }
    assert sorted(path.name for path in repository.folder.iterdir()) == [
        ".deltaci.yml",
        ".git",
        ".state",
        "bad.txt",
        "source.txt",
    ]


def test_one_matrix_job_runs_with_its_needs(cli: LocalCli) -> None:
    assert statuses(cli.json("run", "--job", "test", "--matrix", "n=1")) == {
        "build": "SUCCEEDED",
        "test (1)": "SUCCEEDED",
    }


def test_approvals_are_rejected_without_a_terminal_unless_yes_is_given(cli: LocalCli, repository: Repository) -> None:
    repository.write(".deltaci.yml", "jobs:\n  gate: {approval: {approvers: 2, role: lead}}\n")

    assert statuses(cli.json("run")) == {"gate": "FAILED"}
    assert statuses(cli.json("run", "--yes")) == {"gate": "SUCCEEDED"}


def test_a_secret_reaches_the_job_and_is_masked(cli: LocalCli, repository: Repository) -> None:
    repository.write(
        ".deltaci.yml",
        "jobs:\n  a:\n    secrets: [TOKEN]\n    steps: ['test ${#TOKEN} = 12 && echo it is $TOKEN']\n",
    )

    code, out, _ = cli.deltaci("run", "--log", "--secret", "TOKEN", env={"TOKEN": "s3cr3t-value"})

    assert code == 0
    assert "s3cr3t-value" not in out
    assert "it is ***" in out


def test_ctrl_c_cancels_the_run_and_kills_its_processes(cli: LocalCli, repository: Repository, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    repository.write(".deltaci.yml", f"jobs:\n  a:\n    steps: ['echo $$ > {pipe}; exec sleep 1000']\n")

    with cli.start("run") as program:
        pid = int(pipe.read_text())
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=SECONDS)

    assert program.returncode == 130
    assert b"cancelling" in err
    assert "canceled" in out.decode()
    assert not is_alive(pid)


def test_one_run_at_a_time_in_a_folder(cli: LocalCli, repository: Repository, tmp_path: Path) -> None:
    pipe, go = tmp_path / "pipe", tmp_path / "go"
    os.mkfifo(pipe)
    os.mkfifo(go)
    repository.write(".deltaci.yml", f"jobs:\n  a:\n    steps: ['echo > {pipe}; cat {go}']\n")

    with cli.start("run") as program:
        pipe.read_text()
        code, _, err = cli.deltaci("run")
        go.write_text("go")
        program.communicate(timeout=SECONDS)

    assert code == 2
    assert "another run is active" in err
    assert program.returncode == 0


def test_jobs_for_other_systems_are_left_out_with_a_reason(cli: LocalCli, repository: Repository) -> None:
    repository.write(
        ".deltaci.yml",
        "jobs:\n  a: {runs-on: linux, steps: ['true']}\n  b: {runs-on: windows, steps: ['true']}\n"
        "  c: {needs: b, steps: ['true']}\n  d: {runs-on: [self-made, gpu], steps: ['true']}\n",
    )

    outcomes = cli.json("run")

    assert statuses(outcomes) == {"a": "SUCCEEDED", "d": "SUCCEEDED"}
    assert {job["name"]: job["code"] for job in outcomes[0]["left_out"]} == {"b": "other_machine", "c": "need_left_out"}


def test_infrastructure_failures_do_not_stop_the_other_jobs(repository: Repository, cli: LocalCli) -> None:
    """A server would quarantine the runner; locally there is no other, and the remaining jobs would wait for ever."""
    names = [f"broken{n}" for n in range(4)]
    steps, jobs = "steps: ['echo Connection reset by peer >&2; exit 1']", ""
    for before, name in zip([None, *names], names, strict=False):
        jobs += f"  {name}: {{{f'needs: {before}, if: always(), ' if before else ''}{steps}}}\n"
    repository.commit(**{".deltaci.yml": f"jobs:\n{jobs}"})

    job_statuses = statuses(cli.json("run"))

    assert job_statuses == dict.fromkeys(names, "FAILED")
