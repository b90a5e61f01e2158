"""The last part of a disk is reserved for records: large data is refused before it is written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from deltaci.storage.blobs import disk_reserve
from deltaci.storage.blobs.logs import SMALL_LOG_BYTES, LogStore
from deltaci.storage.blobs.store import FolderBlobStore

EVERYTHING = 2**62


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of which nothing but the reserve is left."""
    monkeypatch.setattr(disk_reserve, "MAX_RESERVE_BYTES", EVERYTHING)
    monkeypatch.setattr(disk_reserve, "RESERVE_DIVISOR", 1)


@pytest.mark.usefixtures("full")
def test_a_log_does_not_take_the_reserve(tmp_path: Path) -> None:
    """A job that prints for ever must not keep another one's result from being written."""
    logs = LogStore(tmp_path)

    with pytest.raises(OSError, match=r"the disk is full: .* are for records; make room") as refused:
        logs.append("a", 1, 0, b"line\n")

    assert refused.value.errno == errno.ENOSPC
    assert logs.size("a", 1) == 0


@pytest.mark.usefixtures("full")
def test_a_blob_does_not_take_the_reserve(tmp_path: Path) -> None:
    """Nor does an artifact or a cache; and nothing half-written is left."""
    blobs = FolderBlobStore(tmp_path)

    with pytest.raises(OSError, match="the disk is full"):
        blobs.put("a/b", b"bytes")

    assert blobs.stat("a/b") is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_small_log_may_have_half_of_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loud job does not hold up those that say little: their results wait for their logs."""
    disk = os.statvfs(tmp_path)
    left = disk.f_blocks * disk.f_frsize // disk_reserve.RESERVE_DIVISOR * 3 // 4  # Three quarters of the reserve.
    monkeypatch.setattr(disk_reserve, "MAX_RESERVE_BYTES", EVERYTHING)
    monkeypatch.setattr(disk_reserve, "free_bytes", lambda _: left)
    logs = LogStore(tmp_path)

    logs.append("quiet", 1, 0, b"line\n")
    with pytest.raises(OSError, match="the disk is full"):
        logs.append("loud", 1, 0, b"x" * (SMALL_LOG_BYTES + 1))

    assert logs.read("quiet", 1) == b"line\n"


def test_what_leaves_the_reserve_alone_is_kept(tmp_path: Path) -> None:
    """On a disk with enough free space the check changes nothing."""
    disk_reserve.check_free_space(tmp_path, 0)

    with pytest.raises(OSError, match="the disk is full"):
        disk_reserve.check_free_space(tmp_path, EVERYTHING)
