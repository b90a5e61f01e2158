"""The runner under test, as a process that is started from its command, watched, and ended with all that it started."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

GUARD: Final = Path(__file__).with_name("subreaper.py")
END_SECONDS: Final = 15.0


class RunnerProcess:
    """One process of the runner's command."""

    def __init__(self, command: Sequence[str], output: Path, on_exit: Callable[[str], None]) -> None:
        self._command = list(command)
        self._output = output
        self._on_exit = on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._hearing: asyncio.Task[None] | None = None

    async def start(self, server: str, token: str, work: Path) -> None:
        """Start it; the words of its command may name what it needs, and its environment has it too."""
        work.mkdir(parents=True, exist_ok=True)
        told = {"{server}": server, "{token}": token, "{work}": str(work)}
        words = [_filled(word, told) for word in self._command]
        environment = {**os.environ, "DELTACI_SERVER": server, "DELTACI_TOKEN": token, "DELTACI_WORK": str(work)}
        ours, theirs = socket.socketpair()
        try:
            with self._output.open("ab") as output:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", str(GUARD), *words),
                    env=environment,
                    stdin=theirs.fileno(),
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # Ctrl-C is for the kit, which hangs up.
                )
        finally:
            theirs.close()
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        self._hearing = asyncio.create_task(self._hear())

    async def _hear(self) -> None:
        assert self._reader is not None
        with suppress(OSError):
            while line := await self._reader.readline():
                self._on_exit(line.decode().strip())

    async def stop(self) -> None:
        """End it and everybody who descends from it."""
        if self._hearing is not None:
            self._hearing.cancel()
            await asyncio.gather(self._hearing, return_exceptions=True)
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


def _filled(word: str, told: dict[str, str]) -> str:
    for name, value in told.items():
        word = word.replace(name, value)
    return word
