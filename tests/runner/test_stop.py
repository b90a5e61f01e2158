"""Whatever a job starts is found and ended, and nobody is told so before it is true."""

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
from tests.runner.leftovers import COUNT, DAEMONS, LEFTOVERS, READY
from tests.support.processes import command_line

both = pytest.mark.parametrize("kind", KINDS)
ROOT = Path(__file__).parent.parent.parent


def child_of(parent: int, word: bytes) -> int:
    """The child with this word in its command."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return next(int(pid) for pid in children if word in command_line(int(pid)))


@pytest.fixture
def doomed(kind: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], JobHandle]]:
    """A runner of its own, with a job that left everything behind that it could."""
    executor_of(kind, Zygote())
    command = [sys.executable, "-m", "tests.runner.doomed", kind, str(tmp_path)]
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
def test_a_stop_leaves_nobody_and_says_so(kind: str, tmp_path: Path) -> None:
    """Daemons, the deaf, and those without the mark: a cancel that misses one of them was no cancel."""

    async def story(bench: Bench) -> None:
        step = bench.start(LEFTOVERS)
        await bench.until(READY)
        found = process_tree.members(bench.cell.handle)
        assert len(found) > COUNT

        assert await bench.cell.stop(0.2)

        assert not [pid for pid in found if is_alive(pid)]
        assert process_tree.members(bench.cell.handle) == []
        ended = await step
        assert (ended.exit_code, ended.signal) == (None, signal.SIGKILL)

    in_cell(kind, tmp_path, story)


@both
def test_who_listens_may_clear_up_before_the_end(kind: str, tmp_path: Path) -> None:
    """The grace is for the job's own last words, and is not spent when all are gone."""

    async def story(bench: Bench) -> None:
        step = bench.start("trap 'echo cleared >&2; exit 5' TERM; echo up; while :; do sleep 1000 & wait $! || :; done")
        await bench.until(b"up")
        began = time.monotonic()

        assert await bench.cell.stop(30.0)

        assert time.monotonic() - began < 20
        ended = await step
        assert (ended.exit_code, bytes(bench.output)) == (5, b"up\ncleared\n")

    in_cell(kind, tmp_path, story)


@both
def test_what_clears_up_is_not_asked_to_end_too(kind: str, tmp_path: Path) -> None:
    """A trap runs commands of its own; whoever asked these to end as well would never let anybody clear up."""
    trap = "trap 'bash -c \"sleep 0.3; echo cleared\"; exit 6' TERM"

    async def story(bench: Bench) -> None:
        step = bench.start(f"{trap}; echo up; while :; do sleep 1000 & wait $! || :; done")
        await bench.until(b"up")

        assert await bench.cell.stop(30.0)

        ended = await step
        assert (ended.exit_code, bytes(bench.output)) == (6, b"up\ncleared\n")

    in_cell(kind, tmp_path, story)


@both
def test_the_end_of_a_job_ends_its_leftovers(kind: str, tmp_path: Path) -> None:
    """A step may leave a server to the next one, but no job may leave one to the next job."""

    async def story(bench: Bench) -> None:
        assert (await bench.run(DAEMONS)).exit_code == 0
        found = process_tree.members(bench.cell.handle)
        assert len(found) >= COUNT

        assert await bench.cell.close()

        assert not [pid for pid in found if is_alive(pid)]
        assert not bench.cell.handle.cgroup or not Path(bench.cell.handle.cgroup).exists()

    in_cell(kind, tmp_path, story)


@both
def test_a_stopped_cell_starts_nothing(kind: str, tmp_path: Path) -> None:
    """The cancel may come between two steps."""

    async def story(bench: Bench) -> None:
        await bench.run("true")
        assert await bench.cell.stop(0.0)

        ended = await bench.run("echo started")

        assert (ended.signal, bytes(bench.output)) == (signal.SIGKILL, b"")
        assert await bench.cell.stop(0.0)

    in_cell(kind, tmp_path, story)


@both
def test_a_job_that_kills_its_supervisor_is_over(kind: str, tmp_path: Path) -> None:
    """A careless `kill -9 $PPID` ends the job; it sets nobody free."""

    async def story(bench: Bench) -> None:
        await bench.run(DAEMONS)
        found = process_tree.members(bench.cell.handle)
        ended = await bench.run("kill -9 $PPID; sleep 1000")
        assert ended.signal == signal.SIGKILL

        assert await bench.cell.close()
        assert not [pid for pid in found if is_alive(pid)]

    in_cell(kind, tmp_path, story)


def test_what_cannot_be_proved_is_not_claimed(tmp_path: Path) -> None:
    """A job that kills its guard and its supervisor at once, and is held by nothing else, may have left unseen."""

    async def story() -> bool:
        nursery = Zygote()
        executor = ProcessExecutor(nursery, use_cgroups=False)
        cell = executor.cell(workspace=tmp_path, limits=Limits(), network=True, image="")
        bench = Bench(cell, tmp_path)
        await bench.run(DAEMONS)
        files = {pid: os.pidfd_open(pid) for pid in process_tree.members(cell.handle)}
        guard = cell.handle.root_pids[0]
        await bench.run(f"kill -STOP {guard} $PPID; kill -9 {guard} $PPID; sleep 1000")
        is_proved = await cell.close()
        await nursery.close()
        for file in files.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(file, signal.SIGKILL)
        assert await_deaths(files) == []
        return is_proved

    assert not asyncio.run(story())


@both
def test_a_stranger_can_end_the_job_by_its_handle(
    kind: str, tmp_path: Path, doomed: tuple[subprocess.Popen[bytes], JobHandle]
) -> None:
    """The lease keeper must be able to do it when the runner hangs."""
    runner, handle = doomed
    os.kill(runner.pid, signal.SIGSTOP)
    found = process_tree.members(handle)

    left = process_tree.kill_all(handle)

    assert len(found) > COUNT
    assert (left, [pid for pid in found if is_alive(pid)]) == ([], [])


@both
def test_a_killed_runner_leaves_nobody(
    kind: str, tmp_path: Path, doomed: tuple[subprocess.Popen[bytes], JobHandle]
) -> None:
    """Nobody is there to clear up after it, so the job must notice by itself."""
    runner, handle = doomed
    files = {pid: os.pidfd_open(pid) for pid in process_tree.members(handle)}

    runner.kill()

    assert len(files) > COUNT
    assert await_deaths(files) == []
    assert process_tree.members(handle) == []


@pytest.mark.parametrize("kind", ["process"])
def test_the_step_dies_with_a_supervisor_that_is_killed_too(
    kind: str, tmp_path: Path, doomed: tuple[subprocess.Popen[bytes], JobHandle]
) -> None:
    """The kernel's word for the direct child; the others are in the cgroup, and the keeper finds them there."""
    runner, handle = doomed
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
    """One job must not take the machine from the others."""
    limits = Limits(processes=40)
    fork = "import os, signal\nwhile True:\n try: os.fork()\n except OSError: break"
    bomb = fork + "\nos.write(1, b'full\\n')\nsignal.pause()"

    async def story(bench: Bench) -> None:
        if "40 processes (cgroup)" not in bench.cell.description:
            pytest.skip(f"no pids cgroup can be had here: {bench.cell.description}")
        bench.start(f'{interpreter()} -I -S -c "{bomb}"')
        await bench.until(b"full")

        assert len(process_tree.members(bench.cell.handle)) <= 40 + 3
        assert await bench.cell.stop(0.0)

    in_cell(kind, tmp_path, story, limits)


def test_a_pid_that_was_used_again_is_nobody_of_ours() -> None:
    """A handle may outlive its job by hours; its numbers may belong to anybody by then."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as innocent:
        handle = JobHandle(marker="of-a-job-long-gone", root_pids=(innocent.pid,))

        assert process_tree.members(handle) == []
        assert process_tree.kill_all(handle) == []
        assert innocent.poll() is None
        innocent.kill()


def test_a_version_1_freezer_ends_a_job_too() -> None:
    """Where version 2 has no kill, nobody forks while the freezer holds."""
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
