"""Child processes of a benchmark: communicates with them in lines of JSON, and measures their CPU time and memory."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

ROOT: Final = Path(__file__).parent.parent
WAIT_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Memory(msgspec.Struct, frozen=True):
    """The memory of a process in bytes: resident, and proportional (shared pages divided among their users)."""

    rss: int
    pss: int


class Process:
    """A child process that reads and writes lines."""

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None, log: Path | None = None) -> None:
        command = [sys.executable, *arguments]
        self._command = " ".join(arguments)
        pipe = subprocess.PIPE
        folders = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), **(env or {})}
        with log.open("ab") if log is not None else nullcontext() as errors:
            self._child = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=errors, bufsize=0
            )
        self._output = b""
        self.pid = self._child.pid

    def send(self, message: Any) -> None:
        """Send one line of JSON."""
        assert self._child.stdin is not None
        self._child.stdin.write(msgspec.json.encode(message) + b"\n")

    def line(self, seconds: float = WAIT_SECONDS) -> str:
        """Return the next line of output."""
        assert self._child.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._output:
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0 or not select.select([self._child.stdout], [], [], seconds_left)[0]:
                raise AssertionError(f"{self._command} said nothing for {seconds:.0f} s")
            data = os.read(self._child.stdout.fileno(), 1 << 20)
            if not data:
                raise AssertionError(f"{self._command} ended with {self._child.wait(STOP_SECONDS)}")
            self._output += data
        line, _, self._output = self._output.partition(b"\n")
        return line.decode()

    def receive(self, seconds: float = WAIT_SECONDS) -> Any:
        """Return the next line of output, decoded as JSON."""
        line = self.line(seconds)
        try:
            return msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise AssertionError(f"{self._command} said {line[:500]!r} ({len(line)} characters): {error}") from None

    def cpu(self) -> float:
        """Return the CPU seconds so far, of all threads."""
        after_name = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / _TICKS

    def whole_cpu(self) -> float:
        """Return the CPU seconds so far, of the process and all its descendants, including those that have ended."""
        children: dict[int, list[int]] = {}
        spent: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):  # It has ended, and its parent's counters include it.
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    children.setdefault(int(fields[1]), []).append(int(entry.name))
                    spent[int(entry.name)] = sum(map(int, fields[11:15]))
        family = [self.pid]
        for pid in family:
            family += children.get(pid, [])
        return sum(spent.get(pid, 0) for pid in family) / _TICKS

    def memory(self) -> Memory:
        lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
        sizes = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines[1:]}
        return Memory(sizes["Rss"], sizes["Pss"])

    def stop(self) -> None:
        """End the process; kill it if it does not end in time."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        self._child.terminate()
        try:
            self._child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()


@contextmanager
def started(*arguments: str, env: Mapping[str, str] | None = None, log: Path | None = None) -> Iterator[Process]:
    """Run a child process until the block ends; its stderr is written to `log`, if given."""
    process = Process(*arguments, env=env, log=log)
    try:
        yield process
    finally:
        process.stop()


def address(process: Process) -> str:
    """Return the address that a server prints: the last word of its line."""
    return process.line().rpartition(" ")[2]
