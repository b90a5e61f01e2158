"""Leaving, being drained, and being sent away: nothing new, what is under way to its end, and gone at once after it."""

from __future__ import annotations

import asyncio
import json

import pytest

from deltaci.core import attempt, worker
from deltaci.core.worker import BUSY, IDLE, QUARANTINED, SHUTDOWN
from tests.contract.places import on_loop
from tests.fleet.site import OpenFleet
from tests.lab import TENANT
from tests.server.site import Reply, Runner

LOST = "RUNNER_STARTUP"  # Of the runner's own trouble, and not of its job's.


async def leave(runner: Runner, id: str = "") -> Reply:
    """Say that it leaves."""
    return await runner.ask("POST", "leave", json.dumps({"type": "Leave", "runner_id": id or runner.id}).encode())


@on_loop
async def test_nobody_says_goodbye_for_another(fleet: OpenFleet) -> None:
    """Only who may speak for it; and a message that is none is refused."""
    async with fleet() as here:
        runner, other = await here.runner("w1"), await here.runner("w2")

        assert (await here.refused(lambda: leave(other, "w1"))).code == "wrong_runner"
        assert (await here.refused(lambda: runner.ask("POST", "leave", b"{}"))).code == "bad_message"
        assert (await here.refused(lambda: here.ask("POST", "leave", b"{}"))).code == "bad_credential"
        namesake = Runner(here, "w1", here.signer.sign("run", "w1", "another", 900))
        here.secrets.add(namesake.credential)
        assert (await leave(namesake)).body == {"gone": True}  # It has no record there: nothing happens.
        assert await here.state() == IDLE


@pytest.mark.proves("WST-K7")
@on_loop
async def test_an_idle_one_that_leaves_is_gone_at_once(fleet: OpenFleet) -> None:
    """By its own word, and as often as it says it; and comes back in a new life."""
    async with fleet() as here:
        runner = await here.runner("w1")

        assert [(await leave(runner)).body for _ in range(2)] == [{"gone": True}] * 2
        await here.hear()

        [last] = [each for each in await here.events("w1") if each.to == SHUTDOWN]
        assert (last.actor, last.severity, last.metadata["reason"]) == ("worker:w1", "info", "LEFT")
        assert here.fleet.eligible_workers(TENANT)[1] == ()
        assert (await runner.ask("POST", "renew")).body["runner_id"] == "w1/2"


@pytest.mark.proves("WST-K8", "WST-KI3")
@on_loop
async def test_a_busy_one_finishes_its_task_first(fleet: OpenFleet) -> None:
    """It gets nothing new meanwhile, though it has room; with its last task it is gone."""
    async with fleet() as here:
        runner = await here.runner("w1", slots=2)
        await here.plan()
        held = await runner.take()
        await held.say("AckLease")
        await here.plan("r2")

        assert (await leave(runner)).body == {"gone": False}
        await here.hear()
        assert await runner.lease() == []
        assert await here.state() == BUSY
        assert (await held.say("Complete")).body["accepted"] is True
        await here.hear()

        assert await here.state() == SHUTDOWN
        reply = await runner.ask("POST", "lease", b'{"type": "Lease", "runner_id": "w1"}')
        assert (reply.code, "LEFT" in reply.message) == ("shut_down", True)


@on_loop
async def test_one_that_was_found_silent_can_still_say_goodbye(fleet: OpenFleet) -> None:
    """By speaking it has recovered; then it goes."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await here.plan()
        await runner.take()
        await here.server.do(worker.MissHealthChecks(id="w1"))
        await here.hear()

        assert (await leave(runner)).body == {"gone": True}


@on_loop
async def test_one_that_was_found_silent_elsewhere_recovers_wherever_it_asks(fleet: OpenFleet) -> None:
    """Also at a server that has not heard of it yet."""
    async with fleet() as here, fleet() as beside:
        runner = await here.runner("w1")
        await here.plan()
        await runner.take()
        await here.server.do(worker.MissHealthChecks(id="w1"))
        await here.server.enqueue("plain", spec={"steps": ["true"]})

        assert [each.job_id for each in await beside.known(runner).lease()] == ["plain"]
        assert await here.state() == IDLE


@on_loop
async def test_a_drained_one_gets_nothing_and_is_given_work_at_once_when_it_is_resumed(fleet: OpenFleet) -> None:
    """It may go on asking; whoever waits is answered when the word is said."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await here.server.do(worker.Drain(id="w1", reason="new disk", actor="user:ada"))
        await here.hear()
        await here.plan()
        await here.server.enqueue("plain", spec={"steps": ["true"]})

        assert await runner.lease(slots=2) == []
        waiting = asyncio.create_task(runner.lease(slots=2, wait_seconds=60))
        while not here.fleet._change_waiters:
            await asyncio.wait({waiting}, timeout=0.001)
        await here.server.do(worker.Resume(id="w1", actor="user:ada"))
        assert not waiting.done()
        await here.hear()

        assert {each.job_id for each in await waiting} == {"r1/a", "plain"}
        words = [each for each in await here.steps() if each[0] in ("drained", "resumed")]
        assert words == [("drained", "info"), ("resumed", "info")]


@on_loop
async def test_one_that_is_drained_while_it_waits_leaves_the_line(fleet: OpenFleet) -> None:
    """What comes then is for others, also of the plain queue; and one that is removed is told so at once."""
    async with fleet() as here:
        runner, other = await here.runner("w1"), await here.runner("w2")
        asked = json.dumps({"type": "Lease", "runner_id": "w1", "wait_seconds": 60}).encode()
        waiting = asyncio.create_task(runner.ask("POST", "lease", asked))
        lines = here.protocol._line._groups
        while not any(line.waiting for line in lines.values()):
            await asyncio.wait({waiting}, timeout=0.001)
        await here.server.do(worker.Drain(id="w1", reason="", actor="user:ada"))
        await here.hear()
        while lines:
            await asyncio.wait({waiting}, timeout=0.001)
        await here.server.enqueue("plain", spec={"steps": ["true"]})
        assert [each.job_id for each in await other.lease(wait_seconds=60)] == ["plain"]
        assert not waiting.done()

        await here.server.do(worker.Shutdown(id="w1", reason=worker.REMOVED, actor="user:ada"))
        await here.hear()

        assert (await waiting).code == "shut_down"


@on_loop
async def test_a_server_that_ends_lets_nobody_wait(fleet: OpenFleet) -> None:
    """Also not those who are held back."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await here.server.do(worker.Drain(id="w1", reason="", actor="user:ada"))
        await here.hear()
        waiting = asyncio.create_task(runner.lease(wait_seconds=600))
        while not here.fleet._change_waiters:
            await asyncio.wait({waiting}, timeout=0.001)

        here.fleet.stop_waiting()

        assert await waiting == []


@on_loop
async def test_what_a_worker_lost_is_anothers_while_there_is_one_and_else_its_own(fleet: OpenFleet) -> None:
    """Also while the other one is full; but not when that is held back, silent, or lacks what the job needs."""
    async with fleet() as here:
        bad, good = await here.runner("w1", capabilities=["gpu"]), await here.runner("w2", capabilities=["gpu"])
        await here.runner("w3")
        await here.plan("r1", queue_key="gpu", base_delay_seconds=0)
        held = await bad.take(capabilities=["gpu"])
        await held.say("AckLease")
        await held.say("Complete", status="FAILED", exit_code=None, error_code=LOST)
        here.place.after(600)
        await here.server.tick()
        await here.check()
        for each in ("w1", "w2", "w3"):
            here.fleet.heartbeats.record(TENANT, each)
        await here.check()
        assert await here.server.state("r1/a.2") == attempt.QUEUED

        assert await bad.lease(capabilities=["gpu"]) == []
        await here.server.do(worker.Drain(id="w2", reason="", actor="user:ada"))
        await here.hear()
        assert len(await bad.lease(capabilities=["gpu"])) == 1
        assert await good.lease(capabilities=["gpu"]) == []


@pytest.mark.proves("WST-KH3")
@on_loop
async def test_one_that_loses_three_jobs_in_a_row_is_quarantined_and_asks_in_vain(fleet: OpenFleet) -> None:
    """Until somebody resumes it."""
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
            await runner.ask("POST", "messages", json.dumps(body).encode())
        await here.hear()

        assert (await here.worker()).hold == QUARANTINED
        assert ("quarantined", "warning") in await here.steps()
        assert await runner.lease() == []
        await here.server.do(worker.Resume(id="w1", actor="user:ada"))
        await here.hear()

        assert len(await runner.lease()) == 1
