"""Single jobs of a scenario: how one ended, what it said, and what processes took meanwhile."""

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


async def over(place: Deployment, id: str, seconds: float = 60.0) -> Attempt:
    """Wait until a job is over; its record."""
    await place.event(
        lambda event: event.entity_id == id and event.to in attempt.TERMINAL, f"{id} is over", seconds=seconds
    )
    record = await place.work.attempt(id)
    assert record is not None
    return record


def log_of(place: Deployment, record: Attempt, limit: int = MAX_LOG_BYTES) -> bytes:
    """What the server has of the log of its last lease."""
    held = record.lease or record.ended_lease
    return LogStore(place.data / "logs").read(record.id, held.number, 0, limit) if held is not None else b""


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def small_disk(folder: Path, size: int) -> tuple[str, ...]:
    """What a command begins with that shall have a small disk in this folder.

    The mount is in a namespace of the command's own: it is gone with its last process.
    """
    folder.mkdir(exist_ok=True)
    return ("unshare", "--mount", "sh", "-c", MOUNT.replace("SIZE", str(size)), str(folder))


@lru_cache(maxsize=1)
def no_small_disk() -> str:
    """Empty when there can be one here, else why not; tried out once."""
    if shutil.which("unshare") is None:
        return "no small disk: unshare cannot be found"
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(
            [*small_disk(Path(folder), MEGABYTE), "true"], capture_output=True, text=True, check=False
        )
    return f"no small disk: {tried.stderr.strip()[:200]}" if tried.returncode else ""
