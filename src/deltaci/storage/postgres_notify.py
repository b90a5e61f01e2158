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
    """The sending server and what became ready; None: too much for one notification."""

    sender: str
    ready: list[tuple[str, str, int]] | None = None


class PostgresNotifier:
    """Sends and receives notifications on one connection, and reconnects."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], commit_hints: CommitHints) -> None:
        self._connect = connect
        self._commit_hints = commit_hints
        self._sender = secrets.token_hex(8)
        self._has_news = asyncio.Event()
        self._ready: dict[tuple[str, str], int] = {}
        self._is_stopped = False
        self._task: asyncio.Task[None] | None = None

    def announce(self, ready: ReadyCounts) -> None:
        """Send to the other servers that a commit made these attempts ready."""
        for queue, count in ready.items():
            self._ready[queue] = self._ready.get(queue, 0) + count
        self._has_news.set()

    def start(self) -> None:
        """Start to send and receive."""
        self._task = asyncio.create_task(self._run(), name="notifier")

    async def stop(self) -> None:
        """Close the connection."""
        self._is_stopped = True
        self._has_news.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

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
        """Send and receive until the connection is closed."""
        connection = await self._connect()
        try:
            connection.add_termination_listener(lambda _: self._has_news.set())
            await connection.add_listener(CHANNEL, self._on_notification)
            self._commit_hints.publish()  # Notifications were missed before LISTEN.
            while not self._is_stopped and not connection.is_closed():
                await self._has_news.wait()
                self._has_news.clear()
                await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, self._encode_notification())
                await asyncio.sleep(COALESCE_SECONDS)
        finally:
            with suppress(Exception):
                connection.terminate()

    def _encode_notification(self) -> str:
        ready, self._ready = self._ready, {}
        body = msgspec.json.encode(Notification(self._sender, [(*queue, count) for queue, count in ready.items()]))
        return (body if len(body) <= MAX_BYTES else msgspec.json.encode(Notification(self._sender))).decode()

    def _on_notification(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        try:
            notification = msgspec.json.decode(payload, type=Notification)
        except msgspec.DecodeError:  # Sent by another version: only that there was a commit is known.
            notification = Notification("")
        if notification.sender != self._sender:
            ready = notification.ready
            self._commit_hints.publish(
                None if ready is None else {(tenant, key): count for tenant, key, count in ready}
            )
