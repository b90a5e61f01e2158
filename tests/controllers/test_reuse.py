"""A job is left out of a run only if it has succeeded with equal inputs, whatever the push was compared with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import pytest

from deltaci.core.results import MAX_AGE_SECONDS
from deltaci.core.run import Run
from deltaci.forges.projects import ForgeProject, StatusTarget
from deltaci.forges.reports import ReportBuilder
from deltaci.pipeline.change import Change
from tests.contract.backends import on_loop
from tests.controllers.site import RepositorySite
from tests.server.rest.site import TENANT, Caller, ScriptedRunner
from tests.support.upstream import Upstream, git

Opened = Callable[[], AbstractAsyncContextManager[RepositorySite]]

PIPELINE: Final = """\
on: [push, pull_request, manual]
jobs:
  api:
    paths: [api/**]
    steps: [run: make api]
  docs:
    paths: [docs/**]
    steps: [run: make docs]
  deploy:
    needs: api
    if: github.event_name == 'push'
    steps: [run: make deploy]
"""
FILES: Final[dict[str, str | None]] = {".deltaci.yml": PIPELINE, "api/main": "1", "docs/index": "1"}


class Shop:
    """A project, and a runner that executes its jobs in order."""

    def __init__(self, here: RepositorySite, upstream: Upstream, people: Caller, runner: ScriptedRunner) -> None:
        self.here, self.upstream, self.people, self.runner = here, upstream, people, runner
        self.head = upstream.first

    async def push(self, files: dict[str, str | None], message: str = "a change") -> str:
        """Push these files and return the id of the run, empty if there is none."""
        before, self.head = self.head, self.upstream.push(files, message)
        change = await self.here.change((await self.here.pushed(self.head, before)).id)
        return str(change["files"][0]["run"]) if change["files"] else ""

    async def execute(self, *failing: str, count: int) -> list[str]:
        """Run the next `count` jobs, of which some fail. Return their names."""
        names = []
        for _ in range(count):
            lease = await self.runner.take()
            name = lease["job_id"].partition("/")[2]
            names.append(name)
            await (self.runner.fail(lease) if name in failing else self.runner.finish(lease))
        return sorted(names)

    async def tested(self, files: dict[str, str | None]) -> str:
        """Push these files, run all jobs of the run successfully, and return its id."""
        run = await self.push(files)
        await self.execute(count=len(await self.jobs(run)))
        await self.here.until(self.people, run, "SUCCESS", "REPORTED")
        return run

    async def jobs(self, run: str) -> list[str]:
        """Return the names of the jobs of a run."""
        return sorted(job["name"] for job in (await self.people.run(run))["jobs"])

    async def description(self, run: str) -> str:
        """Return the description of the commit status that is reported for a run."""
        record = await self.here.store.find(run)
        assert isinstance(record, Run)
        target = StatusTarget(project="shop", commit=record.origin.commit)
        project = ForgeProject(tenant=TENANT, name="shop", forge="github")
        return (await ReportBuilder(self.here.store).build(record, target, project)).description

    async def choice(self, run: str, job: str) -> dict[str, Any]:
        """Return why a job is part of a run or not."""
        plan = (await self.people.get(f"/runs/{run}/plan")).body
        return next(choice for choice in plan["choices"] if choice["name"] == job)


async def opened_shop(here: RepositorySite, upstream: Upstream, **policies: str) -> Shop:
    people = await here.project(upstream.url, policies=policies)
    return Shop(here, upstream, people, await here.register_runner())


# -- pushes that tested nothing


@pytest.mark.proves("MOD-6")
@on_loop
async def test_what_a_superseded_push_changed_is_tested_by_the_next_one(site: Opened, upstream: Upstream) -> None:
    """The superseded push is the base of the comparison, but nothing of it was tested."""
    async with site() as here:
        shop = await opened_shop(here, upstream, supersede_pushes="queued")
        await shop.tested(FILES)
        superseded = await shop.push({"api/main": "2"})

        head = await shop.push({"docs/index": "2"})

        assert (await shop.people.run(superseded))["status"] == "CANCELED"
        assert await shop.jobs(head) == ["api", "deploy", "docs"]
        choice = await shop.choice(head, "api")
        assert (choice["is_kept"], choice["code"]) == (True, "untested")
        assert "has not succeeded with equal inputs" in choice["reason"]


@pytest.mark.proves("MOD-6")
@on_loop
async def test_what_failed_runs_again_and_blocks_the_deployment(site: Opened, upstream: Upstream) -> None:
    """A left-out need must not count as done because of a push after the one that broke it."""
    async with site() as here:
        shop = await opened_shop(here, upstream)
        await shop.tested(FILES)
        broken = await shop.push({"api/main": "broken"})
        await shop.execute("api", count=1)
        await here.until(shop.people, broken, "FAILED", "REPORTED")

        head = await shop.push({"docs/index": "2"})
        executed = await shop.execute("api", count=2)
        ended = await here.until(shop.people, head, "FAILED", "REPORTED")

        assert executed == ["api", "docs"]
        assert {job["name"]: job["state"] for job in ended["jobs"]} == {
            **{"api": "FAILED", "docs": "SUCCEEDED", "deploy": "CANCELED"}
        }
        choice = await shop.choice(head, "api")
        assert choice["code"] == "untested"
        assert f"FAILED in run {broken}" in choice["reason"]


@pytest.mark.parametrize("is_started", [False, True])
@on_loop
async def test_what_a_canceled_run_changed_is_tested_by_the_next_one(
    site: Opened, upstream: Upstream, is_started: bool
) -> None:
    """Whether it was cancelled before or after its start, a job without a result has not succeeded."""
    async with site() as here:
        shop = await opened_shop(here, upstream)
        await shop.tested(FILES)
        canceled = await shop.push({"api/main": "2"})
        lease = await shop.runner.take() if is_started else None
        await shop.people.post(f"/runs/{canceled}/cancel", {"reason": "not now"})
        if lease is not None:
            await shop.runner.send(lease, "CancelAck", final_status="CANCELED", ts="2026-01-04T08:00:00Z")
        await here.until(shop.people, canceled, "CANCELED", "REPORTED")

        head = await shop.push({"docs/index": "2"})

        assert await shop.jobs(head) == ["api", "deploy", "docs"]


@on_loop
async def test_what_a_push_without_ci_changed_is_tested_by_the_next_one(site: Opened, upstream: Upstream) -> None:
    """`[skip ci]` starts no run, but the commit is the base of the next push."""
    async with site() as here:
        shop = await opened_shop(here, upstream)
        await shop.tested(FILES)
        skipped = await shop.push({"api/main": "2"}, "[skip ci] later")

        head = await shop.push({"docs/index": "2"})

        assert skipped == ""
        assert await shop.jobs(head) == ["api", "deploy", "docs"]


@on_loop
async def test_a_later_failure_with_equal_inputs_cancels_an_earlier_success(site: Opened, upstream: Upstream) -> None:
    """The latest result decides: a job that became unstable is not trusted because it once succeeded."""
    async with site() as here:
        shop = await opened_shop(here, upstream)
        green = await shop.tested(FILES)
        again = (await shop.people.post(f"/runs/{green}/rerun", {})).body["id"]
        await shop.execute("api", count=2)
        await here.until(shop.people, again, "FAILED", "REPORTED")

        head = await shop.push({"docs/index": "2"})

        assert await shop.jobs(head) == ["api", "deploy", "docs"]
        assert f"FAILED in run {again}" in (await shop.choice(head, "api"))["reason"]


@on_loop
async def test_a_result_of_a_fork_satisfies_no_trusted_run(site: Opened, upstream: Upstream) -> None:
    """Files outside of the declared paths may have made it succeed."""

    def request(number: int, commit: str, *, is_fork: bool) -> Change:
        git(upstream.tree, "push", "-q", "--force", "origin", f"{commit}:refs/pull/{number}/head")
        return Change(
            event="pull_request",
            commit=commit,
            ref=f"refs/pull/{number}/head",
            branch="main",
            head="topic",
            number=number,
            action="opened",
            base=shop.head,
            actor="eve",
            is_fork=is_fork,
        )

    async def run_of(change: Change) -> str:
        accepted = await here.happened(change, f"{change.number} {change.commit}")
        return str((await here.change(accepted.id))["files"][0]["run"])

    async with site() as here:
        shop = await opened_shop(here, upstream)
        await shop.tested(FILES)
        upstream.switch("topic")
        commit = upstream.commit({"docs/index": "3"})
        untrusted = await run_of(request(1, commit, is_fork=True))
        await shop.people.post(f"/runs/{untrusted}/approve", {})
        await shop.execute(count=2)
        await here.until(shop.people, untrusted, "SUCCESS", "REPORTED")

        trusted = await run_of(request(2, commit, is_fork=False))
        trusted_jobs = await shop.jobs(trusted)
        await shop.execute(count=2)
        await here.until(shop.people, trusted, "SUCCESS", "REPORTED")
        of_trusted = await run_of(request(3, commit, is_fork=True))
        ended = await here.until(shop.people, of_trusted, "SUCCESS", "REPORTED")

        assert trusted_jobs == ["api", "docs"]
        assert ended["jobs"] == []  # All are reused, so that nothing waits for an approval.


# -- reuse


@pytest.mark.proves("MOD-6")
@on_loop
async def test_a_job_that_succeeded_with_equal_inputs_is_left_out(site: Opened, upstream: Upstream) -> None:
    """The plan names the run and the commit of the result; a need that is reused counts as done."""
    async with site() as here:
        shop = await opened_shop(here, upstream)
        first = await shop.tested(FILES)
        first_commit = shop.head

        head = await shop.push({"docs/index": "2"})
        executed = await shop.execute(count=2)
        await here.until(shop.people, head, "SUCCESS", "REPORTED")

        assert executed == ["deploy", "docs"]
        assert await shop.description(head) == f"succeeded: 2 ran, 1 unchanged since {first_commit[:7]}"
        assert await shop.description(first) == "succeeded"
        assert await shop.choice(head, "api") == {
            **{"name": "api", "job": "api", "is_kept": False, "code": "reused", "path": "", "run": first},
            **{
                "commit": first_commit,
                "reason": f"unchanged since {first_commit[:7]}, where it succeeded with equal inputs",
            },
        }


@on_loop
async def test_a_revert_is_reused_and_a_job_without_declared_inputs_runs_again(
    site: Opened, upstream: Upstream
) -> None:
    """Equal files are equal inputs, whatever came in between; a deployment is never left out."""
    async with site() as here:
        shop = await opened_shop(here, upstream)
        await shop.tested(FILES)
        await shop.tested({"api/main": "2"})

        reverted = await shop.push({"api/main": "1"})

        assert await shop.jobs(reverted) == ["deploy"]
        assert (await shop.choice(reverted, "api"))["code"] == "reused"


@on_loop
async def test_an_old_success_does_not_count(site: Opened, upstream: Upstream) -> None:
    """The world outside of the declared inputs changes."""
    async with site() as here:
        shop = await opened_shop(here, upstream)
        await shop.tested(FILES)
        here.backend.after(MAX_AGE_SECONDS + 1)

        head = await shop.push({"docs/index": "2"})

        assert await shop.jobs(head) == ["api", "deploy", "docs"]
        assert "does not count" in (await shop.choice(head, "api"))["reason"]
        assert await here.service.control_plane.repositories.planner.prune_results() == 2  # Of api and docs.
        assert await here.service.control_plane.repositories.planner.prune_results() == 0


@on_loop
async def test_a_manual_run_and_a_repetition_of_all_jobs_leave_out_nothing(site: Opened, upstream: Upstream) -> None:
    """A person who starts jobs wants them to run."""
    async with site() as here:
        shop = await opened_shop(here, upstream)
        await shop.tested(FILES)
        head = await shop.push({"docs/index": "2"})
        await shop.execute(count=2)
        await here.until(shop.people, head, "SUCCESS", "REPORTED")

        by_hand = (await shop.people.post("/runs", {"repository": "shop"})).body["id"]
        again = (await shop.people.post(f"/runs/{head}/rerun", {})).body["id"]
        await here.settled()

        assert await shop.jobs(by_hand) == ["api", "docs"]
        assert await shop.jobs(again) == ["api", "deploy", "docs"]
