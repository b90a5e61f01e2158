"""A runner that starts a job with every kind of leftover, says so, and waits to be killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from deltaci.protocol.messages import Limits
from deltaci.runner.sandbox.zygote import Zygote
from tests.runner.cells import KINDS, Bench
from tests.runner.sandbox.leftovers import LEFTOVERS, READY


async def live(kind: str, workspace: Path) -> None:
    """Start the job, print its handle on one line, and wait for ever."""
    bench = Bench(KINDS[kind](Zygote()).cell(workspace=workspace, limits=Limits(), network=False, image=""), workspace)
    step = bench.start(LEFTOVERS)
    await bench.until(READY)
    print(msgspec.json.encode(bench.cell.handle).decode(), flush=True)
    await step


if __name__ == "__main__":
    asyncio.run(live(sys.argv[1], Path(sys.argv[2])))
