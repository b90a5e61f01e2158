"""Templates: each save is a version, runs keep the version that they started with, inputs are validated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.contract.backends import on_loop
from tests.server.rest.site import ApiSite, task

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]


def template(*names: str, **fields: Any) -> dict[str, Any]:
    """Return a template of these tasks."""
    return {"plan": {"jobs": [task(name) for name in names]}, **fields}


@on_loop
async def test_a_run_keeps_the_version_that_it_started_with(site: Opened) -> None:
    """A newer version does not change existing runs."""
    async with site() as here:
        admin = await here.key("ada", "admin")
        first = await admin.ask("PUT", "/templates/deploy", template("a", description="one"))
        old = (await admin.post("/runs", {"template": "deploy"})).body
        second = await admin.ask("PUT", "/templates/deploy", template("a", "b", description="two"))
        new = (await admin.post("/runs", {"template": "deploy"})).body
        pinned = (await admin.post("/runs", {"template": "deploy", "version": 1})).body

        assert (first.body["version"], second.body["version"]) == (1, 2)
        assert [run["template_version"] for run in (old, new, pinned)] == [1, 2, 1]
        assert len((await admin.run(old["id"]))["jobs"]) == len((await admin.run(pinned["id"]))["jobs"]) == 1
        assert len((await admin.run(new["id"]))["jobs"]) == 2
        assert old["plan_hash"] == pinned["plan_hash"] != new["plan_hash"]
        assert (await admin.get("/templates/deploy")).body == second.body
        assert (await admin.get("/templates/deploy/versions/1")).body == first.body
        versions = (await admin.get("/templates/deploy/versions")).body["templates"]
        assert [version["description"] for version in versions] == ["one", "two"]
        assert [run["id"] for run in (await admin.get("/runs?template=deploy")).body["runs"]] == [
            *(pinned["id"], new["id"], old["id"]),
        ]


@on_loop
async def test_a_removed_template_starts_nothing_and_keeps_its_version_count(site: Opened) -> None:
    """No version number is used twice."""
    async with site() as here:
        admin = await here.key("ada", "admin")
        await admin.ask("PUT", "/templates/t", template("a"))

        gone = await admin.ask("DELETE", "/templates/t")
        missing = [
            await admin.get("/templates/t"),
            await admin.get("/templates/t/versions"),
            await admin.get("/templates/t/versions/1"),
            await admin.post("/runs", {"template": "t"}),
            await admin.ask("DELETE", "/templates/t"),
        ]
        back = await admin.ask("PUT", "/templates/t", template("b", expected_version=0))

        assert gone.status == 200
        assert [reply.status for reply in missing] == [404] * 5
        assert (await admin.get("/templates")).body["templates"][0]["version"] == back.body["version"] == 2


@on_loop
async def test_concurrent_saves_get_a_version_or_an_error(site: Opened) -> None:
    """No save overwrites another."""
    async with site() as here:
        admin = await here.key("ada", "admin")

        replies = await asyncio.gather(
            *(admin.ask("PUT", "/templates/t", template(f"job{n}", expected_version=0)) for n in range(20))
        )
        stale = await admin.ask("PUT", "/templates/t", template("late", expected_version=7))

        assert sorted(reply.status for reply in replies) == [200] + [409] * 19
        assert {reply.body.get("code") for reply in replies} == {None, "stale_version"}
        assert (stale.code, (await admin.get("/templates/t")).body["version"]) == ("stale_version", 1)


@on_loop
async def test_inputs_reach_the_tasks_and_invalid_ones_are_refused(site: Opened) -> None:
    """Required inputs, defaults, choices and unknown inputs."""
    async with site() as here:
        admin = await here.key("ada", "admin")
        runner = await here.register_runner()
        asks = {
            "env": {"required": True, "choices": ["staging", "prod"], "description": "where to"},
            "Level": {"default": "info"},
        }
        await admin.ask("PUT", "/templates/t", template("a", inputs=asks))

        for inputs, said in (({}, "where to"), ({"env": "moon"}, "staging, prod"), ({"env": "prod", "x": ""}, "'x'")):
            reply = await admin.post("/runs", {"template": "t", "inputs": inputs})
            assert (reply.code, said in reply.body["message"]) == ("bad_request", True), reply.body
        run = (await admin.post("/runs", {"template": "t", "inputs": {"env": "prod"}})).body
        [lease] = await runner.lease()

        assert run["inputs"] == {"env": "prod", "Level": "info"}
        assert lease["job_spec"]["env"] == {"INPUT_ENV": "prod", "INPUT_LEVEL": "info"}
        twice = await admin.ask("PUT", "/templates/u", template("a", inputs={"x": {}, "X": {}}))
        assert twice.code == "bad_request"


@on_loop
async def test_an_invalid_template_is_not_stored(site: Opened) -> None:
    """A template that can never be started is refused when it is saved."""
    async with site() as here:
        admin = await here.key("ada", "admin")
        circle = {"plan": {"jobs": [task("a", needs=["b"]), task("b", needs=["a"])]}}

        assert (await admin.ask("PUT", "/templates/t", circle)).code == "dependency_cycle"
        assert (await admin.ask("PUT", "/templates/t", {"plan": {"jobs": [{"name": "a"}]}})).code == "bad_request"
        assert (await admin.ask("PUT", "/templates/a b", template("a"))).status == 404
        assert (await admin.get("/templates")).body["templates"] == []
