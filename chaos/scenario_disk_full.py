"""The server's disk is full: logs are refused before state is; without any room everything is, and clearly."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from chaos.deployment import Deployment, deployed
from chaos.filesystem import Filesystem
from chaos.rows import Row, measured
from chaos.stage import Stage, wait_until
from deltaci.core.attempt import SUCCEEDED
from deltaci.engine.queue import NewJob
from deltaci.runner.log.stream import CHUNK_BYTES
from deltaci.storage.blobs.disk_reserve import RESERVE_DIVISOR, free_bytes

FAULT: Final = "disk full"
DISK_MEGABYTES: Final = 64
LOUD_MEGABYTES: Final = 32
TTL_SECONDS: Final = 11
FULL_SECONDS: Final = 4.0  # Less than a lease: what runs must not be lost by it.
BACK_SECONDS: Final = 5.0
REFUSALS: Final = ("full", "disk I/O error")


async def run(stage: Stage) -> AsyncIterator[Row]:
    """First by logs, then by somebody else, who leaves nothing."""
    for case in (by_logs, by_others):
        folder = stage.make_folder(f"{case.__name__}-disk")
        with Filesystem(folder, DISK_MEGABYTES) as disk:
            data = disk.mount_point / "data"
            data.mkdir()
            async with deployed(stage, case.__name__, data=data, ttl_seconds=TTL_SECONDS) as deployment:
                async for row in case(stage, deployment, disk):
                    yield row


async def by_logs(stage: Stage, deployment: Deployment, disk: Filesystem) -> AsyncIterator[Row]:
    """A job that writes more than there is room for, beside others that only want their state kept."""
    ballast = disk.mount_point / "ballast"
    ballast.write_bytes(b"\0" * (DISK_MEGABYTES // 2 * 2**20))
    deployment.add_runner("loud", "--labels", "loud")
    deployment.add_runner("quiet", slots=2)
    loud = NewJob(
        payload={"executor": "process", "steps": [f"seq -f %063.0f {LOUD_MEGABYTES * 2**20 // 64}"]},
        labels=["loud"],
        request_id="loud",
    )
    [job] = await deployment.work.enqueue([loud])
    logs = deployment.data / "logs"
    await wait_until(lambda: is_refused(deployment), "the log is refused")
    size, failures = used(logs), len(deployment.work.failures)
    stage.log(f"the log is refused at {size >> 20} MiB, {free(deployment.data) >> 20} MiB are left")
    ids = await deployment.work.enqueue_recorded(stage.size(10, 3))
    await deployment.wait_for_work(60, ids)
    records = [await deployment.work.attempt(id) for id in ids]
    done = sum(record is not None and record.state == SUCCEEDED for record in records)
    refused = len(deployment.work.failures) - failures
    ballast.unlink()
    began = time.monotonic()
    await wait_until(lambda: used(logs) > size + 2**20, "the log goes on", 30)
    back = time.monotonic() - began
    found = await deployment.verdict(90, all_succeed=True)
    injected = f"a log fills the server's disk of {DISK_MEGABYTES} MiB; SQLite on the same disk"
    note = f"{done} of {len(ids)} jobs were done while the log was refused, {refused} writes of state failed"
    yield measured(FAULT, injected, "logs are shed before state", len(ids) - done + refused, "state writes", 0, note)
    yield measured(FAULT, injected, "the log goes on when there is room", back, "s", BACK_SECONDS)
    kept = used(logs / job.id)
    lost = LOUD_MEGABYTES * 2**20 - kept
    yield measured(FAULT, injected, "no byte of the log that was held back is lost", max(0, lost), "bytes lost", 0)
    yield found.row(FAULT, injected)


async def by_others(stage: Stage, deployment: Deployment, disk: Filesystem) -> AsyncIterator[Row]:
    """Somebody else takes the last byte, for a while."""
    for name in ("r1", "r2"):
        deployment.add_runner(name, slots=2)
    backs = []
    times = stage.size(2, 1)
    async with deployment.work.steady_load(0.2, seconds=0.3):
        await deployment.wait_for_starts(2)
        for number in range(times):
            failures = len(deployment.work.failures)
            disk.fill()
            await wait_until(
                lambda failures=failures: len(deployment.work.failures) > failures,  # type: ignore[misc]
                "a write is refused",
                30,
            )
            await asyncio.sleep(FULL_SECONDS)
            began, acknowledged = time.monotonic(), len(deployment.work.acknowledged)
            count = len(deployment.work.witness.marks())
            disk.free()
            await wait_until(
                lambda acknowledged=acknowledged: len(deployment.work.acknowledged) > acknowledged,  # type: ignore[misc]
                "an acknowledgement",
                30,
            )
            await deployment.wait_for_starts(count + 1, 30)
            backs.append(time.monotonic() - began)
            stage.log(f"full {number + 1} of {times}: back after {backs[-1]:.1f} s")
            await deployment.wait_for_starts(count + 8)
    found = await deployment.verdict(90, all_succeed=True)
    injected = f"somebody else fills the server's disk to the last byte for {FULL_SECONDS:.0f} s, {times} times; SQLite"
    unclear = [failure for failure in deployment.work.failures if not any(word in failure for word in REFUSALS)]
    note = f"{len(deployment.work.failures)} refusals, such as: {(deployment.work.failures or ['none'])[0][-60:]}"
    yield measured(FAULT, injected, "writes are refused, and it is said why", len(unclear), "without", 0, note)
    yield measured(FAULT, injected, "work goes on when there is room", max(backs), "s to recover", BACK_SECONDS)
    yield found.row(FAULT, injected)


def is_refused(deployment: Deployment) -> bool:
    """Whether the disk came down to its reserve, and the log is not complete."""
    disk = os.statvfs(deployment.data)
    reserve = disk.f_blocks * disk.f_frsize // RESERVE_DIVISOR
    return free(deployment.data) < reserve + CHUNK_BYTES and used(deployment.data / "logs") < LOUD_MEGABYTES * 2**20


def free(folder: Path) -> int:
    """How many bytes its disk has left."""
    return free_bytes(os.statvfs(folder))


def used(folder: Path) -> int:
    """The bytes of all files below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.exists() else 0
