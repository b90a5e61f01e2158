"""A runner with one job and a real lease keeper that reaches no server: its lease is never renewed."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from deltaci.protocol.messages import Limits
from deltaci.runner.lease.keeper import Hold, stop_margin_seconds, supervisor_deadline
from deltaci.runner.runtime import KeeperProcess, Runtime
from deltaci.runner.sandbox.process_tree import JobHandle
from deltaci.runner.sandbox.supervisor import boottime
from deltaci.runner.sandbox.zygote import Zygote
from tests.runner.cells import KINDS, Bench
from tests.runner.sandbox.leftovers import LEFTOVERS, READY

INTERVAL_SECONDS = 600.0


class Started(msgspec.Struct):
    """What the runner prints when its job has started."""

    handle: JobHandle
    keeper_pid: int
    deadline: float


async def run(kind: str, workspace: Path, ttl_seconds: float) -> None:
    """Start the job, print how to find it, and wait until it ends."""
    runtime = Runtime("http://127.0.0.1:1")
    keeper = await runtime.start_keeper()
    assert isinstance(keeper, KeeperProcess)
    bench = Bench(KINDS[kind](Zygote()).cell(workspace=workspace, limits=Limits(), network=False, image=""), workspace)
    fifo = workspace / "renewals"
    os.mkfifo(fifo)
    await bench.cell.open()
    confirmed_at = boottime()
    hold = Hold(
        lease_id="l1",
        runner_id="w1",
        ttl_seconds=ttl_seconds,
        interval_seconds=INTERVAL_SECONDS,
        handle=bench.cell.handle,
        confirmed_at=confirmed_at,
        renewals=str(fifo),
    )
    confirmed_until = confirmed_at + ttl_seconds - stop_margin_seconds(ttl_seconds)
    deadline = supervisor_deadline(confirmed_until, ttl_seconds)
    await bench.cell.bind_lease(deadline, fifo)
    keeper.send(hold)
    while (event := await keeper.receive()) is not None and type(event).__name__ != "Confirmed":
        continue
    step = bench.start(LEFTOVERS)
    await bench.until(READY)
    started = Started(bench.cell.handle, keeper._process.pid, deadline)
    print(msgspec.json.encode(started).decode(), flush=True)
    await step


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])))
