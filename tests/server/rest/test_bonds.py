"""Plans with `after` and with groups, over the API."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from tests.contract.backends import on_loop
from tests.server.rest.site import ApiSite, gate, task

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]


@pytest.mark.proves("MOD-S1", "MOD-F5")
@on_loop
async def test_invalid_ordering_and_groups_are_refused(site: Opened) -> None:
    """A refused request creates nothing."""
    async with site() as here:
        ada = await here.key("ada", "run")
        for jobs, code, said in (
            ([task("a", after=["b"])], "bad_request", "is after 'b', which is not in the plan"),
            ([task("a", after=["b"]), task("b", needs=["a"])], "dependency_cycle", "a → b → a"),
            ([{**gate("g"), "group": "prod"}], "bad_request", "nor 'group'"),
            ([task("a", retry={"max_attempts": 2, "on": ["USER"]})], "bad_message", "USER"),
        ):
            reply = await ada.post("/runs", {"plan": {"jobs": jobs}})

            assert reply.status in (400, 422)
            assert (reply.code, said in str(reply.body)) == (code, True), reply.body


@pytest.mark.proves("MOD-D1")
@on_loop
async def test_a_job_runs_after_a_failed_one(site: Opened) -> None:
    """A job with `after` and without `needs` has no implicit dependencies."""
    async with site() as here:
        ada = await here.key("ada", "run")
        runner = await here.register_runner()
        id = await ada.start(task("test"), task("mop", after=["test"]), task("zone"))

        await runner.fail(await runner.take())
        run = await ada.run(id)

        assert [(job["name"], job["needs"], job["after"], job["state"]) for job in run["jobs"]] == [
            ("test", [], [], "FAILED"),
            ("mop", [], ["test"], "QUEUED"),
            ("zone", [], [], "QUEUED"),
        ]
        plan = (await ada.get(f"/runs/{id}/plan")).body
        assert [job["after"] for job in plan["jobs"]] == [[], ["test"], []]
        await runner.finish(await runner.take())
        await runner.finish(await runner.take())
        assert (await here.until(ada, id, "REPORTED"))["conclusion"] == "FAILED"


@pytest.mark.proves("MOD-D3")
@on_loop
async def test_one_job_of_a_group_runs_at_a_time_and_explain_names_it(site: Opened) -> None:
    """A group spans runs; the next job starts when the current one is over."""
    async with site() as here:
        ada = await here.key("ada", "run")
        runner = await here.register_runner()
        first = await ada.start(task("deploy", group="prod", retry={"on": ["INFRA"]}))
        second = await ada.start(task("deploy", group="prod"))
        lease = await runner.take()
        await runner.begin(lease)

        why = (await ada.get(f"/runs/{second}/explain")).body

        assert [reason["code"] for reason in why["waiting"]] == ["waiting_for_group"]
        assert f"waits for group prod, which job deploy of run {first} holds" in why["summary"]
        assert await runner.lease(wait_seconds=0) == []
        assert (await ada.get(f"/runs/{first}/plan")).body["jobs"][0]["retry"]["on"] == ["INFRA"]
        await runner.finish(lease)
        await runner.finish(await runner.take())
        assert (await here.until(ada, second, "REPORTED"))["conclusion"] == "SUCCESS"
