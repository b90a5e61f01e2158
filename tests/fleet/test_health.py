"""Health checks: a silent worker is unresponsive, recovers with its next message, or is shut down."""

from __future__ import annotations

import asyncio

import pytest

from deltaci.core import attempt, worker
from deltaci.core.attempt import Attempt
from deltaci.core.lease import TTL_SECONDS, Lease
from deltaci.core.listing import ALL_TENANTS, PRESENT_WORKERS, WORKERS
from deltaci.core.worker import BUSY, IDLE, SHUTDOWN, UNRESPONSIVE
from deltaci.fleet.health import HEALTH_SECONDS, MAX_MISSED_CHECKS, MAX_SILENT_SECONDS
from deltaci.storage.port import ListQuery
from tests.contract.backends import Backend, on_loop
from tests.fleet.site import FleetSite, OpenFleet
from tests.support.lab import TENANT

SILENT_SECONDS = MAX_MISSED_CHECKS * HEALTH_SECONDS


def live_lease(record: Attempt) -> Lease:
    """Return the attempt's live lease, which must exist."""
    assert record.lease is not None
    return record.lease


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


@pytest.mark.proves("WST-KG4", "WST-KA4", "WST-K4", "WST-KS4", "MOD-12")
@on_loop
async def test_a_busy_worker_that_misses_checks_is_unresponsive_and_keeps_its_lease(fleet: OpenFleet) -> None:
    """Not one check too early. Its attempt is marked with the end of the lease, which was the last heartbeat's."""
    async with fleet() as here:
        runner = await here.runner("w1")
        id = await here.plan()
        lease = await runner.take()
        await lease.send("Heartbeat")
        expires_at = live_lease(await here.attempt()).expires_at
        await here.check()

        await here.pass_silently(SILENT_SECONDS - HEALTH_SECONDS)
        assert await here.state() == BUSY
        await here.pass_silently(HEALTH_SECONDS)

        assert await here.state() == UNRESPONSIVE
        [missed] = [event for event in await here.events("w1") if event.trigger == "health_check_timeout"]
        assert (missed.severity, missed.metadata["attempts"]) == ("error", [id])
        [mark] = [event for event in await here.events(id) if event.trigger == "marked_for_reassignment"]
        assert (mark.from_, mark.to, mark.severity, mark.at) == ("RUNNING", "RUNNING", "warning", missed.at)
        assert mark.metadata == {"reassign_at": expires_at, "worker_id": "w1"}
        assert live_lease(await here.attempt()).expires_at == expires_at


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


@pytest.mark.proves("MOD-12", "WST-KG5", "WST-KA5", "WST-KI2", "PRO-Q5", "WST-K5")
@pytest.mark.parametrize("backend", ["sqlite", "postgres"], indirect=True)
@on_loop
async def test_a_heartbeat_within_the_ttl_renews_the_lease_and_recovers_its_worker(fleet: OpenFleet) -> None:
    """In one transaction, so that no reader sees a live lease of a worker that is unresponsive or idle."""
    async with fleet() as here:
        runner = await here.runner("w1")
        id = await here.plan()
        lease = await runner.take()
        await lease.send("Heartbeat")
        await here.pass_silently(TTL_SECONDS - HEALTH_SECONDS)
        await here.server.tick()
        assert (await here.state(), live_lease(await here.attempt()).state) == (UNRESPONSIVE, "ACTIVE")

        reply = await lease.send("Heartbeat")

        assert reply.body["extend_lease"] is True
        assert TTL_SECONDS - 1 <= reply.body["new_lease_ttl_seconds"] <= TTL_SECONDS
        recovered, resumed, renewed = (await here.server.log())[-3:]
        assert [event.to for event in (recovered, resumed)] == [IDLE, BUSY]
        assert (recovered.from_, recovered.trigger, recovered.actor) == (
            UNRESPONSIVE,
            "health_check_recovered",
            "worker:w1",
        )
        assert (renewed.entity_id, renewed.trigger) == (id, "heartbeat")
        assert recovered.at == resumed.at == renewed.at == (await here.attempt()).updated_at
        await here.check()
        assert (await here.worker()).tasks == (id,)
        assert (await lease.send("Complete")).body["accepted"] is True
        assert await here.state() == IDLE


@pytest.mark.proves("MOD-12", "ORC-A7", "MOD-5")
@pytest.mark.parametrize("backend", ["sqlite", "postgres"], indirect=True)
@on_loop
async def test_a_silent_workers_job_goes_to_another_worker_when_its_lease_ends(fleet: OpenFleet) -> None:
    """The lease counts as lost. The late heartbeat is stale, but shows that the worker answers again."""
    async with fleet() as here:
        silent, other = await here.runner("w1"), await here.runner("w2")
        await here.plan()
        lease = await silent.take()
        await lease.send("Heartbeat")
        await here.pass_silently(TTL_SECONDS - HEALTH_SECONDS)
        await here.server.tick()
        assert await other.lease() == []

        await here.pass_silently(2 * HEALTH_SECONDS)
        await here.server.tick()
        await here.receive_events()

        lost = await here.attempt()
        assert (lost.state, lost.lost_leases, lost.ended_lease and lost.ended_lease.state) == ("QUEUED", 1, "EXPIRED")
        assert (await here.state(), (await here.worker()).tasks) == (UNRESPONSIVE, ())
        assert len(await other.lease()) == 1
        late = await lease.send("Heartbeat")
        assert (late.body["type"], late.body["reason"]) == ("StaleLease", "LEASE_EXPIRED")
        assert await here.state() == IDLE


@pytest.mark.proves("MOD-12", "WST-KI2")
@pytest.mark.parametrize("message", ["AckLease", "Complete"])
@on_loop
async def test_any_message_under_a_live_lease_recovers_its_worker(fleet: OpenFleet, message: str) -> None:
    """The runner shows with each of them that it holds the lease."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await here.plan()
        lease = await runner.take()
        await lease.send("AckLease")
        await here.pass_silently(SILENT_SECONDS + HEALTH_SECONDS)
        assert await here.state() == UNRESPONSIVE

        assert (await lease.send(message)).status == 200

        triggers = [trigger for trigger, _ in await here.steps()]
        [index] = [index for index, trigger in enumerate(triggers) if trigger == "health_check_recovered"]
        assert triggers[index:] == ["health_check_recovered", "task_assigned"] + ["task_completed"] * (
            message == "Complete"
        )


@pytest.mark.proves("MOD-12", "WST-KG5")
@on_loop
async def test_a_worker_with_several_leases_recovers_with_the_first_message(fleet: OpenFleet) -> None:
    """The other leases keep their ends until a message renews them, and each of them ends on its own."""
    async with fleet() as here:
        runner = await here.runner("w1", slots=2)
        for run_id in ("r1", "r2"):
            await here.plan(run_id)
        leases = [await runner.take(), await runner.take()]
        for lease in leases:
            await lease.send("Heartbeat")
        await here.pass_silently(TTL_SECONDS - HEALTH_SECONDS)

        await leases[0].send("Heartbeat")
        await here.pass_silently(2 * HEALTH_SECONDS)
        await here.server.tick()

        assert [await here.server.state(f"{run_id}/a.1") for run_id in ("r1", "r2")] == ["RUNNING", "QUEUED"]
        assert (await here.worker()).tasks == ("r1/a.1",)
        assert await here.state() == BUSY


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


@pytest.mark.proves("MOD-12", "WST-K6")
@on_loop
async def test_a_silent_worker_is_not_shut_down_before_its_lease_has_ended(fleet: OpenFleet) -> None:
    """Neither by a health check, however long it is silent, nor by an operator."""
    ttl_seconds = 3 * MAX_SILENT_SECONDS
    async with fleet(ttl_seconds=ttl_seconds) as here:
        runner = await here.runner("w1")
        await here.plan()
        await (await runner.take()).send("Heartbeat")
        await here.pass_silently(ttl_seconds - HEALTH_SECONDS)
        await here.server.tick()
        assert (await here.state(), (await here.attempt()).state) == (UNRESPONSIVE, "RUNNING")
        removal = await here.server.refused(worker.GiveUp(id="w1"))
        assert "r1/a.1" in removal.message

        await here.pass_silently(2 * HEALTH_SECONDS)
        await here.server.tick()
        await here.pass_silently(HEALTH_SECONDS)

        assert (await here.state(), (await here.attempt()).state) == (SHUTDOWN, "QUEUED")


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
        while not here.fleet.heartbeats._open_requests_by_worker:
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
