"""Commit hints between the servers of one PostgreSQL database, with LISTEN and NOTIFY.

A server sends what its commits made ready at most every few milliseconds, on a connection of its own: a NOTIFY inside
the transactions would take a lock that all commits share. A lost notification only delays the others until their poll.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import asyncpg
import msgspec

from deltaci.storage.commit_hints import CommitHints, ReadyCounts

CHANNEL: Final = "deltaci"
COALESCE_SECONDS: Final = 0.005  # Commits within this time are sent as one notification.
RETRY_SECONDS: Final = 1.0
MAX_BYTES: Final = 7000  # PostgreSQL's limit is 8000.

LOGGER: Final = logging.getLogger(__name__)


class Notification(msgspec.Struct, frozen=True, array_like=True):
    """The payload of a NOTIFY: the sending server, and how many attempts became ready per tenant and queue.

    `ready` is None if that was too much for one payload.
    """

    sender: str
    ready: list[tuple[str, str, int]] | None = None


class PostgresNotifier:
    """Sends and receives commit hints on one connection, and reconnects when the connection is lost."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], commit_hints: CommitHints) -> None:
        self._connect = connect
        self._commit_hints = commit_hints
        self._sender = secrets.token_hex(8)
        self._is_send_due = asyncio.Event()
        self._count_by_queue: dict[tuple[str, str], int] = {}
        self._is_stopped = False
        self._notify_task: asyncio.Task[None] | None = None

    def announce(self, ready: ReadyCounts) -> None:
        """Notify the other servers, a little later, that a commit made these attempts ready."""
        for queue, count in ready.items():
            self._count_by_queue[queue] = self._count_by_queue.get(queue, 0) + count
        self._is_send_due.set()

    def start(self) -> None:
        """Start the task that connects, sends and receives."""
        self._notify_task = asyncio.create_task(self._run(), name="notifier")

    async def stop(self) -> None:
        """Stop the task, which closes the connection."""
        self._is_stopped = True
        self._is_send_due.set()
        if self._notify_task is not None:
            self._notify_task.cancel()
            await asyncio.gather(self._notify_task, return_exceptions=True)

    async def _run(self) -> None:
        is_reported = False
        while not self._is_stopped:
            try:
                await self._exchange()
                is_reported = False
            except (
                OSError,
                TimeoutError,
                asyncpg.PostgresError,
                asyncpg.InterfaceError,
                asyncpg.InternalClientError,
            ) as error:
                if not is_reported:
                    LOGGER.warning("other servers cannot be notified: %s; they poll until this works again", error)
                is_reported = True
            await asyncio.sleep(RETRY_SECONDS)

    async def _exchange(self) -> None:
        """Connect, and send and receive notifications until the connection is closed."""
        connection = await self._connect()
        try:
            connection.add_termination_listener(lambda _: self._is_send_due.set())
            await connection.add_listener(CHANNEL, self._on_notification)
            self._commit_hints.publish()  # Notifications that were sent before LISTEN were missed.
            while not self._is_stopped and not connection.is_closed():
                await self._is_send_due.wait()
                self._is_send_due.clear()
                await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, self._encode_notification())
                await asyncio.sleep(COALESCE_SECONDS)
        finally:
            with suppress(Exception):
                connection.terminate()

    def _encode_notification(self) -> str:
        count_by_queue, self._count_by_queue = self._count_by_queue, {}
        encoded_notification = msgspec.json.encode(
            Notification(self._sender, [(*queue, count) for queue, count in count_by_queue.items()])
        )
        return (
            encoded_notification
            if len(encoded_notification) <= MAX_BYTES
            else msgspec.json.encode(Notification(self._sender))
        ).decode()

    def _on_notification(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        try:
            notification = msgspec.json.decode(payload, type=Notification)
        except msgspec.DecodeError:  # Sent by another version: it only tells that there was a commit.
            notification = Notification("")
        if notification.sender != self._sender:
            ready_counts = notification.ready
            self._commit_hints.publish(
                None
                if ready_counts is None
                else {(tenant, queue_key): count for tenant, queue_key, count in ready_counts}
            )
