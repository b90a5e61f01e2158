"""`deltaci.process`: programs run to their end with bounded output, and are killed with all their children."""

from __future__ import annotations

import asyncio
import os
import select
import time
from pathlib import Path
from typing import Any

import pytest

from deltaci.process import ProcessResult, ProcessTimeoutError, run
from tests.contract.backends import on_loop
from tests.e2e.deployment import is_alive

ENV = {"PATH": os.environ["PATH"]}


async def sh(script: str, **overrides: Any) -> ProcessResult:
    """Run a shell script with limits that suffice unless overridden."""
    limits: dict[str, Any] = {"timeout_seconds": 20.0, "max_output_bytes": 100_000, "max_error_bytes": 10}
    return await run(("sh", "-c", script), env=ENV, cwd="/", **{**limits, **overrides})


def ends(pid: int) -> bool:
    """Return whether the process ends within ten seconds; a killed child may end later than its parent."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], 10)[0])
    finally:
        os.close(pidfd)


@on_loop
async def test_a_missing_program_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await run(
            (str(tmp_path / "nothing"),), env=ENV, cwd="/", timeout_seconds=5, max_output_bytes=1, max_error_bytes=1
        )


@on_loop
async def test_the_result_has_exit_code_output_and_the_last_errors() -> None:
    result = await sh("printf out; printf '0123456789end' >&2; exit 3")

    assert result == ProcessResult(3, b"out", b"3456789end")


@on_loop
async def test_input_and_output_may_be_larger_than_a_pipe(tmp_path: Path) -> None:
    """Both are transferred at the same time. A program may also ignore its input, or read it from a file."""
    data = os.urandom(3_000_000)
    (tmp_path / "data").write_bytes(data)

    assert (await sh("cat", input=data, max_output_bytes=len(data))).stdout == data
    assert (await sh("exit 0", input=data)).exit_code == 0
    with (tmp_path / "data").open("rb") as file:
        assert (await sh("cat", input=file, max_output_bytes=len(data))).stdout == data


@on_loop
async def test_a_program_that_prints_too_much_is_killed_unless_the_excess_is_discarded() -> None:
    killed = await sh("yes", max_output_bytes=1000)
    discarded = await sh("head -c 500000 /dev/zero; exit 7", max_output_bytes=1000, discard_excess=True)

    assert (killed.is_truncated, len(killed.stdout)) == (True, 1000)
    assert (discarded.is_truncated, len(discarded.stdout), discarded.exit_code) == (False, 1000, 7)


@on_loop
async def test_a_program_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    """A child that holds the pipes open does not delay the caller."""
    started_at = time.monotonic()
    with pytest.raises(ProcessTimeoutError):
        await sh(f"sleep 100 & echo $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; wait", timeout_seconds=5.0)

    assert time.monotonic() - started_at < 60
    assert ends(int((tmp_path / "pid").read_text()))


@on_loop
async def test_cancelling_the_call_kills_the_program(tmp_path: Path) -> None:
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    running = asyncio.create_task(sh(f"echo $$ > {fifo}; sleep 100"))
    pid = int(await asyncio.to_thread(fifo.read_text))

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert not is_alive(pid)
