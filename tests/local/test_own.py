"""Delta CI is tested by its own pipeline: `deltaci run` in this repository does what `make test` does, and more."""

from __future__ import annotations

from pathlib import Path

from tests.cli.desk import ROOT
from tests.local.repository import Repository
from tests.local.test_run import Seat, statuses

FILES = (".deltaci.yml", "Makefile", "scripts/setup")


def own(folder: Path) -> Seat:
    """What of this repository the jobs that are run here look at."""
    made = Repository(folder)
    for name in FILES:
        made.write(name, (ROOT / name).read_text("utf-8"))
    made.commit()
    return Seat(folder)


def test_our_own_pipeline_runs_everything(tmp_path: Path) -> None:
    """The README's test command is one of its jobs, and so is that of the first minute."""
    [plan] = own(tmp_path / "own").json("plan", "--all")["pipelines"]

    commands = {job["name"]: [step["run"] for step in job["work"]["steps"] if step.get("run")] for job in plan["jobs"]}

    assert plan["problems"] == []
    assert commands["test"] == ["make test"]
    assert commands["first-run"] == ["make up ONCE=1"]


def test_a_job_of_our_own_pipeline_runs_here(tmp_path: Path) -> None:
    """The quick one: the others set up environments of their own, and are run by hand and on servers."""
    assert statuses(own(tmp_path / "own").json("run", "--job", "scripts")) == {"scripts": "SUCCEEDED"}
