"""The process around a runner under test: whatever the runner starts, and however it hides, ends with this one.

Run as a script by a bare interpreter, so it imports nothing of ours. Its stdin is a socket to the kit: it writes there
when the runner exits, and when the kit hangs up, or is killed, it ends the runner and everybody who descends from it.
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
TERM_SECONDS = 2.0  # For the runner to leave by itself.
KILL_SECONDS = 10.0
LOOK_SECONDS = 0.02
KIT = 0


def adopt() -> None:
    """Become the parent of every orphan among our descendants, where the system knows how."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """Everybody who comes from us, zombies not counted; nobody where there is no /proc."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_bytes().rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                parents[int(path.parent.name)] = int(parent)
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= more
    return sorted(found - {os.getpid()})


def send(pids: list[int], number: signal.Signals) -> None:
    """To each of them that is still there."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


class Subreaper:
    """One runner and all who come from it."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        self._runner = self._process.pid
        self.exit_code: int | None = None

    def reap(self) -> bool:
        """Bury the dead, as the first process of a system does; whether anybody lives."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return True
                if pid == self._runner:
                    self.exit_code = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            return False

    def end(self) -> None:
        """Ask the runner, then kill it and all others until nobody is left."""
        if self.exit_code is None:
            send([self._runner], signal.SIGTERM)
        until = time.monotonic() + TERM_SECONDS
        while self.reap() and self.exit_code is None and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        until = time.monotonic() + KILL_SECONDS
        while self.reap() and time.monotonic() < until:
            left = descendants() or ([self._runner] if self.exit_code is None else [])
            send(left, signal.SIGSTOP)  # So that nobody forks between the first kill and the last.
            send(left, signal.SIGKILL)
            time.sleep(LOOK_SECONDS)


def main(command: list[str]) -> None:
    """Run it, say when it is over, and wait until the kit has seen enough."""
    adopt()
    try:
        guard = Subreaper(command)
    except OSError as error:
        os.write(KIT, f"failed: {error}\n".encode())
        return
    is_told = False
    while not select.select([KIT], [], [], LOOK_SECONDS)[0]:
        guard.reap()
        if guard.exit_code is not None and not is_told:
            is_told = True
            with contextlib.suppress(OSError):
                os.write(KIT, f"exited with {guard.exit_code}\n".encode())
    guard.end()


if __name__ == "__main__":
    main(sys.argv[1:])
