"""Workers that leave, are drained or removed: no new work, running tasks to their end, and then shutdown at once."""

from __future__ import annotations

import asyncio
import json

import pytest

from deltaci.core import attempt, worker
from deltaci.core.worker import BUSY, IDLE, QUARANTINED, SHUTDOWN
from tests.contract.backends import on_loop
from tests.fleet.site import OpenFleet
from tests.server.site import RegisteredRunner, Reply
from tests.support.lab import TENANT

LOST = "RUNNER_STARTUP"  # A failure of the runner, not of its job.


async def leave(runner: RegisteredRunner, id: str = "") -> Reply:
    """Send the message `Leave`."""
    return await runner.request("POST", "leave", json.dumps({"type": "Leave", "runner_id": id or runner.id}).encode())


@on_loop
async def test_a_runner_cannot_leave_for_another_one(fleet: OpenFleet) -> None:
    """The credential must be for that runner; an incomplete message is refused, too."""
    async with fleet() as here:
        runner, other = await here.runner("w1"), await here.runner("w2")

        assert (await here.refused(lambda: leave(other, "w1"))).code == "wrong_runner"
        assert (await here.refused(lambda: runner.request("POST", "leave", b"{}"))).code == "bad_message"
        assert (await here.refused(lambda: here.request("POST", "leave", b"{}"))).code == "bad_credential"
        namesake = RegisteredRunner(here, "w1", here.signer.sign("run", "w1", "another", 900))
        here.secrets.add(namesake.credential)
        assert (await leave(namesake)).body == {"gone": True}  # It has no record in its tenant, so nothing changes.
        assert await here.state() == IDLE


@pytest.mark.proves("WST-K7")
@on_loop
async def test_an_idle_worker_that_leaves_is_shut_down_at_once(fleet: OpenFleet) -> None:
    """The message may be repeated. The worker comes back as a new incarnation."""
    async with fleet() as here:
        runner = await here.runner("w1")

        assert [(await leave(runner)).body for _ in range(2)] == [{"gone": True}] * 2
        await here.receive_events()

        [last] = [event for event in await here.events("w1") if event.to == SHUTDOWN]
        assert (last.actor, last.severity, last.metadata["reason"]) == ("worker:w1", "info", "LEFT")
        assert here.fleet.eligible_workers(TENANT)[1] == ()
        assert (await runner.request("POST", "renew")).body["runner_id"] == "w1/2"


@pytest.mark.proves("WST-K8", "WST-KI3")
@on_loop
async def test_a_busy_worker_that_leaves_finishes_its_task_first(fleet: OpenFleet) -> None:
    """It gets no new work although it has free slots, and is shut down with the end of its last task."""
    async with fleet() as here:
        runner = await here.runner("w1", slots=2)
        await here.plan()
        lease = await runner.take()
        await lease.send("AckLease")
        await here.plan("r2")

        assert (await leave(runner)).body == {"gone": False}
        await here.receive_events()
        assert await runner.lease() == []
        assert await here.state() == BUSY
        assert (await lease.send("Complete")).body["accepted"] is True
        await here.receive_events()

        assert await here.state() == SHUTDOWN
        reply = await runner.request("POST", "lease", b'{"type": "Lease", "runner_id": "w1"}')
        assert (reply.code, "LEFT" in reply.message) == ("shut_down", True)


@on_loop
async def test_an_unresponsive_worker_can_leave(fleet: OpenFleet) -> None:
    """Its message lets it recover first. As any busy worker, it is shut down after its last lease."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await here.plan()
        lease = await runner.take()
        await here.server.do(worker.MissHealthChecks(id="w1"))
        await here.receive_events()

        assert (await leave(runner)).body == {"gone": False}
        assert (await lease.send("Complete")).body["accepted"] is True
        assert await here.state() == SHUTDOWN


@on_loop
async def test_an_unresponsive_worker_recovers_at_any_server(fleet: OpenFleet) -> None:
    """Also at a server that has not received the event yet."""
    async with fleet() as here, fleet() as beside:
        runner = await here.runner("w1")
        await here.plan()
        await runner.take()
        await here.server.do(worker.MissHealthChecks(id="w1"))
        await here.server.enqueue("plain", spec={"steps": ["true"]})

        assert [lease.job_id for lease in await beside.connected(runner).lease()] == ["plain"]
        assert await here.state() == BUSY


@on_loop
async def test_a_drained_worker_gets_no_work_until_it_is_resumed(fleet: OpenFleet) -> None:
    """A request that waits is answered as soon as the worker is resumed."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await here.server.do(worker.Drain(id="w1", reason="new disk", actor="user:ada"))
        await here.receive_events()
        await here.plan()
        await here.server.enqueue("plain", spec={"steps": ["true"]})

        assert await runner.lease(slots=2) == []
        waiting = asyncio.create_task(runner.lease(slots=2, wait_seconds=60))
        while not here.fleet._change_waiters:
            await asyncio.wait({waiting}, timeout=0.001)
        await here.server.do(worker.Resume(id="w1", actor="user:ada"))
        assert not waiting.done()
        await here.receive_events()

        assert {lease.job_id for lease in await waiting} == {"r1/a", "plain"}
        steps = [step for step in await here.steps() if step[0] in ("drained", "resumed")]
        assert steps == [("drained", "info"), ("resumed", "info")]


@on_loop
async def test_draining_a_waiting_worker_ends_its_claim(fleet: OpenFleet) -> None:
    """Later jobs go to others, also those of the plain queue. Removing the worker answers its request at once."""
    async with fleet() as here:
        runner, other = await here.runner("w1"), await here.runner("w2")
        request = json.dumps({"type": "Lease", "runner_id": "w1", "wait_seconds": 60}).encode()
        waiting = asyncio.create_task(runner.request("POST", "lease", request))
        groups = here.message_handlers._waiters._group_by_key
        while not any(group.waiting for group in groups.values()):
            await asyncio.wait({waiting}, timeout=0.001)
        await here.server.do(worker.Drain(id="w1", reason="", actor="user:ada"))
        await here.receive_events()
        while groups:
            await asyncio.wait({waiting}, timeout=0.001)
        await here.server.enqueue("plain", spec={"steps": ["true"]})
        assert [lease.job_id for lease in await other.lease(wait_seconds=60)] == ["plain"]
        assert not waiting.done()

        await here.server.do(worker.Shutdown(id="w1", reason=worker.REMOVED, actor="user:ada"))
        await here.receive_events()

        assert (await waiting).code == "shut_down"


@on_loop
async def test_a_stopping_server_answers_waiting_workers(fleet: OpenFleet) -> None:
    """Also those on hold."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await here.server.do(worker.Drain(id="w1", reason="", actor="user:ada"))
        await here.receive_events()
        waiting = asyncio.create_task(runner.lease(wait_seconds=600))
        while not here.fleet._change_waiters:
            await asyncio.wait({waiting}, timeout=0.001)

        here.fleet.stop_waiting()

        assert await waiting == []


@pytest.mark.proves("WST-KH5")
@on_loop
async def test_a_lost_job_goes_to_another_worker_if_there_is_an_eligible_one(fleet: OpenFleet) -> None:
    """Also if that one is busy, but not if it is on hold, silent, or lacks a required label."""
    async with fleet() as here:
        bad, good = await here.runner("w1", capabilities=["gpu"]), await here.runner("w2", capabilities=["gpu"])
        await here.runner("w3")
        await here.plan("r1", queue_key="gpu", base_delay_seconds=0)
        lease = await bad.take(capabilities=["gpu"])
        await lease.send("AckLease")
        await lease.send("Complete", status="FAILED", exit_code=None, error_code=LOST)
        here.backend.after(600)
        await here.server.tick()
        await here.check()
        for id in ("w1", "w2", "w3"):
            here.fleet.heartbeats.record(TENANT, id)
        await here.check()
        assert await here.server.state("r1/a.2") == attempt.QUEUED

        assert await bad.lease(capabilities=["gpu"]) == []
        await here.server.do(worker.Drain(id="w2", reason="", actor="user:ada"))
        await here.receive_events()
        assert len(await bad.lease(capabilities=["gpu"])) == 1
        assert await good.lease(capabilities=["gpu"]) == []


@pytest.mark.proves("WST-KH3")
@on_loop
async def test_a_worker_that_loses_three_jobs_in_a_row_is_quarantined(fleet: OpenFleet) -> None:
    """It gets no work until a person resumes it."""
    async with fleet() as here:
        runner = await here.runner("w1")
        for number in range(4):
            await here.plan(f"r{number}")
        for _ in range(3):
            [granted] = await runner.lease()
            body = {
                **{"type": "Complete", "lease_id": granted.lease_id, "runner_id": "w1", "status": "FAILED"},
                **{"exit_code": None, "error_code": LOST},
            }
            await runner.request("POST", "messages", json.dumps(body).encode())
        await here.receive_events()

        assert (await here.worker()).hold == QUARANTINED
        assert ("quarantined", "warning") in await here.steps()
        assert await runner.lease() == []
        await here.server.do(worker.Resume(id="w1", actor="user:ada"))
        await here.receive_events()

        assert len(await runner.lease()) == 1
