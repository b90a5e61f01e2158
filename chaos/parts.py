"""One real process of a deployment: starts, kills, pauses and restarts it, and keeps its log."""

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

from chaos.stage import TIMEOUT_SECONDS, TimedOut, wait_until

ROOT: Final = Path(__file__).parent.parent
STOP_SECONDS: Final = 15.0
# However this process ends, its children end with it; a runner's lease keeper then ends the jobs.
DIES_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
TOKEN: Final = "DELTACI_CHAOS"  # An environment variable of every process that a deployment starts.


class ManagedProcess:
    """A `deltaci` process. `arguments` are passed to it; `wrapper` is a command that runs it."""

    def __init__(
        self, name: str, folder: Path, arguments: Sequence[str], env: Mapping[str, str], wrapper: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.arguments = tuple(arguments)
        self.wrapper = tuple(wrapper)
        self.env = dict(env)
        self.log = folder / f"{name}.log"
        self._folder = folder
        self._began = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The id of the process that was started last."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process exists; a paused one does."""
        return self._process is not None and self._process.poll() is None

    @property
    def output(self) -> str:
        """The output since the last start."""
        with self.log.open("rb") as file:
            file.seek(self._began)
            return file.read().decode(errors="replace")

    def start(self) -> None:
        """Start the process. It may take a while until it can be used."""
        assert not self.is_running, f"{self.name} runs already"
        folders = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        with self.log.open("ab") as log:
            self._began = log.tell()
            self._process = subprocess.Popen(
                [*DIES_WITH_US, *self.wrapper, sys.executable, "-m", "deltaci", *self.arguments],
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(folders), **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def wait_for_output(self, text: str, seconds: float = TIMEOUT_SECONDS) -> str:
        """Wait until the output since the start contains this text. Returns the whole line."""
        result = await wait_until(
            lambda: self._line(text) or not self.is_running, f"{self.name} says {text!r}", seconds
        )
        line = result if isinstance(result, str) else self._line(text)
        if not line:
            raise TimedOut(f"{self.name} ended before it said {text!r}: {self.output[-2000:]}")
        return line

    def _line(self, text: str) -> str:
        return next((line for line in self.output.splitlines() if text in line), "")

    def send(self, signal_number: signal.Signals) -> None:
        """Send a signal to this process alone, if it exists."""
        if self._process is not None:
            self._process.send_signal(signal_number)

    async def kill(self) -> None:
        """Kill the process, as a crash would, and wait until it is gone."""
        self.send(signal.SIGKILL)
        await self.ended()

    def pause(self) -> None:
        """Stop the process with SIGSTOP."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    async def ended(self, seconds: float = TIMEOUT_SECONDS) -> int:
        """Wait for the end of the process. Returns its exit code."""
        assert self._process is not None
        try:
            return await asyncio.to_thread(self._process.wait, seconds)
        except subprocess.TimeoutExpired:
            raise TimedOut(f"{self.name} has not ended after {seconds:.0f} s") from None

    async def stop(self, seconds: float = STOP_SECONDS) -> None:
        """End the process with SIGTERM, or with SIGKILL if it does not end in time."""
        if not self.is_running:
            return
        self.resume()
        self.send(signal.SIGTERM)
        try:
            await self.ended(seconds)
        except TimedOut:
            await self.kill()


def process_environments() -> dict[int, bytes]:
    """Return the environment of every process that we may read, by pid."""
    result: dict[int, bytes] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                result[int(entry.name)] = b"\0" + (entry / "environ").read_bytes()
            except OSError:
                continue
    return result


def processes_with(variable: str, values: set[str]) -> list[int]:
    """Return the processes whose environment has this variable with one of these values."""
    encoded_values = {value.encode() for value in values}
    prefix = f"\0{variable}=".encode()
    result = []
    for pid, text in process_environments().items():
        _, at, rest = text.partition(prefix)
        if at and rest.partition(b"\0")[0] in encoded_values:
            result.append(pid)
    return sorted(result)
