"""Health checks: a silent worker loses its tasks, recovers with its next message, or is shut down."""

from __future__ import annotations

import asyncio

import pytest

from deltaci.core import attempt
from deltaci.core.listing import ALL_TENANTS, PRESENT_WORKERS, WORKERS
from deltaci.core.worker import BUSY, IDLE, SHUTDOWN, UNRESPONSIVE
from deltaci.fleet.health import HEALTH_SECONDS, MAX_MISSED_CHECKS, MAX_SILENT_SECONDS
from deltaci.storage.port import ListQuery
from tests.contract.backends import Backend, on_loop
from tests.fleet.site import FleetSite, OpenFleet
from tests.support.lab import TENANT

SILENT_SECONDS = MAX_MISSED_CHECKS * HEALTH_SECONDS


@pytest.mark.proves("WST-KA1")
@on_loop
async def test_a_registered_worker_is_in_the_pool_and_its_health_is_checked(fleet: OpenFleet) -> None:
    """From its registration on: a worker that never sends anything else misses checks, too."""
    async with fleet() as here:
        await here.runner("w1")
        await here.check()

        for tenant, list in ((TENANT, WORKERS), (ALL_TENANTS, PRESENT_WORKERS)):
            page = await here.server.store.page(ListQuery(tenant=tenant, lists=[list], limit=9))
            assert [record.id for record in page.records] == ["w1"]
        assert await here.steps() == [("registered", "info"), ("registration_complete", "info")]
        assert here.fleet.eligible_workers(TENANT)[1] == ("w1",)
        await here.pass_silently(SILENT_SECONDS)
        assert here.fleet.eligible_workers(TENANT)[1] == ()


@pytest.mark.proves("WST-KG4", "WST-KA4", "WST-K4")
@on_loop
async def test_a_busy_worker_that_misses_checks_is_unresponsive_and_loses_its_tasks(fleet: OpenFleet) -> None:
    """Not one check too early, and long before its lease would have expired."""
    async with fleet() as here:
        runner = await here.runner("w1")
        id = await here.plan()
        lease = await runner.take()
        await lease.send("AckLease")
        await here.check()

        await here.pass_silently(SILENT_SECONDS - HEALTH_SECONDS)
        assert await here.state() == BUSY
        await here.pass_silently(HEALTH_SECONDS)

        assert await here.state() == UNRESPONSIVE
        [missed] = [event for event in await here.events("w1") if event.trigger == "health_check_timeout"]
        assert (missed.severity, missed.metadata["attempts"]) == ("error", [id])
        assert await here.server.state(id) == attempt.QUEUED
        assert (await lease.send("Heartbeat")).body["type"] == "StaleLease"


@pytest.mark.proves("WST-KG4")
@on_loop
async def test_any_message_resets_the_count_of_missed_checks(fleet: OpenFleet) -> None:
    """The checks must be missed in a row. A heartbeat counts, and so does a renewal."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await here.plan()
        lease = await runner.take()
        await lease.send("AckLease")

        for _ in range(3):
            await here.pass_silently(SILENT_SECONDS - HEALTH_SECONDS)
            assert (await lease.send("Heartbeat")).status == 200
            await here.pass_silently(SILENT_SECONDS - HEALTH_SECONDS)
            assert (await runner.request("POST", "renew")).status == 200

        assert await here.state() == BUSY
        assert "health_check_timeout" not in dict(await here.steps())


@pytest.mark.proves("WST-KG5", "WST-KA5", "WST-KI2")
@on_loop
async def test_an_unresponsive_worker_recovers_before_its_message_is_processed(fleet: OpenFleet) -> None:
    """So no message comes from an unresponsive worker; and it may claim its former job again."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await here.plan()
        lease = await runner.take()
        await lease.send("AckLease")
        await here.pass_silently(SILENT_SECONDS + HEALTH_SECONDS)
        assert await here.state() == UNRESPONSIVE

        reply = await lease.send("Heartbeat")
        assert reply.body["type"] == "StaleLease"
        assert await here.state() == IDLE
        here.backend.after(120)
        await here.server.tick()
        await here.receive_events()
        [granted] = await runner.lease()

        assert granted.job_id == "r1/a"
        triggers = [trigger for trigger, _ in await here.steps()]
        assert triggers[-3:] == ["task_completed", "health_check_recovered", "task_assigned"]


@on_loop
async def test_a_request_for_work_lets_a_worker_recover_too(fleet: OpenFleet) -> None:
    """It may have been restarted and have forgotten its lease."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await here.plan()
        await runner.take()
        await here.pass_silently(SILENT_SECONDS + HEALTH_SECONDS)

        await runner.lease()

        assert await here.state() in (IDLE, BUSY)
        assert ("health_check_recovered", "info") in await here.steps()


@pytest.mark.proves("WST-K6")
@on_loop
async def test_a_worker_that_stays_silent_is_given_up_after_its_leases_ended(fleet: OpenFleet) -> None:
    """A lease that is being cancelled lasts until its deadline, and until then the worker is not free."""
    async with fleet() as here:
        runner = await here.runner("w1")
        id = await here.plan()
        lease = await runner.take()
        await lease.send("AckLease")
        far = 10 * MAX_SILENT_SECONDS
        await here.server.do(attempt.Cancel(id=id, reason="ENOUGH", deadline_seconds=far))
        await here.pass_silently(MAX_SILENT_SECONDS + 2 * HEALTH_SECONDS)
        assert await here.state() == UNRESPONSIVE

        here.backend.after(far)
        await here.server.tick()
        await here.pass_silently(MAX_SILENT_SECONDS + 2 * HEALTH_SECONDS)

        assert await here.state() == SHUTDOWN
        last = (await here.events("w1"))[-1]
        assert (last.trigger, last.metadata["reason"]) == ("max_timeout_exceeded", "MAX_TIMEOUT_EXCEEDED")


@pytest.mark.proves("WST-K7")
@on_loop
async def test_an_idle_worker_is_presumed_gone_after_the_maximum_and_not_before(fleet: OpenFleet) -> None:
    """It has no task to lose, so it does not become unresponsive before."""
    async with fleet() as here:
        await here.runner("w1")
        await here.check()
        await here.pass_silently(MAX_SILENT_SECONDS - 5 * HEALTH_SECONDS)
        assert await here.state() == IDLE

        await here.pass_silently(6 * HEALTH_SECONDS)

        assert (await here.worker()).shutdown_reason == "PRESUMED_GONE"
        assert (await here.steps())[-1] == ("shutdown_requested", "info")


@on_loop
async def test_an_open_request_counts_as_a_sign_of_life(fleet: OpenFleet) -> None:
    """A worker that waits for work sends nothing meanwhile."""
    async with fleet() as here:
        runner = await here.runner("w1")
        disconnected = asyncio.Event()
        body = b'{"type": "Lease", "runner_id": "w1", "wait_seconds": 600}'
        request = asyncio.create_task(
            here.request(
                "POST",
                "lease",
                body,
                headers=[("Authorization", f"Bearer {runner.credential}")],
                disconnected_event=disconnected,
            )
        )
        while not here.fleet.heartbeats._open_requests:
            await asyncio.wait({request}, timeout=0.001)

        await here.pass_silently(MAX_SILENT_SECONDS + SILENT_SECONDS)
        assert await here.state() == IDLE
        disconnected.set()
        assert (await request).body == {"leases": []}
        await here.pass_silently(MAX_SILENT_SECONDS + HEALTH_SECONDS)

        assert await here.state() == SHUTDOWN


# -- servers that start, are suspended, and run side by side


@on_loop
async def test_a_new_server_waits_for_the_whole_limit_before_it_acts(fleet: OpenFleet) -> None:
    """All workers were silent while there was no server to send to."""
    async with fleet() as first:
        runner = await first.runner("w1")
        await first.plan()
        await runner.take()
    async with fleet() as here:
        here.backend.after(2 * MAX_SILENT_SECONDS)
        await here.fleet.load()
        await here.pass_silently(SILENT_SECONDS - HEALTH_SECONDS / 2)
        assert await here.state() == BUSY

        await here.pass_silently(HEALTH_SECONDS)
        assert await here.state() == UNRESPONSIVE


@pytest.mark.parametrize("seconds", [2 * MAX_SILENT_SECONDS, -MAX_SILENT_SECONDS])
@on_loop
async def test_a_suspended_server_or_a_clock_jump_restarts_the_measurement(fleet: OpenFleet, seconds: int) -> None:
    """A suspended machine received no messages, which proves nothing about the workers."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await here.plan()
        await runner.take()
        await here.check()

        here.backend.after(seconds)
        await here.check()
        await here.pass_silently(SILENT_SECONDS - HEALTH_SECONDS / 2)
        assert await here.state() == BUSY

        await here.pass_silently(HEALTH_SECONDS)
        assert await here.state() == UNRESPONSIVE


@on_loop
async def test_a_worker_seen_by_one_server_is_alive_for_all(fleet: OpenFleet) -> None:
    """A worker that no server sees any more becomes unresponsive once, whichever server is first."""
    async with fleet() as here, fleet() as beside:
        runner = beside.connected(await here.runner("w1"))
        await here.plan()
        lease = await runner.take()
        await lease.send("AckLease")
        for _ in range(5):
            await here.pass_silently(SILENT_SECONDS - HEALTH_SECONDS, beside)
            assert (await lease.send("Heartbeat")).status == 200
        assert await here.state() == BUSY

        await here.pass_silently(SILENT_SECONDS + HEALTH_SECONDS, beside)

        triggers = [trigger for trigger, _ in await here.steps()]
        assert triggers.count("health_check_timeout") == 1
        here.backend.after(120)
        await here.server.tick()
        await here.receive_events()
        assert len(await here.connected(runner).lease()) == 1  # Perhaps the other server marked it; it recovers here.


@on_loop
async def test_silence_causes_no_writes(fleet: OpenFleet) -> None:
    """A server writes its document only while workers send, and the documents of ended servers are deleted."""
    async with fleet() as here, fleet() as beside:
        await here.runner("w1")
        await here.check(beside)
        [document] = await here.server.store.list_documents("heard", ALL_TENANTS)

        await here.pass_silently(MAX_SILENT_SECONDS / 2, beside)
        assert await here.server.store.list_documents("heard", ALL_TENANTS) == [document]
        await beside.pass_silently(2 * MAX_SILENT_SECONDS)

        assert await here.server.store.list_documents("heard", ALL_TENANTS) == []


async def check_concurrently(*sites: FleetSite) -> None:
    """Run the health checks of all servers at the same time."""
    await asyncio.gather(*(site.fleet.check_health() for site in sites))


@on_loop
async def test_concurrent_checks_of_two_servers_take_effect_once(fleet: OpenFleet, backend: Backend) -> None:
    """The second command is refused or changes nothing."""
    async with fleet() as here, fleet() as beside:
        runners = [await here.runner(f"w{number}") for number in range(5)]
        for number, runner in enumerate(runners):
            await here.plan(f"r{number}")
            await runner.take()
        await here.check(beside)
        await here.pass_silently(SILENT_SECONDS - HEALTH_SECONDS / 2, beside)
        backend.after(HEALTH_SECONDS / 2)

        await check_concurrently(here, beside)

        for runner in runners:
            triggers = [trigger for trigger, _ in await here.steps(runner.id)]
            assert triggers.count("health_check_timeout") == 1
