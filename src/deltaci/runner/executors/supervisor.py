"""The first process of a cell: it starts the steps, adopts their orphans, and takes everybody along when it ends.

Run as a script by a bare interpreter, outside or inside a sandbox, so it imports nothing of ours. Its stdin is a
socket to the runner. It is a subreaper: whatever a step leaves behind, however it hides, stays its descendant. When the
runner is gone, by the end of the socket or by the kernel's word, it kills all of them and ends.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ORPHANED = signal.SIGUSR2  # What the kernel sends us when the runner dies.
NOT_FOUND = 127
NOT_EXECUTABLE = 126
LENGTH_BYTES = 4


def prctl(option: int, value: int) -> None:
    """Ask the kernel for something about this process."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def receive(runner: socket.socket) -> tuple[dict[str, Any], int | None] | None:
    """The next order, with the descriptor that came along; None when the runner is gone."""
    head, files, _, _ = socket.recv_fds(runner, LENGTH_BYTES, 1)
    for file in files:
        os.set_inheritable(file, False)
    if len(head) < LENGTH_BYTES:  # They are sent by one call together with the descriptor, so they come together.
        return None
    missing = int.from_bytes(head, "big")
    parts = []
    while missing:
        part = runner.recv(min(missing, 1 << 16))
        if not part:
            return None
        parts.append(part)
        missing -= len(part)
    return json.loads(b"".join(parts) or b"{}"), files[0] if files else None


def become(order: dict[str, Any], output: int) -> NoReturn:
    """Turn this fresh child into the step. Never returns."""
    code = NOT_EXECUTABLE
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        # Ignored signals would be inherited: a job that cannot be told to end is not what anybody asked for.
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if number < signal.SIGRTMIN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, 1024)
        for name, value in order["rlimits"].items():
            resource.setrlimit(getattr(resource, name), (value, value))
        os.chdir(order["workdir"])
        argv, env = order["argv"], order["env"]
        if argv[0] == "bash" and shutil.which("bash", path=env["PATH"]) is None:
            argv = ["sh", "-e", "-c", argv[-1]]  # No pipefail: not every sh knows it.
        os.execvpe(argv[0], argv, env)
    except BaseException as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        os.write(2, f"deltaci: cannot start the step: {error}\n".encode(errors="replace"))
    finally:
        os._exit(code)


def descendants() -> list[int]:
    """Everybody below this process."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                text = file.read()
        except OSError:
            continue
        if name.isdigit():
            children.setdefault(int(text[text.rindex(b")") + 2 :].split()[1]), []).append(int(name))
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def end_everybody() -> None:
    """Kill until there is no child left. Orphans become our children, so no child means nobody at all."""
    while True:
        for pid in descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


class Supervisor:
    """One step at a time, and any number of leftovers."""

    def __init__(self, runner: socket.socket, wake: int) -> None:
        self.runner = runner
        self.wake = wake
        self.step = 0

    def say(self, **answer: Any) -> None:
        """Tell the runner, one line for each answer."""
        self.runner.sendall(json.dumps(answer).encode() + b"\n")

    def reap(self) -> None:
        """Count the dead; the runner hears of the step only."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self.step:
                self.step = 0
                code = os.waitstatus_to_exitcode(status)
                used = resource.getrusage(resource.RUSAGE_CHILDREN)  # Of everybody who has ended so far.
                self.say(
                    exit_code=code if code >= 0 else None,
                    signal=-code if code < 0 else None,
                    cpu_seconds=used.ru_utime + used.ru_stime,
                    peak_memory_bytes=used.ru_maxrss * 1024,
                )

    def signal_step(self, number: int) -> None:
        """To the step and what runs in its process group. Not to what earlier steps left running."""
        if self.step:
            try:
                os.killpg(self.step, number)
            except ProcessLookupError:  # It has not come to setsid yet.
                os.kill(self.step, number)

    def obey(self) -> bool:
        """Carry out the next order; False when the runner is gone."""
        received = receive(self.runner)
        if received is None:
            return False
        order, output = received
        if order["do"] == "signal":
            self.signal_step(order["signal"])
        elif output is not None:
            try:
                self.step = os.fork()
            except OSError as error:
                os.write(
                    output, f"deltaci: cannot start the step: {os.strerror(error.errno or errno.EAGAIN)}\n".encode()
                )
                self.say(exit_code=NOT_EXECUTABLE, signal=None)
            else:
                if not self.step:
                    become(order, output)
            os.close(output)
        return True

    def serve(self) -> None:
        """Until the runner is gone."""
        self.say(ready=True)
        poll = select.poll()
        poll.register(self.runner.fileno(), select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        while True:
            ready = {file for file, _ in poll.poll()}
            if self.wake in ready:
                if ORPHANED in os.read(self.wake, 4096):
                    return
                self.reap()
            if self.runner.fileno() in ready and not self.obey():
                return


def guard() -> None:
    """Returns in a child that is to be the supervisor; this process stays behind it, and clears up when it is killed.

    A step's parent is within the step's reach: one careless `kill -9 $PPID` must not set its orphans free.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    supervisor = os.fork()
    if not supervisor:
        return
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # The supervisor learns of it, and ends everybody.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # Only the supervisor holds the socket: its end is seen at once.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)
    while os.waitpid(-1, 0)[0] != supervisor:
        continue
    end_everybody()
    os._exit(0)  # The proof: nobody is left.


def main() -> None:
    """Where the script begins."""
    if "guarded" in sys.argv:
        guard()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    # Handlers, not SIG_IGN: they end with exec. Whoever signals the whole job must not end its supervisor.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, ORPHANED):
        signal.signal(number, lambda *_: None)
    prctl(PR_SET_PDEATHSIG, ORPHANED)
    try:
        Supervisor(socket.socket(fileno=0), wake).serve()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ECONNRESET):
            raise
    finally:
        end_everybody()


if __name__ == "__main__":
    main()
