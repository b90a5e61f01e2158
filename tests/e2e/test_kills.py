"""A runner that is killed in each state of its job. What is promised of the log: every byte that the runner had read.

The runner keeps what it reads on its disk before it sends it. When it is killed, its keeper ends the job and sends the
rest, while the lease stands. Bytes that the job wrote and the runner had not read, at most one pipe full (64 KiB), and
those that the mask holds back because a secret may begin with them, are gone with the runner.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from deltaci.core.attempt import Attempt
from deltaci.runner.sandbox import process_tree
from deltaci.runner.sandbox.process_tree import JobHandle
from tests.e2e.deployment import (
    LONG_TTL_SECONDS,
    TTL_SECONDS,
    Deployment,
    assert_ran_once,
    deployed,
    is_alive,
    on_loop,
)
from tests.e2e.pipes import Death, Pipe, first_time, keeper_of
from tests.e2e.proxy import Held, Proxy

NUMBERS = list(range(1, 1001))


class Scene:
    """One deployment with one runner, behind a way of its own, and pipes to its job."""

    def __init__(self, place: Deployment, way: Proxy, tell: Pipe, hear: Pipe) -> None:
        self.place = place
        self.way = way
        self.tell = tell
        self.hear = hear
        self.runner = place.start_runner("r1", way=way)
        self.pids: list[int] = []
        self.marks: list[str] = []

    @property
    def step(self) -> str:
        """A step that waits for ever when it is run for the first time."""
        return first_time(self.place.folder, self.tell)

    async def met(self) -> None:
        """Hear from the job who it is."""
        pid, mark = await self.tell.hear()
        self.pids.append(int(pid))
        self.marks.append(mark)

    async def kill(self) -> None:
        """SIGKILL the runner, and wait until its keeper has done what it can."""
        keeper = Death(keeper_of(self.runner.pid))
        self.runner.kill()
        self.runner.wait()
        await keeper()

    async def done_by_another(self, id: str) -> Attempt:
        """A second runner finishes what the first one could not."""
        self.place.start_runner("r2")
        record = await self.place.settled(id)
        assert record.state == "SUCCEEDED"
        assert (record.claims, record.lost_leases) == (2, 1)
        assert record.ended_lease is not None
        assert record.ended_lease.worker_id == "r2"
        assert not [pid for pid in self.pids if is_alive(pid)]
        return record

    def assert_nobody_is_left(self) -> None:
        """Neither of the job nor of what was around it."""
        assert not [mark for mark in self.marks if process_tree.members(JobHandle(marker=mark))]


def scene(
    ttl_seconds: int = TTL_SECONDS,
) -> Callable[[Callable[[Scene], Awaitable[None]]], Callable[[Path], None]]:
    """A test that is told as what happens in a scene."""

    def decorate(story: Callable[[Scene], Awaitable[None]]) -> Callable[[Path], None]:
        async def test(tmp_path: Path) -> None:
            with Pipe(tmp_path / "tell") as tell, Pipe(tmp_path / "hear") as hear:
                async with deployed(tmp_path, ttl_seconds=ttl_seconds) as place:
                    await story(Scene(place, await place.way(), tell, hear))

        test.__name__, test.__doc__ = story.__name__, story.__doc__
        return on_loop(test)

    return decorate


@pytest.mark.proves("PRO-F1", "PRO-C1", "PRO-H1")
@pytest.mark.parametrize("what", ["request", "answer"])
def test_before_its_acknowledgement_is_answered(tmp_path: Path, what: str) -> None:
    """Granted, but not acknowledged, or not known to be: nothing was begun, so nothing runs twice."""

    @scene()
    async def story(this: Scene) -> None:
        held = this.way.on("AckLease", Held("request" if what == "request" else "answer"))
        id = await this.place.enqueue(f"echo ran >> {this.place.folder}/runs")
        await held.came.wait()

        await this.kill()
        held.drop()
        await this.done_by_another(id)

        assert_ran_once(this.place.folder / "runs")
        assert this.place.logs.read(id, 1) == b""

    story(tmp_path)


@scene()
async def test_while_a_step_runs(this: Scene) -> None:
    """The job ends with its runner, and all that the runner had read of it is in the log of its lease."""
    # The way to the log is closed: the runner has everything, the server has nothing.
    held = this.way.on("log", Held("request"), times=1)
    id = await this.place.enqueue(this.step)
    await held.came.wait()
    await this.met()

    await this.kill()
    assert this.place.numbers(id, 1) == NUMBERS
    held.go()
    await this.done_by_another(id)

    this.assert_nobody_is_left()
    assert this.place.numbers(id, 1) == NUMBERS


@scene()
async def test_between_two_steps(this: Scene) -> None:
    """One step is over, the runner does not know it yet, and the next one never begins under this lease."""
    id = await this.place.enqueue(
        first_time(this.place.folder, this.tell, then=f"read -r word < {this.hear}"),
        f"echo ran >> {this.place.folder}/runs",
    )
    await this.met()
    step = Death(this.pids[0])

    this.runner.send_signal(signal.SIGSTOP)
    this.hear.say("go on")
    await step()
    await this.kill()
    await this.done_by_another(id)

    this.assert_nobody_is_left()
    assert this.place.numbers(id, 1) == NUMBERS
    assert_ran_once(this.place.folder / "runs")


@pytest.mark.proves("PRO-U1")
@pytest.mark.parametrize("what", ["request", "answer"])
def test_after_its_last_step(tmp_path: Path, what: str) -> None:
    """What the server did not hear is done again; what it heard is done, whether the runner knows that or not."""

    @scene()
    async def story(this: Scene) -> None:
        held = this.way.on("Complete", Held("request" if what == "request" else "answer"))
        id = await this.place.enqueue("seq 1 1000")
        await held.came.wait()

        await this.kill()
        held.drop()
        if what == "request":
            await this.done_by_another(id)
        else:
            record = await this.place.settled(id)
            assert (record.state, record.claims) == ("SUCCEEDED", 1)

        assert this.place.numbers(id, 1) == NUMBERS

    story(tmp_path)


@scene()
async def test_while_it_stops_a_job_that_was_canceled(this: Scene) -> None:
    """Canceled it is, by the end of the lease and not by the runner's word; and nothing of it runs."""
    last_words = f"trap 'seq 1001 1010; echo stopping > {this.tell}; read -r word < {this.hear}' TERM"
    wait = "tail -f /dev/null & wait $!; tail -f /dev/null"
    # Whoever says that it is there must be ready to be told to stop.
    id = await this.place.enqueue(first_time(this.place.folder, this.tell, before=last_words, then=wait))
    await this.met()
    await this.place.queue.cancel(id)
    assert await this.tell.hear() == ["stopping"]

    await this.kill()
    record = await this.place.settled(id, *this.marks)

    assert record.state == "CANCELED"
    assert record.ended_lease is not None
    assert record.ended_lease.state == "EXPIRED"
    assert this.place.numbers(id, 1)[:1000] == NUMBERS
    assert not is_alive(this.pids[0])


@scene()
async def test_the_keeper_alone(this: Scene) -> None:
    """Without its keeper a runner cannot prove its leases: it stops its jobs, sends what they said, and leaves."""
    id = await this.place.enqueue(this.step)
    await this.met()

    os.kill(keeper_of(this.runner.pid), signal.SIGKILL)
    assert await this.place.ended(this.runner) == 1
    this.assert_nobody_is_left()
    await this.done_by_another(id)

    assert this.place.numbers(id, 1) == NUMBERS


@scene()
async def test_the_keeper_of_a_runner_that_is_asked_to_leave(this: Scene) -> None:
    """A runner that only finishes what it has is bound by its leases like any other."""
    id = await this.place.enqueue(this.step)
    await this.met()

    this.runner.terminate()
    await this.way.next("Heartbeat")
    os.kill(keeper_of(this.runner.pid), signal.SIGKILL)
    assert await this.place.ended(this.runner) == 1
    this.assert_nobody_is_left()
    await this.done_by_another(id)


@scene(LONG_TTL_SECONDS)
async def test_the_supervisor_of_a_job(this: Scene) -> None:
    """The job ends with it; the runner lives, says so, and takes the next one."""
    id = await this.place.enqueue(this.step)
    await this.met()
    supervisor = int(Path(f"/proc/{this.pids[0]}/stat").read_text().rpartition(")")[2].split()[1])

    os.kill(supervisor, signal.SIGKILL)
    record = await this.place.settled(id, *this.marks)

    assert (record.state, record.claims) == ("FAILED", 1)
    assert record.error is not None
    assert "signal 9" in record.error.message
    assert this.place.numbers(id, 1) == NUMBERS
    assert (await this.place.settled(await this.place.enqueue("true"))).state == "SUCCEEDED"


@scene(LONG_TTL_SECONDS)
async def test_a_runner_that_sleeps_is_outlived_by_its_keeper(this: Scene) -> None:
    """Longer than its lease: the keeper proves it meanwhile, and nothing is done twice."""
    id = await this.place.enqueue(
        first_time(this.place.folder, this.tell, then=f"read -r word < {this.hear}; seq 1001 1010")
    )
    await this.met()
    step = Death(this.pids[0])

    this.runner.send_signal(signal.SIGSTOP)
    this.hear.say("go on")
    await step()
    await this.way.next("Heartbeat", count=this.place.ttl_seconds + 1)
    this.runner.send_signal(signal.SIGCONT)
    record = await this.place.settled(id, *this.marks)

    assert (record.state, record.claims) == ("SUCCEEDED", 1)
    assert this.place.numbers(id, 1) == [*NUMBERS, *range(1001, 1011)]


@pytest.mark.proves("PRO-H1", "PRO-H2", "PRO-F2", "MOD-L7")
@scene()
async def test_a_runner_that_slept_with_its_keeper_begins_nothing_more(this: Scene) -> None:
    """It wakes between two steps, with a lease that is another's by now: it begins nothing, and completes nothing."""
    id = await this.place.enqueue(
        first_time(this.place.folder, this.tell, then=f"read -r word < {this.hear}"),
        f"echo $DELTACI_JOB_MARK >> {this.place.folder}/runs",
    )
    await this.met()
    step, keeper = Death(this.pids[0]), keeper_of(this.runner.pid)

    for pid in (keeper, this.runner.pid):
        os.kill(pid, signal.SIGSTOP)
    this.hear.say("go on")
    await step()
    await this.done_by_another(id)
    os.kill(this.runner.pid, signal.SIGCONT)
    os.kill(keeper, signal.SIGCONT)
    this.runner.terminate()

    assert await this.place.ended(this.runner) == 0
    this.assert_nobody_is_left()
    assert this.marks[0] not in (this.place.folder / "runs").read_text().split()
    assert not this.way.came("Complete")


@scene()
async def test_a_runner_that_comes_back_at_once(this: Scene) -> None:
    """It clears up what it left, but not before the rest of the log was sent."""
    held = this.way.on("log", Held("request"), times=1)
    id = await this.place.enqueue(this.step)
    await held.came.wait()
    await this.met()

    await this.kill()
    held.drop()
    this.place.start_runner("r1", way=this.way)
    record = await this.place.settled(id, *this.marks)

    assert (record.state, record.claims, record.lost_leases) == ("SUCCEEDED", 2, 1)
    assert this.place.numbers(id, 1) == NUMBERS


@pytest.mark.proves("PRO-F1")
@scene()
async def test_a_runner_with_a_job_of_a_run(this: Scene) -> None:
    """The run goes on with another runner; neither of them is left with a task that it does not have."""
    id = await this.place.enqueue_in_run("run1", this.step)
    await this.met()
    assert (await this.place.worker("r1")).tasks == (id,)

    await this.kill()
    await this.done_by_another(id)
    await this.place.until("run1/job", lambda event: event.to == "SUCCEEDED")

    this.assert_nobody_is_left()
    assert this.place.numbers(id, 1) == NUMBERS
    assert [(await this.place.worker(name)).tasks for name in ("r1", "r2")] == [(), ()]
