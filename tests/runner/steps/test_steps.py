"""What a step is given, what it says, and how its end is told."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from deltaci.core.errors import Refused
from deltaci.runner.sandbox import process_tree
from deltaci.runner.sandbox.environment import environment
from deltaci.runner.workspace.layout import resolve_workdir
from tests.runner.cells import KINDS, Bench, in_cell

MEGABYTE = 1024 * 1024
both = pytest.mark.parametrize("kind", KINDS)


@both
def test_a_secret_of_the_runner_is_not_visible(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner's token in a job's hands is the runner in the job's hands."""
    monkeypatch.setenv("DELTACI_RUNNER_TOKEN", "hunter2-the-token")

    async def story(bench: Bench) -> None:
        await bench.run("env; cat /proc/$PPID/environ | tr '\\0' '\\n'", env={"GIVEN": "yes"})
        names = {line.partition(b"=")[0] for line in bytes(bench.output).split(b"\n") if line}

        assert b"hunter2" not in bench.output
        assert names - {b"PWD", b"SHLVL", b"_", b"OLDPWD", b"LC_CTYPE"} == {
            *(b"PATH", b"HOME", b"LANG", b"CI", b"GIVEN"),
            process_tree.MARKER_VARIABLE.encode(),
        }

    in_cell(kind, tmp_path, story)


@both
def test_an_open_file_of_the_runner_is_not_inherited(kind: str, tmp_path: Path) -> None:
    """A descriptor goes past every check of permissions."""
    file = os.open("/dev/zero", os.O_RDONLY)
    os.set_inheritable(file, True)

    async def story(bench: Bench) -> None:
        await bench.run("ls -l /proc/$$/fd; true")

        assert b"/dev/null" in bench.output
        assert b"/dev/zero" not in bench.output
        assert b"socket:" not in bench.output

    in_cell(kind, tmp_path, story)
    os.close(file)


@both
def test_a_job_cannot_take_off_its_mark(kind: str, tmp_path: Path) -> None:
    """The mark is how its processes are found."""

    async def story(bench: Bench) -> None:
        await bench.run(f'test "${process_tree.MARKER_VARIABLE}" != mine', env={process_tree.MARKER_VARIABLE: "mine"})

        assert (await bench.run(f'test "${process_tree.MARKER_VARIABLE}" = {bench.cell.handle.marker}')).exit_code == 0

    in_cell(kind, tmp_path, story)


@both
def test_the_end_of_a_step_is_told(kind: str, tmp_path: Path) -> None:
    """Codes and signals are different things; the first failing command ends the step, in a pipe too."""

    async def story(bench: Bench) -> None:
        told = [
            await bench.run(script) for script in ("true", "exit 42", "kill -SEGV $$", "false; true", "false | cat")
        ]

        assert [(e.exit_code, e.signal) for e in told] == [(0, None), (42, None), (None, 11), (1, None), (1, None)]
        assert not any(e.is_timed_out for e in told)

    in_cell(kind, tmp_path, story)


@both
def test_a_step_that_cannot_start_says_why(kind: str, tmp_path: Path) -> None:
    """A folder that is not there is the job's mistake, and the job's log tells it."""

    async def story(bench: Bench) -> None:
        bench.workspace = tmp_path / "absent"
        ended = await bench.run("true")

        assert ended.exit_code == 127
        assert b"absent" in bench.output

    in_cell(kind, tmp_path, story)


@both
def test_without_bash_the_step_runs_in_sh(kind: str, tmp_path: Path) -> None:
    """Small systems have only sh."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")

    async def story(bench: Bench) -> None:
        ended = await bench.run('echo "[$BASH_VERSION]"; false; echo not here', env={"PATH": str(tmp_path / "bin")})

        assert (bytes(bench.output), ended.exit_code) == (b"[]\n", 1)

    in_cell(kind, tmp_path, story)


@both
def test_output_and_errors_come_in_the_order_of_writing(kind: str, tmp_path: Path) -> None:
    """An error without what led to it is half the story."""

    async def story(bench: Bench) -> None:
        await bench.run("for i in $(seq 500); do echo out $i; echo err $i >&2; done")

        assert bench.output.decode().splitlines() == [f"{w} {i}" for i in range(1, 501) for w in ("out", "err")]

    in_cell(kind, tmp_path, story)


@both
def test_ten_megabytes_arrive_whole(kind: str, tmp_path: Path) -> None:
    """All that was written before the exit is delivered, however fast the exit follows."""

    async def story(bench: Bench) -> None:
        ended = await bench.run(f"head -c {10 * MEGABYTE} /dev/zero; echo -n END")

        assert ended.exit_code == 0
        assert bench.output == bytes(10 * MEGABYTE) + b"END"

    in_cell(kind, tmp_path, story)


@both
def test_a_large_script_and_environment_arrive(kind: str, tmp_path: Path) -> None:
    """Orders are larger than a socket's buffer."""

    async def story(bench: Bench) -> None:
        many = {f"LARGE_{number}": "x" * 100_000 for number in range(10)}
        await bench.run("# " + "y" * 100_000 + "\necho ${#LARGE_9}", env=many)

        assert bench.output == b"100000\n"

    in_cell(kind, tmp_path, story)


@both
def test_a_daemon_that_keeps_the_pipe_open_does_not_hold_the_step(kind: str, tmp_path: Path) -> None:
    """It lives on, and even what it writes later does not kill it."""

    async def story(bench: Bench) -> None:
        daemon = "trap 'echo heard; exit' USR1; while :; do echo noise; read -t 0.01 <> <(:) || :; done"
        ended = await bench.run(f'(setsid bash -c "{daemon}" & echo $! > pid); echo before')
        assert (ended.exit_code, b"before" in bench.output) == (0, True)

        bench.output.clear()
        await bench.run("kill -USR1 $(cat pid); tail --pid=$(cat pid) -s 0.01 -f /dev/null")
        await bench.until(b"heard")

    in_cell(kind, tmp_path, story)


@both
def test_a_step_that_takes_too_long_is_ended_and_the_next_one_runs(kind: str, tmp_path: Path) -> None:
    """It is asked first and killed when it does not listen."""

    async def story(bench: Bench) -> None:
        polite = await bench.run(
            "trap 'echo bye; exit 7' TERM; while :; do sleep 100 & wait $! || :; done", timeout_seconds=2
        )
        deaf = await bench.run("trap '' TERM; while :; do sleep 100; done", timeout_seconds=2)
        after = await bench.run("echo after")

        assert (polite.exit_code, polite.is_timed_out) == (7, True)
        assert (deaf.exit_code, deaf.signal, deaf.is_timed_out) == (None, signal.SIGKILL, True)
        assert (after.exit_code, bytes(bench.output)) == (0, b"bye\nafter\n")

    in_cell(kind, tmp_path, story)


@pytest.mark.parametrize("name", ["", "A=B", "="])
def test_a_variable_that_cannot_have_its_name_is_refused(name: str, tmp_path: Path) -> None:
    """Another variable would be set instead."""
    with pytest.raises(Refused, match="not a valid variable name"):
        environment(tmp_path, "mark", {name: "1"})


@pytest.mark.parametrize("workdir", ["..", "/etc", "missing", "a\0b"])
def test_a_folder_that_is_none_inside_is_refused(workdir: str, tmp_path: Path) -> None:
    """An error of ours would let the lease run out, again and again, and nobody would know why."""
    with pytest.raises(Refused, match="workdir") as refused:
        resolve_workdir(tmp_path, workdir)

    assert refused.value.code == "bad_spec"
