"""Workers over the API: listed, drained, resumed and removed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta

import httpx
import pytest

from deltaci.app import registration_token
from deltaci.core import worker
from deltaci.core.lease import TTL_SECONDS
from tests.contract.backends import on_loop
from tests.server.rest.site import ApiSite, Caller, ScriptedRunner

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]


async def send(site: ApiSite, runner: ScriptedRunner, name: str, **fields: object) -> httpx.Response:
    """Send a request of a runner."""
    headers = {"Authorization": f"Bearer {runner._credential}"}
    return await site.http.post(f"/runner/v1/{name}", json=fields, headers=headers)


async def refusal(caller: Caller, path: str) -> tuple[int, str]:
    """Return the status and the code of a refused request."""
    reply = await caller.post(path)
    return reply.status, reply.code


@on_loop
async def test_only_a_key_with_the_scope_runner_may_change_workers(site: Opened) -> None:
    """A key with the scope read sees them; another tenant's workers and unknown names are not found."""
    async with site() as here:
        ops, ada, them = (
            await here.key("ops", "runner"),
            await here.key("ada", "run"),
            await here.key("x", "runner", tenant="them"),
        )
        runner = await here.register_runner()

        for verb in ("drain", "resume", "remove"):
            assert await refusal(ada, f"/workers/{runner.name}/{verb}") == (403, "missing_scope")
            assert await refusal(them, f"/workers/{runner.name}/{verb}") == (404, "not_found")
            assert await refusal(ops, f"/workers/none/{verb}") == (404, "not_found")
        reply = await ops.post(f"/workers/{runner.name}/drain", {"why": "x"})
        assert (reply.status, reply.code) == (422, "bad_message")
        assert (await ada.get(f"/workers/{runner.name}")).body["hold"] == ""


@on_loop
async def test_a_worker_has_all_its_fields(site: Opened) -> None:
    """Its name, incarnation, states in both vocabularies, hold, attempts and last message."""
    async with site() as here:
        ops = await here.key("ops", "runner", "run")
        runner = await here.register_runner("gpu", slots=2)
        run = await ops.start({"name": "a", "runs_on": ["gpu"], "work": {"steps": ["true"]}})
        lease = await runner.take()
        await ops.post(f"/workers/{runner.name}/drain", {"reason": "new disk"})
        found = (await ops.get(f"/workers/{runner.name}")).body

        assert (found["id"], found["name"], found["state"], found["status"]) == ("w1", "w1", "BUSY", "busy")
        assert (found["hold"], found["hold_reason"], found["troubles"]) == ("DRAINED", "new disk", 0)
        assert (found["tasks"], found["slots"], found["labels"]) == ([f"{run}/a.1"], 2, ["gpu"])
        assert found["created_at"] <= found["held_at"]
        assert found["created_at"] <= found["seen_at"]
        await runner.finish(lease)


@pytest.mark.proves("WST-KH1", "WST-KH2")
@on_loop
async def test_a_drained_worker_gets_no_work_until_it_is_resumed(site: Opened) -> None:
    """Both operations can be repeated; the first reason is kept."""
    async with site() as here:
        ops = await here.key("ops", "runner", "run")
        runner, other = await here.register_runner(), await here.register_runner()
        for reason in ("new disk", "another"):
            reply = await ops.post(f"/workers/{runner.name}/drain", {"reason": reason})
            assert (reply.status, reply.body["hold"], reply.body["hold_reason"]) == (200, "DRAINED", "new disk")
        run = await ops.start({"name": "a", "work": {"steps": ["true"]}})

        assert await runner.lease(wait_seconds=0) == []
        for _ in range(2):
            reply = await ops.post(f"/workers/{runner.name}/resume")
            assert (reply.status, reply.body["hold"]) == (200, "")
        [lease] = await runner.lease()

        assert lease["job_id"] == f"{run}/a"
        assert await other.lease(wait_seconds=0) == []
        actors = {event.trigger: event.actor for event in await here.log() if event.entity_id == runner.name}
        assert (actors["drained"], actors["resumed"]) == ("user:ops", "user:ops")


@on_loop
async def test_a_removed_worker_stops_after_its_job_and_needs_a_new_token(site: Opened) -> None:
    """A worker has one name, whatever its incarnation."""
    async with site() as here:
        ops = await here.key("ops", "runner", "run")
        runner = await here.register_runner()
        await ops.start({"name": "a", "work": {"steps": ["true"]}})
        lease = await runner.take()

        for _ in range(2):
            reply = await ops.post(f"/workers/{runner.name}/remove")
            assert (reply.body["state"], reply.body["shutdown_reason"]) == ("BUSY", "REMOVED")
        await runner.finish(lease)
        reply = await ops.post(f"/workers/{runner.name}/remove")
        assert (reply.status, reply.body["status"]) == (200, "shutdown")
        assert await refusal(ops, f"/workers/{runner.name}/drain") == (409, "wrong_state")
        assert (await send(here, runner, "renew")).json()["code"] == "bad_credential"

        token = (await ops.post("/workers/tokens", {"name": runner.name, "again": True})).body["token"]
        back = await here.http.post("/runner/v1/register", json={"token": token})
        assert back.json()["runner_id"] == "w1/2"
        [there] = (await ops.get("/workers")).body["workers"]
        [gone] = (await ops.get("/workers?gone=true")).body["workers"]
        assert (there["name"], there["id"], gone["name"], gone["id"]) == ("w1", "w1/2", "w1", "w1")
        assert (await ops.get("/workers/w1")).body == there


@on_loop
async def test_a_worker_that_stopped_by_itself_can_be_removed(site: Opened) -> None:
    """Otherwise it could register again with its credential."""
    async with site() as here:
        ops = await here.key("ops", "runner")
        first, second = await here.register_runner(), await here.register_runner()
        for each in (first, second):
            assert (await send(here, each, "leave", type="Leave", runner_id=each.name)).json() == {"gone": True}

        assert (await ops.post(f"/workers/{first.name}/remove")).status == 200

        assert (await send(here, first, "renew")).json()["code"] == "bad_credential"
        assert (await send(here, second, "renew")).json()["runner_id"] == "w2/2"


@pytest.mark.proves("MOD-12")
@on_loop
async def test_a_silent_worker_and_its_job_have_the_time_of_the_reassignment(site: Opened) -> None:
    """A heartbeat removes it. An explanation of the job has the time, too."""
    async with site() as here:
        ops = await here.key("ops", "runner", "run")
        runner = await here.register_runner()
        run = await ops.start({"name": "a", "work": {"steps": ["true"]}})
        lease = await runner.take()
        await runner.send(lease, "Heartbeat", ts="2026-01-04T08:00:00Z")
        attempts = f"/runs/{run}/jobs/a"
        assert [(await ops.get(path)).body["reassign_at"] for path in (f"/workers/{runner.name}",)] == [None]
        await here.service.engine.do(worker.MissHealthChecks(id=runner.name))

        silent = (await ops.get(f"/workers/{runner.name}")).body
        listed = (await ops.get("/workers")).body["workers"]
        [marked] = (await ops.get(attempts)).body["tries"]
        explained = (await ops.get(f"{attempts}/explain")).body["summary"]
        await runner.send(lease, "Heartbeat", ts="2026-01-04T08:00:20Z")
        recovered = (await ops.get(f"/workers/{runner.name}")).body

        assert (silent["condition"], silent["tasks"]) == ("silent", [f"{run}/a.1"])
        assert [entry["reassign_at"] for entry in listed] == [silent["reassign_at"]]
        lease_end = datetime.fromisoformat(marked["updated_at"]) + timedelta(seconds=TTL_SECONDS)
        assert marked["reassign_at"] == silent["reassign_at"]
        assert datetime.fromisoformat(marked["reassign_at"]) <= lease_end
        assert f"{datetime.fromisoformat(marked['reassign_at']):%Y-%m-%d %H:%M:%S} UTC" in explained
        assert (recovered["condition"], recovered["reassign_at"]) == ("busy", None)


@on_loop
async def test_a_silent_worker_is_removed_after_its_leases_ended(site: Opened) -> None:
    """It cannot be told to stop; until its lease is over it may still work, and the refusal says so."""
    async with site() as here:
        ops = await here.key("ops", "runner", "run")
        runner = await here.register_runner()
        run = await ops.start({"name": "a", "work": {"steps": ["true"]}})
        lease = await runner.take()
        await ops.post(f"/runs/{run}/cancel")
        await here.service.engine.do(worker.MissHealthChecks(id=runner.name))

        assert await refusal(ops, f"/workers/{runner.name}/remove") == (409, "wrong_state")
        await runner.send(lease, "CancelAck", final_status="CANCELED", ts="2026-01-04T08:00:00Z")
        reply = await ops.post(f"/workers/{runner.name}/remove")

        assert (reply.status, reply.body["state"]) == (200, "SHUTDOWN")
        token = registration_token(here.folder, runner.name, "default", again=True)
        assert (await here.http.post("/runner/v1/register", json={"token": token})).json()["runner_id"] == "w1/2"
