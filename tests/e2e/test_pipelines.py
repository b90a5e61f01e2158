"""Jobs of pipelines through real processes: sources, conditions, outputs from job to job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deltaci.core import run
from deltaci.core.attempt import Attempt
from deltaci.core.decide import Plan
from deltaci.core.job import JobSpec
from deltaci.core.reactions import Birth
from deltaci.core.run import Run
from tests.e2e.deployment import Deployment, deployed, on_loop
from tests.runner.repositories import Repository


async def started(place: Deployment, run_id: str, *specs: JobSpec) -> None:
    """A run of these jobs."""
    await place.applier.do(Birth(id=run_id, record=Run(id=run_id, run_id=run_id, tenant="default")))
    await place.applier.do(run.BeginPlanning(id=run_id))
    await place.applier.do(Plan(id=run_id, jobs=specs, plan_hash="hash"))


def job(
    name: str, *steps: dict[str, Any], needs: tuple[str, ...] = (), executor: str = "process", **work: Any
) -> JobSpec:
    """A job of a pipeline."""
    contexts = {"github": {"repository": "acme/shop", "sha": "0" * 40, "ref": "refs/heads/main"}}
    spec = {"steps": list(steps), "executor": executor, "contexts": contexts, "needs": list(needs), **work}
    return JobSpec(name=name, needs=needs, work=spec)


@pytest.mark.parametrize("executor", ["process", "sandbox"])
@on_loop
async def test_sources_conditions_and_outputs_go_from_job_to_job(executor: str, tmp_path: Path) -> None:
    """The second job sees what the first one said; the third is not for this run, and the fourth needs it."""
    repository = Repository(tmp_path / "origin")
    commit = repository.commit(VERSION="1.2.3\n")
    source = {"url": str(repository.path), "commit": commit, "ref": "refs/heads/main"}
    async with deployed(tmp_path) as place:
        place.start_runner("r1", DELTACI_GIT_PROTOCOLS="file")
        build = job(
            "build",
            {"uses": "checkout"},
            {"id": "version", "run": 'echo "number=$(cat VERSION)" >> "$GITHUB_OUTPUT"'},
            {"id": "bad", "run": "exit 3", "continue_on_error": True},
            {"name": "told ${{ steps.bad.outcome }}", "run": 'test "${{ steps.bad.conclusion }}" = success'},
            {"run": "git status --porcelain && git log -1 --format=%H | grep ${{ github.workspace && env.WANTED }}"},
            executor=executor,
            source=source,
            env={"WANTED": commit},
            outputs={"version": "v${{ steps.version.outputs.number }}"},
        )
        use = job(
            "use", {"run": "test '${{ needs.build.outputs.version }}' = v1.2.3"}, needs=("build",), executor=executor
        )
        never = job("never", {"run": "exit 1"}, needs=("build",), condition="needs.build.result == 'failure'")
        after = job("after", {"run": "exit 1"}, needs=("never",))
        await started(place, "r", build, use, never, after)

        ends = [await place.outcome(f"r/{name}.1") for name in ("build", "use", "never", "after")]

        assert [each.state for each in ends] == ["SUCCEEDED"] * 4, [(e.error, place.log_of(e)) for e in ends]
        assert ends[0].result == {"version": "v1.2.3"}
        assert [each.report.get("is_skipped", False) for each in ends] == [False, False, True, True]
        assert ends[2].report["summary"] == "skipped: needs.build.result == 'failure'"
        steps = ends[0].report["steps"]
        assert steps[3]["name"] == "told failure"
        assert steps[2]["is_tolerated"] is True


@on_loop
async def test_a_failure_does_not_hinder_those_who_ask_for_it(tmp_path: Path) -> None:
    """The job's result is that of the first step that failed, whatever comes after."""
    async with deployed(tmp_path) as place:
        place.start_runner("r1")
        spec = job(
            "job",
            {"run": "exit 7"},
            {"run": "echo not this"},
            {"run": "echo cleaned up", "condition": "always()"},
            {"run": "exit 9", "condition": "${{ failure() && job.status == 'failure' }}"},
            {"run": "echo ${{ broken", "condition": "always()"},
            artifacts=[{"path_glob": "*.txt"}],
        )
        await started(place, "r", spec)

        record: Attempt = await place.outcome("r/job.1")

        assert record.state == "FAILED"
        assert record.error is not None
        assert record.error.message == "exit 7: exit code 7"
        steps = record.report["steps"]
        assert [(each.get("exit_code"), each.get("is_skipped", False)) for each in steps] == [
            (7, False),
            (None, True),
            (0, False),
            (9, False),
            (None, False),
        ]
        assert "}} at its end" in steps[4]["why"]
        assert "cleaned up" in place.log_of(record)
        assert "not this" not in place.log_of(record).replace("skipped: echo not this", "")
