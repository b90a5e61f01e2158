"""Quotas of a tenant, and fairness between tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from deltaci.engine.requests import Overloaded
from deltaci.server.tenants import RateLimited, RequestSlots, TokenBucket
from tests.contract.backends import on_loop
from tests.server.rest.site import ApiSite, task

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]


@on_loop
async def test_running_jobs_are_limited_and_explain_says_so(site: Opened) -> None:
    """The count is derived from the live leases of the tenant."""
    async with site() as here:
        ada, bob = await here.key("ada", "run", tenant="us"), await here.key("bob", "run", tenant="them")
        ours, theirs = await here.register_runner(tenant="us"), await here.register_runner(tenant="them")
        await here.operator("us").ask("PUT", "/tenants/us/quotas", {"running_jobs": 2})
        id = await ada.start(*(task(f"j{n}", needs=[]) for n in range(3)))
        await bob.start(*(task(f"j{n}", needs=[]) for n in range(3)))

        held = await ours.lease(slots=5)
        refused = await ours.lease(slots=5, wait_seconds=0)
        others = await theirs.lease(slots=5)
        usage = (await ada.get("/tenant")).body["usage"]
        waiting = next(job["name"] for job in (await ada.run(id))["jobs"] if job["state"] == "QUEUED")
        why = (await ada.get(f"/runs/{id}/jobs/{waiting}/explain")).body
        asking = asyncio.create_task(ours.lease(slots=5))
        await ours.finish(held[0])
        freed = await asking

        assert (len(held), len(refused), len(others), len(freed)) == (2, 0, 3, 1)
        assert usage["running_jobs"] == 2
        assert "quota" in {reason["code"] for reason in why["waiting"]}, why


@on_loop
async def test_a_waiting_claim_follows_a_changed_quota(site: Opened) -> None:
    """A long poll lasts for minutes; a quota that is set meanwhile applies to it."""
    async with site() as here:
        ada = await here.key("ada", "run")
        runner = await here.register_runner()
        asking = asyncio.create_task(runner.lease(slots=5))
        await ada.get("/me")
        await here.operator().ask("PUT", "/tenants/default/quotas", {"running_jobs": 1})
        await ada.start(*(task(f"j{n}", needs=[]) for n in range(3)))

        assert len(await asking) == 1


@on_loop
async def test_waiting_runs_are_limited(site: Opened) -> None:
    """A run that starts makes room for the next one."""
    async with site() as here:
        ada = await here.key("ada", "run")
        runner = await here.register_runner()
        await here.operator().ask("PUT", "/tenants/default/quotas", {"queued_runs": 2})
        body = {"plan": {"jobs": [task("a")]}}
        for _ in range(2):
            await ada.start(task("a"))

        over = await ada.post("/runs", body)
        await runner.take()
        room = await ada.post("/runs", body)

        assert (over.status, over.code, room.status) == (429, "over_quota", 201)
        assert int(over.headers["retry-after"]) >= 1


@on_loop
async def test_stored_bytes_are_limited(site: Opened) -> None:
    """The job gets an error, and its tenant sees the usage."""
    async with site() as here:
        ada = await here.key("ada", "run")
        runner = await here.register_runner()
        await here.operator().ask("PUT", "/tenants/default/quotas", {"storage_bytes": 1000})
        await ada.start(task("a"))
        lease = await runner.take()

        kept = await runner.upload_artifact(lease, "one", b"x" * 900)
        over = await runner.upload_artifact(lease, "two", b"x" * 200)
        small = await runner.upload_artifact(lease, "three", b"x" * 100)

        assert (kept.status_code, over.status_code, small.status_code) == (200, 413, 200)
        assert "1000" not in over.text
        assert "100 more bytes" in over.text
        assert (await ada.get("/tenant")).body["usage"]["storage_bytes"] == 1000


@on_loop
async def test_too_many_requests_are_refused_with_retry_after(site: Opened) -> None:
    """Other tenants are not affected."""
    async with site() as here:
        us, them = await here.key("ada", "read", tenant="us"), await here.key("bob", "read", tenant="them")
        await here.operator().ask("PUT", "/tenants/us/quotas", {"requests_per_second": 1})

        replies = await asyncio.gather(*(us.get("/me") for _ in range(60)))
        others = [await them.get("/me") for _ in range(20)]

        refused = [reply for reply in replies if reply.status != 200]
        assert {reply.code for reply in refused} == {"too_many_requests"}
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
        assert {reply.status for reply in others} == {200}


def test_a_burst_of_ten_seconds_is_allowed_and_then_the_rate() -> None:
    """With a clock that the test controls."""
    bucket = TokenBucket(5, 0.0)

    for _ in range(50):
        bucket.take(5, 0.0)
    with pytest.raises(RateLimited) as caught:
        bucket.take(5, 0.0)
    bucket.take(5, 0.2)
    with pytest.raises(RateLimited):
        bucket.take(5, 0.3)

    assert caught.value.seconds == pytest.approx(0.2)


@on_loop
async def test_waiting_requests_take_turns_by_tenant() -> None:
    """After a hundred requests of one tenant, the request of another is served second, not last."""
    slots = RequestSlots(max_running=1)
    served: list[str] = []
    go = asyncio.Event()

    async def request(tenant: str) -> None:
        async with slots.slot(tenant):
            served.append(tenant)
            if len(served) == 1:
                await go.wait()

    crowd = [asyncio.create_task(request("crowd")) for _ in range(100)]
    await _let_tasks_run()
    quiet = asyncio.create_task(request("quiet"))
    await _let_tasks_run()
    go.set()
    await asyncio.gather(*crowd, quiet)

    assert served[:3] == ["crowd", "crowd", "quiet"]


@on_loop
async def test_a_turn_of_a_cancelled_waiter_is_passed_on_and_the_queue_is_bounded() -> None:
    """No turn is lost, and the queue does not grow without limit."""
    slots = RequestSlots(max_running=1, max_waiting=2)
    async with slots.slot("a"):
        waiting = [asyncio.create_task(_take(slots, "b")) for _ in range(2)]
        await _let_tasks_run()
        with pytest.raises(Overloaded, match="2 requests are waiting already"):
            await _take(slots, "c")
        waiting[0].cancel()
        await _let_tasks_run()

    await waiting[1]
    async with asyncio.timeout(5):
        await _take(slots, "d")


async def _take(slots: RequestSlots, tenant: str) -> None:
    async with slots.slot(tenant):
        pass


async def _let_tasks_run() -> None:
    """Wait until every task that can run has run."""
    for _ in range(3):
        reached = asyncio.Event()
        asyncio.get_running_loop().call_soon(reached.set)
        await reached.wait()


@pytest.mark.proves("MOD-14")
@on_loop
async def test_a_quota_has_an_event_with_the_operator_and_the_values_before_and_after(site: Opened) -> None:
    """An equal value is no change."""
    async with site() as here:
        root = here.operator("us", "root")
        for running_jobs in (1, 2, 2):
            await root.ask("PUT", "/tenants/us/quotas", {"running_jobs": running_jobs})

        found = [event for event in (await root.get("/events")).body["events"] if event["entity"] == "resource"]
        others = (await here.operator("them").get("/events")).body["events"]

        assert [(event["actor"], event["trigger"], event["metadata"]["kind"]) for event in found] == [
            ("user:root", "created", "quotas"),
            ("user:root", "updated", "quotas"),
        ]
        assert found[1]["metadata"]["before"] == found[0]["metadata"]["after"]
        assert found[1]["metadata"]["before"]["running_jobs"] == 1
        assert found[1]["metadata"]["after"]["running_jobs"] == 2
        assert not [event for event in others if event["entity"] == "resource"]
