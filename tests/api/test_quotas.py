"""What a tenant may use, and that a crowd of one does not hold up another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from deltaci.engine.requests import Overloaded
from deltaci.server.tenants import RateLimited, RequestSlots, TokenBucket
from tests.api.site import ApiSite, task
from tests.contract.places import on_loop

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]


@on_loop
async def test_workers_hold_no_more_jobs_than_the_tenant_may_and_explain_says_so(site: Opened) -> None:
    """Slots are derived from live leases; another tenant's do not count."""
    async with site() as here:
        ada, bob = await here.key("ada", "run", tenant="us"), await here.key("bob", "run", tenant="them")
        ours, theirs = await here.player(tenant="us"), await here.player(tenant="them")
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
async def test_who_waits_for_work_goes_by_the_quota_of_the_moment(site: Opened) -> None:
    """A runner's poll lasts for minutes; a quota that is set meanwhile holds for it too."""
    async with site() as here:
        ada = await here.key("ada", "run")
        player = await here.player()
        asking = asyncio.create_task(player.lease(slots=5))
        await ada.get("/me")
        await here.operator().ask("PUT", "/tenants/default/quotas", {"running_jobs": 1})
        await ada.start(*(task(f"j{n}", needs=[]) for n in range(3)))

        assert len(await asking) == 1


@on_loop
async def test_no_more_runs_may_wait_than_the_quota_allows(site: Opened) -> None:
    """A run that has begun makes room for the next one."""
    async with site() as here:
        ada = await here.key("ada", "run")
        player = await here.player()
        await here.operator().ask("PUT", "/tenants/default/quotas", {"queued_runs": 2})
        body = {"plan": {"jobs": [task("a")]}}
        for _ in range(2):
            await ada.start(task("a"))

        over = await ada.post("/runs", body)
        await player.take()
        room = await ada.post("/runs", body)

        assert (over.status, over.code, room.status) == (429, "over_quota", 201)
        assert int(over.headers["retry-after"]) >= 1


@on_loop
async def test_nothing_more_is_kept_than_the_quota_allows(site: Opened) -> None:
    """The job is told, and its tenant sees how much there is."""
    async with site() as here:
        ada = await here.key("ada", "run")
        player = await here.player()
        await here.operator().ask("PUT", "/tenants/default/quotas", {"storage_bytes": 1000})
        await ada.start(task("a"))
        lease = await player.take()

        kept = await player.keep(lease, "one", b"x" * 900)
        over = await player.keep(lease, "two", b"x" * 200)
        small = await player.keep(lease, "three", b"x" * 100)

        assert (kept.status_code, over.status_code, small.status_code) == (200, 413, 200)
        assert "1000" not in over.text
        assert "100 more bytes" in over.text
        assert (await ada.get("/tenant")).body["usage"]["storage_bytes"] == 1000


@on_loop
async def test_who_asks_too_often_is_told_when_to_come_back(site: Opened) -> None:
    """Another tenant is not held up by it."""
    async with site() as here:
        us, them = await here.key("ada", "read", tenant="us"), await here.key("bob", "read", tenant="them")
        await here.operator().ask("PUT", "/tenants/us/quotas", {"requests_per_second": 1})

        replies = await asyncio.gather(*(us.get("/me") for _ in range(60)))
        others = [await them.get("/me") for _ in range(20)]

        refused = [reply for reply in replies if reply.status != 200]
        assert {reply.code for reply in refused} == {"too_many_requests"}
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
        assert {reply.status for reply in others} == {200}


def test_ten_seconds_worth_may_come_at_once_and_then_as_many_as_the_rate_says() -> None:
    """By a clock that the case moves."""
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
async def test_those_who_wait_take_turns_by_tenant() -> None:
    """A hundred requests of one tenant are before one of another: it is served second, not last."""
    turns = RequestSlots(max_running=1)
    served: list[str] = []
    go = asyncio.Event()

    async def request(tenant: str) -> None:
        async with turns.slot(tenant):
            served.append(tenant)
            if len(served) == 1:
                await go.wait()

    crowd = [asyncio.create_task(request("crowd")) for _ in range(100)]
    await _settled()
    quiet = asyncio.create_task(request("quiet"))
    await _settled()
    go.set()
    await asyncio.gather(*crowd, quiet)

    assert served[:3] == ["crowd", "crowd", "quiet"]


@on_loop
async def test_a_turn_is_passed_on_when_who_waited_has_left_and_too_many_are_refused() -> None:
    """No turn is ever lost, and no line grows without a limit."""
    turns = RequestSlots(max_running=1, max_waiting=2)
    async with turns.slot("a"):
        waiting = [asyncio.create_task(_take(turns, "b")) for _ in range(2)]
        await _settled()
        with pytest.raises(Overloaded, match="2 requests are waiting already"):
            await _take(turns, "c")
        waiting[0].cancel()
        await _settled()

    await waiting[1]
    async with asyncio.timeout(5):
        await _take(turns, "d")


async def _take(turns: RequestSlots, tenant: str) -> None:
    async with turns.slot(tenant):
        pass


async def _settled() -> None:
    """Everybody who can go on has done so."""
    for _ in range(3):
        reached = asyncio.Event()
        asyncio.get_running_loop().call_soon(reached.set)
        await reached.wait()
