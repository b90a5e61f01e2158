"""Observes the processes of a job through a named pipe that they hold open.

Each step opens the pipe for writing before its commands, and every process that it starts inherits the descriptor. The
reader sees the end of the file when the last of these processes ends, whatever its name, session or process group. So
the end of a job is observed, not guessed from process ids. Steps also write a marker into the pipe when they begin.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Callable
from pathlib import Path


class ProcessMonitor:
    """The pipe of one job. `on_marker` is called with each marker, and with None when the last process has ended."""

    def __init__(self, folder: Path, job_name: str, on_marker: Callable[[str | None], None]) -> None:
        self._path = folder / f"{job_name}.pipe"
        self._release_path = folder / f"{job_name}.go"
        os.mkfifo(self._path)
        os.mkfifo(self._release_path)
        self._on_marker = on_marker
        self._incomplete_line = b""
        self._has_processes = False
        self._pipe_fd = self._open_pipe()
        # Opened for reading and writing, so that a release is kept until a step reads it.
        self._release_pipe_fd = os.open(self._release_path, os.O_RDWR | os.O_NONBLOCK)

    @property
    def attach_command(self) -> str:
        """The shell command that makes the shell and all its later child processes visible to this monitor."""
        return f"exec 9> {shlex.quote(str(self._path))}"

    @property
    def wait_command(self) -> str:
        """The shell command that blocks until `release` is called."""
        return f"read word < {shlex.quote(str(self._release_path))}"

    def release(self) -> None:
        """Let one execution of `wait_command` continue: the waiting one, or else the next one."""
        os.write(self._release_pipe_fd, b"go\n")

    def poll(self) -> None:
        """Read the markers written to the pipe since the last call, and pass each to `on_marker`."""
        try:
            while chunk := os.read(self._pipe_fd, 1 << 16):
                *marker_lines, self._incomplete_line = (self._incomplete_line + chunk).split(b"\n")
                for line in marker_lines:
                    self._has_processes = True
                    self._on_marker(line.decode(errors="replace"))
        except BlockingIOError:
            return  # A process holds the pipe, but wrote nothing.
        if self._has_processes:
            self._has_processes = False
            self._on_marker(None)
        # At the end of the file a reader stays readable for ever, so open a new one. The new one is opened before the
        # old one is closed: without any reader a step that attaches would block.
        finished_pipe_fd, self._pipe_fd = self._pipe_fd, self._open_pipe()
        self._close_pipe(finished_pipe_fd)

    def _open_pipe(self) -> int:
        """Open the pipe for reading and call `poll` whenever it becomes readable."""
        pipe_fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        asyncio.get_running_loop().add_reader(pipe_fd, self.poll)
        return pipe_fd

    def _close_pipe(self, pipe_fd: int) -> None:
        asyncio.get_running_loop().remove_reader(pipe_fd)
        os.close(pipe_fd)

    def close(self) -> None:
        """Close the pipes, so that no further marker is reported."""
        self._close_pipe(self._pipe_fd)
        os.close(self._release_pipe_fd)
