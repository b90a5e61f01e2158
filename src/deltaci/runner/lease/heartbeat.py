"""The line on which heartbeats are said: a thread of its own, so that whoever waits for an answer waits only here.

A name server that is out of reach, or a peer that answers byte by byte, keeps a call for longer than any timeout of a
socket. The one who has to stop a job in time cannot wait for that: it gives up the line and takes a new one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol

import msgspec

from deltaci.core.errors import Refused
from deltaci.protocol.messages import Heartbeat, Problem, ServerMessage
from deltaci.runner.client import RunnerClient, Unreachable

Answers = list[ServerMessage | Problem]


class HeartbeatSender(Protocol):
    """Says heartbeats for the keeper, and lets nobody wait."""

    client: RunnerClient

    def fileno(self) -> int:
        """For a selector: readable when there is an answer."""

    def send(self, beats: Sequence[Heartbeat], timeout: float) -> None:
        """Say these; the answers come later."""

    def take_answers(self) -> Answers | None:
        """The answers to what was said, in its order; none at all when it was not heard; None: not yet."""

    def close(self) -> None:
        """Hang up, whatever is under way."""


class HeartbeatThread:
    """Says one batch at a time. `fileno` is readable when there is an answer."""

    def __init__(self, client: RunnerClient) -> None:
        self.client = client
        self._said: SimpleQueue[tuple[Sequence[Heartbeat], float] | None] = SimpleQueue()
        self._heard: SimpleQueue[Answers] = SimpleQueue()
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # A daemon: the keeper may leave while a call hangs.
        threading.Thread(target=self._work, args=(self._write,), name="beats", daemon=True).start()

    def fileno(self) -> int:
        """For a selector."""
        return self._read

    def send(self, beats: Sequence[Heartbeat], timeout: float) -> None:
        """Say these; the answers come later."""
        self._said.put((beats, timeout))

    def take_answers(self) -> Answers | None:
        """The answers to what was said, in its order; none at all when it was not heard; None: not yet."""
        with suppress(BlockingIOError):
            os.read(self._read, 100)
            return self._heard.get_nowait()
        return None

    def close(self) -> None:
        """Hang up, whatever is under way. An answer that comes later is nobody's."""
        self._said.put(None)
        self.client.abort()
        os.close(self._read)

    def _work(self, write: int) -> None:
        while (said := self._said.get()) is not None:
            try:
                heard = self.client.send_batch(*said)
            except (Unreachable, Refused, msgspec.MsgspecError):
                heard = []
            self._heard.put(heard if len(heard) == len(said[0]) else [])
            with suppress(OSError):
                os.write(write, b".")
        os.close(write)
        self.client.close()
