"""How a job is watched: its processes speak into a named pipe, and hold it open for as long as they live.

The pipe ends when the last process that inherited it ends, whatever it is called and wherever it hides. So "nothing
of the job runs any more" is observed, not guessed from process ids.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Callable
from pathlib import Path


class ProcessMonitor:
    """One job's pipe. `tell` gets each word, and None when nobody is left."""

    def __init__(self, folder: Path, name: str, tell: Callable[[str | None], None]) -> None:
        self._path = folder / f"{name}.pipe"
        self._go = folder / f"{name}.go"
        os.mkfifo(self._path)
        os.mkfifo(self._go)
        self._tell = tell
        self._rest = b""
        self._is_held = False
        self._pipe = self._opened()
        # Open in both directions: a word that is sent before anybody listens is kept.
        self._gate = os.open(self._go, os.O_RDWR | os.O_NONBLOCK)

    @property
    def takes_hold(self) -> str:
        """The shell command that makes this process, and all that it starts from then on, seen."""
        return f"exec 9> {shlex.quote(str(self._path))}"

    @property
    def waits(self) -> str:
        """The shell command that waits for `go`."""
        return f"read word < {shlex.quote(str(self._go))}"

    def go(self) -> None:
        """Let the job go on, once."""
        os.write(self._gate, b"go\n")

    def look(self) -> None:
        """Take in whatever was said until now."""
        try:
            while data := os.read(self._pipe, 1 << 16):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._is_held = True
                    self._tell(line.decode(errors="replace"))
        except BlockingIOError:
            return  # Somebody holds it, and says nothing now.
        if self._is_held:
            self._is_held = False
            self._tell(None)
        # A reader that has met the end would meet it again at once. There must never be a moment without any.
        old, self._pipe = self._pipe, self._opened()
        self._closed(old)

    def _opened(self) -> int:
        pipe = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        asyncio.get_running_loop().add_reader(pipe, self.look)
        return pipe

    def _closed(self, pipe: int) -> None:
        asyncio.get_running_loop().remove_reader(pipe)
        os.close(pipe)

    def close(self) -> None:
        """Look no more."""
        self._closed(self._pipe)
        os.close(self._gate)
