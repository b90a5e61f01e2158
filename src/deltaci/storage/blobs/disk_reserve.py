"""Reserves the last free space of a disk for records.

Logs, artifacts and caches may be on the same disk as the records. While less than a reserve is free, they are refused
as if the disk were full, so that leases, results and events can still be written. The beginning of a log is small and
may use half of the reserve, so that jobs with little output continue beside one that fills the disk.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

MAX_RESERVE_BYTES: Final = 256 * 1024**2
RESERVE_DIVISOR: Final = 20  # Of a small disk, 1/20 is reserved.


def free_bytes(disk: os.statvfs_result) -> int:
    """Return the bytes that are free for users other than root."""
    return disk.f_bavail * disk.f_frsize


def check_free_space(folder: Path, size: int, *, is_small: bool = False) -> None:
    """Raise OSError ENOSPC if `size` more bytes would use the reserve; a small write may use half of it."""
    disk = os.statvfs(folder)
    reserve = min(MAX_RESERVE_BYTES, disk.f_blocks * disk.f_frsize // RESERVE_DIVISOR) // (2 if is_small else 1)
    free = free_bytes(disk)
    if free < reserve + size:
        raise OSError(
            errno.ENOSPC,
            f"the disk is full: {free >> 20} MiB are left, the last {reserve >> 20} are for records; make room",
        )
