"""Start `deltaci` processes without importing the program again for each of them.

    process = Deltaci(["server", "--port", "0"], cwd=folder, stdout=subprocess.PIPE)
    process.kill()

Importing the server takes 0.4 s of CPU, and the tests start hundreds of processes. One process for each pytest process
imports everything once; every `Deltaci` is forked from it. It is a real process with its own pid, environment, working
directory and standard files, and with its own session if `start_new_session` is set: it can be stopped and killed like
any other. Its command line, as `ps` shows it, is that of the fork server, and environment variables that Python reads
when it starts (PYTHONHASHSEED, PYTHONUNBUFFERED) have no effect.

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
# Not imported in advance: rarely used, or they start threads.
NOT_PRELOADED: Final = ("deltaci.simulation", "deltaci.conformance", "deltaci.storage.blobs.s3", "deltaci.__main__")
INT_BYTES: Final = 4


# --- The client: a pytest process ----------------------------------------------------------------


class ForkServer:
    """The connection of this pytest process to its fork server, which starts with the first request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, request: Mapping[str, object], fds: Sequence[int]) -> int:
        """Ask the fork server to start `deltaci` with these standard files and this status pipe; return its pid."""
        with self._lock:
            if self._socket is None:
                self._start()
            assert self._socket is not None
            data = json.dumps(request).encode()
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            self._socket.sendmsg([len(data).to_bytes(INT_BYTES, "big")], ancillary)
            self._socket.sendall(data)
            answer = self._socket.recv(INT_BYTES, socket.MSG_WAITALL)
            assert len(answer) == INT_BYTES, "the fork server ended; its message is above"
            return int.from_bytes(answer, "big")

    def _start(self) -> None:
        self._socket, server_end = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fork_server", str(server_end.fileno())],
            cwd=ROOT,
            env=environment,
            pass_fds=[server_end.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C must reach only pytest, which stops the fork server at exit.
        )
        server_end.close()
        atexit.register(self._stop)

    def _stop(self) -> None:
        assert self._socket is not None
        assert self._process is not None
        self._socket.close()
        self._process.wait()


FORK_SERVER: Final = ForkServer()


class Deltaci(subprocess.Popen[bytes]):
    """A `deltaci` process, used like any `Popen`. Its options are cwd, env, the standard files, start_new_session."""

    def __init__(self, words: Sequence[str], **options: Any) -> None:
        unknown = options.keys() - {"cwd", "env", "stdin", "stdout", "stderr", "start_new_session"}
        assert not unknown, f"Deltaci does not support the options {sorted(unknown)}; use subprocess.Popen"
        super().__init__(list(words), **options)

    def _execute_child(self, *values: Any) -> None:
        """Override `Popen`: ask the fork server instead of forking this process. Parameters as in Python 3.11."""
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
        except BaseException:
            os.close(reads)
            raise
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
                status = os.read(self._status, INT_BYTES)
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


def receive(client: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Read one request and its file descriptors; return None when the client has ended."""
    size = array.array("i").itemsize
    head, ancillary, _, _ = client.recvmsg(INT_BYTES, socket.CMSG_SPACE(4 * size))
    if not head:
        return None
    fds = array.array("i")
    for _, _, data in ancillary:
        fds.frombytes(data[: len(data) - len(data) % size])
    return json.loads(client.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)), list(fds)


def serve(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork a process for every request. Return in the forked processes only, with their request and files."""
    statuses: dict[int, int] = {}
    wakeups, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    poll.register(wakeups, select.POLLIN)
    poll.register(client, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if wakeups in ready:
            os.read(wakeups, 4096)
            reap(statuses)
        if client.fileno() in ready:
            request = receive(client)
            if request is None:
                raise SystemExit
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                for fd in (wake, wakeups, *statuses.values()):
                    os.close(fd)
                return request
            *files, statuses[pid] = request[1]
            for fd in files:
                os.close(fd)
            client.sendall(pid.to_bytes(INT_BYTES, "big"))


def reap(statuses: dict[int, int]) -> None:
    """Write the exit status of every process that has ended to its pipe."""
    for pid in list(statuses):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            fd = statuses.pop(pid)
            with suppress(BrokenPipeError):  # The test did not wait for it.
                os.write(fd, os.waitstatus_to_exitcode(status).to_bytes(INT_BYTES, "big", signed=True))
            os.close(fd)


def configure_child(request: dict[str, Any], fds: Sequence[int]) -> None:
    """Give the forked process the signal handlers, files, session, folder and environment of the request."""
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
    configure_child(*serve(socket.socket(fileno=int(sys.argv[1]))))
    from deltaci.cli.app import main

    main()
