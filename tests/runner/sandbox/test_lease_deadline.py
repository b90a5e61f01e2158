"""A job ends with its lease, even if neither the runner nor the lease keeper can end it."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from deltaci.protocol.messages import Limits
from deltaci.runner.lease.keeper import Hold, RenewalFifo
from deltaci.runner.sandbox import cgroups, process_tree
from deltaci.runner.sandbox.process import ProcessExecutor
from deltaci.runner.sandbox.process_tree import JobHandle
from deltaci.runner.sandbox.supervisor import boottime
from deltaci.runner.sandbox.zygote import Zygote
from tests.runner.cells import KINDS, PATIENCE_SECONDS, Bench, await_deaths, executor_of, in_cell
from tests.runner.sandbox.leased_cell import Started
from tests.runner.sandbox.leftovers import COUNT

ROOT = Path(__file__).parent.parent.parent.parent
ENV = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
LONG_SECONDS = 3600.0
SHIFT_SECONDS = 100_000
SHIFTED = ("unshare", "--user", "--map-root-user", "--time", "--boottime", str(SHIFT_SECONDS), "--fork")

LeasedRunner = tuple[subprocess.Popen[bytes], Started]


@pytest.fixture
def start_runner(tmp_path: Path) -> Iterator[Callable[[str, float], LeasedRunner]]:
    """Return a function that starts a runner with a job of this kind and a lease of this length."""
    runners: list[LeasedRunner] = []

    def start(kind: str, ttl_seconds: float) -> LeasedRunner:
        executor_of(kind, Zygote())
        command = [sys.executable, "-m", "tests.runner.sandbox.leased_cell", kind, str(tmp_path), str(ttl_seconds)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=ENV)
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], PATIENCE_SECONDS)[0], "the runner did not start its job"
        runners.append((process, msgspec.json.decode(process.stdout.readline(), type=Started)))
        return runners[-1]

    yield start
    for process, started in runners:
        process.kill()
        process.communicate()
        process_tree.kill_all(started.handle)
        with suppress(ProcessLookupError):
            os.kill(started.keeper_pid, signal.SIGKILL)
    cgroups.remove_stale()


@pytest.mark.proves("MOD-L7")
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_ends_at_its_deadline_while_runner_and_keeper_are_stopped(
    kind: str, start_runner: Callable[[str, float], LeasedRunner]
) -> None:
    """Nothing but the supervisor of the job knows the deadline then."""
    runner, started = start_runner(kind, 6.0)
    os.kill(runner.pid, signal.SIGSTOP)
    os.kill(started.keeper_pid, signal.SIGSTOP)
    files = {pid: os.pidfd_open(pid) for pid in process_tree.members(started.handle)}
    assert len(files) > COUNT

    assert await_deaths(files) == []

    assert boottime() >= started.deadline
    assert process_tree.members(started.handle) == []


@pytest.mark.proves("MOD-L7")
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_ends_at_once_if_its_keeper_is_killed_while_its_runner_is_stopped(
    kind: str, start_runner: Callable[[str, float], LeasedRunner]
) -> None:
    """Its lease would last for another hour, but can no longer be renewed. The simulator found this with seed 301."""
    runner, started = start_runner(kind, LONG_SECONDS)
    files = {pid: os.pidfd_open(pid) for pid in process_tree.members(started.handle)}
    os.kill(runner.pid, signal.SIGSTOP)

    os.kill(started.keeper_pid, signal.SIGKILL)

    assert await_deaths(files) == []
    assert process_tree.members(started.handle) == []


@pytest.mark.proves("MOD-L7")
@pytest.mark.parametrize("kind", KINDS)
def test_each_renewal_moves_the_deadline_of_the_job(kind: str, tmp_path: Path) -> None:
    """The keeper writes it into the FIFO, and closes that when it loses the lease."""

    async def check(bench: Bench) -> None:
        fifo = tmp_path / "renewals"
        os.mkfifo(fifo)
        await bench.cell.bind_lease(boottime() + 5.0, fifo)  # Longer than a busy machine needs for the next lines.
        keeper = RenewalFifo(str(fifo))
        keeper.write(boottime() + LONG_SECONDS)

        assert (await bench.run("sleep 5.5; echo later")).exit_code == 0
        step = bench.start("echo running; sleep 1000")
        await bench.until(b"running")
        files = {pid: os.pidfd_open(pid) for pid in process_tree.members(bench.cell.handle)}
        keeper.close()

        assert (await step).signal == signal.SIGKILL
        assert bench.cell.is_lease_over
        assert await asyncio.to_thread(await_deaths, files) == []

    in_cell(kind, tmp_path, check)


# -- a machine that was suspended: a process whose boot clock has advanced, but not its monotonic clock


@pytest.fixture
def shifted() -> tuple[str, ...]:
    """Return the start of a command that runs with another boot clock."""
    if subprocess.run([*SHIFTED, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no time namespace can be made here")
    return SHIFTED


async def _run_after_deadline(deadline: float, workspace: Path) -> None:
    zygote = Zygote()
    executor = ProcessExecutor(zygote, use_cgroups=False)
    cell = executor.cell(workspace=workspace, limits=Limits(), network=True, image="")
    bench = Bench(cell, workspace)
    fifo = workspace / "renewals"
    os.mkfifo(fifo)
    await cell.bind_lease(deadline, fifo)
    result = await bench.run("echo started")
    assert await cell.close()
    await zygote.close()
    print(result.signal, bytes(bench.output), cell.is_lease_over)


@pytest.mark.proves("MOD-L7")
def test_no_step_starts_after_a_suspension_that_outlasted_the_lease(shifted: tuple[str, ...], tmp_path: Path) -> None:
    """The process that starts the step reads the clock at the last moment. The simulator found this with seed 384."""
    deadline = boottime() + LONG_SECONDS

    command = [*shifted, sys.executable, "-m", "tests.runner.sandbox.test_lease_deadline", str(deadline), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, cwd=ROOT, env=ENV, timeout=PATIENCE_SECONDS, check=False)

    assert (result.stdout.decode(), result.stderr.decode()) == ("9 b'' True\n", "")


@pytest.mark.proves("MOD-L7")
def test_the_keeper_loses_a_lease_that_ended_while_the_machine_was_suspended(shifted: tuple[str, ...]) -> None:
    """By the monotonic clock, the lease would last for another hour."""
    handle = JobHandle(marker="a-marker-without-processes")
    hold = Hold(
        lease_id="l1",
        runner_id="w1",
        ttl_seconds=LONG_SECONDS,
        interval_seconds=LONG_SECONDS,
        handle=handle,
        confirmed_at=boottime(),
    )
    command = [*shifted, sys.executable, "-m", "deltaci.runner.lease.keeper", "http://127.0.0.1:1"]
    with subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENV) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        keeper.stdin.write(msgspec.json.encode(hold) + b"\n")
        keeper.stdin.flush()

        events = [msgspec.json.decode(keeper.stdout.readline()) for _ in range(3)]

        assert [(event["type"], event.get("reason", "")) for event in events[::2]] == [
            ("ready", ""),
            ("lost", "NOT_PROVED"),
        ]


if __name__ == "__main__":
    asyncio.run(_run_after_deadline(float(sys.argv[1]), Path(sys.argv[2])))
