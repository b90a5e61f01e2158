"""A filesystem of its own in a file: small, so that it can be full; and one from which the power can be taken."""

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
    """A command did not do what it was told."""


class Filesystem:
    """Mounted below `folder` for as long as it is entered."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.place = folder / "disk"
        self._image = folder / "disk.img"
        self._megabytes = megabytes
        self._kind = "xfs" if shutil.which("mkfs.xfs") and megabytes >= 300 else "ext4"

    @property
    def kind(self) -> str:
        """What it is."""
        return self._kind

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise NotRun("only root may mount a filesystem")
        if shutil.which(f"mkfs.{self._kind}") is None:
            raise NotRun(f"mkfs.{self._kind} is not installed")
        self.place.mkdir()
        with self._image.open("wb") as image:
            image.truncate(self._megabytes * 2**20)
        try:
            _run(f"mkfs.{self._kind}", "-q", str(self._image))
            self.mount()
        except DiskFailed as error:
            raise NotRun(f"no filesystem can be made here: {error}") from error
        self.place.chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        if os.path.ismount(self.place):
            self.unmount()

    def mount(self) -> None:
        """With what was on it."""
        _run("mount", "-o", "loop", str(self._image), str(self.place))

    def unmount(self) -> None:
        """Nobody may have a file open there any more; those who were just killed take a moment to let go."""
        deadline = time.monotonic() + LET_GO_SECONDS
        while True:
            try:
                return _run("umount", str(self.place))
            except DiskFailed:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)

    def flush(self) -> None:
        """All that is on it by now stays."""
        _run("sync", "-f", str(self.place))

    def lose_power(self) -> None:
        """What was not flushed by now never will be, and nothing can be written any more."""
        file = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(file, GOING_DOWN, struct.pack("I", WITHOUT_FLUSH))
        except OSError as error:
            raise NotRun(f"{self._kind} cannot be shut down here: {error}") from error
        finally:
            os.close(file)

    def fill(self, name: str = "ballast") -> int:
        """Somebody else takes all the room that there is; how many bytes that was."""
        path, piece = self.place / name, b"\0" * 65536
        with path.open("ab", buffering=0) as file:
            while piece:
                try:
                    file.write(piece)
                except OSError:
                    piece = piece[: len(piece) // 2]  # The last gaps are small.
            return file.tell()

    def free(self, name: str = "ballast") -> None:
        """And gives it back."""
        (self.place / name).unlink()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise DiskFailed(f"{' '.join(command[:2])} failed: {done.stderr.decode(errors='replace').strip()[:200]}")
