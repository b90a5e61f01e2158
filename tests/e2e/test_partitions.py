"""A network that fails in one direction, in both, or slowly: a runner stops its job before another may have it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.cable import Cable
from deltaci.core.instants import SECOND
from tests.e2e.deployment import LONG_TTL_SECONDS, Deployment, deployed, is_alive, on_loop
from tests.e2e.pipes import Death, Pipe, first_time
from tests.e2e.proxy import Proxy

NUMBERS = list(range(1, 1001))

Record = Callable[[str, object], None]


def lose_requests(way: Proxy) -> None:
    """From the runner to the server."""
    way.requests.clear()


def lose_answers(way: Proxy) -> None:
    """From the server to the runner: heartbeats arrive, and renew the lease, but the runner cannot know."""
    way.answers.clear()


def lose_both(way: Proxy) -> None:
    """Everything."""
    way.requests.clear()
    way.answers.clear()


def drip(way: Proxy) -> None:
    """Every answer comes byte by byte, so slowly that no read times out and no answer is ever whole."""
    way.drips = True


def heal(way: Proxy) -> None:
    """All that is still on its way arrives, late."""
    way.drips = False
    way.requests.set()
    way.answers.set()


async def seconds_between(place: Deployment, id: str, death: Death) -> float:
    """From the end of the first one's process to the second one's lease; less than nothing if they overlapped."""
    second = await place.until(id, lambda event: event.metadata.get("claims") == 2)
    return second.at / SECOND - await death()


def shown(between: float, what: str) -> str:
    """The figure: for how long two runners had the job."""
    return f"overlap of two runners, {what}: {max(0.0, -between):.3f} s; stopped {between:.2f} s before"


@pytest.mark.proves("PRO-F2", "PRO-K1", "PRO-H1", "MOD-L7")
@pytest.mark.parametrize("fail", [lose_requests, lose_answers, lose_both, drip])
def test_a_runner_that_is_cut_off_stops_before_another_begins(
    tmp_path: Path, fail: Callable[[Proxy], None], record_property: Record
) -> None:
    """Whatever it cannot say or hear: without an answer there is no lease. What arrives late changes nothing."""

    @on_loop
    async def story() -> None:
        with Pipe(tmp_path / "tell") as tell:
            async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
                way = await place.way()
                runner = place.start_runner("r1", way=way)
                id = await place.enqueue(first_time(tmp_path, tell))
                pid, mark = await tell.hear()
                death = Death(int(pid))
                await place.until_logged(id, f"\n{NUMBERS[-1]}\n", way)
                await way.next("Heartbeat")

                fail(way)
                place.start_runner("r2")
                between = await seconds_between(place, id, death)
                heal(way)
                record = await place.settled(id, mark)

                assert between >= 0, f"overlap of {-between:.3f} s"
                assert (record.state, record.claims, record.lost_leases) == ("SUCCEEDED", 2, 1)
                assert place.numbers(id, 1) == NUMBERS
                assert runner.poll() is None  # It lives, and works on when it is heard again.
                await way.until("lease", 2, is_answered=False)
                record_property("figure", shown(between, fail.__name__))

    story()


@pytest.mark.proves("PRO-F2", "PRO-K1")
@pytest.mark.parametrize("what", ["nothing passes", "answers lost"])
def test_a_real_network_that_fails(tmp_path: Path, what: str, record_property: Record) -> None:
    """Server and runner in networks of their own, on a cable that is cut, or that carries in one direction only."""
    if reason := Cable.unavailable_reason():
        pytest.skip(reason)

    @on_loop
    async def story() -> None:
        with Cable() as cable, Pipe(tmp_path / "tell") as tell:
            host, under = cable.server.address, cable.server.inside
            async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS, host=host, under=under) as place:
                place.start_runner("r1", under=cable.runner.inside)
                id = await place.enqueue(first_time(tmp_path, tell))
                pid, mark = await tell.hear()
                death = Death(int(pid))
                await place.until(id, lambda event: event.to == "RUNNING")

                cable.to_runner.is_cut = True
                cable.to_server.is_cut = what == "nothing passes"
                place.start_runner("r2", under=cable.server.inside)
                between = await seconds_between(place, id, death)
                record = await place.settled(id, mark)

                assert between >= 0, f"overlap of {-between:.3f} s"
                assert (record.state, record.claims, record.lost_leases) == ("SUCCEEDED", 2, 1)
                assert not is_alive(int(pid))
                cable.repair()  # Whoever has something to say at its end is heard.
                record_property("figure", shown(between, what))

    story()


@pytest.mark.proves("PRO-F2")
@on_loop
async def test_a_short_failure_costs_nothing(tmp_path: Path) -> None:
    """Shorter than the lease: the job goes on, and everything that it says arrives once."""
    with Pipe(tmp_path / "tell") as tell, Pipe(tmp_path / "hear") as hear:
        async with deployed(tmp_path, ttl_seconds=30) as place:
            way = await place.way()
            place.start_runner("r1", way=way)
            id = await place.enqueue(first_time(tmp_path, tell, then=f"read -r word < {hear}; seq 1001 2000"))
            _, mark = await tell.hear()

            lose_both(way)
            hear.say("go on")
            await way.next("log", is_answered=False)
            heal(way)
            record = await place.settled(id, mark)

            assert (record.state, record.claims) == ("SUCCEEDED", 1)
            assert place.numbers(id, 1) == list(range(1, 2001))
