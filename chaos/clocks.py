"""A wall clock that can jump, for chosen processes: a small library that is preloaded into them.

clock = Clock.create(folder)
    subprocess.Popen(…, env={**os.environ, **clock.environment})
    clock.jump(3600)  # in all these processes; their monotonic clock is not changed

Only reading the time is changed: a system call that waits for a time of day uses the kernel's clock.
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


class ClockUnavailable(Exception):
    """No clock can be changed here; the text says why."""


class Clock:
    """The wall clock of all processes that were started with its environment."""

    def __init__(self, library: Path, path: Path) -> None:
        self._path = path
        path.write_bytes(bytes(8))
        path.chmod(0o644)  # PostgreSQL runs under another account.
        self.environment = {"LD_PRELOAD": str(library), VARIABLE: str(path)}

    @classmethod
    def made(cls, folder: Path, name: str = "clock") -> Clock:
        """Create a clock that shows the right time until it jumps. Raises `ClockUnavailable`."""
        library = folder / "clock.so"
        if not library.exists():
            compile_to(library)
        return cls(library, folder / name)

    @property
    def seconds(self) -> float:
        """How much the clock is ahead."""
        moved: int = struct.unpack("=q", self._path.read_bytes())[0]
        return moved / NANOSECONDS

    def jump(self, seconds: float) -> None:
        """Change the clock by so many seconds. The eight bytes are written at once, in place."""
        data = struct.pack("=q", round((self.seconds + seconds) * NANOSECONDS))
        with self._path.open("r+b", buffering=0) as file:
            file.write(data)

    @contextmanager
    def inherited(self) -> Iterator[None]:
        """Use this clock for all processes that are started by this process until the block ends."""
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
    """Compile the preloaded library, readable for all users."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise ClockUnavailable("no compiler: cc, gcc and clang cannot be found")
    draft = library.with_suffix(".draft")
    command = [compiler, "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-o", str(draft), str(SOURCE)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    if made.returncode:
        raise ClockUnavailable(f"{compiler} cannot compile {SOURCE.name}: {made.stderr.strip()[:300]}")
    draft.chmod(0o755)
    draft.rename(library)


@lru_cache(maxsize=1)
def unavailable_reason(folder: Path) -> str:
    """Return why no clock can be changed here, or an empty string; tested on a process of our own."""
    try:
        clock = Clock.made(folder, "trial")
    except (ClockUnavailable, OSError, subprocess.TimeoutExpired) as error:
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
