"""Flaky tests on a real server: learned from its log, used when the next result comes, shown and explained."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from deltaci.controllers import flaky as control
from deltaci.controllers.flaky import KIND, FlakyTests
from deltaci.core import flaky
from deltaci.storage.port import Document
from tests.api.site import ApiSite, Caller, Player, task
from tests.contract.places import on_loop

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]


def told(*failed: str) -> dict[str, Any]:
    """What a runner reports of tests."""
    return {"total": 5, "failed": len(failed), "failures": [{"name": name} for name in failed]}


async def ran(
    here: ApiSite, caller: Caller, player: Player, *failed: str, commit: str = "c1", project: str = "shop", **more: Any
) -> str:
    """A run of one job, whose first attempt ends with these tests failed: its id."""
    plan = {"jobs": [task("test", retry={"max_attempts": 2, "base_delay_seconds": 0}, **more)]}
    asked = {"plan": plan, "project": project, "commit": commit}
    run = str((await caller.post("/runs", asked)).body["id"])
    lease = await player.take()
    if failed:
        await player.fail(lease, tests=told(*failed))
    else:
        await player.finish(lease, tests=told())
    return run


@on_loop
async def test_a_failure_of_known_flaky_tests_alone_is_tried_again(site: Opened) -> None:
    """Two runs of one commit disagree about a test; in the third its failure is worth a second attempt."""
    async with site() as here:
        ada, player = await here.key("ada", "run"), await here.player()
        first = await ran(here, ada, player, "net.test_slow")
        assert (await ada.run(first))["jobs"][0]["last_error"]["rule"] == "failed-tests"
        await ran(here, ada, player)
        await here.service.flaky.catch_up()

        third = await ran(here, ada, player, "net.test_slow", commit="c2")
        [job] = (await ada.run(third))["jobs"]
        await player.finish(await player.take(), tests=told())  # The second attempt of the third run.
        done = await here.until(ada, third, "SUCCESS")
        # Of a commit of its own: on one that succeeded both of its tests would soon be known to be flaky.
        mixed = await ran(here, ada, player, "net.test_slow", "math.test_sum", commit="c3")

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
async def test_what_is_flaky_is_listed_by_project_and_is_nobody_elses(site: Opened) -> None:
    """The job itself, too; another project, job or tenant knows nothing of it."""
    async with site() as here:
        ada, eve = await here.key("ada", "run", tenant="us"), await here.key("eve", "run", tenant="them")
        ours, theirs = await here.player(tenant="us"), await here.player(tenant="them")
        for failed in (["a"], []):
            await ran(here, ada, ours, *failed)
        for failed in (["a"], ["a"]):
            await ran(here, ada, ours, *failed, project="other")
        await here.service.flaky.catch_up()

        found = (await ada.get("/flaky")).body
        [job] = found["jobs"]

        assert found["next"] is None
        assert (job["project"], job["job"], job["is_flaky"], job["times"]) == ("shop", "test", True, 1)
        assert [(each["name"], each["times"], each["commit"]) for each in job["tests"]] == [("a", 1, "c1")]
        assert (await ada.get("/flaky?project=shop")).body == found
        assert (await ada.get("/flaky?project=other")).body["jobs"] == []
        assert (await eve.get("/flaky")).body["jobs"] == []
        await ran(here, eve, theirs, "a")
        strange = await ran(here, eve, theirs, "a")
        assert (await eve.run(strange))["jobs"][0]["last_error"]["rule"] == "failed-tests"


@on_loop
async def test_a_run_that_is_not_trusted_teaches_nothing(site: Opened) -> None:
    """Otherwise a fork could have its failures called flaky, and those of others."""
    async with site() as here:
        ada, player = await here.key("ada", "run"), await here.player()
        work = {"steps": ["true"], "cache_scope": "fork"}
        for failed in (["a"], []):
            await ran(here, ada, player, *failed, work=work)
        await here.service.flaky.catch_up()

        assert (await ada.get("/flaky")).body["jobs"] == []


class Waited(FlakyTests):
    """One that says when it has learned something."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.has_learned = asyncio.Event()

    async def learn(self, ids: Sequence[str]) -> None:
        """And says so."""
        await super().learn(ids)
        if ids:
            self.has_learned.set()


@on_loop
async def test_it_is_learned_as_it_happens_and_where_somebody_left_off(
    site: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own loop; two servers learn the same, and what one missed it reads in the log."""
    monkeypatch.setattr(control, "PAUSE_SECONDS", 0.0)
    async with site() as here:
        ada, player = await here.key("ada", "run"), await here.player()
        second = Waited(here.store)
        here.service._follower.subscribe(second.on_events)
        second.start()
        try:
            await ran(here, ada, player, "a")
            async with asyncio.timeout(20):
                await second.has_learned.wait()
        finally:
            await second.stop()
        await ran(here, ada, player)  # Nobody tells the second one.
        third = Waited(here.store)

        await third.catch_up()
        history = await third.of_job("default", "shop", "test")
        before = await here.store.find_document(KIND, "shop test", "default")
        await third.catch_up()
        ends = [event.entity_id for event in await here.log() if control.is_telling(event)]
        await asyncio.gather(*(FlakyTests(here.store).learn(ends) for _ in range(4)))

        assert list(history.tests) == ["a"]
        assert history.tests["a"].times == 1
        assert before == await here.store.find_document(KIND, "shop test", "default")


@on_loop
async def test_what_is_old_or_too_much_or_unreadable_is_left(site: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents are dropped when all of what they say is forgotten."""
    monkeypatch.setattr(control, "MAX_JOBS", 2)
    async with site() as here:
        await here.service.flaky.stop()
        ada, player = await here.key("ada", "run"), await here.player()
        for name in ("a a", "b b", "c c", "shop test"):
            put = Document(kind=KIND, tenant="default", name=name, version=0, at=0, body=b"nonsense")
            await here.store.put_documents([put])
        assert (await ada.get("/flaky")).body["jobs"] == []
        await ran(here, ada, player)
        await FlakyTests(here.store).catch_up()
        left = [each.name for each in await here.store.list_documents(KIND, "default")]
        monkeypatch.setattr(flaky, "EXPIRES", -(10**12))
        await FlakyTests(here.store).learn([event.entity_id for event in await here.log()])

        assert len(left) == 2
        assert "shop test" in left
        assert await here.store.list_documents(KIND, "default") == []


@on_loop
async def test_servers_that_learn_the_same_at_the_same_moment_learn_it_once(site: Opened) -> None:
    """Whoever is slower reads again what the faster one wrote."""
    async with site() as here:
        await here.service.flaky.stop()
        ada, player = await here.key("ada", "run"), await here.player()
        for failed in (["a"], [], ["a"]):
            await ran(here, ada, player, *failed)
        ends = [event.entity_id for event in await here.log() if control.is_telling(event)]

        await asyncio.gather(*(FlakyTests(here.store).learn(ends) for _ in range(4)))

        history = await FlakyTests(here.store).of_job("default", "shop", "test")
        assert [len(each.observations) for each in history.commits] == [3]
        assert (history.tests["a"].times, history.flake.times) == (2, 2)
