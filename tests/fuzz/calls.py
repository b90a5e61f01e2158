"""Calls the command line again and again, each time in a process of its own that is quick to start and has an end.

Run as a program it imports everything once, and then forks for each line of JSON that it reads: a list of words.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

MAX_SECONDS: Final = 1.5
MEMORY_BYTES: Final = 2 * 1024**3


class Called(NamedTuple):
    """How a call ended. `is_stopped`: it was still serving when its time was over, or waiting for somebody."""

    code: int
    told: str
    seconds: float
    is_stopped: bool


class Caller:
    """The program below, from the outside."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def call(self, *words: str) -> Called:
        """One call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        self._process.stdin.flush()
        return Called(*json.loads(self._process.stdout.readline()))


@contextmanager
def caller(folder: Path) -> Iterator[Caller]:
    """Ready to be called, in this folder."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DELTACI_")}
    environment |= {"HOME": str(folder), "COLUMNS": "200", "PYTHONHASHSEED": "0"}
    with subprocess.Popen(
        [sys.executable, __file__], cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield Caller(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(120)


def _child(words: list[str], told: int) -> None:
    """The call itself; it ends here whatever happens."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((nothing, 0), (told, 1), (told, 2)):
        os.dup2(source, number)
    sys.argv = ["deltaci", *words]
    code = 99
    try:
        from deltaci.cli.app import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _called(words: list[str]) -> Called:
    with tempfile.TemporaryFile() as told:
        began = time.monotonic()
        pid = os.fork()
        if not pid:
            _child(words, told.fileno())
        watched = os.pidfd_open(pid)
        is_stopped = not select.select([watched], [], [], MAX_SECONDS)[0]
        os.close(watched)
        with suppress(ProcessLookupError):  # Whatever it left behind, too.
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        told.seek(0)
        text = told.read().decode(errors="replace")
        return Called(os.waitstatus_to_exitcode(status), text, time.monotonic() - began, is_stopped)


def _serve() -> None:
    for name in ("server", "runner", "secret", "verify", "conformance", "sim", "up"):
        __import__(f"deltaci.cli.commands.{name}")
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_called(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
