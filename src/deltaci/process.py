"""Run other programs with limited time and output, in threads, so that starting one never blocks the event loop.

`asyncio` starts a child by forking the whole process on the event loop's thread. `subprocess.Popen` in a worker thread
takes about a tenth of that time, and the event loop goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

MAX_CONCURRENT: Final = 32
READ_BYTES: Final = 256 * 1024
KILL_SECONDS: Final = 5.0  # The longest wait for the end of a killed program.

_POOL: Final = ThreadPoolExecutor(MAX_CONCURRENT, "programs")


class ProcessResult(msgspec.Struct, frozen=True):
    """The exit code of a program, the first bytes of its standard output and the last ones of its standard error."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    is_truncated: bool = False  # True: the program was killed because it printed more than allowed.


class ProcessTimeoutError(Exception):
    """The program did not end in time; its whole process group was killed."""


async def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | str,
    timeout_seconds: float,
    max_output_bytes: int,
    max_error_bytes: int,
    input: bytes | BinaryIO = b"",
    discard_excess: bool = False,
) -> ProcessResult:
    """Run a program and return its result. On cancellation or timeout, kill its whole process group.

    A program that prints more than `max_output_bytes` is killed or, with `discard_excess`, continues while further
    output is dropped. `input` is the data for its standard input, or a file that becomes its standard input. Raise
    `OSError` if the program cannot be started, and `ProcessTimeoutError` after `timeout_seconds`.
    """
    program = _Program(argv, env, cwd, input, max_output_bytes, max_error_bytes, discard_excess=discard_excess)
    result_future = asyncio.get_running_loop().run_in_executor(_POOL, program.run, time.monotonic() + timeout_seconds)
    try:
        return await asyncio.shield(result_future)
    except asyncio.CancelledError:
        program.kill()
        await asyncio.wait({result_future})
        with suppress(ProcessTimeoutError, OSError):
            result_future.result()
        raise


class _Program:
    """One program, which the thread that calls `run` starts and whose output it reads."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path | str,
        input: bytes | BinaryIO,
        max_output_bytes: int,
        max_error_bytes: int,
        *,
        discard_excess: bool,
    ) -> None:
        self._argv = argv
        self._env = env
        self._cwd = cwd
        self._input = input
        self._max_output_bytes = max_output_bytes
        self._max_error_bytes = max_error_bytes
        self._discard_excess = discard_excess
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False
        self._stdout, self._stderr = bytearray(), bytearray()

    def kill(self) -> None:
        """Kill the process group of the program. If it has not been started yet, prevent its start."""
        with self._lock:
            self._is_killed = True
            if self._process is not None and self._process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def run(self, deadline: float) -> ProcessResult:
        """Start the program, write its input, read its output and wait for its end. Blocks the calling thread."""
        stdin: int | BinaryIO = subprocess.PIPE if self._input else subprocess.DEVNULL
        if not isinstance(self._input, bytes):
            stdin = self._input
        with self._lock:
            if self._is_killed:
                raise ProcessTimeoutError
            self._process = program = subprocess.Popen(
                self._argv,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(self._env),
                cwd=self._cwd,
                start_new_session=True,
            )
        try:
            is_truncated = self._communicate(program, deadline)
            if is_truncated:
                self.kill()
            program.wait(KILL_SECONDS if is_truncated else max(0.0, deadline - time.monotonic()))
        except (ProcessTimeoutError, subprocess.TimeoutExpired):
            self.kill()
            with suppress(subprocess.TimeoutExpired):
                program.wait(KILL_SECONDS)
            raise ProcessTimeoutError from None
        finally:
            for pipe in (program.stdin, program.stdout, program.stderr):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()
        return ProcessResult(program.returncode, bytes(self._stdout), bytes(self._stderr), is_truncated)

    def _communicate(self, process: subprocess.Popen[bytes], deadline: float) -> bool:
        """Write the input and read the output to its end.

        Return True early if the program must be killed for too much.
        """
        assert process.stdout is not None
        assert process.stderr is not None
        unwritten_input = memoryview(self._input) if isinstance(self._input, bytes) else memoryview(b"")
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ, self._stdout)
            selector.register(process.stderr, selectors.EVENT_READ, self._stderr)
            if process.stdin is not None:
                os.set_blocking(process.stdin.fileno(), False)
                selector.register(process.stdin, selectors.EVENT_WRITE)
            while selector.get_map():
                wait_seconds = deadline - time.monotonic()
                ready_pipes = selector.select(wait_seconds) if wait_seconds > 0 else []
                if not ready_pipes:
                    raise ProcessTimeoutError
                for selector_key, _ in ready_pipes:
                    if selector_key.fileobj is process.stdin:
                        unwritten_input = _write_chunk(selector_key.fd, unwritten_input)
                        if not unwritten_input:
                            selector.unregister(process.stdin)
                            process.stdin.close()
                    elif chunk := os.read(selector_key.fd, READ_BYTES):
                        selector_key.data.extend(chunk)
                    else:
                        selector.unregister(selector_key.fileobj)
                del self._stderr[: -self._max_error_bytes]
                if len(self._stdout) > self._max_output_bytes:
                    del self._stdout[self._max_output_bytes :]
                    if not self._discard_excess:
                        return True
        return False


def _write_chunk(fd: int, remaining_bytes: memoryview) -> memoryview:
    """Write as many bytes as the pipe accepts now. Return the remaining ones, or none if the reader closed the pipe."""
    try:
        return remaining_bytes[os.write(fd, remaining_bytes[:READ_BYTES]) :]
    except BlockingIOError:
        return remaining_bytes
    except BrokenPipeError:
        return remaining_bytes[len(remaining_bytes) :]
