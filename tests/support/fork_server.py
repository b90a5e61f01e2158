"""Start `deltaci` processes without importing the program again for each of them.

    process = Deltaci(["server", "--port", "0"], cwd=folder, stdout=subprocess.PIPE)
    process.kill()

Importing the server takes 0.4 s of CPU, and the tests start hundreds of processes. One process for each pytest process
imports everything once; every `Deltaci` is forked from it. It is a real process with its own pid, session, environment
and files: it can be stopped and killed like any other. Only its command line, as `ps` shows it, is not its own.

The fork server has no threads. A request is a JSON object on a Unix socket with four file descriptors: standard input,
output and error, and the pipe to which the fork server writes the exit status of the process.
"""

from __future__ import annotations

import array
import atexit
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
MAX_REQUEST_BYTES: Final = 1 << 20
# Not imported in advance: rarely used, or they start threads.
NOT_PRELOADED: Final = ("deltaci.sim", "deltaci.conformance", "deltaci.storage.blobs.s3", "deltaci.main")
STATUS_BYTES: Final = 4


# --- The process that asks -----------------------------------------------------------------------


class ForkServer:
    """The fork server of this process, started when the first program is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, request: Mapping[str, object], fds: Sequence[int]) -> int:
        """Have a process forked that runs `deltaci` with these three files and this pipe; return its pid."""
        with self._lock:
            if self._socket is None:
                self._start()
            assert self._socket is not None
            data = json.dumps(request).encode()
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            self._socket.sendmsg([len(data).to_bytes(STATUS_BYTES, "big")], ancillary)
            self._socket.sendall(data)
            answer = self._socket.recv(STATUS_BYTES, socket.MSG_WAITALL)
            assert len(answer) == STATUS_BYTES, "the fork server ended; its message is above"
            return int.from_bytes(answer, "big")

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())],
            cwd=ROOT,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the tests, which then stop it.
        )
        theirs.close()
        atexit.register(self._stop)

    def _stop(self) -> None:
        assert self._socket is not None
        assert self._process is not None
        self._socket.close()
        self._process.wait()


FORK_SERVER: Final = ForkServer()


class Deltaci(subprocess.Popen[bytes]):
    """A `deltaci` process, used like any `Popen`. Every option but cwd, env, the files and the session is refused."""

    def __init__(self, words: Sequence[str], **options: Any) -> None:
        unknown = options.keys() - {"cwd", "env", "stdin", "stdout", "stderr", "start_new_session"}
        assert not unknown, f"a forked process has no {unknown}; use subprocess.Popen"
        super().__init__(list(words), **options)

    def _execute_child(self, *values: Any) -> None:
        """Have it forked, in place of forking here. The parameters are those of `Popen` since Python 3.11."""
        words, cwd, env = values[0], values[5], values[6]
        ends, start_new_session = values[10:16], values[21]
        reads, writes = os.pipe()
        try:
            fds = [fd if fd >= 0 else number for number, fd in enumerate((ends[0], ends[3], ends[5]))]
            request = {
                "words": [os.fspath(word) for word in words],
                "cwd": os.fspath(cwd or os.getcwd()),
                "env": dict(os.environ if env is None else env),
                "start_new_session": bool(start_new_session),
            }
            self.pid = FORK_SERVER.fork(request, [*fds, writes])
        finally:
            os.close(writes)
            self._close_pipe_fds(*ends)  # type: ignore[attr-defined]
        self._child_created = True
        self._status = reads

    def _internal_poll(self, *_: object, **__: object) -> int | None:
        return self._ended(0)

    def _wait(self, timeout: float | None) -> int:
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def _ended(self, timeout: float | None) -> int | None:
        """Wait for the exit status for so many seconds; return it, or None if the process still runs."""
        if self.returncode is None and hasattr(self, "_status"):
            poll = select.poll()
            poll.register(self._status, select.POLLIN)
            if poll.poll(None if timeout is None else max(0, timeout) * 1000):
                status = os.read(self._status, STATUS_BYTES)
                os.close(self._status)
                del self._status
                self.returncode = int.from_bytes(status, "big", signed=True) if status else -signal.SIGKILL
        return self.returncode


# --- The fork server -----------------------------------------------------------------------------


def preload() -> None:
    """Import every module of the program that a process may need."""
    package = importlib.import_module("deltaci")
    for module in pkgutil.walk_packages(package.__path__, "deltaci."):
        if not module.name.startswith(NOT_PRELOADED):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()


def receive(asker: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Read one request and its file descriptors; return None when the asker has ended."""
    size = array.array("i").itemsize
    head, ancillary, _, _ = asker.recvmsg(STATUS_BYTES, socket.CMSG_SPACE(4 * size))
    if not head:
        return None
    fds = array.array("i")
    for _, _, data in ancillary:
        fds.frombytes(data[: len(data) - len(data) % size])
    return json.loads(asker.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)), list(fds)


def serve(asker: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork a process for every request; return only in the forked processes, with their request and files."""
    statuses: dict[int, int] = {}
    wakeups, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    poll.register(wakeups, select.POLLIN)
    poll.register(asker, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if wakeups in ready:
            os.read(wakeups, 4096)
            reap(statuses)
        if asker.fileno() in ready:
            request = receive(asker)
            if request is None:
                raise SystemExit
            pid = os.fork()
            if not pid:
                return request
            *files, statuses[pid] = request[1]
            for fd in files:
                os.close(fd)
            asker.sendall(pid.to_bytes(STATUS_BYTES, "big"))


def reap(statuses: dict[int, int]) -> None:
    """Report the exit status of every process that has ended."""
    for pid in list(statuses):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            fd = statuses.pop(pid)
            with suppress(BrokenPipeError):  # The test did not wait for it.
                os.write(fd, os.waitstatus_to_exitcode(status).to_bytes(STATUS_BYTES, "big", signed=True))
            os.close(fd)


def become(request: dict[str, Any], fds: Sequence[int]) -> None:
    """Turn the forked process into the one that was asked for: signals, files, session, folder, environment."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    os.closerange(3, max(fds) + 1)
    if request["start_new_session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["deltaci", *request["words"]]


if __name__ == "__main__":
    preload()
    become(*serve(socket.socket(fileno=int(sys.argv[1]))))
    from deltaci.main import main

    main()
