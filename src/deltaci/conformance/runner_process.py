"""The runner under test as a process: started from its command, observed, and ended with all of its descendants."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

SUBREAPER: Final = Path(__file__).with_name("subreaper.py")
END_SECONDS: Final = 15.0


class RunnerProcess:
    """One execution of the runner's command. `on_exit` is called with a text on how it ended, e.g. `exited with 0`."""

    def __init__(self, runner_command: Sequence[str], output_path: Path, on_exit: Callable[[str], None]) -> None:
        self._command = list(runner_command)
        self._output_path = output_path
        self._on_exit = on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._read_exits_task: asyncio.Task[None] | None = None

    async def start(self, server_url: str, token: str, work_folder: Path) -> None:
        """Start the command in a subreaper.

        Server address, token and working folder replace `{server}`, `{token}` and `{work}` in its arguments, and are
        passed as environment variables too.
        """
        work_folder.mkdir(parents=True, exist_ok=True)
        placeholders = {"{server}": server_url, "{token}": token, "{work}": str(work_folder)}
        arguments = [_replace_placeholders(argument, placeholders) for argument in self._command]
        environment = {
            **os.environ,
            "DELTACI_SERVER": server_url,
            "DELTACI_TOKEN": token,
            "DELTACI_WORK": str(work_folder),
        }
        kit_socket, subreaper_socket = socket.socketpair()
        try:
            with self._output_path.open("ab") as output_file:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", str(SUBREAPER), *arguments),
                    env=environment,
                    stdin=subreaper_socket.fileno(),
                    stdout=output_file,
                    stderr=output_file,
                    start_new_session=True,  # Ctrl-C goes to the kit only, which then closes the socket.
                )
        finally:
            subreaper_socket.close()
        self._reader, self._writer = await asyncio.open_connection(sock=kit_socket)
        self._read_exits_task = asyncio.create_task(self._read_exits())

    async def _read_exits(self) -> None:
        """Pass each line in which the subreaper reports the runner's exit to `on_exit`."""
        assert self._reader is not None
        with suppress(OSError):
            while exit_line := await self._reader.readline():
                self._on_exit(exit_line.decode().strip())

    async def stop(self) -> None:
        """End the runner and all of its descendants."""
        if self._read_exits_task is not None:
            self._read_exits_task.cancel()
            await asyncio.gather(self._read_exits_task, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()
        if self._process is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), END_SECONDS)
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()


def _replace_placeholders(argument: str, value_by_placeholder: dict[str, str]) -> str:
    for placeholder, replacement in value_by_placeholder.items():
        argument = argument.replace(placeholder, replacement)
    return argument
