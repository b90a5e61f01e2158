"""The first process of a cell: it starts the steps, adopts their orphans, and takes everybody along when it ends.

Run as a script by a bare interpreter, so it imports nothing of ours, and little else: most of a small job's time would
be its imports. A sandbox starts one inside its walls. Without walls a nursery, which is warm, forks one for each cell.

Its stdin is a socket to the runner. It is a subreaper: whatever a step leaves behind, however it hides, stays its
descendant. When the runner is gone, by the end of the socket or by the kernel's word, it kills all of them and ends.

An order is a length and that many bytes: texts, joined by NUL, which no text of an order can hold. An answer is a line.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # Without the enums of `signal`: a third of the start.
import _socket
import ctypes
import errno
import gc
import os
import resource
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ORPHANED = signal.SIGUSR2  # What the kernel sends us when the runner dies.
NOT_FOUND = 127
NOT_EXECUTABLE = 126
NOT_JOINED = 125
LENGTH_BYTES = 4
FILE_BYTES = 4  # of a descriptor on its way through a socket
MARKER_VARIABLE = "DELTACI_JOB_MARK"
LIBC = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """Ask the kernel for something about this process."""
    if LIBC.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def receive(runner: _socket.socket) -> tuple[list[str], int | None] | None:
    """The next order, with the descriptor that came along; None when the runner is gone."""
    head, extra, _, _ = runner.recvmsg(LENGTH_BYTES, _socket.CMSG_SPACE(FILE_BYTES))
    file = None
    for level, kind, data in extra:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS and len(data) >= FILE_BYTES:
            file = int.from_bytes(data[:FILE_BYTES], sys.byteorder)
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
    return [os.fsdecode(text) for text in b"".join(parts).split(b"\0")], file


def find(name: str, path: str) -> str:
    """The program with this name, by the search path; empty when there is none. `os.execvpe` would import for that."""
    if "/" in name:
        return name
    return next((found for folder in path.split(":") if os.access(found := f"{folder}/{name}", os.X_OK)), "")


def become(order: list[str], output: int) -> NoReturn:
    """Turn this fresh child into the step. Never returns."""
    code = NOT_EXECUTABLE
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        # Ignored signals would be inherited: a job that cannot be told to end is not what anybody asked for.
        for number in signal.valid_signals():
            if number < signal.SIGRTMIN and number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, 1024)
        workdir, words, variables, *rest = order
        argv = rest[: int(words)]
        env = dict(each.split("=", 1) for each in rest[int(words) : int(words) + int(variables)])
        for each in rest[int(words) + int(variables) :]:
            name, _, value = each.partition("=")
            resource.setrlimit(getattr(resource, name), (int(value), int(value)))
        os.chdir(workdir)
        program = find(argv[0], env["PATH"])
        if not program and argv[0] == "bash":
            argv = ["sh", "-e", "-c", argv[-1]]  # No pipefail: not every sh knows it.
            program = find("sh", env["PATH"])
        if not program:
            raise FileNotFoundError(errno.ENOENT, "there is no such program on the search path", argv[0])
        os.execve(program, argv, env)
    except BaseException as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        os.write(2, f"deltaci: cannot start the step: {error}\n".encode(errors="replace"))
    finally:
        os._exit(code)


def descendants() -> list[int]:
    """Everybody below this process."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                text = file.read()
        except OSError:
            continue
        children.setdefault(int(text[text.rindex(b")") + 2 :].split()[1]), []).append(int(name))
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def end_everybody(heard: Callable[[int, int], None] = lambda _pid, _status: None) -> None:
    """Kill until there is no child left. Orphans become our children, so no child means nobody at all.

    Of each child that ended, its status is heard.
    """
    options = os.WNOHANG  # Who has no child need not look for others.
    while True:
        try:
            heard(*os.waitpid(-1, options))
        except ChildProcessError:
            return
        for pid in descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        options = 0


class Woken:
    """Signals as something that can be waited for."""

    def __init__(self) -> None:
        self.file, woken = os.pipe()
        os.set_blocking(self.file, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        # Handlers, not SIG_IGN: they end with exec. Whoever signals the whole job must not end its supervisor.
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, ORPHANED):
            signal.signal(number, lambda *_: None)

    def serve(self, runner: _socket.socket, obey: Callable[[], bool], reap: Callable[[], None]) -> None:
        """Until the runner is gone."""
        poll = select.poll()
        poll.register(runner.fileno(), select.POLLIN)
        poll.register(self.file, select.POLLIN)
        while True:
            ready = {file for file, _ in poll.poll()}
            if self.file in ready:
                if ORPHANED in os.read(self.file, 4096):
                    return
                reap()
            if runner.fileno() in ready and not obey():
                return


def ended() -> list[tuple[int, int]]:
    """The children who ended, with their exit codes, or with the signal as a negative number."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if not pid:
            return found
        found.append((pid, os.waitstatus_to_exitcode(status)))


class Supervisor:
    """One step at a time, and any number of leftovers."""

    def __init__(self, runner: _socket.socket) -> None:
        self.runner = runner
        self.step = 0

    def say(self, *words: object) -> None:
        """Tell the runner."""
        self.runner.sendall(" ".join(map(str, words)).encode() + b"\n")

    def reap(self) -> None:
        """Count the dead; the runner hears of the step only."""
        for pid, code in ended():
            if pid == self.step:
                self._tell_end(code)

    def hear(self, pid: int, status: int) -> None:
        """Somebody ended while everybody is ended. A step that was about to leave by itself has still said how."""
        if pid and pid == self.step and os.WIFEXITED(status):
            try:
                self._tell_end(os.waitstatus_to_exitcode(status))
            except OSError:
                return  # Nobody wants to know.

    def _tell_end(self, code: int) -> None:
        self.step = 0
        used = resource.getrusage(resource.RUSAGE_CHILDREN)  # Of everybody who has ended so far.
        self.say("exit", code, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)

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
        (verb, *order), output = received
        if verb == "signal":
            self.signal_step(int(order[0]))
        elif output is not None:
            try:
                self.step = os.fork()
            except OSError as error:
                os.write(
                    output, f"deltaci: cannot start the step: {os.strerror(error.errno or errno.EAGAIN)}\n".encode()
                )
                self.say("exit", NOT_EXECUTABLE, 0.0, 0)
            else:
                if not self.step:
                    become(order, output)
            os.close(output)
        return True


def supervise(runner: _socket.socket) -> None:
    """Hold one job together, until the runner is gone."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    woken = Woken()
    prctl(PR_SET_PDEATHSIG, ORPHANED)
    supervisor = Supervisor(runner)
    try:
        supervisor.say("ready", os.getpid())
        woken.serve(runner, supervisor.obey, supervisor.reap)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ECONNRESET):
            raise
    finally:
        end_everybody(supervisor.hear)


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


# -- the nursery


def brand(mark: str) -> None:
    """Carry the job's mark where everybody can see it: in the environment that this process was started with.

    The nursery was started with a mark of the same length, which belongs to no job; it is written over in place.
    """
    variables = ctypes.cast(ctypes.c_void_p.in_dll(LIBC, "environ"), ctypes.POINTER(ctypes.c_void_p))
    name = f"{MARKER_VARIABLE}=".encode()
    place = 0
    while variable := variables[place]:
        if ctypes.string_at(variable).startswith(name):
            ctypes.memmove(variable + len(name), mark.encode(), len(mark))
            return
        place += 1
    raise OSError(errno.EINVAL, f"the nursery was started without {MARKER_VARIABLE}")


def be_born(order: list[str], file: int) -> NoReturn:
    """Turn this fresh child of the nursery into the guard and the supervisor of a cell. Never returns."""
    mark, *groups = order
    signal.set_wakeup_fd(-1)
    os.dup2(file, 0)
    os.closerange(3, 1024)
    runner = _socket.socket(fileno=0)
    try:
        os.setsid()
        # Before anything else, so that nothing of the job ever runs outside of its groups.
        for group in groups:
            with open(group, "wb", buffering=0) as members:
                members.write(b"0")
        brand(mark)
        guard()
        supervise(runner)
        os._exit(0)
    except BaseException as error:
        try:
            runner.sendall(f"failed {error}\n".encode(errors="replace"))
        finally:
            os._exit(NOT_JOINED)


class Nursery:
    """Makes cells until the runner is gone, and tells how each of them ended."""

    def __init__(self, runner: _socket.socket) -> None:
        self.runner = runner
        self.cells: dict[int, str] = {}

    def reap(self) -> None:
        """Tell which guards are gone."""
        for pid, code in ended():
            mark = self.cells.pop(pid, "")
            self.runner.sendall(f"gone {mark} {code}\n".encode())

    def obey(self) -> bool:
        """Make a cell; False when the runner is gone."""
        received = receive(self.runner)
        if received is None:
            return False
        order, file = received
        if file is not None:
            try:
                pid = os.fork()
            except OSError as error:
                self.runner.sendall(f"barren {order[0]} {error}\n".encode())
            else:
                if not pid:
                    be_born(order, file)
                self.cells[pid] = order[0]
                self.runner.sendall(f"born {order[0]} {pid}\n".encode())
            os.close(file)
        return True


def main() -> None:
    """Where the script begins."""
    runner = _socket.socket(fileno=0)
    if "nursery" not in sys.argv:
        supervise(runner)
        return
    gc.disable()  # It would write to every page that a child shares with us.
    woken = Woken()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    nursery = Nursery(runner)
    runner.sendall(b"ready\n")
    woken.serve(runner, nursery.obey, nursery.reap)
    os._exit(0)


if __name__ == "__main__":
    main()
