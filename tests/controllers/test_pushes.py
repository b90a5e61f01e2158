"""A push becomes a run with its jobs; what is told twice, superseded, skipped or broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from deltaci.controllers.repositories.change_records import KEEP_SECONDS
from deltaci.controllers.repositories.changes import MAX_TRIES
from deltaci.controllers.repositories.poller import push
from tests.contract.backends import Backend, on_loop
from tests.controllers.site import PROJECT, RepositorySite
from tests.server.rest.site import TENANT
from tests.support.upstream import PIPELINE, Upstream, git

Opened = Callable[[], AbstractAsyncContextManager[RepositorySite]]


@on_loop
async def test_a_push_becomes_a_run_with_its_jobs(site: Opened, upstream: Upstream) -> None:
    """From the commit, with the reason for every job."""
    async with site() as here:
        people = await here.project(upstream.url)

        accepted = await here.pushed(upstream.first)

        change = await here.change(accepted.id)
        assert (accepted.is_new, change["status"], change["reason"]) == (
            *(True, "handled", "1 of 1 pipeline files started a run"),
        )
        [file] = change["files"]
        run = await people.run(file["run"])
        assert (run["state"], run["commit"], run["branch"]) == ("QUEUED", upstream.first, "main")
        assert (run["project"], run["file"], run["event"]) == ("shop", ".deltaci.yml", "push")
        assert (run["title"], run["labels"], run["change"]) == ("a change", ["event:push"], accepted.id)
        assert [job["name"] for job in run["jobs"]] == ["build", "test"]
        plan = (await people.get(f"/runs/{run['id']}/plan")).body
        assert [(choice["name"], choice["is_kept"]) for choice in plan["choices"]] == [("build", True), ("test", True)]
        assert plan["file"] == ".deltaci.yml"


@on_loop
async def test_what_is_told_twice_makes_nothing_new(site: Opened, upstream: Upstream) -> None:
    """The same delivery, also many times at once, and the same push by other sources."""
    async with site() as here:
        await here.project(upstream.url)
        second = upstream.push({"a": "1"})
        changes = here.service.control_plane.repositories.changes
        told = push("refs/heads/main", upstream.first, second)

        first = await here.happened(told, "one")
        seen_by_polling = push("refs/heads/main", "", second)
        repeats = [
            await here.happened(told, "one"),
            await here.happened(told, "two", "webhook"),
            await here.happened(seen_by_polling, "three", "poll"),
            await here.happened(told, "two", "webhook"),
        ]
        many = await asyncio.gather(*(changes.accept(TENANT, PROJECT, told, "one", source="push") for _ in range(20)))
        await here.settled()

        assert first.is_new
        assert {(each.id, each.is_new) for each in (*repeats, *many)} == {(first.id, False)}
        assert len(await here.runs()) == 1
        assert len((await here.operator().get("/changes")).body["changes"]) == 1


@on_loop
async def test_a_push_that_was_undone_can_be_made_again(site: Opened, upstream: Upstream, backend: Backend) -> None:
    """Each source reports a push under one id: another id is another push, however soon it follows."""
    async with site() as here:
        await here.project(upstream.url, policies={"supersede_pushes": "none"})
        second = upstream.push({"a": "1"})

        there = await here.pushed(second, upstream.first, delivery="d1")
        back = await here.pushed(upstream.first, second, delivery="d2")
        again = await here.pushed(second, upstream.first, delivery="d3")
        late = await here.pushed(upstream.first, second, delivery="d2")
        polled = await here.happened(push("refs/heads/main", upstream.first, second), "1", "poll")
        polled_again = await here.happened(push("refs/heads/main", upstream.first, second), "2", "poll")

        assert [change.is_new for change in (there, back, again, late, polled)] == [True, True, True, False, False]
        assert (late.id, polled.id) == (back.id, again.id)
        assert polled_again.is_new
        assert len({run["id"] for run in await here.runs()}) == 4


@on_loop
async def test_a_report_without_an_id_is_recognized_by_its_content_for_ten_minutes(
    site: Opened, upstream: Upstream, backend: Backend
) -> None:
    async with site() as here:
        await here.project(upstream.url)
        second = push("refs/heads/main", upstream.first, upstream.push({"a": "1"}))

        first = await here.happened(second, "", "webhook")
        soon = await here.happened(second, "", "webhook")
        backend.after(601)
        late = await here.happened(second, "", "webhook")

        assert [change.is_new for change in (first, soon, late)] == [True, False, True]
        assert soon.id == first.id


@pytest.mark.proves("ORC-R8")
@on_loop
async def test_a_newer_push_supersedes_what_has_not_begun(site: Opened, upstream: Upstream) -> None:
    """Of the same branch and file, as the project wants it; what runs goes on."""
    async with site() as here:
        people = await here.project(upstream.url)
        first = await here.change((await here.pushed(upstream.first)).id)
        runner = await here.register_runner()
        lease = await runner.take()
        waiting = await here.change((await here.pushed(one := upstream.push({"a": "1"}), upstream.first)).id)
        elsewhere = await here.change((await here.pushed(upstream.push({"a": "9"}, branch="b"), branch="b")).id)

        newest = await here.change((await here.pushed(upstream.push({"a": "2"}), one)).id)

        states = [(await people.run(each["files"][0]["run"]))["status"] for each in (first, waiting, elsewhere, newest)]
        assert states == ["RUNNING", "CANCELED", "PENDING", "PENDING"]
        assert newest["superseded"] == [waiting["files"][0]["run"]]
        superseded = await people.run(waiting["files"][0]["run"])
        assert superseded["reason"] == f"superseded: the branch is at {newest['commit'][:12]}"
        await runner.finish(lease)


@on_loop
async def test_what_starts_nothing_supersedes_nothing(site: Opened, upstream: Upstream) -> None:
    """A newer push that the file does not run for leaves the older run alone."""
    async with site() as here:
        people = await here.project(upstream.url, policies={"supersede_pushes": "all"})
        only = "on:\n  push:\n    paths: [src/**]\njobs:\n  a:\n    steps: [run: x]\n"
        base = upstream.push({".deltaci.yml": only, "src/a": "1"})
        older = await here.change((await here.pushed(base, upstream.first)).id)

        docs = upstream.push({"docs/a": "1"})
        newer = await here.change((await here.pushed(docs, base)).id)

        assert [file["run"] for file in newer["files"]] == [""]
        assert "no changed file matches" in newer["files"][0]["reason"]
        assert newer["reason"] == "no pipeline file runs for it"
        assert (await people.run(older["files"][0]["run"]))["status"] == "PENDING"


@pytest.mark.parametrize(
    "message", ["[skip ci] docs", "docs\n\n[ci skip]", "[NO CI] x", "docs\n\nskip-checks: true", "a [skip actions]"]
)
@on_loop
async def test_a_commit_may_say_that_nothing_should_run(site: Opened, upstream: Upstream, message: str) -> None:
    """By its message, as at GitHub; and it supersedes nothing."""
    async with site() as here:
        people = await here.project(upstream.url)
        older = await here.change((await here.pushed(upstream.first)).id)

        skipped = await here.change((await here.pushed(upstream.push({"a": "1"}, message), upstream.first)).id)

        assert (skipped["status"], skipped["files"]) == ("handled", [])
        assert "asks to skip CI" in skipped["reason"]
        assert (await people.run(older["files"][0]["run"]))["status"] == "PENDING"


@on_loop
async def test_one_run_for_each_file(site: Opened, upstream: Upstream) -> None:
    """And the reason where there is none."""
    async with site() as here:
        people = await here.project(upstream.url)
        other = "on: pull_request\njobs:\n  a:\n    steps: [run: x]\n"
        commit = upstream.push({".deltaci/deploy.yml": other, ".deltaci/lint.yml": PIPELINE})

        change = await here.change((await here.pushed(commit, upstream.first)).id)

        assert [(file["file"], bool(file["run"])) for file in change["files"]] == [
            *((".deltaci.yml", True), (".deltaci/deploy.yml", False), (".deltaci/lint.yml", True)),
        ]
        assert change["files"][1]["reason"] == "it does not run on pushes"
        assert len({(await people.run(file["run"]))["file"] for file in change["files"] if file["run"]}) == 2


@pytest.mark.proves("ORC-R3", "ORC-R4", "ORC-RS3")
@on_loop
async def test_a_broken_file_is_a_run_that_says_what_is_wrong(site: Opened, upstream: Upstream) -> None:
    """With file, line and column."""
    async with site() as here:
        people = await here.project(upstream.url)
        commit = upstream.push({".deltaci.yml": "on: push\njobs:\n  a:\n    stepz: [run: x]\n"})

        change = await here.change((await here.pushed(commit, upstream.first)).id)

        [file] = change["files"]
        run = await here.until(people, file["run"], "FAILED")
        assert (run["reason"], run["jobs"]) == ("PLAN_FAILED", [])
        plan = (await people.get(f"/runs/{run['id']}/plan")).body
        assert plan["problems"][0].startswith(".deltaci.yml:4:5: ")
        assert "steps" in plan["problems"][0]
        events = (await people.get(f"/runs/{run['id']}/events")).body["events"]
        [failed] = [event for event in events if event["to"] == "PLAN_FAILED"]
        assert failed["metadata"]["error"] == "\n".join(plan["problems"])
        steps = (await people.get(f"/runs/{run['id']}/transitions?view=orchestration&kind=run")).body["transitions"]
        assert [step["to"] for step in steps][:4] == ["CREATED", "PLANNING", "PLAN_FAILED", "FAILED"]


@on_loop
async def test_the_plan_says_what_a_push_can_affect(site: Opened, upstream: Upstream) -> None:
    """Compared with what the branch had; a new branch with the default branch. Nothing has succeeded: all jobs run."""
    two = (
        "on: push\njobs:\n  docs:\n    paths: [docs/**]\n    steps: [run: x]\n"
        "  code:\n    paths: [src/**]\n    steps: [run: x]\n"
    )
    async with site() as here:
        people = await here.project(upstream.url, policies={"supersede_pushes": "none"})

        async def jobs(commit: str, before: str = "", branch: str = "main") -> tuple[list[str], Any]:
            change = await here.change((await here.pushed(commit, before, branch)).id)
            id = change["files"][0]["run"]
            plan = (await people.get(f"/runs/{id}/plan")).body
            return [job["name"] for job in (await people.run(id))["jobs"]], plan

        base = upstream.push({".deltaci.yml": two, "docs/a": "1", "src/a": "1"})
        assert (await jobs(base))[0] == ["code", "docs"]
        docs = upstream.push({"docs/a": "2"})
        names, plan = await jobs(docs, base)
        assert (names, plan["compared_with"]) == (["code", "docs"], base)
        assert [(choice["name"], choice["is_kept"], choice["code"]) for choice in plan["choices"]] == [
            *(("code", True, "untested"), ("docs", True, "path_matches")),
        ]
        upstream.switch("topic", base)
        topic = upstream.push({"src/a": "3"}, branch="topic")
        names, plan = await jobs(topic, branch="topic")
        assert (names, plan["compared_with"]) == (["code", "docs"], base)
        assert [choice["code"] for choice in plan["choices"]] == ["path_matches", "untested"]
        upstream.switch("main", base)
        rewritten = upstream.push({"docs/a": "4"})
        names, plan = await jobs(rewritten, docs)
        assert (names, plan["compared_with"]) == (["code", "docs"], "")
        assert "previous commit of the branch is not known" in plan["unknown_because"]


@on_loop
async def test_what_nobody_can_run(site: Opened, upstream: Upstream) -> None:
    """A branch that is gone, a commit without files, a project that is no more."""
    async with site() as here:
        await here.project(upstream.url)
        empty = upstream.push({".deltaci.yml": None})

        gone = await here.change((await here.pushed("0" * 40, upstream.first, "old")).id)
        none = await here.change((await here.pushed(empty, upstream.first)).id)
        await here.operator().ask("DELETE", f"/projects/{PROJECT}")
        lost = await here.change((await here.pushed(upstream.first, "", "other")).id)

        assert gone["reason"] == "the branch or tag was deleted"
        assert none["reason"] == "the commit has no pipeline files"
        assert lost["reason"] == "the project no longer exists"
        assert await here.runs() == []


@on_loop
async def test_what_cannot_be_handled_is_put_aside_visibly(site: Opened, upstream: Upstream, backend: Backend) -> None:
    """After so many tries, with the reason; nothing else waits for it."""
    async with site() as here:
        await here.project(upstream.url)
        bad = await here.pushed("a" * 40, upstream.first)
        waiting = await here.change(bad.id)
        good = await here.change((await here.pushed(upstream.first, "", "other")).id)
        for _ in range(MAX_TRIES):
            backend.after(3600)
            await here.settled()

        aside = await here.change(bad.id)
        assert (waiting["status"], waiting["tries"], good["status"]) == ("waiting", 1, "handled")
        assert (aside["status"], aside["tries"]) == ("put_aside", MAX_TRIES)
        assert "has no commit" in aside["reason"]


@on_loop
async def test_tags_and_annotated_tags(site: Opened, upstream: Upstream) -> None:
    """A tag runs at the commit that it is about, compared with nothing."""
    async with site() as here:
        people = await here.project(upstream.url)
        git(upstream.tree, "tag", "-a", "v1", "-m", "one")
        git(upstream.tree, "push", "-q", "origin", "v1")
        tag = git(upstream.tree, "rev-parse", "v1")

        change = await here.change((await here.happened(push("refs/tags/v1", "", tag), "d")).id)

        run = await people.run(change["files"][0]["run"])
        assert (run["commit"], run["ref"], run["branch"]) == (upstream.first, "refs/tags/v1", "")


@on_loop
async def test_old_changes_are_dropped(site: Opened, upstream: Upstream, backend: Backend) -> None:
    """What waits stays, however old."""
    async with site() as here:
        await here.project(upstream.url)
        old = await here.pushed(upstream.first)
        backend.after(KEEP_SECONDS + 60)
        new = await here.pushed(upstream.push({"a": "1"}), upstream.first)
        changes = here.service.control_plane.repositories.changes

        assert await changes.prune() == 1
        assert await changes.prune() == 0
        assert [change["id"] for change in (await here.operator().get("/changes")).body["changes"]] == [new.id]
        assert (await here.operator().get(f"/changes/{old.id}")).status == 404
        await changes.forget_past()


@on_loop
async def test_workflows_of_github_and_what_is_discovered(site: Opened, upstream: Upstream) -> None:
    """Where a repository has no files of ours; and a workflow that cannot run as a whole says why."""
    workflow = "on: push\njobs:\n  t:\n    runs-on: ubuntu-latest\n    steps: [{run: make}]\n"
    async with site() as here:
        people = await here.project(upstream.url, policies={"supersede_pushes": "none"})

        async def seen(commit: str, before: str) -> list[tuple[str, str, list[str]]]:
            change = await here.change((await here.pushed(commit, before)).id)
            runs = [await people.run(each["run"]) for each in change["files"] if each["run"]]
            return [(run["file"], run["state"], [job["name"] for job in run["jobs"]]) for run in runs]

        names = {name: f".github/workflows/{name}.yml" for name in ("good", "bad")}
        bad = workflow.replace("{run: make}", "{uses: somebody/something@v1}")
        first = upstream.push({".deltaci.yml": None, names["good"]: workflow, names["bad"]: bad})
        found = {file: (state, jobs) for file, state, jobs in await seen(first, upstream.first)}
        assert found[names["good"]] == ("QUEUED", ["t"])
        assert found[names["bad"]][1] == []
        second = upstream.push(
            {names["good"]: None, names["bad"]: None, "go.mod": "module x\n\ngo 1.22\n", "x_test.go": "package x\n"}
        )
        [(file, state, jobs)] = await seen(second, first)
        assert (file, state, bool(jobs)) == ("discovered", "QUEUED", True)


@on_loop
async def test_files_that_are_too_large_or_no_files(site: Opened, upstream: Upstream) -> None:
    """Are told, or not looked at."""
    async with site() as here:
        people = await here.project(upstream.url)
        (upstream.tree / ".deltaci").mkdir()
        (upstream.tree / ".deltaci" / "link.yml").symlink_to("/etc/passwd")
        commit = upstream.push({".deltaci.yml": f"# {'x' * 1024 * 1024}\n{PIPELINE}"})

        change = await here.change((await here.pushed(commit, upstream.first)).id)

        [file] = change["files"]
        await here.until(people, file["run"], "FAILED")
        [problem] = (await people.get(f"/runs/{file['run']}/plan")).body["problems"]
        assert problem.startswith(".deltaci.yml:1:1: it is too large")


FAMILY = """\
on: push
jobs:
  build:
    strategy: {fail-fast: true, matrix: {os: [a, b, c]}}
    steps: [run: make]
  docs:
    steps: [run: make docs]
"""


@pytest.mark.proves("MOD-D2")
@on_loop
async def test_a_failure_cancels_the_rest_of_its_matrix_and_no_other_job(site: Opened, upstream: Upstream) -> None:
    """A runner that has another job of the matrix is asked to stop."""
    async with site() as here:
        people = await here.project(upstream.url)
        commit = upstream.push({".deltaci.yml": FAMILY})
        change = await here.change((await here.pushed(commit, upstream.first)).id)
        id = change["files"][0]["run"]
        runner = await here.register_runner()
        leases = await runner.lease(slots=2)
        assert [lease["job_id"].partition("/")[2] for lease in leases] == ["build (a)", "build (b)"]
        for lease in leases:
            await runner.begin(lease)

        await runner.fail(leases[0])

        asked = await runner.send(leases[1], "Heartbeat", ts="2026-01-04T08:00:00Z")
        assert (asked["cancel_requested"], asked["reason"]) == (True, "NOT_NEEDED")
        jobs = {job["name"]: (job["state"], job["reason"]) for job in (await people.run(id))["jobs"]}
        assert jobs["build (c)"] == ("CANCELED", "NOT_NEEDED")
        assert jobs["docs"] == ("QUEUED", "")
