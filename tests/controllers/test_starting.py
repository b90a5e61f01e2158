"""Runs that somebody starts from a repository by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from deltaci.core.machine import Command
from deltaci.core.run import PLANNING_SECONDS, BeginPlanning
from tests.contract.backends import on_loop
from tests.controllers.site import RepositorySite
from tests.support.upstream import PIPELINE, Upstream

Opened = Callable[[], AbstractAsyncContextManager[RepositorySite]]

ASKS = """\
on:
  manual:
    inputs:
      env: {type: choice, options: [staging, production], required: true}
fail-fast: true
timeout-minutes: 7
jobs:
  deploy:
    steps: [run: 'echo ${{ inputs.env }}']
"""


@on_loop
async def test_a_run_is_there_at_once_and_planned_by_itself(site: Opened, upstream: Upstream) -> None:
    """By the project's name or its address, at a commit or at the head of a branch; and a repeat is the same run."""
    async with site() as here:
        await here.project(upstream.url)
        ada = await here.key("ada", "run")
        asked = {"repository": "shop", "commit": upstream.first, "branch": "main", "labels": ["l"], "title": "mine"}

        made = await ada.post("/runs", asked, idempotency_key="k")
        repeat = await ada.post("/runs", asked, idempotency_key="k")
        head = await ada.post("/runs", {"repository": upstream.url.removesuffix(".git")})
        await here.settled()

        assert (made.status, made.body["state"], made.body["commit"]) == (201, "CREATED", upstream.first)
        assert (repeat.status, repeat.body["id"]) == (200, made.body["id"])
        run = await ada.run(made.body["id"])
        assert (run["state"], run["title"], run["labels"]) == ("QUEUED", "mine", ["event:manual", "l"])
        assert [job["name"] for job in run["jobs"]] == ["build", "test"]
        assert run["started_by"] == "ada"
        assert (head.body["commit"], head.body["branch"]) == (upstream.first, "main")
        [first, second] = (await ada.get("/changes")).body["changes"]
        assert {first["files"][0]["run"], second["files"][0]["run"]} == {made.body["id"], head.body["id"]}


@on_loop
async def test_inputs_and_what_the_file_says_of_the_run(site: Opened, upstream: Upstream) -> None:
    """An input that is not allowed fails the plan, with its place."""
    async with site() as here:
        people = await here.project(upstream.url)
        upstream.push({".deltaci/deploy.yml": ASKS, ".deltaci/ci.yml": PIPELINE, ".deltaci.yml": None})
        asked = {"repository": "shop", "file": ".deltaci/deploy.yml"}

        good = (await people.post("/runs", {**asked, "inputs": {"env": "staging"}})).body["id"]
        bad = (await people.post("/runs", {**asked, "inputs": {"env": "moon"}})).body["id"]
        unclear = (await people.post("/runs", {"repository": "shop"})).body["id"]
        missing = (await people.post("/runs", {"repository": "shop", "file": "x.yml"})).body["id"]
        lost = (await people.post("/runs", {"repository": "shop", "commit": "b" * 40})).body["id"]
        await here.settled()

        run = await people.run(good)
        assert (run["state"], run["fail_fast"], run["timeout_seconds"]) == ("QUEUED", True, 420)
        assert run["inputs"] == {"env": "staging"}
        told = [(await people.get(f"/runs/{id}/plan")).body["problems"] for id in (bad, unclear, missing, lost)]
        assert told[0][0].startswith(".deltaci/deploy.yml:4:")
        assert "name one of: .deltaci/ci.yml, .deltaci/deploy.yml" in told[1][0]
        assert "no pipeline file 'x.yml'" in told[2][0]
        assert f"has no commit {'b' * 40}" in told[3][0]


@on_loop
async def test_what_makes_no_sense_is_refused_at_once(site: Opened, upstream: Upstream) -> None:
    """Before anything is made."""
    async with site() as here:
        people = await here.project(upstream.url)
        plan = {"jobs": [{"name": "a", "work": {"steps": ["true"]}}]}

        replies = [
            await people.post("/runs", body)
            for body in (
                {},
                {"repository": "other"},
                {"repository": "https://github.com/acme/other.git"},
                {"repository": "shop", "commit": "main"},
                {"repository": "shop", "branch": "none"},
                {"repository": "shop", "version": 2},
                {"plan": plan, "file": "a.yml"},
            )
        ]

        assert [reply.status for reply in replies] == [400, 404, 404, 400, 400, 400, 400]
        assert await here.runs() == []
        assert (await people.get("/changes")).body["changes"] == []
        about = await people.post("/runs", {"plan": plan, "repository": "anything at all", "commit": "x"})
        assert about.status == 201


@on_loop
async def test_a_file_that_is_not_for_people_says_so(site: Opened, upstream: Upstream) -> None:
    """`manual` must be in its `on`."""
    async with site() as here:
        people = await here.project(upstream.url)
        upstream.push({".deltaci.yml": PIPELINE.replace(", manual", "")})

        id = (await people.post("/runs", {"repository": "shop", "file": ".deltaci.yml"})).body["id"]
        await here.settled()

        [problem] = (await people.get(f"/runs/{id}/plan")).body["problems"]
        assert "add `manual` to its `on`" in problem


@pytest.mark.proves("MOD-3", "WST-W7")
@on_loop
async def test_a_run_that_is_cancelled_before_it_is_planned_ends(site: Opened, upstream: Upstream) -> None:
    """Whatever its repository does."""
    async with site() as here:
        people = await here.project(f"{upstream.url}.gone")
        asked = {"repository": "shop", "commit": upstream.first}

        id = (await people.post("/runs", asked)).body["id"]
        await here.settled()
        waiting = await people.run(id)
        assert (await people.post(f"/runs/{id}/cancel", {"reason": "enough"})).status == 200
        over = await here.until(people, id, "REPORTED")

        assert waiting["state"] == "PLANNING"
        assert (over["conclusion"], over["reason"]) == ("CANCELED", "enough")
        steps = (await people.get(f"/runs/{id}/transitions?view=workstreams")).body["transitions"]
        assert [(step["from"], step["to"]) for step in steps][1:] == [("planned", "ready"), ("ready", "cancelled")]


@pytest.mark.proves("ORC-R3", "ORC-R4", "ORC-RS3", "ORC-RF2")
@on_loop
async def test_a_run_whose_planning_takes_too_long_fails(
    site: Opened, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a minute, because a person waits for it."""
    async with site() as here:
        people = await here.project(upstream.url)
        planner = here.service.control_plane.repositories.planner
        apply = here.service.engine.do_all
        is_planning = asyncio.Event()

        async def begin_and_hang(commands: list[Command]) -> object:
            if not any(isinstance(command, BeginPlanning) for command in commands):
                return await apply(commands)
            await apply(commands[:1])
            is_planning.set()
            return await asyncio.Event().wait()

        monkeypatch.setattr(planner._engine, "do_all", begin_and_hang)
        id = (await people.post("/runs", {"repository": "shop", "commit": upstream.first})).body["id"]
        await is_planning.wait()
        here.backend.after(PLANNING_SECONDS - 10)
        await here.service.engine.tick()
        before = await people.run(id)
        here.backend.after(11)
        await here.service.engine.tick()
        over = await here.until(people, id, "FAILED")

        assert before["state"] == "PLANNING"
        assert (over["status"], over["reason"], over["jobs"]) == ("FAILED", "PLAN_TIMEOUT", [])
        steps = (await people.get(f"/runs/{id}/transitions?view=orchestration&kind=run")).body["transitions"]
        assert [step["to"] for step in steps][:4] == ["CREATED", "PLANNING", "PLAN_FAILED", "FAILED"]
