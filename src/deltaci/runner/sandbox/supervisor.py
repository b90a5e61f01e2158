"""The supervisor of a cell: it starts the steps, adopts their orphans, and kills its descendants when it ends.

It runs as a script of a bare interpreter and imports nothing of Delta CI and few other modules, as imports would take
most of a small job's time. In a sandbox it is started inside. Without a sandbox, the zygote (a fork server that runs
this script with the argument `zygote`) forks one for each cell.

Its stdin is a socket to the runner. It is a subreaper: all processes that a step leaves behind stay its descendants.
It kills them and exits when the runner ends, which it learns by the end of the socket or by a signal from the kernel,
and when the job's lease is over: at the deadline, by a clock that counts suspension, or when the lease keeper ends.

An order is a length and that many bytes: texts separated by NUL, which no text can contain. A reply is a line.
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
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ORPHANED = signal.SIGUSR2  # Sent by the kernel when the parent process dies.
PROGRAM_NOT_FOUND = 127
NOT_EXECUTABLE = 126
CANNOT_JOIN_CGROUP = 125
LENGTH_BYTES = 4
DESCRIPTOR_BYTES = 4  # of a descriptor on its way through a socket
MARKER_VARIABLE = "DELTACI_JOB_MARK"
RENEWAL_BYTES = 8  # of a renewal in the FIFO of the lease keeper: a time of CLOCK_BOOTTIME in nanoseconds
TFD_TIMER_ABSTIME = 1
LIBC = ctypes.CDLL(None, use_errno=True)


def boottime() -> float:
    """Return the seconds since the machine was booted, which include the time that it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process."""
    if LIBC.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def receive(runner: _socket.socket) -> tuple[list[str], int | None] | None:
    """Return the next order and the descriptor that came with it; None if the runner closed the socket."""
    length_bytes, ancillary_messages, _, _ = runner.recvmsg(LENGTH_BYTES, _socket.CMSG_SPACE(DESCRIPTOR_BYTES))
    descriptor = None
    for level, message_type, message_content in ancillary_messages:
        if (
            level == _socket.SOL_SOCKET
            and message_type == _socket.SCM_RIGHTS
            and len(message_content) >= DESCRIPTOR_BYTES
        ):
            descriptor = int.from_bytes(message_content[:DESCRIPTOR_BYTES], sys.byteorder)
            os.set_inheritable(descriptor, False)
    if len(length_bytes) < LENGTH_BYTES:  # The length is sent by one call with the descriptor, so it arrives whole.
        return None
    missing_bytes = int.from_bytes(length_bytes, "big")
    chunks = []
    while missing_bytes:
        chunk = runner.recv(min(missing_bytes, 1 << 16))
        if not chunk:
            return None
        chunks.append(chunk)
        missing_bytes -= len(chunk)
    return [os.fsdecode(order_part) for order_part in b"".join(chunks).split(b"\0")], descriptor


def find_program(program_name: str, search_path: str) -> str:
    """Return the path of a program on the search path, or "". `os.execvpe` would have to import a module."""
    if "/" in program_name:
        return program_name
    return next(
        (candidate for folder in search_path.split(":") if os.access(candidate := f"{folder}/{program_name}", os.X_OK)),
        "",
    )


def become_step(order: list[str], output_fd: int, deadline: LeaseDeadline) -> NoReturn:
    """Turn this forked child into the step, unless the lease is over by now. Never returns."""
    failure_code = NOT_EXECUTABLE
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        # Ignored signals would be inherited, and the job could not be terminated by them.
        for signal_number in signal.valid_signals():
            if signal_number < signal.SIGRTMIN and signal_number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(signal_number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        os.closerange(3, 1024)
        workdir, argument_count, variable_count, *arguments = order
        argv = arguments[: int(argument_count)]
        env = dict(
            assignment.split("=", 1)
            for assignment in arguments[int(argument_count) : int(argument_count) + int(variable_count)]
        )
        for assignment in arguments[int(argument_count) + int(variable_count) :]:
            limit_name, _, limit_text = assignment.partition("=")
            resource.setrlimit(getattr(resource, limit_name), (int(limit_text), int(limit_text)))
        os.chdir(workdir)
        program = find_program(argv[0], env["PATH"])
        if not program and argv[0] == "bash":
            argv = ["sh", "-e", "-c", argv[-1]]  # Without pipefail, which not every sh supports.
            program = find_program("sh", env["PATH"])
        if not program:
            raise FileNotFoundError(errno.ENOENT, "there is no such program on the search path", argv[0])
        # The last moment: the machine may have been suspended since the order was sent.
        if deadline.has_passed():
            os.kill(os.getpid(), signal.SIGKILL)
        os.execve(program, argv, env)
    except BaseException as error:
        failure_code = PROGRAM_NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        os.write(2, f"deltaci: cannot start the step: {error}\n".encode(errors="replace"))
    finally:
        os._exit(failure_code)


def descendants() -> list[int]:
    """Return the pids of all descendants of this process."""
    child_pids_by_parent: dict[int, list[int]] = {}
    for file_name in os.listdir("/proc"):
        if not file_name.isdigit():
            continue
        try:
            with open(f"/proc/{file_name}/stat", "rb") as stat_file:
                stat_bytes = stat_file.read()
        except OSError:
            continue
        child_pids_by_parent.setdefault(int(stat_bytes[stat_bytes.rindex(b")") + 2 :].split()[1]), []).append(
            int(file_name)
        )
    descendant_pids: list[int] = []
    unvisited_pids = [os.getpid()]
    while unvisited_pids:
        child_pids = child_pids_by_parent.get(unvisited_pids.pop(), [])
        descendant_pids += child_pids
        unvisited_pids += child_pids
    return descendant_pids


def kill_descendants(on_exit: Callable[[int, int], None] = lambda _pid, _status: None) -> None:
    """Kill until no child is left. As orphans become children of this process, none is left at all.

    `on_exit` is called with the pid and status of each child that ended.
    """
    wait_options = os.WNOHANG  # Without a child there is nothing to search for.
    while True:
        try:
            on_exit(*os.waitpid(-1, wait_options))
        except ChildProcessError:
            return
        for pid in descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        wait_options = 0


class BoottimeTimer:
    """A file descriptor that becomes readable at a time of CLOCK_BOOTTIME, also if the machine was suspended then.

    The timeouts of `poll` and of asyncio do not count suspension.
    """

    def __init__(self) -> None:
        self._descriptor: int = LIBC.timerfd_create(time.CLOCK_BOOTTIME, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def fileno(self) -> int:
        return self._descriptor

    def set(self, at: float) -> None:
        """Become readable at this time, or at once if it has passed. It replaces the time that was set before."""
        nanoseconds = max(1, int(at * 1e9))  # 0 would switch the timer off.
        interval_and_value = (ctypes.c_long * 4)(0, 0, nanoseconds // 10**9, nanoseconds % 10**9)
        if LIBC.timerfd_settime(self._descriptor, TFD_TIMER_ABSTIME, interval_and_value, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")


class LeaseDeadline:
    """The time at which the job must be dead. The lease keeper moves it with each renewal, over a FIFO."""

    def __init__(self, poll: select.poll) -> None:
        self._poll = poll
        self._timer = BoottimeTimer()
        self._renewals_fd = -1
        self._at = float("inf")
        poll.register(self._timer.fileno(), select.POLLIN)

    def bind(self, deadline: float, renewals_fd: int) -> None:
        """Set the first deadline and the FIFO from which later ones are read."""
        self._renewals_fd = renewals_fd
        os.set_blocking(renewals_fd, False)
        self._poll.register(renewals_fd, select.POLLIN)
        self._set_timer(deadline)

    def _set_timer(self, deadline: float) -> None:
        self._at = deadline
        self._timer.set(deadline)

    def read_renewals(self, events: int) -> None:
        """Read the latest deadline after these events of `poll`. If the keeper has closed the FIFO, it is now."""
        last_chunk = b""
        while events & select.POLLIN:
            try:
                chunk = os.read(self._renewals_fd, RENEWAL_BYTES * 64)
            except BlockingIOError:
                break
            if not chunk:
                break
            last_chunk = chunk
        if last_chunk:
            self._set_timer(int.from_bytes(last_chunk[-RENEWAL_BYTES:], "little") / 1e9)
        if events & select.POLLHUP:
            self._set_timer(0.0)

    def has_passed(self) -> bool:
        """Return whether the job must be dead, according to the renewals that were read."""
        return boottime() >= self._at

    def is_over(self, events: dict[int, int]) -> bool:
        """Return whether the job must be dead, after these events of `poll` by file descriptor."""
        if self._renewals_fd in events:
            self.read_renewals(events[self._renewals_fd])
        return self.has_passed()


class OrderLoop:
    """The main loop of a supervisor or the zygote: executes the runner's orders and reaps children.

    Signals wake it through a pipe.
    """

    def __init__(self) -> None:
        self._signal_pipe, wakeup_fd = os.pipe()
        os.set_blocking(self._signal_pipe, False)
        os.set_blocking(wakeup_fd, False)
        signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
        # Handlers instead of SIG_IGN, as they are reset by exec. A signal to the whole job must not end its supervisor.
        for signal_number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, ORPHANED):
            signal.signal(signal_number, lambda *_: None)

    def run(
        self,
        poll: select.poll,
        runner: _socket.socket,
        execute_order: Callable[[], bool],
        reap: Callable[[], None],
        is_lease_over: Callable[[dict[int, int]], bool] = lambda _: False,
    ) -> None:
        """Execute orders and reap children until the runner is gone, the parent has died, or the lease is over."""
        poll.register(runner.fileno(), select.POLLIN)
        poll.register(self._signal_pipe, select.POLLIN)
        while True:
            events_by_fd = dict(poll.poll())
            if is_lease_over(events_by_fd):
                return
            if self._signal_pipe in events_by_fd:
                if ORPHANED in os.read(self._signal_pipe, 4096):
                    return
                reap()
            if runner.fileno() in events_by_fd and not execute_order():
                return


def reap_children() -> list[tuple[int, int]]:
    """Return pid and exit code of each ended child; a signal is a negative exit code."""
    exits: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return exits
        if not pid:
            return exits
        exits.append((pid, os.waitstatus_to_exitcode(status)))


class Supervisor:
    """Runs one step at a time, beside any number of processes that earlier steps left."""

    def __init__(self, runner: _socket.socket, deadline: LeaseDeadline) -> None:
        self.runner = runner
        self.deadline = deadline
        self.step = 0
        self.open_files: list[int] = []  # The kernel closes them when this process ends, which their readers notice.

    def send(self, *words: object) -> None:
        """Send a reply to the runner."""
        self.runner.sendall(" ".join(map(str, words)).encode() + b"\n")

    def reap(self) -> None:
        """Reap ended children and report the step's exit to the runner."""
        for pid, exit_code in reap_children():
            if pid == self.step:
                self._report_exit(exit_code)

    def on_child_exit(self, pid: int, status: int) -> None:
        """Report the step's exit while descendants are killed, if it exited by itself."""
        if pid and pid == self.step and os.WIFEXITED(status):
            try:
                self._report_exit(os.waitstatus_to_exitcode(status))
            except OSError:
                return  # The runner is gone.

    def _report_exit(self, exit_code: int) -> None:
        self.step = 0
        resource_usage = resource.getrusage(resource.RUSAGE_CHILDREN)  # Of all descendants that have ended so far.
        self.send("exit", exit_code, resource_usage.ru_utime + resource_usage.ru_stime, resource_usage.ru_maxrss * 1024)

    def signal_step(self, signal_number: int) -> None:
        """Signal the step and its process group, but not what earlier steps left running."""
        if self.step:
            try:
                os.killpg(self.step, signal_number)
            except ProcessLookupError:  # It has not called setsid yet.
                os.kill(self.step, signal_number)

    def execute_order(self) -> bool:
        """Execute the next order; return False if the runner is gone."""
        received = receive(self.runner)
        if received is None:
            return False
        (verb, *order), descriptor = received
        if verb == "signal":
            self.signal_step(int(order[0]))
        elif descriptor is None:
            return True
        elif verb == "lease":
            self.deadline.bind(float(order[0]), descriptor)
        elif verb == "keep_open":
            self.open_files.append(descriptor)
        else:
            try:
                self.step = os.fork()
            except OSError as error:
                os.write(
                    descriptor, f"deltaci: cannot start the step: {os.strerror(error.errno or errno.EAGAIN)}\n".encode()
                )
                self.send("exit", NOT_EXECUTABLE, 0.0, 0)
            else:
                if not self.step:
                    become_step(order, descriptor, self.deadline)
            os.close(descriptor)
        return True


def supervise(runner: _socket.socket) -> None:
    """Supervise one job until the runner is gone or the job's lease is over."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    order_loop = OrderLoop()
    prctl(PR_SET_PDEATHSIG, ORPHANED)
    poll = select.poll()
    deadline = LeaseDeadline(poll)
    supervisor = Supervisor(runner, deadline)
    try:
        supervisor.send("ready", os.getpid())
        order_loop.run(poll, runner, supervisor.execute_order, supervisor.reap, deadline.is_over)
        if deadline.has_passed():
            supervisor.send("lease_over")
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ECONNRESET):
            raise
    finally:
        kill_descendants(supervisor.on_child_exit)


def guard() -> None:
    """Fork. Return in the child, which becomes the supervisor; the parent never returns.

    The parent stays as its guard and cleans up if the supervisor is killed: a step can kill its parent (`kill -9
    $PPID`), which must not set its orphans free.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    supervisor_pid = os.fork()
    if not supervisor_pid:
        return
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # The supervisor receives ORPHANED and kills all.
    # Only the supervisor holds the socket, so that its end is noticed at once.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signal_number, lambda *_: None)
    while os.waitpid(-1, 0)[0] != supervisor_pid:
        continue
    kill_descendants()
    os._exit(0)  # Proves that no process is left.


# -- the zygote


def write_marker(marker: str) -> None:
    """Write the job's marker into the environment with which this process was started, where /proc shows it.

    The zygote was started with a placeholder of the same length, which is overwritten in place.
    """
    variables = ctypes.cast(ctypes.c_void_p.in_dll(LIBC, "environ"), ctypes.POINTER(ctypes.c_void_p))
    variable_prefix = f"{MARKER_VARIABLE}=".encode()
    index = 0
    while variable := variables[index]:
        if ctypes.string_at(variable).startswith(variable_prefix):
            ctypes.memmove(variable + len(variable_prefix), marker.encode(), len(marker))
            return
        index += 1
    raise OSError(errno.EINVAL, f"the zygote was started without {MARKER_VARIABLE}")


def become_supervisor(order: list[str], socket_fd: int) -> NoReturn:
    """Turn this forked child of the zygote into the guard and the supervisor of a cell. Never returns."""
    marker, *procs_files = order
    signal.set_wakeup_fd(-1)
    os.dup2(socket_fd, 0)
    os.closerange(3, 1024)
    runner = _socket.socket(fileno=0)
    try:
        os.setsid()
        # Before anything else, so that no process of the job runs outside of its cgroups.
        for procs_file in procs_files:
            with open(procs_file, "wb", buffering=0) as procs_writer:
                procs_writer.write(b"0")
        write_marker(marker)
        guard()
        supervise(runner)
        os._exit(0)
    except BaseException as error:
        try:
            runner.sendall(f"failed {error}\n".encode(errors="replace"))
        finally:
            os._exit(CANNOT_JOIN_CGROUP)


class ForkServer:
    """The zygote: forks cells until the runner is gone, and reports how each guard ended."""

    def __init__(self, runner: _socket.socket) -> None:
        self.runner = runner
        self.cells: dict[int, str] = {}

    def reap(self) -> None:
        """Report the guards that ended."""
        for pid, exit_code in reap_children():
            marker = self.cells.pop(pid, "")
            self.runner.sendall(f"ended {marker} {exit_code}\n".encode())

    def execute_order(self) -> bool:
        """Receive one order and fork the supervisor of a cell for it; return False if the runner is gone."""
        received = receive(self.runner)
        if received is None:
            return False
        order, descriptor = received
        if descriptor is not None:
            try:
                pid = os.fork()
            except OSError as error:
                self.runner.sendall(f"failed {order[0]} {error}\n".encode())
            else:
                if not pid:
                    become_supervisor(order, descriptor)
                self.cells[pid] = order[0]
                self.runner.sendall(f"forked {order[0]} {pid}\n".encode())
            os.close(descriptor)
        return True


def main() -> None:
    """Run as a supervisor, or as the zygote if the argument is `zygote`."""
    runner = _socket.socket(fileno=0)
    if "zygote" not in sys.argv:
        supervise(runner)
        return
    gc.disable()  # It would write to memory pages shared with children, which copies them.
    order_loop = OrderLoop()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    fork_server = ForkServer(runner)
    runner.sendall(b"ready\n")
    order_loop.run(select.poll(), runner, fork_server.execute_order, fork_server.reap)
    os._exit(0)


if __name__ == "__main__":
    main()
