"""A server that is killed at every message: what it had heard stands, what it had not is said again, nothing twice."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Literal

import pytest

from tests.e2e.deployment import LONG_TTL_SECONDS, Deployment, assert_ran_once, deployed, on_loop
from tests.e2e.pipes import Pipe
from tests.e2e.proxy import Held, Proxy

KINDS = ("AckLease", "Heartbeat", "log", "Complete", "CancelAck")
NUMBERS = list(range(1, 1001))

When = Literal["request", "answer"]


async def crash_at(place: Deployment, way: Proxy, tell: Pipe, hear: Pipe, kind: str, when: When) -> None:
    """One job whose server is killed at this message, before it has it or before its answer is heard."""
    folder = place.folder / f"{kind}-{when}"
    held = way.on(kind, Held(when))
    step = f"echo ran >> {folder}; seq 1 1000; echo $$ $DELTACI_JOB_MARK > {tell}; read -r word < {hear}"
    id = await place.enqueue(step)
    marks = []
    if kind in ("Complete", "CancelAck"):
        marks = (await tell.hear())[1:]
        if kind == "Complete":
            hear.say("go on")
        else:
            await place.queue.cancel(id)
    await held.came.wait()

    place.kill_server()
    held.drop()
    place.start_server()
    if not marks:
        marks = (await tell.hear())[1:]
        hear.say("go on")
    record = await place.settled(id, *marks)

    assert record.state == ("CANCELED" if kind == "CancelAck" else "SUCCEEDED")
    assert (record.claims, record.lost_leases) == (1, 0)
    assert record.ended_lease is not None
    assert record.ended_lease.state == ("CANCELED" if kind == "CancelAck" else "COMPLETED")
    assert place.numbers(id, 1) == NUMBERS
    assert_ran_once(folder)


@pytest.mark.proves("PRO-F4", "PRO-C5")
@pytest.mark.parametrize("when", ["request", "answer"])
def test_a_server_that_is_killed_at_each_message(tmp_path: Path, when: When) -> None:
    """Before it had the message, and after it had kept it but before anybody knew."""

    @on_loop
    async def story() -> None:
        with Pipe(tmp_path / "tell") as tell, Pipe(tmp_path / "hear") as hear:
            async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
                way = await place.way()
                place.start_runner("r1", way=way)
                for kind in KINDS:
                    await crash_at(place, way, tell, hear, kind, when)

    story()


@pytest.mark.proves("PRO-F4", "PRO-Q4", "PRO-K3")
@on_loop
async def test_a_server_that_is_killed_while_it_grants(tmp_path: Path) -> None:
    """The lease is kept, and nobody knows of it: it runs out, and the job is granted again."""
    async with deployed(tmp_path) as place:
        way = await place.way()
        held = way.on("lease", Held("answer"))
        id = await place.enqueue(f"echo ran >> {tmp_path}/runs")
        place.start_runner("r1", way=way)
        await held.came.wait()

        place.kill_server()
        held.drop()
        place.start_server()
        record = await place.settled(id)

        assert (record.state, record.claims, record.lost_leases) == ("SUCCEEDED", 2, 1)
        assert_ran_once(tmp_path / "runs")


@pytest.mark.proves("PRO-F4")
@on_loop
async def test_a_server_that_is_asked_to_stop_lets_nobody_wait(tmp_path: Path) -> None:
    """Whoever waits for work is answered, the runner stays, and is there when the server is back."""
    async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
        way = await place.way()
        place.start_runner("r1", way=way)
        await way.until("lease", is_answered=False)

        place.server.send_signal(signal.SIGTERM)
        assert await place.ended(place.server) == 0
        place.start_server()

        assert (await place.settled(await place.enqueue("true"))).state == "SUCCEEDED"


@pytest.mark.parametrize("kind", ["AckLease", "Complete"])
def test_one_of_two_servers_is_killed(tmp_path: Path, postgres_dsn: str, kind: str) -> None:
    """The other one has all that was committed: the runner says it there again, and hears that it stands."""

    @on_loop
    async def story() -> None:
        async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS, store=postgres_dsn, servers=2) as place:
            way = await place.way()
            held = way.on(kind, Held("answer"))
            place.start_runner("r1", way=way)
            id = await place.enqueue(f"echo ran >> {tmp_path}/runs; seq 1 1000")
            await held.came.wait()

            place.kill_server(0)
            held.drop()
            record = await place.settled(id)

            assert (record.state, record.claims, record.lost_leases) == ("SUCCEEDED", 1, 0)
            assert place.numbers(id, 1) == NUMBERS
            assert_ran_once(tmp_path / "runs")

    story()
