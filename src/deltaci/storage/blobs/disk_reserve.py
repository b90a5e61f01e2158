"""Reserves the last free space of a disk for records.

Logs, artifacts and caches may be on the same disk as the records. While less than a reserve is free, they are refused
as if the disk were full, so that leases, results and events can still be written. The beginning of a log is small and
may use half of the reserve, so that jobs with little output continue beside a job that fills the disk.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

MAX_RESERVE_BYTES: Final = 256 * 1024**2
RESERVE_DIVISOR: Final = 20  # On a small disk, 1/20 of its size is reserved.


def free_bytes(file_system: os.statvfs_result) -> int:
    """Return the number of bytes that users other than root may still write to the file system."""
    return file_system.f_bavail * file_system.f_frsize


def check_free_space(folder: Path, size: int, *, is_small: bool = False) -> None:
    """Raise OSError ENOSPC if writing `size` more bytes in the folder would use the disk's reserve.

    A small write (`is_small`) may use half of the reserve.
    """
    file_system = os.statvfs(folder)
    reserve = min(MAX_RESERVE_BYTES, file_system.f_blocks * file_system.f_frsize // RESERVE_DIVISOR) // (
        2 if is_small else 1
    )
    free = free_bytes(file_system)
    if free < reserve + size:
        raise OSError(
            errno.ENOSPC,
            f"the disk is full: {free >> 20} MiB are left, the last {reserve >> 20} are for records; make room",
        )
