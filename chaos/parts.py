"""One real process of a deployment: started, killed, paused, started again; its log is kept."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from chaos.stage import PATIENCE_SECONDS, TooLate, until

ROOT: Final = Path(__file__).parent.parent
STOP_SECONDS: Final = 15.0
# However this process ends, what it started ends with it; a runner's keeper then sees to its jobs.
DIES_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
TOKEN: Final = "DELTACI_CHAOS"  # In the environment of everything that a deployment starts.


class Part:
    """`words` is what `deltaci` is told; `under` is a command that runs it."""

    def __init__(
        self, name: str, folder: Path, words: Sequence[str], env: Mapping[str, str], under: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.words = tuple(words)
        self.under = tuple(under)
        self.env = dict(env)
        self.log = folder / f"{name}.log"
        self._folder = folder
        self._began = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet; a paused one has not."""
        return self._process is not None and self._process.poll() is None

    @property
    def said(self) -> str:
        """What it has written since it was started last."""
        with self.log.open("rb") as file:
            file.seek(self._began)
            return file.read().decode(errors="replace")

    def start(self) -> None:
        """Start it; it may take a while until it is of use."""
        assert not self.is_running, f"{self.name} runs already"
        folders = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        with self.log.open("ab") as log:
            self._began = log.tell()
            self._process = subprocess.Popen(
                [*DIES_WITH_US, *self.under, sys.executable, "-m", "deltaci", *self.words],
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(folders), **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def heard(self, word: str, seconds: float = PATIENCE_SECONDS) -> str:
        """Wait until it has written this since its start; the whole line."""
        found = await until(lambda: self._line(word) or not self.is_running, f"{self.name} says {word!r}", seconds)
        line = found if isinstance(found, str) else self._line(word)
        if not line:
            raise TooLate(f"{self.name} ended before it said {word!r}: {self.said[-2000:]}")
        return line

    def _line(self, word: str) -> str:
        return next((line for line in self.said.splitlines() if word in line), "")

    def send(self, how: signal.Signals) -> None:
        """A signal to this process alone, if it is there."""
        if self._process is not None:
            self._process.send_signal(how)

    async def kill(self) -> None:
        """SIGKILL, as a crash; returns when it is gone."""
        self.send(signal.SIGKILL)
        await self.ended()

    def pause(self) -> None:
        """SIGSTOP: it is there, and does nothing."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.send(signal.SIGCONT)

    async def ended(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for its end; the exit code."""
        assert self._process is not None
        try:
            return await asyncio.to_thread(self._process.wait, seconds)
        except subprocess.TimeoutExpired:
            raise TooLate(f"{self.name} has not ended after {seconds:.0f} s") from None

    async def stop(self, seconds: float = STOP_SECONDS) -> None:
        """SIGTERM, and SIGKILL when it does not listen."""
        if not self.is_running:
            return
        self.resume()
        self.send(signal.SIGTERM)
        try:
            await self.ended(seconds)
        except TooLate:
            await self.kill()


def environments() -> dict[int, bytes]:
    """The environment of every process on this machine that we may look at; zombies have none."""
    found: dict[int, bytes] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                found[int(entry.name)] = b"\0" + (entry / "environ").read_bytes()
            except OSError:
                continue
    return found


def carrying(variable: str, values: set[str]) -> list[int]:
    """Which processes have this variable with one of these values."""
    wanted = {value.encode() for value in values}
    mark = f"\0{variable}=".encode()
    found = []
    for pid, text in environments().items():
        _, at, rest = text.partition(mark)
        if at and rest.partition(b"\0")[0] in wanted:
            found.append(pid)
    return sorted(found)
