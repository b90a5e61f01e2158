"""The time of day of chosen processes, which jumps when it is told to: a small library that is preloaded into them.

    clock = Clock.made(folder)
    subprocess.Popen(…, env={**os.environ, **clock.environment})
    clock.jump(3600)  # in every process that was started so; its monotonic clock goes on

Whoever waits for a time of day by a call of the kernel waits for the kernel's: only reading the time is moved.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("clock.c")
VARIABLE: Final = "DELTACI_CHAOS_CLOCK"
COMPILE_SECONDS: Final = 60.0
NANOSECONDS: Final = 1_000_000_000


class NoClock(Exception):
    """No clock can be moved here, and why."""


class Clock:
    """One time of day for all processes that were started with its environment."""

    def __init__(self, library: Path, path: Path) -> None:
        self._path = path
        path.write_bytes(bytes(8))
        path.chmod(0o644)  # A database runs under another account.
        self.environment = {"LD_PRELOAD": str(library), VARIABLE: str(path)}

    @classmethod
    def made(cls, folder: Path, name: str = "clock") -> Clock:
        """A clock that shows the right time until it jumps. Raises `NoClock`."""
        library = folder / "clock.so"
        if not library.exists():
            compile_to(library)
        return cls(library, folder / name)

    @property
    def seconds(self) -> float:
        """How wrong it is."""
        moved: int = struct.unpack("=q", self._path.read_bytes())[0]
        return moved / NANOSECONDS

    def jump(self, seconds: float) -> None:
        """Be so much later, or earlier, from now on. The eight bytes change at once, in place."""
        data = struct.pack("=q", round((self.seconds + seconds) * NANOSECONDS))
        with self._path.open("r+b", buffering=0) as file:
            file.write(data)

    @contextmanager
    def inherited(self) -> Iterator[None]:
        """Whatever is started meanwhile by anything in this process goes by this clock."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def compile_to(library: Path) -> None:
    """Make the library that is preloaded, readable for everybody."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoClock("no compiler: cc, gcc and clang cannot be found")
    draft = library.with_suffix(".draft")
    command = [compiler, "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-o", str(draft), str(SOURCE)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    if made.returncode:
        raise NoClock(f"{compiler} cannot compile {SOURCE.name}: {made.stderr.strip()[:300]}")
    draft.chmod(0o755)
    draft.rename(library)


@lru_cache(maxsize=1)
def why_not(folder: Path) -> str:
    """Empty when a clock can be moved here, else why not; tried out on a process of our own."""
    try:
        clock = Clock.made(folder, "trial")
    except (NoClock, OSError, subprocess.TimeoutExpired) as error:
        return f"no clock that jumps: {error}"
    clock.jump(86400)
    shown = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time(), time.monotonic())"],
        env={**os.environ, **clock.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    told = [float(word) for word in shown.stdout.split()]
    expected = [time.time() + 86400, time.monotonic()]
    if len(told) != 2 or any(abs(a - b) > 30 for a, b in zip(told, expected, strict=True)):
        said = (shown.stdout or shown.stderr).strip()[:200]
        return f"no clock that jumps: a process that should be a day ahead says {said}"
    return ""
