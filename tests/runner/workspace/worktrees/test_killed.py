"""Real processes: a runner that is killed during its task, and worktrees that are removed automatically."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

from deltaci.controllers.projects import Project, Projects
from deltaci.controllers.workstreams import commits
from deltaci.controllers.workstreams.records import Workstream, WorkstreamRecords
from deltaci.core import run
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Plan
from deltaci.core.job import JobSpec
from deltaci.core.run import Origin, Run
from deltaci.git.commit_builder import CommitBuilder
from deltaci.git.mirrors import Mirrors
from deltaci.storage.blobs.store import FolderBlobStore
from tests.controllers.site import LOCAL, PROJECT
from tests.e2e.deployment import Deployment, deployed, on_loop
from tests.runner.cells import needs
from tests.runner.workspace.worktrees.workstream_fixture import BRANCH, worktree_spec
from tests.support.upstream import Upstream

TENANT = "default"
# What is built tells the second time from the first; nothing else does.
STEP = """
if test -e build/first; then test $(cat a) = 1; test ! -e new; test -d src; echo 2 > a; exit 0; fi
mkdir build; touch build/first; echo half > a; rm -r src; git add -A; git commit -qm half; echo x > new; sleep 300
"""


def _until(script: str, path: Path) -> None:
    words = ["sh", "-c", f"until {script}; do sleep 0.05; done", "sh", str(path)]
    subprocess.run(words, check=True, timeout=60)


async def _start(place: Deployment, upstream: Upstream) -> Project:
    new_project = Project(name=PROJECT, tenant=TENANT, url=upstream.url)
    project = await Projects(place.engine, place.store).put(new_project, actor="user:ada")
    document = Workstream(
        id="ws1",
        tenant=TENANT,
        name="login",
        project=PROJECT,
        base="main",
        spec={},
        base_commit=upstream.first,
        branch=BRANCH,
    )
    assert await WorkstreamRecords(place.store).kept.add(TENANT, "ws1", document)
    origin = Origin(project=PROJECT, workstream="login", branch="main")
    spec = JobSpec(name="one", work={"steps": [STEP], "executor": "sandbox", "tree": worktree_spec("ws1", upstream)})
    do = place.engine.do
    await do(NewRecord(id="ws1", record=Run(id="ws1", run_id="ws1", tenant=TENANT, origin=origin)))
    await do(run.BeginPlanning(id="ws1"))
    await do(Plan(id="ws1", jobs=(spec,), plan_hash="hash"))
    return project


@on_loop
async def test_the_changes_of_a_killed_runner_are_discarded(tmp_path: Path) -> None:
    """Its second attempt starts at the tip, and only that one is uploaded. Then the worktrees are removed."""
    needs("sandbox")
    upstream = Upstream(tmp_path / "upstream", {"a": "1\n", "src/b": "1\n", ".gitignore": "build/\n"})
    async with deployed(tmp_path, "--allow-repositories", "file") as place:
        first = place.start_runner("r1", DELTACI_GIT_PROTOCOLS="file")
        project = await _start(place, upstream)
        stream = tmp_path / "r1" / "workstreams" / "ws1"
        await asyncio.to_thread(_until, 'test -e "$1"', stream / "tree" / "new")

        first.kill()
        first.wait()
        place.start_runner("r1", DELTACI_GIT_PROTOCOLS="file")
        record = await place.settled("ws1/one.1")

        assert (record.state, record.claims) == ("SUCCEEDED", 2), place.log_of(record)
        builder = CommitBuilder(Mirrors(tmp_path / "other", LOCAL, lambda *_: "").for_project(project))
        found = await WorkstreamRecords(place.store).find(TENANT, "ws1")
        assert found is not None
        head, bundle = commits.sent(record)
        assert await commits.taken(builder, found, FolderBlobStore(tmp_path / "blobs"), bundle, head) == upstream.first
        assert await builder.mirror.changed_paths(upstream.first, head) == frozenset({"a"})
        assert len(await builder.commits_between(upstream.first, head)) == 1
        await asyncio.to_thread(_until, 'test ! -e "$1"', stream)
