"""All processes of a job are found and ended, and the cell does not claim so before it is proved."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from deltaci.protocol.messages import Limits
from deltaci.runner.sandbox import cgroups, process_tree
from deltaci.runner.sandbox.environment import interpreter
from deltaci.runner.sandbox.process import ProcessExecutor
from deltaci.runner.sandbox.process_tree import JobHandle
from deltaci.runner.sandbox.zygote import Zygote
from tests.runner.cells import KINDS, PATIENCE_SECONDS, Bench, await_deaths, executor_of, in_cell, is_alive
from tests.runner.sandbox.leftovers import COUNT, DAEMONS, LEFTOVERS, READY
from tests.support.processes import command_line

both = pytest.mark.parametrize("kind", KINDS)
ROOT = Path(__file__).parents[3]


def child_of(parent: int, word: bytes) -> int:
    """Return the child whose command contains this word."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return next(int(pid) for pid in children if word in command_line(int(pid)))


@pytest.fixture
def doomed_runner(kind: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], JobHandle]]:
    """Start a runner of its own with a job that leaves every kind of leftover."""
    executor_of(kind, Zygote())
    command = [sys.executable, "-m", "tests.runner.sandbox.doomed", kind, str(tmp_path)]
    env = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=env) as process:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], PATIENCE_SECONDS)[0], "the runner did not start its job"
        handle = msgspec.json.decode(process.stdout.readline(), type=JobHandle)
        yield process, handle
        process.kill()
    process_tree.kill_all(handle)
    cgroups.remove_stale()


@both
def test_stop_ends_all_processes_and_reports_it(kind: str, tmp_path: Path) -> None:
    """Daemons, processes that ignore signals, and those without the marker."""

    async def check(bench: Bench) -> None:
        step = bench.start(LEFTOVERS)
        await bench.until(READY)
        found = process_tree.members(bench.cell.handle)
        assert len(found) > COUNT

        assert await bench.cell.stop(0.2)

        assert not [pid for pid in found if is_alive(pid)]
        assert process_tree.members(bench.cell.handle) == []
        ended = await step
        assert (ended.exit_code, ended.signal) == (None, signal.SIGKILL)

    in_cell(kind, tmp_path, check)


@both
def test_processes_may_clean_up_during_the_grace_period(kind: str, tmp_path: Path) -> None:
    """The grace period ends early when no process is left."""

    async def check(bench: Bench) -> None:
        step = bench.start("trap 'echo cleared >&2; exit 5' TERM; echo up; while :; do sleep 1000 & wait $! || :; done")
        await bench.until(b"up")
        began = time.monotonic()

        assert await bench.cell.stop(30.0)

        assert time.monotonic() - began < 20
        ended = await step
        assert (ended.exit_code, bytes(bench.output)) == (5, b"up\ncleared\n")

    in_cell(kind, tmp_path, check)


@both
def test_commands_of_a_clean_up_are_not_signaled(kind: str, tmp_path: Path) -> None:
    """A trap starts commands of its own, which must be able to finish."""
    trap = "trap 'bash -c \"sleep 0.3; echo cleared\"; exit 6' TERM"

    async def check(bench: Bench) -> None:
        step = bench.start(f"{trap}; echo up; while :; do sleep 1000 & wait $! || :; done")
        await bench.until(b"up")

        assert await bench.cell.stop(30.0)

        ended = await step
        assert (ended.exit_code, bytes(bench.output)) == (6, b"up\ncleared\n")

    in_cell(kind, tmp_path, check)


@both
def test_the_end_of_a_job_ends_its_leftovers(kind: str, tmp_path: Path) -> None:
    """A step may leave a server for the next step, but not for the next job."""

    async def check(bench: Bench) -> None:
        assert (await bench.run(DAEMONS)).exit_code == 0
        found = process_tree.members(bench.cell.handle)
        assert len(found) >= COUNT

        assert await bench.cell.close()

        assert not [pid for pid in found if is_alive(pid)]
        assert not bench.cell.handle.cgroup or not Path(bench.cell.handle.cgroup).exists()

    in_cell(kind, tmp_path, check)


@both
def test_a_stopped_cell_starts_nothing(kind: str, tmp_path: Path) -> None:
    """The cancel may come between two steps."""

    async def check(bench: Bench) -> None:
        await bench.run("true")
        assert await bench.cell.stop(0.0)

        ended = await bench.run("echo started")

        assert (ended.signal, bytes(bench.output)) == (signal.SIGKILL, b"")
        assert await bench.cell.stop(0.0)

    in_cell(kind, tmp_path, check)


@both
def test_killing_the_supervisor_ends_the_job(kind: str, tmp_path: Path) -> None:
    """A careless `kill -9 $PPID` must not set processes free."""

    async def check(bench: Bench) -> None:
        await bench.run(DAEMONS)
        found = process_tree.members(bench.cell.handle)
        ended = await bench.run("kill -9 $PPID; sleep 1000")
        assert ended.signal == signal.SIGKILL

        assert await bench.cell.close()
        assert not [pid for pid in found if is_alive(pid)]

    in_cell(kind, tmp_path, check)


def test_close_returns_false_without_proof(tmp_path: Path) -> None:
    """A job that kills its guard and supervisor at once, without cgroup and isolation, may have left processes."""

    async def check() -> bool:
        zygote = Zygote()
        executor = ProcessExecutor(zygote, use_cgroups=False)
        cell = executor.cell(workspace=tmp_path, limits=Limits(), network=True, image="")
        bench = Bench(cell, tmp_path)
        await bench.run(DAEMONS)
        files = {pid: os.pidfd_open(pid) for pid in process_tree.members(cell.handle)}
        guard = cell.handle.root_pids[0]
        await bench.run(f"kill -STOP {guard} $PPID; kill -9 {guard} $PPID; sleep 1000")
        is_proved = await cell.close()
        await zygote.close()
        for file in files.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(file, signal.SIGKILL)
        assert await_deaths(files) == []
        return is_proved

    assert not asyncio.run(check())


@both
def test_another_process_can_end_the_job_by_its_handle(
    kind: str, tmp_path: Path, doomed_runner: tuple[subprocess.Popen[bytes], JobHandle]
) -> None:
    """The lease keeper must be able to do it when the runner hangs."""
    runner, handle = doomed_runner
    os.kill(runner.pid, signal.SIGSTOP)
    found = process_tree.members(handle)

    left = process_tree.kill_all(handle)

    assert len(found) > COUNT
    assert (left, [pid for pid in found if is_alive(pid)]) == ([], [])


@both
def test_a_killed_runner_leaves_no_process(
    kind: str, tmp_path: Path, doomed_runner: tuple[subprocess.Popen[bytes], JobHandle]
) -> None:
    """No process cleans up after it, so the supervisor must notice."""
    runner, handle = doomed_runner
    files = {pid: os.pidfd_open(pid) for pid in process_tree.members(handle)}

    runner.kill()

    assert len(files) > COUNT
    assert await_deaths(files) == []
    assert process_tree.members(handle) == []


@pytest.mark.parametrize("kind", ["process"])
def test_the_step_dies_if_the_supervisor_is_killed_too(
    kind: str, tmp_path: Path, doomed_runner: tuple[subprocess.Popen[bytes], JobHandle]
) -> None:
    """The kernel kills the direct child; the keeper finds the others in the cgroup."""
    runner, handle = doomed_runner
    (guard,) = handle.root_pids
    supervisor = child_of(guard, b"zygote")
    step = child_of(supervisor, b"read -r word")
    files = {step: os.pidfd_open(step)}

    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (runner.pid, guard, supervisor):
            with suppress(ProcessLookupError):  # The end of the first is the end of the next, if the kernel is quick.
                os.kill(pid, number)

    assert await_deaths(files) == []
    found = process_tree.members(handle)
    assert process_tree.kill_all(handle) == []
    assert not [pid for pid in found if is_alive(pid)]


@pytest.mark.parametrize("kind", ["process", "sandbox"])
def test_a_fork_bomb_is_bounded_and_ended(kind: str, tmp_path: Path) -> None:
    """One job must not use up the machine."""
    limits = Limits(processes=40)
    fork = "import os, signal\nwhile True:\n try: os.fork()\n except OSError: break"
    bomb = fork + "\nos.write(1, b'full\\n')\nsignal.pause()"

    async def check(bench: Bench) -> None:
        if "40 processes (cgroup)" not in bench.cell.description:
            pytest.skip(f"no pids cgroup can be had here: {bench.cell.description}")
        bench.start(f'{interpreter()} -I -S -c "{bomb}"')
        await bench.until(b"full")

        assert len(process_tree.members(bench.cell.handle)) <= 40 + 3
        assert await bench.cell.stop(0.0)

    in_cell(kind, tmp_path, check, limits)


def test_a_reused_pid_is_not_a_process_of_the_job() -> None:
    """A handle may outlive its job by hours, and its pids may belong to other processes."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as innocent:
        handle = JobHandle(marker="of-a-job-long-gone", root_pids=(innocent.pid,))

        assert process_tree.members(handle) == []
        assert process_tree.kill_all(handle) == []
        assert innocent.poll() is None
        innocent.kill()


def test_a_version_1_freezer_ends_a_job() -> None:
    """Where version 2 cannot kill a group, the freezer prevents forks meanwhile."""
    without_v2 = cgroups.Hierarchies(None, cgroups.find_hierarchies().v1)
    groups = cgroups.create(cgroups.name_for("freezer-test"), Limits(), hierarchies=without_v2)
    if "freezer" not in groups.tracker:
        pytest.skip("no freezer cgroup of version 1 can be had here")
    handle = JobHandle(marker="nobody-carries-this", cgroup=groups.tracker)
    join = f"echo 0 > {groups.procs_files()[0]}; echo up; sleep 1000 & sleep 1000"
    with subprocess.Popen(["sh", "-c", join], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"

        assert process.pid in process_tree.members(handle)
        assert process_tree.kill_all(handle) == []

        assert process.wait(20) == -signal.SIGKILL
    assert groups.remove()
