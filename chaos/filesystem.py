"""A small filesystem in a file: it can be filled up, and it can lose its power."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path
from typing import Final, Self

from chaos.rows import NotRun

GOING_DOWN: Final = 0x8004587D  # _IOR('X', 125, __u32): XFS_IOC_GOINGDOWN, and ext4's of the same number.
WITHOUT_FLUSH: Final = 2
LET_GO_SECONDS: Final = 10.0


class DiskFailed(Exception):
    """A command for the filesystem failed."""


class Filesystem:
    """Mounted below `folder` until the block ends."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.mount_point = folder / "disk"
        self._image = folder / "disk.img"
        self._megabytes = megabytes
        self._kind = "xfs" if shutil.which("mkfs.xfs") and megabytes >= 300 else "ext4"

    @property
    def kind(self) -> str:
        return self._kind

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise NotRun("only root may mount a filesystem")
        if shutil.which(f"mkfs.{self._kind}") is None:
            raise NotRun(f"mkfs.{self._kind} is not installed")
        self.mount_point.mkdir()
        with self._image.open("wb") as image:
            image.truncate(self._megabytes * 2**20)
        try:
            _run(f"mkfs.{self._kind}", "-q", str(self._image))
            self.mount()
        except DiskFailed as error:
            raise NotRun(f"no filesystem can be made here: {error}") from error
        self.mount_point.chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        if os.path.ismount(self.mount_point):
            self.unmount()

    def mount(self) -> None:
        """Mount the image with its content."""
        _run("mount", "-o", "loop", str(self._image), str(self.mount_point))

    def unmount(self) -> None:
        """Unmount; retries for a moment, until killed processes have closed their files."""
        deadline = time.monotonic() + LET_GO_SECONDS
        while True:
            try:
                return _run("umount", str(self.mount_point))
            except DiskFailed:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)

    def flush(self) -> None:
        """Write everything to the image."""
        _run("sync", "-f", str(self.mount_point))

    def lose_power(self) -> None:
        """Shut the filesystem down without a flush: nothing can be written any more, and unflushed data is lost."""
        file = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(file, GOING_DOWN, struct.pack("I", WITHOUT_FLUSH))
        except OSError as error:
            raise NotRun(f"{self._kind} cannot be shut down here: {error}") from error
        finally:
            os.close(file)

    def fill(self, name: str = "ballast") -> int:
        """Use all free space. Returns the number of bytes."""
        path, piece = self.mount_point / name, b"\0" * 65536
        with path.open("ab", buffering=0) as file:
            while piece:
                try:
                    file.write(piece)
                except OSError:
                    piece = piece[: len(piece) // 2]  # Fill the last gaps with smaller writes.
            return file.tell()

    def free(self, name: str = "ballast") -> None:
        """Free that space."""
        (self.mount_point / name).unlink()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise DiskFailed(f"{' '.join(command[:2])} failed: {done.stderr.decode(errors='replace').strip()[:200]}")
