"""A whole server, as it starts."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from deltaci.app import BLOBS_FOLDER, UNFINISHED_SECONDS, HttpListener, Server
from deltaci.storage.memory import MemoryStore
from tests.contract.backends import on_loop


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

    async with Server(MemoryStore(), tmp_path):
        assert (old.exists(), young.exists()) == (False, True)


@on_loop
async def test_answers_are_sent_at_once(tmp_path: Path) -> None:
    """With Nagle's algorithm head and body of every answer wait 40 ms for each other."""
    async with Server(MemoryStore(), tmp_path) as service:
        listener = HttpListener(service, "127.0.0.1", 0)
        try:
            with socket.create_connection(("127.0.0.1", int(listener.url.rpartition(":")[2]))):
                accepted, _ = listener.socket.accept()
                with accepted:
                    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        finally:
            listener.socket.close()
