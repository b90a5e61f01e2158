"""Every message twice, and one lease for two runners: one outcome, every byte once, nothing executed twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.deployment import LONG_TTL_SECONDS, assert_ran_once, deployed, on_loop
from tests.e2e.pipes import Pipe
from tests.e2e.proxy import Act, Exchange, Held, Proxy, answering, at_once, cut_after, cut_before, twice

# Not `lease`: whoever is asked twice for work may give twice, and one of the two is never heard of.
KINDS = ("AckLease", "Heartbeat", "Complete", "CancelAck", "log", "log-size", "renew")
EVERY = 1_000_000


def on_every(way: Proxy, act: Act, times: int = EVERY) -> None:
    """The same fault for each of them."""
    for kind in KINDS:
        way.on(kind, act, times)


@pytest.mark.proves("PRO-K3", "PRO-C5", "PRO-F3")
@pytest.mark.parametrize("act", [twice, at_once, cut_before, cut_after])
def test_every_message_comes_twice_or_must_be_said_again(tmp_path: Path, act: Act) -> None:
    """In order or at the same time, because of the network or because its answer was lost: it counts once."""

    @on_loop
    async def story() -> None:
        with Pipe(tmp_path / "tell") as tell, Pipe(tmp_path / "hear") as hear:
            async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
                way = await place.way()
                on_every(way, act, EVERY if act in (twice, at_once) else 2)
                place.start_runner("r1", way=way)
                waits = f"echo $$ $DELTACI_JOB_MARK > {tell}; read -r word < {hear}"
                whole = await place.enqueue(f"{waits}; echo ran >> {tmp_path}/runs; seq 1 50000")
                _, mark = await tell.hear()
                await way.next("Heartbeat", 3 if act in (cut_before, cut_after) else 1)
                hear.say("go on")
                done = await place.settled(whole, mark)
                stopped = await place.enqueue(waits)
                _, other = await tell.hear()
                await place.queue.cancel(stopped)
                gone = await place.settled(stopped, other)

                assert (done.state, done.claims) == ("SUCCEEDED", 1)
                assert (gone.state, gone.claims) == ("CANCELED", 1)
                assert gone.ended_lease is not None
                assert gone.ended_lease.state == "CANCELED"
                assert place.numbers(whole, 1) == list(range(1, 50001))
                assert_ran_once(tmp_path / "runs")

    story()


@pytest.mark.parametrize("act", [twice, at_once])
def test_a_request_for_work_that_comes_twice_takes_two_jobs_but_runs_each_once(tmp_path: Path, act: Act) -> None:
    """One of the two leases is never heard of: its job comes back when nobody acknowledged it."""

    @on_loop
    async def story() -> None:
        async with deployed(tmp_path) as place:
            way = await place.way()
            way.on("lease", act)
            ids = [await place.enqueue(f"echo {name} >> {tmp_path}/runs") for name in ("one", "two")]
            place.start_runner("r1", way=way)

            records = [await place.settled(id) for id in ids]

            assert [record.state for record in records] == ["SUCCEEDED"] * 2
            assert sorted(record.lost_leases for record in records) == [0, 1]
            assert sorted((tmp_path / "runs").read_text().split()) == ["one", "two"]

    story()


@pytest.mark.proves("PRO-X3")
@pytest.mark.parametrize("act", [twice, at_once, cut_after])
def test_a_registration_that_comes_twice_makes_one_runner(tmp_path: Path, act: Act) -> None:
    """A token is good once; but a runner whose answer was lost says the same again, and is known."""

    @on_loop
    async def story() -> None:
        async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
            way = await place.way()
            way.on("register", act)
            place.start_runner("r1", way=way)

            record = await place.settled(await place.enqueue("true"))

            assert record.state == "SUCCEEDED"

    story()


@pytest.mark.proves("PRO-F3", "PRO-H1", "PRO-X1")
@on_loop
async def test_a_lease_that_is_given_to_a_second_runner_is_not_its_own(tmp_path: Path) -> None:
    """The very same LeaseGranted, replayed to another: it may not execute what was not granted to it."""
    with Pipe(tmp_path / "tell") as tell, Pipe(tmp_path / "hear") as hear:
        async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
            way, other = await place.way(), await place.way()
            granted: list[bytes] = []

            async def overheard(exchange: Exchange) -> bytes:
                granted.append(await exchange.forward())
                return granted[0]

            way.on("lease", overheard)
            place.start_runner("r1", way=way)
            id = await place.enqueue(f"echo ran >> {tmp_path}/runs; echo $$ $$ > {tell}; read -r word < {hear}")
            await tell.hear()
            other.on("lease", answering(granted[0]))
            refused = other.on("AckLease", Held("answer"))
            place.start_runner("r2", way=other)
            await refused.came.wait()
            refused.go()
            await other.until("lease", 2, is_answered=False)  # It has given up what it was never given.
            hear.say("go on")
            record = await place.settled(id)

            assert (record.state, record.claims) == ("SUCCEEDED", 1)
            assert record.ended_lease is not None
            assert record.ended_lease.worker_id == "r1"
            assert_ran_once(tmp_path / "runs")
            assert not other.came("Complete")
            assert not other.came("log")
