"""Room on a disk: what is large leaves the last of it to what is small.

Logs, artifacts and caches may lie on the disk on which the records are. They are refused while a reserve is not free,
as if the disk were full, so that leases, results and the log of events can still be written. The beginning of a log is
small and may have half of the reserve: jobs that say little go on beside one that does not stop.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

MAX_RESERVE_BYTES: Final = 256 * 1024**2
RESERVE_DIVISOR: Final = 20  # One part in so many of a small disk.


def free_bytes(disk: os.statvfs_result) -> int:
    """What anybody but root may have."""
    return disk.f_bavail * disk.f_frsize


def check_free_space(folder: Path, wanted: int, *, is_small: bool = False) -> None:
    """Raise what a full disk raises, if these bytes would be taken from the reserve; what is small has half of it."""
    disk = os.statvfs(folder)
    reserve = min(MAX_RESERVE_BYTES, disk.f_blocks * disk.f_frsize // RESERVE_DIVISOR) // (2 if is_small else 1)
    free = free_bytes(disk)
    if free < reserve + wanted:
        raise OSError(
            errno.ENOSPC,
            f"the disk is full: {free >> 20} MiB are left, the last {reserve >> 20} are for records; make room",
        )
