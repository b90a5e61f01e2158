"""`deltaci plan` and `deltaci run` as people use them: real repositories, real processes, no server."""

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


class Seat:
    """Somebody in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """The command as a process of its own."""
        return Deltaci(
            words,
            cwd=self.folder,
            env={**ENVIRONMENT, **options.pop("env", {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )

    def deltaci(self, *words: str, **options: Any) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        with self.start(*words, **options) as program:
            out, err = program.communicate(timeout=SECONDS)
        assert b"Traceback" not in err, err.decode()
        return program.returncode, out.decode(), err.decode()

    def json(self, *words: str) -> Any:
        """What programs get."""
        code, out, err = self.deltaci(*words, "--json")
        assert out, (code, err)
        return json.loads(out)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "project")
    made.commit(**{"source.txt": "hello\n", "bad.txt": "2", ".deltaci.yml": PIPELINE})
    return made


@pytest.fixture
def seat(repository: Repository) -> Seat:
    return Seat(repository.folder)


def statuses(told: Any) -> dict[str, str]:
    """What became of each job."""
    [run] = told
    return {job["name"]: job["status"] for job in run["jobs"]}


# -- what cannot be done


def test_a_folder_without_a_pipeline_says_so(tmp_path: Path) -> None:
    (tmp_path / "nothing.txt").write_text("x")

    code, out, err = Seat(tmp_path).deltaci("run")

    assert (code, out) == (2, "")
    assert "there is no pipeline" in err


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_broken_file_is_shown_with_its_place_and_nothing_runs(
    command: str, seat: Seat, repository: Repository
) -> None:
    repository.write(".deltaci.yml", "jobs:\n  a:\n    step: [touch ran]\n")

    code, out, _ = seat.deltaci(command)

    assert code == 1
    assert ".deltaci.yml:3:5: the key 'step'" in out
    assert "did you mean 'steps'?" in out
    assert not (repository.folder / "ran").exists()


def test_what_is_not_there_is_refused_by_name(seat: Seat) -> None:
    for words, what in (
        (("run", "--job", "tset"), "tset"),
        (("run", "--matrix", "m=1"), "m"),
        (("run", "--matrix", "m"), "NAME=VALUE"),
        (("plan", "--event", "pusch"), "did you mean 'push'"),
        (("plan", "--base", "nowhere"), "nowhere"),
        (("plan", "--file", "nowhere.yml"), "nowhere.yml"),
        (("run", "--secret", "NOT_SET"), "NOT_SET"),
        (("run", "--failed"), "no earlier run"),
    ):
        code, out, err = seat.deltaci(*words)
        assert code in (1, 2), words
        assert what in err + out, (words, out, err)


# -- plans


def test_a_plan_says_of_every_job_whether_it_runs_and_why(seat: Seat, repository: Repository) -> None:
    repository.git("switch", "--quiet", "-c", "topic")
    repository.write("source.txt", "other\n")

    code, out, _ = seat.deltaci("plan")

    assert code == 0
    assert "left out  docs" in out
    assert "no changed file matches its paths" in out
    assert "run       test (1)" in out


def test_the_same_files_have_the_same_plan(seat: Seat, repository: Repository) -> None:
    [first] = seat.json("plan", "--all")["pipelines"]
    [second] = seat.json("plan", "--all")["pipelines"]
    repository.write("source.txt", "other\n")
    [third] = seat.json("plan", "--all")["pipelines"]

    assert first == second
    assert first["hash"] != third["hash"]  # It is about another commit.


# -- runs


def test_a_run_here_does_all_of_it_and_then_only_what_failed(seat: Seat, repository: Repository) -> None:
    """Outputs and artifacts of what succeeded earlier are there for what runs again."""
    code, out, _ = seat.deltaci("run")
    assert code == 1
    assert "✗ test (2)" in out
    assert "✓ test (1)" in out
    assert "■ report" in out

    repository.write("bad.txt", "3")
    told = seat.json("run", "--failed")

    assert statuses(told) == {"test (2)": "SUCCEEDED", "report": "SUCCEEDED"}
    assert {each["name"]: each["code"] for each in told[0]["left_out"]} == {
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


def test_one_job_of_a_matrix_with_what_it_needs(seat: Seat) -> None:
    assert statuses(seat.json("run", "--job", "test", "--matrix", "n=1")) == {
        "build": "SUCCEEDED",
        "test (1)": "SUCCEEDED",
    }


def test_nobody_there_is_a_no_and_a_word_before_is_a_yes(seat: Seat, repository: Repository) -> None:
    repository.write(".deltaci.yml", "jobs:\n  gate: {approval: {approvers: 2, role: lead}}\n")

    assert statuses(seat.json("run")) == {"gate": "FAILED"}
    assert statuses(seat.json("run", "--yes")) == {"gate": "SUCCEEDED"}


def test_a_secret_reaches_the_job_and_is_masked(seat: Seat, repository: Repository) -> None:
    repository.write(
        ".deltaci.yml",
        "jobs:\n  a:\n    secrets: [TOKEN]\n    steps: ['test ${#TOKEN} = 12 && echo it is $TOKEN']\n",
    )

    code, out, _ = seat.deltaci("run", "--log", "--secret", "TOKEN", env={"TOKEN": "s3cr3t-value"})

    assert code == 0
    assert "s3cr3t-value" not in out
    assert "it is ***" in out


def test_ctrl_c_cancels_the_run_and_leaves_nobody(seat: Seat, repository: Repository, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    repository.write(".deltaci.yml", f"jobs:\n  a:\n    steps: ['echo $$ > {pipe}; exec sleep 1000']\n")

    with seat.start("run") as program:
        pid = int(pipe.read_text())
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=SECONDS)

    assert program.returncode == 130
    assert b"cancelling" in err
    assert "canceled" in out.decode()
    assert not is_alive(pid)


def test_one_run_at_a_time_in_a_folder(seat: Seat, repository: Repository, tmp_path: Path) -> None:
    pipe, go = tmp_path / "pipe", tmp_path / "go"
    os.mkfifo(pipe)
    os.mkfifo(go)
    repository.write(".deltaci.yml", f"jobs:\n  a:\n    steps: ['echo > {pipe}; cat {go}']\n")

    with seat.start("run") as program:
        pipe.read_text()
        code, _, err = seat.deltaci("run")
        go.write_text("go")
        program.communicate(timeout=SECONDS)

    assert code == 2
    assert "another run is under way" in err
    assert program.returncode == 0


def test_what_is_for_other_machines_is_left_out_and_said(seat: Seat, repository: Repository) -> None:
    repository.write(
        ".deltaci.yml",
        "jobs:\n  a: {runs-on: linux, steps: ['true']}\n  b: {runs-on: windows, steps: ['true']}\n"
        "  c: {needs: b, steps: ['true']}\n  d: {runs-on: [self-made, gpu], steps: ['true']}\n",
    )

    told = seat.json("run")

    assert statuses(told) == {"a": "SUCCEEDED", "d": "SUCCEEDED"}
    assert {each["name"]: each["code"] for each in told[0]["left_out"]} == {"b": "other_machine", "c": "need_left_out"}


def test_jobs_that_fail_by_infrastructure_do_not_stop_the_others(repository: Repository, seat: Seat) -> None:
    """A server would no longer trust such a runner; here there is no other one, and the rest would wait for ever."""
    names = [f"broken{n}" for n in range(4)]
    steps, jobs = "steps: ['echo Connection reset by peer >&2; exit 1']", ""
    for before, name in zip([None, *names], names, strict=False):
        jobs += f"  {name}: {{{f'needs: {before}, if: always(), ' if before else ''}{steps}}}\n"
    repository.commit(**{".deltaci.yml": f"jobs:\n{jobs}"})

    found = statuses(seat.json("run"))

    assert found == dict.fromkeys(names, "FAILED")
