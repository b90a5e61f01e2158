"""The answers to a runner about its job's worktree, under its lease; asking changes nothing."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from deltaci.controllers.workstreams.records import IntegratedTask
from deltaci.core import run
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Plan
from deltaci.core.job import JobSpec
from deltaci.core.run import Origin, Run
from deltaci.server.runner_api import worktrees
from tests.contract.backends import on_loop
from tests.controllers.site import PROJECT, RepositorySite
from tests.runner.workspace.worktrees.test_commit_bundles import bundle
from tests.runner.workspace.worktrees.workstream_fixture import WorkstreamFixture, worktree_spec
from tests.server.rest.site import TENANT, Reply, ScriptedRunner
from tests.support.upstream import Upstream, git

Open = Callable[[], AbstractAsyncContextManager[RepositorySite]]


async def ask(site: RepositorySite, runner: ScriptedRunner, lease: Any, name: str) -> Reply:
    """Ask under the lease, with the runner's credential."""
    headers = {"Authorization": f"Bearer {runner._credential}", "Delta-Lease": lease["lease_id"]}
    answer = await site.http.get(f"/runner/v1/{name}", headers=headers)
    is_json = "json" in answer.headers["content-type"]
    return Reply(answer.status_code, answer.json() if is_json else answer.content, answer.headers)


async def over(site: RepositorySite, runner: ScriptedRunner, *ids: str) -> Any:
    """Return which streams are finished."""
    headers = {"Authorization": f"Bearer {runner._credential}"}
    answer = await site.http.post("/runner/v1/streams", json={"ids": list(ids)}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["over"]


@on_loop
async def test_a_task_begins_at_the_tip_of_its_workstream(site: Open, upstream: Upstream, tmp_path: Path) -> None:
    """The base, or the last integrated commit, also on a server without the mirror. Other runners get no answer."""
    async with site() as here:
        await here.project(upstream.url)
        stand = WorkstreamFixture(here, upstream)
        await stand.start(stand.task("one"), stand.task("two", needs=("one",)))
        runner, other = await here.register_runner(), await here.register_runner()
        lease = await runner.take()

        report_of = await ask(here, runner, lease, "tree")
        assert report_of.body == {"base": upstream.first, "tip": upstream.first, "bundle_bytes": 0}
        empty = await ask(here, runner, lease, "tree-bundle")
        assert (empty.status, empty.body, empty.headers["delta-sha256"]) == (200, b"", hashlib.sha256().hexdigest())
        assert (await ask(here, other, lease, "tree")).status == 409

        head = upstream.commit({"a": "2\n"})
        data = bundle(upstream, head, upstream.first).read_bytes()
        kept = (await runner.upload_artifact(lease, "@tree.bundle", data)).json()
        artifact = {"type": "tree", "uri": kept["uri"], "bytes": kept["bytes"]}
        await runner.finish(lease, head=head, place="somewhere", artifacts=[artifact])
        assert (await stand.join("one")).tip == head
        for name in ("tree", "tree-bundle"):
            assert (await ask(here, runner, lease, name)).body["type"] == "StaleLease"

        lease = await runner.take()
        shutil.rmtree((await stand.builder()).mirror.folder)
        shutil.rmtree(here.folder / worktrees.FOLDER, ignore_errors=True)
        report_of = await ask(here, runner, lease, "tree")
        assert (report_of.body["base"], report_of.body["tip"]) == (upstream.first, head)
        sent = await ask(here, runner, lease, "tree-bundle")
        assert len(sent.body) == report_of.body["bundle_bytes"] == int(sent.headers["content-length"])
        assert sent.headers["delta-sha256"] == hashlib.sha256(sent.body).hexdigest()
        (tmp_path / "got").write_bytes(sent.body)
        git(tmp_path, "clone", "-q", "--bare", str(upstream.bare), "clone.git")
        git(tmp_path / "clone.git", "bundle", "unbundle", str(tmp_path / "got"))
        assert git(tmp_path / "clone.git", "show", f"{head}:a") == "2"
        assert [path.suffix for path in (here.folder / worktrees.FOLDER).iterdir()] == [worktrees.SUFFIX]


@on_loop
async def test_a_job_can_only_use_the_worktree_of_its_run(site: Open, upstream: Upstream) -> None:
    """Even if its specification names another run's workstream, an unplanned one, or none."""
    async with site() as here:
        await here.project(upstream.url)
        stand, other, unplanned = (
            WorkstreamFixture(here, upstream),
            WorkstreamFixture(here, upstream, "ws2"),
            WorkstreamFixture(here, upstream, "ws3"),
        )
        await other.start()
        await stand.start(
            JobSpec(name="foreign", work={"tree": worktree_spec("ws2", upstream)}),
            JobSpec(name="none", work={"steps": ["true"]}),
        )
        await unplanned.start(unplanned.task("early"), is_known=False)
        runner = await here.register_runner()

        for _ in range(3):
            lease = await runner.take()
            report_of = await ask(here, runner, lease, "tree")
            assert (report_of.status, report_of.body["code"]) == (404, "not_found"), lease
        refused = await here.operator().post(
            "/runs", {"plan": {"jobs": [{"name": "mine", "work": {"tree": worktree_spec("ws2", upstream)}}]}}
        )
        assert (refused.status, refused.code) == (400, "bad_request")
        assert "only the tasks of workstreams" in refused.body["detail"]


@on_loop
async def test_a_candidate_is_exactly_the_named_commit(site: Open, upstream: Upstream) -> None:
    """In the run's own project. A missing commit is an error."""
    async with site() as here:
        await here.project(upstream.url)
        stand = WorkstreamFixture(here, upstream, "merges")
        builder = await stand.builder()
        await builder.mirror.ensure_commit(upstream.first)
        head = upstream.commit({"a": "2\n"})
        await builder.import_bundle(bundle(upstream, head, upstream.first), head, upstream.first)
        do = here.service.engine.do
        await do(NewRecord(id="m", record=Run(id="m", run_id="m", tenant=TENANT, origin=Origin(project=PROJECT))))
        await do(run.BeginPlanning(id="m"))
        jobs = [
            JobSpec(name=name, work={"tree": worktree_spec("line", upstream, commit=commit, keeps=False)})
            for name, commit in (("good", head), ("bad", "a" * 40))
        ]
        await do(Plan(id="m", jobs=tuple(jobs), plan_hash="hash"))
        runner = await here.register_runner()
        leases = {lease["job_id"]: lease for lease in [await runner.take(), await runner.take()]}

        report_of = await ask(here, runner, leases["m/good"], "tree")
        assert (report_of.body["base"], report_of.body["tip"]) == (upstream.first, head)
        report_of = await ask(here, runner, leases["m/bad"], "tree")
        assert (report_of.status, report_of.body["code"]) == (409, "wrong_state")


@pytest.mark.parametrize("bundle", ["", "artifacts/x"])
@on_loop
async def test_commits_that_cannot_be_rebuilt_are_an_error(site: Open, upstream: Upstream, bundle: str) -> None:
    """The job cannot begin then, and the server says why."""
    async with site() as here:
        await here.project(upstream.url)
        stand = WorkstreamFixture(here, upstream)
        await stand.start(stand.task("one"))
        lost = IntegratedTask(
            task="lost", attempt_id="x", bundle=bundle, start=upstream.first, head="b" * 40, tip="b" * 40
        )
        await stand.edit(lambda _: {"joined": (lost,)})
        runner = await here.register_runner()

        report_of = await ask(here, runner, await runner.take(), "tree")

        assert (report_of.status, report_of.body["code"]) == (409, "wrong_state"), report_of
        assert "the worktree has no start commit" in report_of.body["message"]


@on_loop
async def test_worktrees_of_failed_workstreams_are_kept(site: Open, upstream: Upstream) -> None:
    """Those of succeeded and canceled ones may be removed.

    The answer does not mention unknown workstreams and those of other tenants.
    """
    async with site() as here:
        await here.project(upstream.url)
        runner = await here.register_runner()
        for id, end in (("good", "finish"), ("bad", "fail")):
            stand = WorkstreamFixture(here, upstream, id)
            await stand.start(stand.task("one"))
            await getattr(runner, end)(await runner.take())
        for id in ("canceled", "open"):
            await WorkstreamFixture(here, upstream, id).start(WorkstreamFixture(here, upstream, id).task("one"))
        await here.service.engine.do(run.Cancel(id="canceled", reason="USER"))
        stranger = await here.register_runner(tenant="other")

        asked = ("good", "bad", "canceled", "open", "nothing", "good")
        assert await over(here, runner, *asked) == ["good", "canceled"]
        assert await over(here, stranger, *asked) == []
        assert await over(here, runner) == []


def test_old_bundles_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the newest, and what a killed server left incomplete."""
    monkeypatch.setattr(worktrees, "MAX_BUNDLES", 2)
    for number, name in enumerate(("a.bundle", "b.bundle", "c.bundle", ".d.bundle", ".e.bundle")):
        (tmp_path / name).write_bytes(b"x")
        if name != ".e.bundle":
            os.utime(tmp_path / name, (1000 + number, 1000 + number))

    worktrees._prune(tmp_path, current_path=tmp_path / "a.bundle")

    assert sorted(path.name for path in tmp_path.iterdir()) == [".e.bundle", "a.bundle", "b.bundle", "c.bundle"]
