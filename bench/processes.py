"""Processes that a benchmark starts: what they say, what they cost, and that they end."""

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
    """What a process keeps, in bytes: `rss` as it is, `pss` with what it shares divided among those who share it."""

    rss: int
    pss: int


class Process:
    """One child that is spoken to in lines."""

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None, log: Path | None = None) -> None:
        command = [sys.executable, *arguments]
        self._command = " ".join(arguments)
        pipe = subprocess.PIPE
        folders = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        found = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), **(env or {})}
        with log.open("ab") if log is not None else nullcontext() as errors:
            self._child = subprocess.Popen(
                command, cwd=ROOT, env=found, stdin=pipe, stdout=pipe, stderr=errors, bufsize=0
            )
        self._said = b""
        self.pid = self._child.pid

    def tell(self, order: Any) -> None:
        """One line of JSON."""
        assert self._child.stdin is not None
        self._child.stdin.write(msgspec.json.encode(order) + b"\n")

    def line(self, seconds: float = WAIT_SECONDS) -> str:
        """The next line that it says."""
        assert self._child.stdout is not None
        until = time.monotonic() + seconds
        while b"\n" not in self._said:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._child.stdout], [], [], left)[0]:
                raise AssertionError(f"{self._command} said nothing for {seconds:.0f} s")
            heard = os.read(self._child.stdout.fileno(), 1 << 20)
            if not heard:
                raise AssertionError(f"{self._command} ended with {self._child.wait(STOP_SECONDS)}")
            self._said += heard
        found, _, self._said = self._said.partition(b"\n")
        return found.decode()

    def heard(self, seconds: float = WAIT_SECONDS) -> Any:
        """The next line, as JSON."""
        line = self.line(seconds)
        try:
            return msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise AssertionError(f"{self._command} said {line[:500]!r} ({len(line)} characters): {error}") from None

    def cpu(self) -> float:
        """Seconds of the processor so far, of all its threads."""
        after_name = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / _TICKS

    def whole_cpu(self) -> float:
        """The same with all of its descendants, those that are gone included."""
        children: dict[int, list[int]] = {}
        spent: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):  # It ended meanwhile, and is counted where it was waited for.
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    children.setdefault(int(fields[1]), []).append(int(entry.name))
                    spent[int(entry.name)] = sum(map(int, fields[11:15]))
        family = [self.pid]
        for pid in family:
            family += children.get(pid, [])
        return sum(spent.get(pid, 0) for pid in family) / _TICKS

    def memory(self) -> Memory:
        """What it keeps now."""
        lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
        found = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines[1:]}
        return Memory(found["Rss"], found["Pss"])

    def stop(self) -> None:
        """Let it finish; make it, if it does not."""
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
    """A child, for as long as this lasts. What it says to its standard error goes to the log, if there is one."""
    process = Process(*arguments, env=env, log=log)
    try:
        yield process
    finally:
        process.stop()


def address(process: Process) -> str:
    """Where a server says that it listens: the last word of its line."""
    return process.line().rpartition(" ")[2]
