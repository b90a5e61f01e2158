"""A forked `deltaci` process behaves like one that was executed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.fork_server import Deltaci


def test_a_wrong_command_ends_with_its_exit_code_and_message(tmp_path: Path) -> None:
    """Exit status, standard output and standard error are its own."""
    with Deltaci(["no-such-command"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        output, error = process.communicate(timeout=60)

    assert (process.returncode, output) == (2, b"")
    assert b"no-such-command" in error


def test_it_has_its_own_folder_and_session_and_can_be_killed(tmp_path: Path) -> None:
    """Nothing of the test's own process is used but what was passed."""
    process = Deltaci(
        ["server", "--port", "0", "--data", "data"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        assert b"listening on" in process.stdout.readline()
        assert (tmp_path / "data").is_dir()
        assert os.getsid(process.pid) == process.pid
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)

        process.kill()

        assert process.wait(60) == -signal.SIGKILL
    assert process.poll() == -signal.SIGKILL


def test_a_process_that_is_asked_to_stop_ends_by_itself(tmp_path: Path) -> None:
    """Signal handlers are those of the program."""
    with Deltaci(["server", "--port", "0"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        assert b"listening on" in server.stdout.readline()

        server.terminate()

        assert server.wait(60) == 0
