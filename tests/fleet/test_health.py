"""Health checks: who is silent loses its tasks, who speaks has recovered, who stays silent is gone."""

from __future__ import annotations

import asyncio

import pytest

from deltaci.core import attempt
from deltaci.core.listing import ALL_TENANTS, PRESENT_WORKERS, WORKERS
from deltaci.core.worker import BUSY, IDLE, SHUTDOWN, UNRESPONSIVE
from deltaci.fleet.health import HEALTH_SECONDS, MAX_MISSED_CHECKS, MAX_SILENT_SECONDS
from deltaci.storage.port import ListQuery
from tests.contract.places import Place, on_loop
from tests.fleet.site import FleetSite, OpenFleet
from tests.lab import TENANT

SILENT_SECONDS = MAX_MISSED_CHECKS * HEALTH_SECONDS


@pytest.mark.proves("WST-KA1")
@on_loop
async def test_who_registers_is_in_the_pool_and_its_health_is_watched(fleet: OpenFleet) -> None:
    """From the first moment: also one that never says anything else is missed."""
    async with fleet() as here:
        await here.runner("w1")
        await here.check()

        for tenant, list in ((TENANT, WORKERS), (ALL_TENANTS, PRESENT_WORKERS)):
            page = await here.server.store.page(ListQuery(tenant=tenant, lists=[list], limit=9))
            assert [each.id for each in page.records] == ["w1"]
        assert await here.steps() == [("registered", "info"), ("registration_complete", "info")]
        assert here.fleet.eligible_workers(TENANT)[1] == ("w1",)
        await here.quiet(SILENT_SECONDS)
        assert here.fleet.eligible_workers(TENANT)[1] == ()


@pytest.mark.proves("WST-KG4", "WST-KA4", "WST-K4")
@on_loop
async def test_a_busy_worker_that_misses_checks_is_unresponsive_and_its_tasks_are_anothers(fleet: OpenFleet) -> None:
    """Not one check too early; and long before its lease would have run out."""
    async with fleet() as here:
        runner = await here.runner("w1")
        id = await here.plan()
        held = await runner.take()
        await held.say("AckLease")
        await here.check()

        await here.quiet(SILENT_SECONDS - HEALTH_SECONDS)
        assert await here.state() == BUSY
        await here.quiet(HEALTH_SECONDS)

        assert await here.state() == UNRESPONSIVE
        [missed] = [each for each in await here.events("w1") if each.trigger == "health_check_timeout"]
        assert (missed.severity, missed.metadata["attempts"]) == ("error", [id])
        assert await here.server.state(id) == attempt.QUEUED
        assert (await held.say("Heartbeat")).body["type"] == "StaleLease"


@pytest.mark.proves("WST-KG4")
@on_loop
async def test_whoever_says_anything_in_between_has_missed_nothing(fleet: OpenFleet) -> None:
    """N in a row; a heartbeat, a renewal, a request for work, anything will do."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await here.plan()
        held = await runner.take()
        await held.say("AckLease")

        for _ in range(3):
            await here.quiet(SILENT_SECONDS - HEALTH_SECONDS)
            assert (await held.say("Heartbeat")).status == 200
            await here.quiet(SILENT_SECONDS - HEALTH_SECONDS)
            assert (await runner.ask("POST", "renew")).status == 200

        assert await here.state() == BUSY
        assert "health_check_timeout" not in dict(await here.steps())


@pytest.mark.proves("WST-KG5", "WST-KA5", "WST-KI2")
@on_loop
async def test_one_that_speaks_again_has_recovered_before_what_it_says_is_decided(fleet: OpenFleet) -> None:
    """So that no message is ever one of a worker that is unresponsive; and the job may be its own again."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await here.plan()
        held = await runner.take()
        await held.say("AckLease")
        await here.quiet(SILENT_SECONDS + HEALTH_SECONDS)
        assert await here.state() == UNRESPONSIVE

        reply = await held.say("Heartbeat")
        assert reply.body["type"] == "StaleLease"
        assert await here.state() == IDLE
        here.place.after(120)
        await here.server.tick()
        await here.hear()
        [granted] = await runner.lease()

        assert granted.job_id == "r1/a"
        words = [word for word, _ in await here.steps()]
        assert words[-3:] == ["task_completed", "health_check_recovered", "task_assigned"]


@on_loop
async def test_one_that_asks_for_work_has_recovered_too(fleet: OpenFleet) -> None:
    """It may have been restarted and know of nothing."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await here.plan()
        await runner.take()
        await here.quiet(SILENT_SECONDS + HEALTH_SECONDS)

        await runner.lease()

        assert await here.state() in (IDLE, BUSY)
        assert ("health_check_recovered", "info") in await here.steps()


@pytest.mark.proves("WST-K6")
@on_loop
async def test_one_that_stays_silent_is_given_up_when_its_leases_ended(fleet: OpenFleet) -> None:
    """A lease that is being cancelled lasts until its deadline; before that, nobody may say that it is free."""
    async with fleet() as here:
        runner = await here.runner("w1")
        id = await here.plan()
        held = await runner.take()
        await held.say("AckLease")
        far = 10 * MAX_SILENT_SECONDS
        await here.server.do(attempt.Cancel(id=id, reason="ENOUGH", deadline_seconds=far))
        await here.quiet(MAX_SILENT_SECONDS + 2 * HEALTH_SECONDS)
        assert await here.state() == UNRESPONSIVE

        here.place.after(far)
        await here.server.tick()
        await here.quiet(MAX_SILENT_SECONDS + 2 * HEALTH_SECONDS)

        assert await here.state() == SHUTDOWN
        last = (await here.events("w1"))[-1]
        assert (last.trigger, last.metadata["reason"]) == ("max_timeout_exceeded", "MAX_TIMEOUT_EXCEEDED")


@pytest.mark.proves("WST-K7")
@on_loop
async def test_an_idle_one_is_presumed_gone_after_the_maximum_and_not_before(fleet: OpenFleet) -> None:
    """It has nothing that somebody else could have; but nobody counts on it any more."""
    async with fleet() as here:
        await here.runner("w1")
        await here.check()
        await here.quiet(MAX_SILENT_SECONDS - 5 * HEALTH_SECONDS)
        assert await here.state() == IDLE

        await here.quiet(6 * HEALTH_SECONDS)

        assert (await here.worker()).shutdown_reason == "PRESUMED_GONE"
        assert (await here.steps())[-1] == ("shutdown_requested", "info")


@on_loop
async def test_a_connection_that_stands_is_being_heard(fleet: OpenFleet) -> None:
    """Whoever waits for work says nothing for as long as it waits."""
    async with fleet() as here:
        runner = await here.runner("w1")
        gone = asyncio.Event()
        body = b'{"type": "Lease", "runner_id": "w1", "wait_seconds": 600}'
        asked = asyncio.create_task(
            here.ask("POST", "lease", body, headers=[("Authorization", f"Bearer {runner.credential}")], gone=gone)
        )
        while not here.fleet.heartbeats._open_requests:
            await asyncio.wait({asked}, timeout=0.001)

        await here.quiet(MAX_SILENT_SECONDS + SILENT_SECONDS)
        assert await here.state() == IDLE
        gone.set()
        assert (await asked).body == {"leases": []}
        await here.quiet(MAX_SILENT_SECONDS + HEALTH_SECONDS)

        assert await here.state() == SHUTDOWN


# -- servers that come, stand still, and stand side by side


@on_loop
async def test_a_server_that_just_started_judges_nobody_before_a_whole_grace(fleet: OpenFleet) -> None:
    """Everybody was silent while there was nobody to speak to."""
    async with fleet() as first:
        runner = await first.runner("w1")
        await first.plan()
        await runner.take()
    async with fleet() as here:
        here.place.after(2 * MAX_SILENT_SECONDS)
        await here.fleet.load()
        await here.quiet(SILENT_SECONDS - HEALTH_SECONDS / 2)
        assert await here.state() == BUSY

        await here.quiet(HEALTH_SECONDS)
        assert await here.state() == UNRESPONSIVE


@pytest.mark.parametrize("seconds", [2 * MAX_SILENT_SECONDS, -MAX_SILENT_SECONDS])
@on_loop
async def test_a_server_that_stood_still_or_whose_clock_jumped_begins_anew(fleet: OpenFleet, seconds: int) -> None:
    """A machine that slept heard nobody, and that is not their fault."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await here.plan()
        await runner.take()
        await here.check()

        here.place.after(seconds)
        await here.check()
        await here.quiet(SILENT_SECONDS - HEALTH_SECONDS / 2)
        assert await here.state() == BUSY

        await here.quiet(HEALTH_SECONDS)
        assert await here.state() == UNRESPONSIVE


@on_loop
async def test_who_is_heard_by_one_server_is_judged_by_none(fleet: OpenFleet) -> None:
    """Each tells the others; and who is heard by nobody any more is found silent once, whoever says it first."""
    async with fleet() as here, fleet() as beside:
        runner = beside.known(await here.runner("w1"))
        await here.plan()
        held = await runner.take()
        await held.say("AckLease")
        for _ in range(5):
            await here.quiet(SILENT_SECONDS - HEALTH_SECONDS, beside)
            assert (await held.say("Heartbeat")).status == 200
        assert await here.state() == BUSY

        await here.quiet(SILENT_SECONDS + HEALTH_SECONDS, beside)

        words = [word for word, _ in await here.steps()]
        assert words.count("health_check_timeout") == 1
        here.place.after(120)
        await here.server.tick()
        await here.hear()
        assert len(await here.known(runner).lease()) == 1  # The other one found it silent, perhaps; it recovers here.


@on_loop
async def test_silence_is_written_by_nobody(fleet: OpenFleet) -> None:
    """What a server tells the others it tells only while somebody speaks; and what dead ones left is dropped."""
    async with fleet() as here, fleet() as beside:
        await here.runner("w1")
        await here.check(beside)
        [document] = await here.server.store.list_documents("heard", ALL_TENANTS)

        await here.quiet(MAX_SILENT_SECONDS / 2, beside)
        assert await here.server.store.list_documents("heard", ALL_TENANTS) == [document]
        await beside.quiet(2 * MAX_SILENT_SECONDS)

        assert await here.server.store.list_documents("heard", ALL_TENANTS) == []


async def judged(here: FleetSite, *beside: FleetSite) -> None:
    """All of them judge at the same time."""
    await asyncio.gather(*(each.fleet.check_health() for each in (here, *beside)))


@on_loop
async def test_two_servers_that_judge_at_once_give_one_order(fleet: OpenFleet, place: Place) -> None:
    """The second is refused, or finds that there is nothing to do."""
    async with fleet() as here, fleet() as beside:
        runners = [await here.runner(f"w{number}") for number in range(5)]
        for number, each in enumerate(runners):
            await here.plan(f"r{number}")
            await each.take()
        await here.check(beside)
        await here.quiet(SILENT_SECONDS - HEALTH_SECONDS / 2, beside)
        place.after(HEALTH_SECONDS / 2)

        await judged(here, beside)

        for each in runners:
            words = [word for word, _ in await here.steps(each.id)]
            assert words.count("health_check_timeout") == 1
