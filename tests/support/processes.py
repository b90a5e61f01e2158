"""What tests read about other processes, which may end at any moment."""

from __future__ import annotations

from pathlib import Path


def command_line(pid: int) -> bytes:
    """Return the command line of a process, its words separated by NUL; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
