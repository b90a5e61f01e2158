"""A bench for cells: both executors behind one name, output that can be waited for, and a count of who is left."""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from deltaci.protocol.messages import Limits
from deltaci.runner.sandbox.bubblewrap import SandboxExecutor
from deltaci.runner.sandbox.cell import Cell, Executor, Exit
from deltaci.runner.sandbox.process import ProcessExecutor
from deltaci.runner.sandbox.zygote import Zygote

PATIENCE_SECONDS = 60.0

KINDS: dict[str, Callable[[Zygote], Executor]] = {
    "process": ProcessExecutor,
    "process-without-cgroup": lambda nursery: ProcessExecutor(nursery, use_cgroups=False),
    "sandbox": lambda _: SandboxExecutor(),
}


def needs(kind: str) -> None:
    """Skip, and say why, where a runner that is a process of its own cannot have this executor."""
    if kind == "sandbox" and (reason := SandboxExecutor().unavailable_reason()):
        pytest.skip(reason)


def executor_of(kind: str, nursery: Zygote) -> Executor:
    """This executor, or a skip that says why it cannot be had here."""
    executor = KINDS[kind](nursery)
    if reason := executor.unavailable_reason():
        pytest.skip(reason)
    return executor


class Bench:
    """One cell, and what its steps wrote."""

    def __init__(self, cell: Cell, workspace: Path) -> None:
        self.cell = cell
        self.workspace = workspace
        self.output = bytearray()
        self._heard = asyncio.Event()

    def hear(self, data: bytes) -> None:
        """Keep the output, and wake who waits for it."""
        self.output += data
        self._heard.set()

    async def until(self, word: bytes) -> None:
        """Wait until a step wrote this."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while word not in self.output:
                self._heard.clear()
                await self._heard.wait()

    async def run(self, script: str, timeout_seconds: float = 30.0, env: dict[str, str] | None = None) -> Exit:
        """Run a step to its end."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.cell.run(
                script, env=env or {}, workdir=self.workspace, timeout_seconds=timeout_seconds, on_output=self.hear
            )

    def start(self, script: str) -> asyncio.Task[Exit]:
        """Run a step meanwhile."""
        return asyncio.create_task(self.run(script))


def in_cell(
    kind: str, workspace: Path, story: Callable[[Bench], Coroutine[Any, Any, None]], limits: Limits | None = None
) -> None:
    """Tell a story about one cell, which is closed whatever happens."""
    nursery = Zygote()
    executor = executor_of(kind, nursery)

    async def told() -> None:
        cell = executor.cell(workspace=workspace, limits=limits or Limits(), network=False, image="")
        try:
            await story(Bench(cell, workspace))
        finally:
            assert await cell.close()
            await nursery.close()

    asyncio.run(told())


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def await_deaths(files: dict[int, int]) -> list[int]:
    """Wait for the end of every process, by its descriptor; returns who lives on."""
    deadline = time.monotonic() + 20
    for file in files.values():
        poll = select.poll()
        poll.register(file, select.POLLIN)
        poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        os.close(file)
    return [pid for pid in files if is_alive(pid)]
