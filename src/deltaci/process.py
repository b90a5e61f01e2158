"""Other programs, called and waited for in a thread: starting one never holds up the loop.

The fastest event loop there is starts a child by a fork of all that the process has, while nobody else runs; a thread
that does it by the standard library costs a tenth of that, and the loop goes on.
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

AT_ONCE: Final = 32
READ_BYTES: Final = 256 * 1024
KILL_SECONDS: Final = 5.0  # For a program that was killed: somebody else may hold its pipes.

_POOL: Final = ThreadPoolExecutor(AT_ONCE, "programs")


class Ended(msgspec.Struct, frozen=True):
    """How a program ended, and the first bytes of what it printed; of its errors the last ones."""

    code: int
    out: bytes
    err: bytes
    is_cut: bool = False  # There was more than that.


class TookTooLong(Exception):
    """It did not end in time, and was killed with all that it started."""


async def call(
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    folder: Path | str,
    seconds: float,
    most_bytes: int,
    most_error_bytes: int,
    input: bytes | BinaryIO = b"",
    goes_on: bool = False,
) -> Ended:
    """Call it and wait for its end. One that is cancelled, or takes too long, is killed with all that it started.

    One that prints more than `most_bytes` is ended there, or `goes_on` unheard. Raises `OSError` when it cannot be
    started.
    """
    program = _Program(words, env, folder, input, most_bytes, most_error_bytes, goes_on=goes_on)
    working = asyncio.get_running_loop().run_in_executor(_POOL, program.run, time.monotonic() + seconds)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        program.kill()
        await asyncio.wait({working})
        with suppress(TookTooLong, OSError):
            working.result()
        raise


class _Program:
    def __init__(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        folder: Path | str,
        input: bytes | BinaryIO,
        most: int,
        most_error: int,
        *,
        goes_on: bool,
    ) -> None:
        self._words = words
        self._env = env
        self._folder = folder
        self._input = input
        self._most = most
        self._most_error = most_error
        self._goes_on = goes_on
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False
        self._out, self._err = bytearray(), bytearray()

    def kill(self) -> None:
        """End it, and all that it started; before it began, too."""
        with self._lock:
            self._is_killed = True
            if self._process is not None and self._process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def run(self, until: float) -> Ended:
        """All of it, in a thread."""
        source: int | BinaryIO = subprocess.PIPE if self._input else subprocess.DEVNULL
        if not isinstance(self._input, bytes):
            source = self._input
        with self._lock:
            if self._is_killed:
                raise TookTooLong
            self._process = process = subprocess.Popen(
                self._words,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(self._env),
                cwd=self._folder,
                start_new_session=True,
            )
        try:
            is_cut = self._talk(process, until)
            if is_cut:
                self.kill()
            process.wait(KILL_SECONDS if is_cut else max(0.0, until - time.monotonic()))
        except (TookTooLong, subprocess.TimeoutExpired):
            self.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(KILL_SECONDS)
            raise TookTooLong from None
        finally:
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()
        return Ended(process.returncode, bytes(self._out), bytes(self._err), is_cut)

    def _talk(self, process: subprocess.Popen[bytes], until: float) -> bool:
        """Hear it to its end, and say what there is to say; whether it said too much."""
        assert process.stdout is not None
        assert process.stderr is not None
        left = memoryview(self._input) if isinstance(self._input, bytes) else memoryview(b"")
        with selectors.DefaultSelector() as pipes:
            pipes.register(process.stdout, selectors.EVENT_READ, self._out)
            pipes.register(process.stderr, selectors.EVENT_READ, self._err)
            if process.stdin is not None:
                os.set_blocking(process.stdin.fileno(), False)
                pipes.register(process.stdin, selectors.EVENT_WRITE)
            while pipes.get_map():
                wait = until - time.monotonic()
                ready = pipes.select(wait) if wait > 0 else []
                if not ready:
                    raise TookTooLong
                for key, _ in ready:
                    if key.fileobj is process.stdin:
                        left = _written(key.fd, left)
                        if not left:
                            pipes.unregister(process.stdin)
                            process.stdin.close()
                    elif part := os.read(key.fd, READ_BYTES):
                        key.data.extend(part)
                    else:
                        pipes.unregister(key.fileobj)
                del self._err[: -self._most_error]
                if len(self._out) > self._most:
                    del self._out[self._most :]
                    if not self._goes_on:
                        return True
        return False


def _written(file: int, data: memoryview) -> memoryview:
    """What is left to be written; nothing when nobody reads any more."""
    try:
        return data[os.write(file, data[:READ_BYTES]) :]
    except BlockingIOError:
        return data
    except BrokenPipeError:
        return data[len(data) :]
