"""Server and runner as real processes, through the faults that the protocol is for."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from deltaci.core.events import Event
from deltaci.core.instants import SECOND
from deltaci.protocol.messages import MAX_SPEC_BYTES
from tests.e2e.deployment import LONG_TTL_SECONDS, deployed, is_alive, on_loop
from tests.e2e.pipes import told
from tests.e2e.proxy import answering


def runs(event: Event) -> bool:
    """A runner has begun."""
    return event.to == "RUNNING"


@pytest.mark.proves("PRO-B2", "PRO-C1", "PRO-C2", "PRO-C4", "PRO-C5")
@on_loop
async def test_a_job_runs_and_its_log_arrives(tmp_path: Path) -> None:
    """The way of every job: lease, acknowledgement, steps, log, completion."""
    async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
        place.start_runner("r1")
        id = await place.enqueue("echo one; echo two >&2", "echo three")

        record = await place.outcome(id)

        assert record.state == "SUCCEEDED"
        log = place.log_of(record)
        assert [line for line in log.splitlines() if line in ("one", "two", "three")] == ["one", "two", "three"]
        assert [step["exit_code"] for step in record.report["steps"]] == [0, 0]
        assert record.report["artifacts"][0]["bytes"] == len(log)


@pytest.mark.proves("PRO-Q2")
@on_loop
async def test_a_specification_that_is_too_large_for_the_lease_is_fetched(tmp_path: Path) -> None:
    """Large ones travel by reference; the runner must follow it."""
    async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
        place.start_runner("r1")
        half = "x" * (MAX_SPEC_BYTES // 2 + 1)
        id = await place.enqueue(f"words='{half}'; echo ${{#words}}", f": '{half}'")

        record = await place.outcome(id)

        assert record.state == "SUCCEEDED", place.log_of(record)[-500:]
        assert str(len(half)) in place.log_of(record).splitlines()


@on_loop
async def test_a_step_that_fails_ends_the_job_and_says_why(tmp_path: Path) -> None:
    """The first failed step is the last one."""
    async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
        place.start_runner("r1")
        id = await place.enqueue("echo before; exit 7", "echo never")

        record = await place.outcome(id)

        assert record.state == "FAILED"
        assert record.error is not None
        assert "exit code 7" in record.error.message
        log = place.log_of(record)
        assert "before" in log
        assert "never" not in log.splitlines()


@pytest.mark.proves("WST-KH4")
@pytest.mark.parametrize(
    ("message", "code", "failure_class"),
    [
        ("Error response from daemon: manifest for debain:12 not found: manifest unknown", "BAD_SPEC", "USER"),
        ("Unable to find image 'debian:12' locally: TLS handshake timeout", "IMAGE_PULL", "INFRA"),
    ],
)
@on_loop
async def test_three_images_that_cannot_be_pulled_do_not_quarantine_the_only_runner(
    tmp_path: Path, message: str, code: str, failure_class: str
) -> None:
    """A typo is its author's, and an outage of a registry is not the machine's."""
    tool = tmp_path / "bin" / "docker"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\ncase $1 in run) echo "{message}" >&2; exit 125 ;; esac\n')
    tool.chmod(0o755)
    async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
        place.start_runner("r1", PATH=f"{tool.parent}:{os.environ['PATH']}")
        for number in range(3):
            id = await place.enqueue_in_run(f"run{number}", "make", image="debain:12")

            record = await place.outcome(id)

            assert record.error is not None
            assert (record.error.code, record.error.failure_class) == (code, failure_class), record.error
            assert message[:40] in record.error.message
        worker = await place.worker("r1")
        assert (worker.hold, worker.infra_failures) == ("", 0)


@pytest.mark.proves("PRO-F1")
@on_loop
async def test_a_runner_that_is_killed_loses_its_job_to_another_and_leaves_nobody(tmp_path: Path) -> None:
    """No heartbeat, no lease; and none of its processes goes on."""
    async with deployed(tmp_path) as place:
        first = place.start_runner("r1")
        pipe = tmp_path / "pid"
        os.mkfifo(pipe)
        # The pipe is gone before anybody hears of it: the second one who runs this must not find it.
        first_time = f"exec 3> {pipe}; rm {pipe}; echo $$ >&3; exec tail -f /dev/null"
        id = await place.enqueue(f"if test -e {pipe}; then {first_time}; fi; echo done")
        await place.until(id, runs)
        pid = int(await told(pipe))

        first.kill()
        first.wait()
        place.start_runner("r2")
        record = await place.outcome(id)

        assert record.state == "SUCCEEDED"
        assert record.lost_leases == 1
        assert not is_alive(pid)


@pytest.mark.proves("PRO-F4")
@on_loop
async def test_a_server_that_is_killed_and_comes_back_keeps_the_job_and_all_of_its_log(tmp_path: Path) -> None:
    """The runner goes on, says again what was not heard, and nothing happens twice."""
    async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
        place.start_runner("r1")
        begun, go = tmp_path / "begun", tmp_path / "go"
        os.mkfifo(begun)
        os.mkfifo(go)
        id = await place.enqueue(f"echo first; echo > {begun}; cat {go}; seq 1 20000")
        await told(begun)

        place.kill_server()
        go.write_text("now\n")
        place.start_server()
        record = await place.outcome(id)

        assert record.state == "SUCCEEDED"
        assert record.claims == 1
        numbers = [line for line in place.log_of(record).splitlines() if line.isdecimal()]
        assert numbers == [str(n) for n in range(1, 20001)]


@pytest.mark.proves("PRO-C6", "PRO-Q9", "PRO-Q13")
@on_loop
async def test_a_cancel_stops_even_who_does_not_want_to_and_only_then_is_it_acknowledged(tmp_path: Path) -> None:
    """Daemons and deaf ears: canceled means that nothing of it runs."""
    async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
        place.start_runner("r1")
        pipe = tmp_path / "pids"
        os.mkfifo(pipe)
        stubborn = "trap '' TERM INT HUP; while :; do tail -f /dev/null; done"
        id = await place.enqueue(f'setsid sh -c "{stubborn}" & echo $! $$ > {pipe}; {stubborn}')
        pids = [int(pid) for pid in (await told(pipe)).split()]
        assert all(is_alive(pid) for pid in pids)

        await place.queue.cancel(id)
        record = await place.outcome(id)

        assert record.state == "CANCELED"
        assert record.ended_lease is not None
        assert record.ended_lease.state == "CANCELED"  # By the runner's own word, not by the deadline.
        assert not [pid for pid in pids if is_alive(pid)]


@pytest.mark.proves("PRO-M7", "PRO-Q13", "PRO-B2")
@on_loop
async def test_a_cancel_does_not_wait_for_a_heartbeat(tmp_path: Path) -> None:
    """With the usual interval of 20 seconds, a stop that somebody asks for is over in a few."""
    async with deployed(tmp_path, "--lease-ttl", "120") as place:
        place.start_runner("r1")
        pipe = tmp_path / "begun"
        os.mkfifo(pipe)
        id = await place.enqueue(f"echo begun > {pipe}; exec tail -f /dev/null")
        await told(pipe)

        await place.queue.cancel(id)
        record = await place.outcome(id)

        assert record.state == "CANCELED"
        at = {event.to: event.at for event in await place.queue.log(id)}
        assert at["CANCELED"] - at["CANCEL_REQUESTED"] < 10 * SECOND
        assert record.ended_lease is not None
        assert record.ended_lease.state == "CANCELED"  # By the runner's own word.


def freeze(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """A runner and its keeper, which has a session of its own, stop or go on together."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *map(int, children)):
        with suppress(ProcessLookupError):  # A process of a cell that has ended meanwhile.
            os.kill(pid, how)


@pytest.mark.proves("PRO-F2", "PRO-F3", "PRO-C7", "PRO-S6")
@on_loop
async def test_a_zombie_cannot_finish_what_it_lost(tmp_path: Path) -> None:
    """It slept, somebody else did its work, it wakes and completes: too late."""
    async with deployed(tmp_path) as place:
        first = place.start_runner("r1")
        begun, go = tmp_path / "begun", tmp_path / "go"
        os.mkfifo(begun)
        os.mkfifo(go)
        id = await place.enqueue(
            f"if test -e {begun}; then exec 3> {begun}; rm {begun}; echo >&3; cat {go}; echo zombie; fi; echo done"
        )
        await told(begun)

        freeze(first, signal.SIGSTOP)
        place.start_runner("r2")
        record = await place.outcome(id)
        freeze(first, signal.SIGCONT)
        first.terminate()
        first.wait(30)

        assert record.state == "SUCCEEDED"
        assert record.ended_lease is not None
        assert record.ended_lease.worker_id == "r2"
        assert (await place.outcome(id)) == record
        assert "zombie" not in place.log_of(record).splitlines()


REFUSED = b'{"code":"bad_request","message":"output is not what it should be; send another"}'


@on_loop
async def test_a_result_that_the_server_refuses_is_told_as_a_failure(tmp_path: Path) -> None:
    """Silence would cost the lease, and the job would be run again and again for the same result."""
    async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
        way = await place.way()
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(REFUSED)}\r\n\r\n"
        way.on("Complete", answering(head.encode() + REFUSED), 1)
        place.start_runner("r1", way=way)

        record = await place.settled(await place.enqueue("true"))

        assert (record.state, record.claims) == ("FAILED", 1)
        assert record.error is not None
        assert record.error.code == "BAD_RESULT"
        assert "output is not what it should be" in record.error.message
