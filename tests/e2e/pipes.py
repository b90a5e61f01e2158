"""How a job and its test speak: named pipes that the test holds open, so that nobody waits for the other to come."""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.e2e.deployment import PATIENCE_SECONDS
from tests.support.processes import command_line


class Pipe:
    """Lines from a job (`echo … > pipe`), or to one (`read -r word < pipe`)."""

    def __init__(self, path: Path) -> None:
        with suppress(FileExistsError):
            os.mkfifo(path)
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._text = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._file)

    def __str__(self) -> str:
        return str(self._path)

    def say(self, line: str = "") -> None:
        """One line for whoever reads first."""
        os.write(self._file, f"{line}\n".encode())

    async def hear(self) -> list[str]:
        """The words of the next line."""
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._file, came.set)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while b"\n" not in self._text:
                    await came.wait()
                    came.clear()
                    self._text += _read(self._file)
        finally:
            loop.remove_reader(self._file)
        line, _, self._text = self._text.partition(b"\n")
        return line.decode().split()


async def told(path: Path) -> str:
    """The next line that somebody writes into this pipe."""
    with Pipe(path) as pipe:
        return " ".join(await pipe.hear())


def _read(file: int) -> bytes:
    try:
        return os.read(file, 4096)
    except BlockingIOError:
        return b""


class Death:
    """The end of a process, and when it was. Watched by a thread, so that a busy loop makes it no later."""

    def __init__(self, pid: int) -> None:
        self._file = os.pidfd_open(pid)
        self.at: float | None = None
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        if poll.poll(PATIENCE_SECONDS * 1000):
            self.at = time.time()
        os.close(self._file)

    async def __call__(self) -> float:
        """Wait for it; when it was, by the clock of this machine."""
        await asyncio.to_thread(self._watching.join, PATIENCE_SECONDS)
        assert self.at is not None, "it lives on"
        return self.at


def child_of(parent: int, word: bytes) -> int:
    """The child with this word in its command."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    found = [int(pid) for pid in children if word in command_line(int(pid))]
    assert len(found) == 1, f"{len(found)} children of {parent} have {word!r} in their command"
    return found[0]


def keeper_of(runner: int) -> int:
    """The lease keeper of a runner."""
    return child_of(runner, b"deltaci.runner.lease.keeper")


def first_time(
    folder: Path, tell: Pipe, count: int = 1000, *, before: str = ":", then: str = "exec tail -f /dev/null"
) -> str:
    """A step that, the first time, writes so many lines, sees that its runner has read them, says who it is, and waits.

    Whoever runs it again is done at once.
    """
    return f"""
if mkdir {folder}/first 2>/dev/null; then
  {before}
  seq 1 {count}
  until grep -qx {count} "$HOME/../log"; do :; done
  echo $$ $DELTACI_JOB_MARK > {tell}
  {then}
fi
echo done
"""
