"""Delta CI's own pipeline: `deltaci run` in this repository does what `make test` does, and more."""

from __future__ import annotations

from pathlib import Path

from tests.cli.terminal import ROOT
from tests.local.repository import Repository
from tests.local.test_run import LocalCli, statuses

FILES = (".deltaci.yml", "Makefile", "scripts/setup")


def own_pipeline(folder: Path) -> LocalCli:
    """Create a repository with the files of ours that the pipeline's jobs read."""
    repository = Repository(folder)
    for name in FILES:
        repository.write(name, (ROOT / name).read_text("utf-8"))
    repository.commit()
    return LocalCli(folder)


def test_our_pipeline_runs_all_tests(tmp_path: Path) -> None:
    """The test command and the quick-start command of the README are among its jobs."""
    [plan] = own_pipeline(tmp_path / "own").json("plan", "--all")["pipelines"]

    commands = {job["name"]: [step["run"] for step in job["work"]["steps"] if step.get("run")] for job in plan["jobs"]}

    assert plan["problems"] == []
    assert commands["test"] == ["make test"]
    assert commands["first-run"] == ["make up ONCE=1"]


def test_a_job_of_our_pipeline_runs_locally(tmp_path: Path) -> None:
    """Only the quick job: the others set up environments of their own, and are run by hand and on servers."""
    assert statuses(own_pipeline(tmp_path / "own").json("run", "--job", "scripts")) == {"scripts": "SUCCEEDED"}
