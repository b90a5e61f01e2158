"""A cancel that races with the end of its job, and jobs that do not want to end: one outcome, and nobody left."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import msgspec
import pytest

from deltaci.core.errors import Refused
from deltaci.runner.sandbox import process_tree
from deltaci.runner.sandbox.process_tree import MARKER_VARIABLE, JobHandle
from tests.e2e.deployment import LONG_TTL_SECONDS, Deployment, deployed, is_alive, on_loop
from tests.e2e.pipes import Death
from tests.e2e.proxy import Held
from tests.runner.cells import needs
from tests.runner.sandbox.leftovers import COUNT, DAEMONS, LEFTOVERS, READY

RACES = 24
SLOTS = 6
TIMEOUT_SECONDS = 12  # Long enough to be seen before it is over, however busy the machine is.


@pytest.mark.proves("PRO-U1", "PRO-K4", "PRO-M6")
@on_loop
async def test_a_cancel_that_comes_before_the_completion_wins(tmp_path: Path) -> None:
    """The result is on its way when the cancel is asked for: it comes too late, and is told why."""
    async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
        way = await place.way()
        place.start_runner("r1", way=way)
        held = way.on("Complete", Held("request"))
        id = await place.enqueue(f"echo mark=${MARKER_VARIABLE}; seq 1 1000")
        await held.came.wait()

        await place.queue.cancel(id)
        answer = way.on("Complete", Held("answer"))
        held.go()
        record = await place.settled(id)
        answer.go()

        assert (record.state, record.claims) == ("CANCELED", 1)
        assert place.numbers(id, 1) == list(range(1, 1001))
        assert process_tree.members(JobHandle(marker=mark_in(place.log_of(record)))) == []
        assert msgspec.json.decode(held.body)["status"] == "SUCCEEDED"


@pytest.mark.proves("PRO-U1")
@on_loop
async def test_a_cancel_that_comes_after_the_completion_is_refused(tmp_path: Path) -> None:
    """The server has the result, the runner does not know it yet: what is done is done."""
    async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
        way = await place.way()
        place.start_runner("r1", way=way)
        held = way.on("Complete", Held("answer"))
        id = await place.enqueue("seq 1 1000")
        await held.came.wait()

        with pytest.raises(Refused):
            await place.queue.cancel(id)
        held.drop()
        record = await place.settled(id)

        assert (record.state, record.claims) == ("SUCCEEDED", 1)
        assert place.numbers(id, 1) == list(range(1, 1001))


async def raced(place: Deployment, id: str, told: Path, seconds: float) -> str:
    """Cancel this job so many seconds from now, whatever it does then, and see what is left when it is over."""
    over = asyncio.create_task(place.outcome(id))
    await asyncio.wait({over}, timeout=seconds)
    try:
        await place.cancel(id, deadline_seconds=30)
    except Refused:
        assert (await place.queue.get(id)).status == "succeeded"
    record = await over
    # The end is known: from now on nothing of it may run, whatever is still to be said about it.
    started = told.read_text().split() if told.exists() else []
    assert not [pid for pid in started if is_alive(int(pid))], f"{record.state}, but it runs"
    return record.state


@pytest.mark.proves("PRO-K4", "PRO-C6")
@on_loop
async def test_real_races_have_one_end_each(tmp_path: Path) -> None:
    """Many jobs, each canceled at a moment of its own: before, while and after it runs."""
    chance = random.Random(20260104)
    async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
        place.start_runner("r1", "--slots", str(SLOTS))
        await place.settled(await place.enqueue("true"))
        pids = [tmp_path / f"pids-{number}" for number in range(RACES)]
        steps = [f"sleep 1000 & echo $$ $! > {path}; sleep {chance.uniform(0, 1):.2f}" for path in pids]
        ids = [await place.enqueue(step) for step in steps]

        ends = await asyncio.gather(
            *(raced(place, id, path, chance.uniform(0, 5)) for id, path in zip(ids, pids, strict=True))
        )

        assert set(ends) <= {"SUCCEEDED", "CANCELED"}
        assert len(set(ends)) == 2, ends
        for id in ids:
            await place.settled(id)


def mark_in(log: str) -> str:
    """The mark that a job told in its log."""
    return next(line.removeprefix("mark=") for line in log.splitlines() if line.startswith("mark="))


@pytest.mark.proves("PRO-Q9", "PRO-C6")
@pytest.mark.parametrize("executor", ["process", "sandbox"])
def test_whoever_a_job_leaves_behind_ends_with_it(tmp_path: Path, executor: str) -> None:
    """Daemons and the deaf, of a job that ends by itself, of one that is canceled and of one that takes too long."""
    needs(executor)

    @on_loop
    async def story() -> None:
        async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
            way = await place.way()
            place.start_runner("r1", "--slots", "3", way=way)
            say = f"echo mark=${MARKER_VARIABLE}\n"
            # It waits for one word more from the pipe in its workspace, which a sandbox has too.
            ended = await place.enqueue(f"{say}{DAEMONS}read -r word <&9", executor=executor)
            canceled = await place.enqueue(f"{say}{LEFTOVERS}", executor=executor)
            late = {"run": f"{say}{LEFTOVERS}", "timeout_seconds": TIMEOUT_SECONDS}
            timed_out = await place.enqueue(late, executor=executor)
            deaths: list[Death] = []
            for id in (timed_out, ended, canceled):
                log = await place.until_logged(id, READY.decode(), way)
                found = process_tree.members(JobHandle(marker=mark_in(log)))
                assert len(found) > COUNT
                deaths += [Death(pid) for pid in found]
            for path in (tmp_path / "r1").glob("job-*/workspace/ready"):
                with os.fdopen(os.open(path, os.O_RDWR | os.O_NONBLOCK), "wb", buffering=0) as pipe:
                    pipe.write(b"go\n")
            await place.cancel(canceled, deadline_seconds=12)

            records = [await place.settled(id) for id in (ended, canceled, timed_out)]

            assert [record.state for record in records] == ["SUCCEEDED", "CANCELED", "FAILED"]
            assert records[1].ended_lease is not None
            assert records[1].ended_lease.state == "CANCELED"
            assert records[2].error is not None
            assert "too long" in records[2].error.message
            for record in records:
                assert process_tree.members(JobHandle(marker=mark_in(place.log_of(record)))) == []
            for death in deaths:
                await death()

    story()
