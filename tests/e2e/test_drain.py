"""A runner that is asked to leave, and what it says and does not say while it works."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from deltaci.runner.agent import WAIT_SECONDS
from tests.e2e.deployment import LONG_TTL_SECONDS, deployed, on_loop
from tests.e2e.pipes import Pipe


@on_loop
async def test_a_runner_that_is_asked_to_leave_finishes_what_it_has_and_takes_nothing_new(tmp_path: Path) -> None:
    """Its job ends as if nothing had been asked; the next one is for others."""
    with Pipe(tmp_path / "tell") as tell, Pipe(tmp_path / "hear") as hear:
        async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
            way = await place.way()
            runner = place.start_runner("r1", "--slots", "2", way=way)
            id = await place.enqueue(f"echo $$ $DELTACI_JOB_MARK > {tell}; read -r word < {hear}; seq 1 1000")
            _, mark = await tell.hear()
            waiting = await way.until("lease", 2, is_answered=False)

            runner.terminate()
            await waiting.gone.wait()
            next_one = await place.enqueue("true")
            await way.next("Heartbeat", 2)
            hear.say("go on")
            record = await place.settled(id, mark)

            assert record.state == "SUCCEEDED"
            assert place.numbers(id, 1) == list(range(1, 1001))
            assert await place.ended(runner) == 0
            assert len(way.came("lease")) == 2
            assert (await place.queue.get(next_one)).status == "queued"


@on_loop
async def test_a_runner_that_only_waits_leaves_at_once(tmp_path: Path) -> None:
    """Nobody waits for the end of a long poll."""
    async with deployed(tmp_path) as place:
        way = await place.way()
        runner = place.start_runner("r1", way=way)
        await way.until("lease", is_answered=False)
        began = time.monotonic()

        runner.terminate()

        assert await place.ended(runner) == 0
        assert time.monotonic() - began < WAIT_SECONDS / 2


@pytest.mark.proves("PRO-C3", "PRO-Q8", "PRO-X2")
@on_loop
async def test_a_runner_beats_while_it_works_and_is_silent_after(tmp_path: Path) -> None:
    """At the interval that it was given, until its completion is answered; and the lease is nobody else's to see."""
    with Pipe(tmp_path / "tell") as tell, Pipe(tmp_path / "hear") as hear:
        async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
            way = await place.way()
            place.start_runner("r1", way=way)
            seen = "env; cat /proc/$PPID/cmdline /proc/$PPID/environ | tr '\\0' '\\n'"
            step = f"echo > {tell}; read -r word < {hear}; {seen}"
            first = await place.enqueue(step)
            await tell.hear()
            beats = [(await way.until("Heartbeat", count)).said_at for count in (1, 2, 3, 4)]
            hear.say("go on")
            record = await place.settled(first)
            second = await place.enqueue(step)
            await tell.hear()
            await way.next("Heartbeat", 2)
            hear.say("go on")
            await place.settled(second)

            (lease_id,) = way.came("AckLease")[0].lease_ids
            done_at = way.came("Complete")[0].answered_at
            assert done_at is not None
            assert beats[-1] - beats[0] > 1.5  # Three intervals of a second, by another process's clock.
            assert beats[-1] - beats[0] < LONG_TTL_SECONDS
            # One that was on its way already is none; the second job waits for two later ones.
            late = [beat for beat in way.came("Heartbeat") if lease_id in beat.lease_ids and beat.said_at > done_at + 1]
            assert not late
            shown = [place.log_of(record), *(path.read_text() for path in tmp_path.glob("*.log"))]
            assert not [text for text in shown if lease_id in text]
