"""Jobs of pipelines through real processes: sources, conditions, outputs from job to job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from deltaci.core import run
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Plan
from deltaci.core.job import JobSpec
from deltaci.core.run import Run
from tests.e2e.deployment import Deployment, deployed, on_loop
from tests.runner.cells import needs
from tests.support.git_repositories import Repository


async def started(place: Deployment, run_id: str, *specs: JobSpec) -> None:
    """A run of these jobs."""
    await place.engine.do(NewRecord(id=run_id, record=Run(id=run_id, run_id=run_id, tenant="default")))
    await place.engine.do(run.BeginPlanning(id=run_id))
    await place.engine.do(Plan(id=run_id, jobs=specs, plan_hash="hash"))


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
    needs(executor)
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

        assert [record.state for record in ends] == ["SUCCEEDED"] * 4, [(e.error, place.log_of(e)) for e in ends]
        assert ends[0].result == {"version": "v1.2.3"}
        assert [record.report.get("is_skipped", False) for record in ends] == [False, False, True, True]
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
        assert [(step.get("exit_code"), step.get("is_skipped", False)) for step in steps] == [
            (7, False),
            (None, True),
            (0, False),
            (9, False),
            (None, False),
        ]
        assert "}} at its end" in steps[4]["why"]
        assert "cleaned up" in place.log_of(record)
        assert "not this" not in place.log_of(record).replace("skipped: echo not this", "")


@on_loop
async def test_what_a_step_sets_holds_for_those_after_it(tmp_path: Path) -> None:
    """Variables, programs, masks, a summary; and what is said wrongly fails the step that said it."""
    async with deployed(tmp_path) as place:
        place.start_runner("r1")
        spec = job(
            "job",
            {
                "run": """
                    mkdir -p "$RUNNER_TEMP/tools"
                    printf '#!/bin/sh\\necho "I am a tool"' > "$RUNNER_TEMP/tools/tool"
                    chmod +x "$RUNNER_TEMP/tools/tool"
                    echo "$RUNNER_TEMP/tools" >> "$GITHUB_PATH"
                    printf 'COLOR<<END\\nred\\ngreen\\nEND\\n' >> "$GITHUB_ENV"
                    echo '# well done' >> "$GITHUB_STEP_SUMMARY"
                    echo "::add-mask::hunter2-token"
                    echo "the token is hunter2-token"
                """
            },
            {"run": "tool", "shell": "sh"},
            {"id": "py", "run": "import os; print(os.environ['COLOR'].split())", "shell": "python3 {0}"},
            {"run": 'test "$COLOR" = blue', "env": {"COLOR": "blue"}},
            {"run": "test '${{ env.COLOR }}' != ''"},
            {"id": "wrong", "run": "echo DELTACI_JOB_MARK=mine >> $DELTACI_ENV", "continue_on_error": True},
            {"run": "echo ${{ steps.wrong.outcome }} in $HOME", "workdir": "."},
        )
        await started(place, "r", spec)

        record = await place.outcome("r/job.1")
        log = place.log_of(record)

        assert record.state == "SUCCEEDED", log
        assert "I am a tool" in log
        assert "['red', 'green']" in log
        assert "the token is ***" in log
        assert "hunter2" not in log
        assert "summary: # well done" in log
        assert "'DELTACI_JOB_MARK' cannot be set" in log
        assert "failure in " in log


@on_loop
async def test_files_go_from_job_to_job_by_name(tmp_path: Path) -> None:
    """A named artifact, and what a job keeps by its rules; in the sandbox, too."""
    needs("sandbox")
    async with deployed(tmp_path) as place:
        place.start_runner("r1")
        make = job(
            "make",
            {"run": "mkdir -p dist/bin; echo built > dist/bin/app; chmod +x dist/bin/app; echo log > build.log"},
            {"uses": "upload-artifact", "inputs": {"name": "app ${{ 'v1' }}", "path": "dist"}},
            executor="sandbox",
            artifacts=[{"path_glob": "*.log"}],
        )
        use = job(
            "use",
            {"uses": "download-artifact", "inputs": {"name": "app v1", "path": "app"}},
            {"uses": "download-artifact", "inputs": {"path": "all"}},
            {"run": "test -x app/bin/app && grep built 'all/app v1/bin/app' && grep log all/make/build.log"},
            {"uses": "download-artifact", "inputs": {"name": "none"}},
            needs=("make",),
            executor="sandbox",
        )
        await started(place, "r", make, use)

        ends = [await place.outcome(f"r/{name}.1") for name in ("make", "use")]

        assert ends[0].state == "SUCCEEDED", place.log_of(ends[0])
        kinds = [(artifact["type"], artifact["name"]) for artifact in ends[0].report["artifacts"][1:]]
        assert kinds == [("archive", "app v1"), ("file", "build.log")]
        assert ends[1].error is not None
        assert ends[1].error.message == (
            "download-artifact: no ended job of this run has uploaded an artifact 'none'; available: 'app v1', 'make'"
        ), place.log_of(ends[1])


@on_loop
async def test_a_cancel_ends_a_checkout_at_once(tmp_path: Path) -> None:
    """Nobody waits for sources that nobody wants: a repository that never answers is left alone."""
    async with deployed(tmp_path) as place, deaf() as port:
        place.start_runner("r1")
        source = {"url": f"git://127.0.0.1:{port}/x", "commit": "1" * 40}
        await started(place, "r", job("job", {"uses": "checkout"}, source=source))
        await place.until("r/job.1", lambda event: event.to == "RUNNING")

        await place.cancel("r/job.1", 60)
        record = await place.outcome("r/job.1")

        assert record.state == "CANCELED"
        assert record.ended_lease is not None
        assert record.report["summary"] == "stopped: CANCELED"


@asynccontextmanager
async def deaf() -> AsyncIterator[int]:
    """Somebody who takes every call and never says a word."""
    calls: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: calls.append(writer), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        for call in calls:
            call.close()
        server.close()
        await server.wait_closed()
