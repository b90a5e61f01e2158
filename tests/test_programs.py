"""Programs that are called in a thread: heard to their end, bounded, and killed with all that they started."""

from __future__ import annotations

import asyncio
import os
import select
import time
from pathlib import Path
from typing import Any

import pytest

from deltaci.process import ProcessResult, ProcessTimeoutError, run
from tests.contract.places import on_loop
from tests.e2e.deployment import is_alive

ENV = {"PATH": os.environ["PATH"]}


async def sh(script: str, **more: Any) -> ProcessResult:
    """A shell that does this."""
    bounds: dict[str, Any] = {"seconds": 20.0, "most_bytes": 100_000, "most_error_bytes": 10}
    return await run(("sh", "-c", script), env=ENV, cwd="/", **{**bounds, **more})


def ends(pid: int) -> bool:
    """Whether it ends by itself, soon: who is killed with others may be dying still when those are gone."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 10)[0])
    finally:
        os.close(process)


@on_loop
async def test_one_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await run(
            (str(tmp_path / "nothing"),), env=ENV, cwd="/", timeout_seconds=5, max_output_bytes=1, max_error_bytes=1
        )


@on_loop
async def test_it_is_heard_to_its_end() -> None:
    """Its code, what it printed, and the last of its errors."""
    ended = await sh("printf out; printf '0123456789end' >&2; exit 3")

    assert ended == ProcessResult(3, b"out", b"3456789end")


@on_loop
async def test_more_is_written_and_read_than_a_pipe_holds(tmp_path: Path) -> None:
    """At the same time; also by one that reads nothing of it, and from a file."""
    data = os.urandom(3_000_000)
    (tmp_path / "data").write_bytes(data)

    assert (await sh("cat", input=data, most_bytes=len(data))).stdout == data
    assert (await sh("exit 0", input=data)).exit_code == 0
    with (tmp_path / "data").open("rb") as file:
        assert (await sh("cat", input=file, most_bytes=len(data))).stdout == data


@on_loop
async def test_one_that_prints_too_much_is_ended_or_goes_on_unheard() -> None:
    cut = await sh("yes", most_bytes=1000)
    unheard = await sh("head -c 500000 /dev/zero; exit 7", most_bytes=1000, goes_on=True)

    assert (cut.is_truncated, len(cut.stdout)) == (True, 1000)
    assert (unheard.is_truncated, len(unheard.stdout), unheard.exit_code) == (False, 1000, 7)


@on_loop
async def test_one_that_takes_too_long_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    """Who holds its pipes does not hold up its caller."""
    began = time.monotonic()
    with pytest.raises(ProcessTimeoutError):
        await sh(f"sleep 100 & echo $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; wait", seconds=5.0)

    assert time.monotonic() - began < 60
    assert ends(int((tmp_path / "pid").read_text()))


@on_loop
async def test_one_that_is_cancelled_is_killed(tmp_path: Path) -> None:
    fifo = tmp_path / "begun"
    os.mkfifo(fifo)
    calling = asyncio.create_task(sh(f"echo $$ > {fifo}; sleep 100"))
    pid = int(await asyncio.to_thread(fifo.read_text))

    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling

    assert not is_alive(pid)
