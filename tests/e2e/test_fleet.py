"""Real runners in a real fleet: one that dies is missed, one that is sent away goes, one that left comes back."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from deltaci.core import worker
from deltaci.core.worker import SHUTDOWN, UNRESPONSIVE
from tests.e2e.deployment import deployed, is_alive, on_loop
from tests.e2e.pipes import told

TTL_SECONDS = 12  # A health check finds out long before; but nobody else begins before that is over, for safety.


def keeper_of(pid: int) -> int:
    """The process that proves the leases of this runner."""
    [found] = [
        int(path.name)
        for path in Path("/proc").iterdir()
        if path.name.isdecimal() and is_alive(int(path.name)) and _is_keeper(path, pid)
    ]
    return found


def _is_keeper(process: Path, of: int) -> bool:
    try:
        parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        return parent == of and b"deltaci.runner.lease.keeper" in (process / "cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.proves("WST-KA4", "WST-KG4")
@on_loop
async def test_a_runner_that_is_killed_is_missed_and_its_job_goes_to_another(tmp_path: Path) -> None:
    """With the keeper of its leases, so that nobody is left to say a word; and its machine comes back as a new life."""
    async with deployed(tmp_path, "--health-seconds", "1", ttl_seconds=TTL_SECONDS) as place:
        first = place.start_runner("r1")
        pipe = tmp_path / "pid"
        os.mkfifo(pipe)
        once = f"exec 3> {pipe}; rm {pipe}; echo $$ >&3; exec tail -f /dev/null"
        id = await place.enqueue_in_run("run", f"if test -e {pipe}; then {once}; fi; echo done")
        pid = int(await told(pipe))
        place.start_runner("r2")
        await place.until("r2", lambda event: event.trigger == "registration_complete")

        both = (keeper_of(first.pid), first.pid)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # Neither sees the other end.
            for each in both:
                os.kill(each, number)
        with suppress(ProcessLookupError):  # Its guard may have ended it already.
            os.kill(pid, signal.SIGKILL)
        lost = await place.until("r1", lambda event: event.to == UNRESPONSIVE)
        record = await place.outcome(id)

        assert (lost.severity, lost.metadata["attempts"]) == ("error", [id])
        assert record.state == "SUCCEEDED"
        assert record.ended_lease is not None
        assert record.ended_lease.worker_id == "r2"
        place.start_runner("r1", token="")
        await place.until("r1", lambda event: event.trigger == "health_check_recovered")


@pytest.mark.proves("WST-K7")
@on_loop
async def test_a_runner_that_leaves_is_gone_at_once_and_comes_back_as_a_new_life(tmp_path: Path) -> None:
    """It says so; nobody has to miss it. Its kept credential is enough to come back."""
    async with deployed(tmp_path) as place:
        runner = place.start_runner("r1")
        await place.until("r1", lambda event: event.trigger == "registration_complete")
        await place.outcome(await place.enqueue("true"))
        runner.terminate()
        assert await place.ended(runner) == 0
        assert ((await place.worker("r1")).state, (await place.worker("r1")).shutdown_reason) == (SHUTDOWN, "LEFT")

        place.start_runner("r1", token="")
        id = await place.enqueue_in_run("run", "true")
        record = await place.outcome(id)

        assert record.ended_lease is not None
        assert record.ended_lease.worker_id == "r1/2"


@on_loop
async def test_a_runner_that_was_given_up_by_mistake_learns_it_at_once_and_goes_on(tmp_path: Path) -> None:
    """It waits for work while that is decided: it is told, comes back in a new life, and is given work in it."""
    async with deployed(tmp_path) as place:
        runner = place.start_runner("r1", "--labels", "linux")
        await place.outcome(await place.enqueue("true"))

        await place.engine.do(worker.Shutdown(id="r1", reason=worker.PRESUMED_GONE))
        born = await place.until("r1/2", lambda event: event.trigger == "registration_complete")
        record = await place.outcome(await place.enqueue_in_run("run", "true"))

        assert born.metadata["labels"] == ["linux"]
        assert record.ended_lease is not None
        assert record.ended_lease.worker_id == "r1/2"
        runner.terminate()
        assert await place.ended(runner) == 0
        assert (await place.worker("r1/2")).shutdown_reason == "LEFT"
        assert "continuing as r1/2" in (tmp_path / "r1.log").read_text()


@on_loop
async def test_a_runner_that_is_removed_finishes_its_job_and_ends_with_a_code_of_its_own(tmp_path: Path) -> None:
    """Nobody should start it again: it would not be let in."""
    async with deployed(tmp_path) as place:
        runner = place.start_runner("r1")
        pipe, go = tmp_path / "begun", tmp_path / "go"
        os.mkfifo(pipe)
        os.mkfifo(go)
        id = await place.enqueue_in_run("run", f"echo begun > {pipe}; read word < {go}; echo $word")
        assert await told(pipe) == "begun"

        await place.engine.do(worker.Shutdown(id="r1", reason=worker.REMOVED, actor="user:ada"))
        go.write_text("finished\n")
        record = await place.outcome(id)

        assert record.state == "SUCCEEDED"
        assert await place.ended(runner) == 3
        assert "was removed from the fleet" in (tmp_path / "r1.log").read_text()
        again = place.start_runner("r1", token="")
        assert await place.ended(again) == 2
        assert "was shut down" in (tmp_path / "r1.log").read_text()
