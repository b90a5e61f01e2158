"""The thread that sends heartbeats and waits for the answers.

An unreachable name server, or a peer that answers byte by byte, can block a call for longer than any socket timeout.
The keeper must stop jobs in time, so it never waits for a call: it abandons the thread and starts a new one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol

import msgspec

from deltaci.core.errors import Refused, Unreachable
from deltaci.protocol.messages import Heartbeat, Problem, ServerMessage
from deltaci.runner.client import RunnerClient

Answers = list[ServerMessage | Problem]


class HeartbeatSender(Protocol):
    """Sends heartbeats for the keeper without blocking it."""

    client: RunnerClient

    def fileno(self) -> int:
        """Return a descriptor for a selector: readable when there are answers."""

    def send(self, heartbeats: Sequence[Heartbeat], timeout: float) -> None:
        """Start sending these heartbeats and return."""

    def take_answers(self) -> Answers | None:
        """Return the answers to the last batch, in its order.

        An empty list means that the batch failed, None that it is not answered yet.
        """

    def close(self) -> None:
        """Abort the call in progress."""


class HeartbeatThread:
    """Sends one batch at a time. `fileno` is readable when there are answers."""

    def __init__(self, client: RunnerClient) -> None:
        self.client = client
        self._requests: SimpleQueue[tuple[Sequence[Heartbeat], float] | None] = SimpleQueue()
        self._replies: SimpleQueue[Answers] = SimpleQueue()
        self._read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # A daemon thread: the keeper may exit while a call hangs.
        threading.Thread(target=self._work, args=(self._write_fd,), name="heartbeats", daemon=True).start()

    def fileno(self) -> int:
        return self._read_fd

    def send(self, heartbeats: Sequence[Heartbeat], timeout: float) -> None:
        """Start sending these heartbeats and return."""
        self._requests.put((heartbeats, timeout))

    def take_answers(self) -> Answers | None:
        """Return the answers to the last batch, see `HeartbeatSender.take_answers`."""
        with suppress(BlockingIOError):
            os.read(self._read_fd, 100)
            return self._replies.get_nowait()
        return None

    def close(self) -> None:
        """Abort the call in progress and discard its answers."""
        self._requests.put(None)
        self.client.abort()
        os.close(self._read_fd)

    def _work(self, write_fd: int) -> None:
        while (request := self._requests.get()) is not None:
            try:
                answers = self.client.send_batch(*request)
            except (Unreachable, Refused, msgspec.MsgspecError):
                answers = []
            self._replies.put(answers if len(answers) == len(request[0]) else [])
            with suppress(OSError):
                os.write(write_fd, b".")
        os.close(write_fd)
        self.client.close()
