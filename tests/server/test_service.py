"""A whole server, as it starts."""

from __future__ import annotations

import os
import time
from pathlib import Path

from deltaci.server.service import BLOBS_FOLDER, UNFINISHED_SECONDS, Service
from deltaci.store.memory import MemoryStore
from tests.contract.places import on_loop


@on_loop
async def test_what_a_killed_server_left_half_written_is_removed_in_the_end(tmp_path: Path) -> None:
    """Nobody will ever finish it; but what is young may be another server's, which is at it."""
    left = tmp_path / BLOBS_FOLDER / "unfinished"
    left.mkdir(parents=True)
    old, young = left / "old", left / "young"
    for path in (old, young):
        path.write_bytes(b"half of")
    long_ago = time.time() - UNFINISHED_SECONDS - 60
    os.utime(old, (long_ago, long_ago))

    async with Service(MemoryStore(), tmp_path):
        assert (old.exists(), young.exists()) == (False, True)
