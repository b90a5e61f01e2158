"""Run cells in tests: all executors by name, output that can be awaited, and checks for remaining processes."""

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
    "process-without-cgroup": lambda zygote: ProcessExecutor(zygote, use_cgroups=False),
    "sandbox": lambda _: SandboxExecutor(),
}


def needs(kind: str) -> None:
    """Skip the test if a runner in its own process cannot use this executor."""
    if kind == "sandbox" and (reason := SandboxExecutor().unavailable_reason()):
        pytest.skip(reason)


def executor_of(kind: str, zygote: Zygote) -> Executor:
    """Return the executor, or skip the test if it is unavailable."""
    executor = KINDS[kind](zygote)
    if reason := executor.unavailable_reason():
        pytest.skip(reason)
    return executor


class Bench:
    """One cell and the output of its steps."""

    def __init__(self, cell: Cell, workspace: Path) -> None:
        self.cell = cell
        self.workspace = workspace
        self.output = bytearray()
        self._has_output = asyncio.Event()

    def hear(self, data: bytes) -> None:
        """Record output and wake `until`."""
        self.output += data
        self._has_output.set()

    async def until(self, word: bytes) -> None:
        """Wait until a step has written this."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while word not in self.output:
                self._has_output.clear()
                await self._has_output.wait()

    async def run(self, script: str, timeout_seconds: float = 30.0, env: dict[str, str] | None = None) -> Exit:
        """Run a step to its end."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.cell.run(
                script, env=env or {}, workdir=self.workspace, timeout_seconds=timeout_seconds, on_output=self.hear
            )

    def start(self, script: str) -> asyncio.Task[Exit]:
        """Run a step in a task."""
        return asyncio.create_task(self.run(script))


def in_cell(
    kind: str, workspace: Path, check: Callable[[Bench], Coroutine[Any, Any, None]], limits: Limits | None = None
) -> None:
    """Run a test with one cell, and close it."""
    zygote = Zygote()
    executor = executor_of(kind, zygote)

    async def run() -> None:
        cell = executor.cell(workspace=workspace, limits=limits or Limits(), network=False, image="")
        try:
            await check(Bench(cell, workspace))
        finally:
            assert await cell.close()
            await zygote.close()

    asyncio.run(run())


def is_alive(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def await_deaths(files: dict[int, int]) -> list[int]:
    """Wait for the end of every process, by its descriptor; return those still alive."""
    deadline = time.monotonic() + 20
    for file in files.values():
        poll = select.poll()
        poll.register(file, select.POLLIN)
        poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        os.close(file)
    return [pid for pid in files if is_alive(pid)]
