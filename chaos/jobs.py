"""Helpers for single jobs of a scenario: their end, their logs, and the memory of processes."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from chaos.deployment import Deployment
from deltaci.core import attempt
from deltaci.core.attempt import Attempt
from deltaci.storage.blobs.logs import MAX_LOG_BYTES, LogStore

MOUNT = 'mount -t tmpfs -o size=SIZE none "$0" && exec "$@"'
MEGABYTE = 1024 * 1024


async def over(deployment: Deployment, id: str, seconds: float = 60.0) -> Attempt:
    """Wait until a job has ended, and return its record."""
    await deployment.event(
        lambda event: event.entity_id == id and event.to in attempt.TERMINAL, f"{id} is over", seconds=seconds
    )
    record = await deployment.work.attempt(id)
    assert record is not None
    return record


def read_log(deployment: Deployment, record: Attempt, limit: int = MAX_LOG_BYTES) -> bytes:
    """Return the server's log of the attempt's last lease."""
    held = record.lease or record.ended_lease
    return LogStore(deployment.data / "logs").read(record.id, held.number, 0, limit) if held is not None else b""


def peak_bytes(pid: int) -> int:
    """Return the largest amount of memory that a process ever used."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def small_disk(folder: Path, size: int) -> tuple[str, ...]:
    """Return a command prefix that mounts a small disk on this folder.

    The mount is in a namespace of the command's own, so it disappears with the command's last process.
    """
    folder.mkdir(exist_ok=True)
    return ("unshare", "--mount", "sh", "-c", MOUNT.replace("SIZE", str(size)), str(folder))


@lru_cache(maxsize=1)
def small_disk_unavailable_reason() -> str:
    """Return why no small disk can be mounted here, or an empty string; tested once."""
    if shutil.which("unshare") is None:
        return "no small disk: unshare cannot be found"
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(
            [*small_disk(Path(folder), MEGABYTE), "true"], capture_output=True, text=True, check=False
        )
    return f"no small disk: {tried.stderr.strip()[:200]}" if tried.returncode else ""
