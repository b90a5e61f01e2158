"""The parent process of a runner under test: when it ends, the runner and all of its descendants have ended.

It runs as a script in an isolated interpreter, so it imports nothing of this project. Its stdin is a socket to the kit:
it writes one line there when the runner exits. When the kit closes the socket, or is killed, it ends the runner and all
descendants. As a child subreaper (see prctl(2)) it becomes the parent of orphaned descendants and so finds them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
TERM_SECONDS = 2.0  # For the runner to exit by itself.
KILL_SECONDS = 10.0
POLL_SECONDS = 0.02
KIT_SOCKET = 0


def become_subreaper() -> None:
    """Become the parent of every orphaned descendant, if the system supports it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """Return the pids of all descendants, without zombies; empty if there is no /proc."""
    parent_pids: dict[int, int] = {}
    for stat_path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            process_state, parent_pid = stat_path.read_bytes().rpartition(b")")[2].split()[:2]
            if process_state not in (b"Z", b"X"):
                parent_pids[int(stat_path.parent.name)] = int(parent_pid)
    family_pids = {os.getpid()}
    while child_pids := {
        pid for pid, parent_pid in parent_pids.items() if parent_pid in family_pids and pid not in family_pids
    }:
        family_pids |= child_pids
    return sorted(family_pids - {os.getpid()})


def send(pids: list[int], signal_number: signal.Signals) -> None:
    """Send a signal to each of the processes that still exists."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal_number)


class Subreaper:
    """The runner process, which this process starts, and its descendants."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        self._runner_pid = self._process.pid
        self.exit_code: int | None = None

    def reap(self) -> bool:
        """Collect the exit status of all ended children. Return whether a child process is left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return True
                if pid == self._runner_pid:
                    self.exit_code = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            return False

    def end(self) -> None:
        """Terminate the runner, then kill it and its descendants until none is left."""
        if self.exit_code is None:
            send([self._runner_pid], signal.SIGTERM)
        deadline = time.monotonic() + TERM_SECONDS
        while self.reap() and self.exit_code is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        deadline = time.monotonic() + KILL_SECONDS
        while self.reap() and time.monotonic() < deadline:
            remaining_pids = descendants() or ([self._runner_pid] if self.exit_code is None else [])
            send(remaining_pids, signal.SIGSTOP)  # So that none forks between the first kill and the last.
            send(remaining_pids, signal.SIGKILL)
            time.sleep(POLL_SECONDS)


def main(command: list[str]) -> None:
    """Run the command, report its exit to the kit, and clean up when the kit closes the socket."""
    become_subreaper()
    try:
        subreaper = Subreaper(command)
    except OSError as error:
        os.write(KIT_SOCKET, f"failed: {error}\n".encode())
        return
    is_reported = False
    while not select.select([KIT_SOCKET], [], [], POLL_SECONDS)[0]:
        subreaper.reap()
        if subreaper.exit_code is not None and not is_reported:
            is_reported = True
            with contextlib.suppress(OSError):
                os.write(KIT_SOCKET, f"exited with {subreaper.exit_code}\n".encode())
    subreaper.end()


if __name__ == "__main__":
    main(sys.argv[1:])
