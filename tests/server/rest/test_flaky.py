"""Flaky tests on a running server: learned from its log, used to classify failures, listed and explained."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from deltaci.controllers import flaky as control
from deltaci.controllers.flaky import KIND, FlakyTestTracker
from deltaci.core import flaky
from deltaci.storage.port import Document
from tests.contract.backends import on_loop
from tests.server.rest.site import ApiSite, Caller, ScriptedRunner, task

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]


def report_of_tests(*failed: str) -> dict[str, Any]:
    """Return the report of a runner with these failed tests."""
    return {"total": 5, "failed": len(failed), "failures": [{"name": name} for name in failed]}


async def run_with_failures(
    here: ApiSite,
    caller: Caller,
    runner: ScriptedRunner,
    *failed: str,
    commit: str = "c1",
    project: str = "shop",
    **more: Any,
) -> str:
    """Run one job whose first attempt ends with these failed tests, and return the id of the run."""
    plan = {"jobs": [task("test", retry={"max_attempts": 2, "base_delay_seconds": 0}, **more)]}
    asked = {"plan": plan, "project": project, "commit": commit}
    run = str((await caller.post("/runs", asked)).body["id"])
    lease = await runner.take()
    if failed:
        await runner.fail(lease, tests=report_of_tests(*failed))
    else:
        await runner.finish(lease, tests=report_of_tests())
    return run


@pytest.mark.proves("ORC-Y1", "MOD-F1", "ORC-YK4")
@on_loop
async def test_a_failure_of_only_flaky_tests_is_retried(site: Opened) -> None:
    """Two runs of one commit disagree about a test; in the third run its failure leads to a second attempt."""
    async with site() as here:
        ada, runner = await here.key("ada", "run"), await here.register_runner()
        first = await run_with_failures(here, ada, runner, "net.test_slow")
        assert (await ada.run(first))["jobs"][0]["last_error"]["rule"] == "failed-tests"
        await run_with_failures(here, ada, runner)
        await here.service.flaky.catch_up()

        third = await run_with_failures(here, ada, runner, "net.test_slow", commit="c2")
        [job] = (await ada.run(third))["jobs"]
        await runner.finish(await runner.take(), tests=report_of_tests())  # The second attempt of the third run.
        done = await here.until(ada, third, "SUCCESS")
        # Of a commit of its own: on one that succeeded both of its tests would soon be known to be flaky.
        mixed = await run_with_failures(here, ada, runner, "net.test_slow", "math.test_sum", commit="c3")

        assert [job["last_error"][each] for each in ("failure_class", "rule")] == ["FLAKY", "known-flaky-tests"]
        assert job["state"] in ("RETRYING", "QUEUED")
        assert done["jobs"][0]["attempts"] == 2
        assert (await ada.run(mixed))["jobs"][0]["last_error"]["rule"] == "failed-tests"
        for run, said in (
            (mixed, "1 of 2 failed tests is known to be flaky: net.test_slow."),
            (third, "1 of 1 failed test is known to be flaky: net.test_slow."),
        ):
            assert said in str((await ada.get(f"/runs/{run}/jobs/test/explain")).body)


@on_loop
async def test_flaky_jobs_and_tests_are_listed_by_project_and_tenant(site: Opened) -> None:
    """Other projects, jobs and tenants are not affected."""
    async with site() as here:
        ada, eve = await here.key("ada", "run", tenant="us"), await here.key("eve", "run", tenant="them")
        ours, theirs = await here.register_runner(tenant="us"), await here.register_runner(tenant="them")
        for failed in (["a"], []):
            await run_with_failures(here, ada, ours, *failed)
        for failed in (["a"], ["a"]):
            await run_with_failures(here, ada, ours, *failed, project="other")
        await here.service.flaky.catch_up()

        found = (await ada.get("/flaky")).body
        [job] = found["jobs"]

        assert found["next"] is None
        assert (job["project"], job["job"], job["is_flaky"], job["times"]) == ("shop", "test", True, 1)
        assert [(test["name"], test["times"], test["commit"]) for test in job["tests"]] == [("a", 1, "c1")]
        assert (await ada.get("/flaky?project=shop")).body == found
        assert (await ada.get("/flaky?project=other")).body["jobs"] == []
        assert (await eve.get("/flaky")).body["jobs"] == []
        await run_with_failures(here, eve, theirs, "a")
        strange = await run_with_failures(here, eve, theirs, "a")
        assert (await eve.run(strange))["jobs"][0]["last_error"]["rule"] == "failed-tests"


@on_loop
async def test_an_untrusted_run_does_not_change_flakiness(site: Opened) -> None:
    """Otherwise a fork could have its failures, and those of others, treated as flaky."""
    async with site() as here:
        ada, runner = await here.key("ada", "run"), await here.register_runner()
        work = {"steps": ["true"], "cache_scope": "fork"}
        for failed in (["a"], []):
            await run_with_failures(here, ada, runner, *failed, work=work)
        await here.service.flaky.catch_up()

        assert (await ada.get("/flaky")).body["jobs"] == []


class ObservableFlakyTests(FlakyTestTracker):
    """Flaky tests that signal when they have processed runs."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.has_learned = asyncio.Event()

    async def learn(self, ids: Sequence[str]) -> None:
        """Process the runs and signal it."""
        await super().learn(ids)
        if ids:
            self.has_learned.set()


@on_loop
async def test_flakiness_is_learned_live_and_from_the_last_position(
    site: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers learn the same; events that one of them missed are read from the log."""
    monkeypatch.setattr(control, "PAUSE_SECONDS", 0.0)
    async with site() as here:
        ada, runner = await here.key("ada", "run"), await here.register_runner()
        second = ObservableFlakyTests(here.store)
        here.service._follower.subscribe(second.on_events)
        second.start()
        try:
            await run_with_failures(here, ada, runner, "a")
            async with asyncio.timeout(20):
                await second.has_learned.wait()
        finally:
            await second.stop()
        await run_with_failures(here, ada, runner)  # Nobody tells the second one.
        third = ObservableFlakyTests(here.store)

        await third.catch_up()
        history = await third.of_job("default", "shop", "test")
        before = await here.store.find_document(KIND, "shop test", "default")
        await third.catch_up()
        ends = [event.entity_id for event in await here.log() if control.is_telling(event)]
        await asyncio.gather(*(FlakyTestTracker(here.store).learn(ends) for _ in range(4)))

        assert list(history.tests) == ["a"]
        assert history.tests["a"].times == 1
        assert before == await here.store.find_document(KIND, "shop test", "default")


@on_loop
async def test_expired_excess_and_unreadable_histories_are_dropped(
    site: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document is removed when everything in it has expired."""
    monkeypatch.setattr(control, "MAX_JOBS", 2)
    async with site() as here:
        await here.service.flaky.stop()
        ada, runner = await here.key("ada", "run"), await here.register_runner()
        for name in ("a a", "b b", "c c", "shop test"):
            put = Document(kind=KIND, tenant="default", name=name, version=0, at=0, body=b"nonsense")
            await here.store.put_documents([put])
        assert (await ada.get("/flaky")).body["jobs"] == []
        await run_with_failures(here, ada, runner)
        await FlakyTestTracker(here.store).catch_up()
        left = [document.name for document in await here.store.list_documents(KIND, "default")]
        monkeypatch.setattr(flaky, "EXPIRES", -(10**12))
        await FlakyTestTracker(here.store).learn([event.entity_id for event in await here.log()])

        assert len(left) == 2
        assert "shop test" in left
        assert await here.store.list_documents(KIND, "default") == []


@on_loop
async def test_concurrent_servers_count_an_outcome_once(site: Opened) -> None:
    """The slower server re-reads what the faster one wrote."""
    async with site() as here:
        await here.service.flaky.stop()
        ada, runner = await here.key("ada", "run"), await here.register_runner()
        for failed in (["a"], [], ["a"]):
            await run_with_failures(here, ada, runner, *failed)
        ends = [event.entity_id for event in await here.log() if control.is_telling(event)]

        await asyncio.gather(*(FlakyTestTracker(here.store).learn(ends) for _ in range(4)))

        history = await FlakyTestTracker(here.store).of_job("default", "shop", "test")
        assert [len(commit.observations) for commit in history.commits] == [3]
        assert (history.tests["a"].times, history.flake.times) == (2, 2)
