"""Jobs that say more than anybody can keep, and readers that take nearly nothing: memory stays small, others go on."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from typing import Final

from chaos.deployment import Deployment, deployed
from chaos.jobs import MEGABYTE, over, peak_bytes
from chaos.probe import Probe, running_probe
from chaos.rows import Row, measured
from chaos.stage import Stage
from deltaci.core.attempt import Attempt
from deltaci.protocol.routes import ROOT
from deltaci.storage.blobs.logs import MAX_LOG_BYTES, LogStore

FAULT: Final = "10 GB log, 1 GB line, NULs"
READERS: Final = "slow reader"
TTL_SECONDS: Final = 11
BOUND_MEGABYTES: Final = 128.0  # More than before; what is said or read is many times that.
BEAT_SECONDS: Final = 1.0


async def run(stage: Stage) -> AsyncIterator[Row]:
    """One after the other, on one server, beside one who only beats."""
    async with deployed(stage, "floods", ttl_seconds=TTL_SECONDS) as deployment, running_probe(deployment) as probe:
        runner = deployment.add_runner("r1", slots=2)
        await runner.wait_for_output("waiting for work")
        await over(deployment, await deployment.work.ask({"steps": ["true"], "executor": "process"}))
        await asyncio.sleep(2.0)
        stage.log(f"a heartbeat takes {probe.p99 * 1000:.0f} ms (p99) while nothing happens")
        seconds = stage.size(25, 2)
        for name, step in {
            "a 10 GB log": f"timeout {seconds} head -c 10G <(yes 'all work and no play makes a dull log') || true",
            "a line of 1 GB": f"head -c {stage.size(1000, 20)}M /dev/zero | tr '\\0' x",
            "NULs": f"head -c {stage.size(300, 20)}M /dev/zero",
        }.items():
            async for row in _flood(stage, deployment, probe, name, step):
                yield row
        async for row in _readers(stage, deployment, probe):
            yield row
        probe_lost = len(probe.failures)
    yield measured(FAULT, "all of these", "others are answered", probe_lost, "heartbeats unanswered", 0)


async def _flood(stage: Stage, deployment: Deployment, probe: Probe, name: str, step: str) -> AsyncIterator[Row]:
    stage.log(name)
    pids = {"server": deployment.servers[0].pid, "runner": deployment.runners["r1"].pid}
    before = {each: peak_bytes(pid) for each, pid in pids.items()}
    probe.reset()
    began = time.monotonic()
    id = await deployment.work.ask({"steps": [step], "executor": "process"})
    done = asyncio.create_task(over(deployment, id, 180.0))
    largest = 0
    while not done.done():
        largest = max(largest, *(path.stat().st_size for path in deployment.folder.glob("r1/job-*/log")), 0)
        await asyncio.wait({done}, timeout=0.1)
    record: Attempt = await done
    seconds = time.monotonic() - began
    size = LogStore(deployment.data / "logs").size(id, record.claims)
    note = f"{record.state}; {size / MEGABYTE:.0f} MiB kept, {size / MEGABYTE / seconds:.0f} MiB/s"
    for each, pid in pids.items():
        grown = (peak_bytes(pid) - before[each]) / MEGABYTE
        yield measured(FAULT, name, f"the {each}'s memory is bounded", grown, "MiB more", BOUND_MEGABYTES, note)
    most = max(0, size, largest) - MAX_LOG_BYTES
    yield measured(FAULT, name, "capped on both ends", max(0.0, most / MEGABYTE), "MiB over the cap", 1.0,
                   f"{largest / MEGABYTE:.0f} MiB on the runner's disk")  # fmt: skip
    yield measured(FAULT, name, "its own heartbeat never starves", record.lost_leases, "lost leases", 0)
    yield measured(FAULT, name, "others' heartbeats go on", probe.p99, "s (p99)", BEAT_SECONDS)


async def _readers(stage: Stage, deployment: Deployment, probe: Probe) -> AsyncIterator[Row]:
    """Many who ask for much and take little of it."""
    size, count = stage.size(64, 4) * MEGABYTE, stage.size(40, 4)
    injected = f"{count} readers of {size // MEGABYTE} MiB, 1 kB/s each"
    stage.log(injected)
    lease = {"Delta_Lease": probe.held.granted.lease_id}
    put = await asyncio.to_thread(probe.held.runner.request, "PUT", "caches/large", bytes(size), **lease)
    assert put.status == 200, put
    pid = deployment.servers[0].pid
    before = peak_bytes(pid)
    probe.reset()
    request = (
        f"GET {ROOT}caches/large HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {probe.held.runner.credential}\r\n"
        f"Delta-Lease: {probe.held.granted.lease_id}\r\n\r\n"
    )
    readers = [_connected(deployment.ports()[0], request.encode()) for _ in range(count)]
    try:
        for _ in range(stage.size(10, 1)):
            await asyncio.sleep(1.0)
            for reader in readers:
                reader.recv(1024)
    finally:
        for reader in readers:
            reader.close()
    grown = (peak_bytes(pid) - before) / MEGABYTE
    yield measured(READERS, injected, "the server's memory is bounded", grown, "MiB more", BOUND_MEGABYTES)
    yield measured(READERS, injected, "others' heartbeats go on", probe.p99, "s (p99)", BEAT_SECONDS)


def _connected(port: int, request: bytes) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(5.0)
    made.connect(("127.0.0.1", port))
    made.sendall(request)
    return made
