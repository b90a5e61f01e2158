"""A runner that shall leave finishes what it has, or hands it back; and a job that takes too long is over."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.deployment import deployed, is_alive, on_loop
from tests.e2e.pipes import told


@on_loop
async def test_who_is_asked_twice_to_leave_hands_its_job_back(tmp_path: Path) -> None:
    """The job begins again somewhere else; it has lost nothing, and nothing of it goes on here."""
    async with deployed(tmp_path) as place:
        first = place.start_runner("r1")
        pipe = tmp_path / "pid"
        os.mkfifo(pipe)
        once = f"exec 3> {pipe}; rm {pipe}; echo heard; echo $$ >&3; exec tail -f /dev/null"
        id = await place.enqueue(f"if test -e {pipe}; then {once}; fi; echo done")
        pid = int(await told(pipe))

        first.send_signal(signal.SIGTERM)
        first.send_signal(signal.SIGINT)  # Two of the same kind may become one on the way.
        assert first.wait(30) == 0
        assert not is_alive(pid)
        place.start_runner("r2")
        record = await place.outcome(id)

        assert record.state == "SUCCEEDED"
        assert (record.lost_leases, record.claims) == (0, 2)
        assert "heard" in place.logs.read(id, 1).decode().splitlines()
        assert "handed back" in (tmp_path / "r1.log").read_text()


@on_loop
async def test_a_drain_has_an_end(tmp_path: Path) -> None:
    """With a limit nobody has to ask twice."""
    async with deployed(tmp_path) as place:
        runner = place.start_runner("r1", "--drain-seconds", "1")
        pipe = tmp_path / "pid"
        os.mkfifo(pipe)
        id = await place.enqueue(f"echo $$ > {pipe}; exec tail -f /dev/null")
        pid = int(await told(pipe))

        runner.send_signal(signal.SIGTERM)
        assert runner.wait(30) == 0

        assert not is_alive(pid)
        event = await place.until(id, lambda event: event.trigger == "requeued")
        assert event.to == "QUEUED"


@pytest.mark.proves("PRO-D5")
@on_loop
async def test_a_job_whose_time_is_over_is_timed_out_and_leaves_nobody(tmp_path: Path) -> None:
    """The server says so when it is time; the runner hears of it at its next heartbeat."""
    async with deployed(tmp_path) as place:
        runner = place.start_runner("r1")
        pipe = tmp_path / "pid"
        os.mkfifo(pipe)
        id = await place.enqueue(f"echo begun; echo $$ > {pipe}; exec tail -f /dev/null", timeout_seconds=5)
        pid = int(await told(pipe))

        record = await place.outcome(id)
        runner.terminate()
        assert runner.wait(30) == 0

        assert record.state == "TIMED_OUT"
        assert not is_alive(pid)
        assert "begun" in place.logs.read(id, 1).decode().splitlines()
