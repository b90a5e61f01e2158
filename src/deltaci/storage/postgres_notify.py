"""Servers on one PostgreSQL wake each other: who has committed says so, at most every few milliseconds.

Only a hint, sent beside the transactions and not in them: NOTIFY takes a lock that all commits would share. One that
is lost costs a poll, nothing else.
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
COALESCE_SECONDS: Final = 0.005  # What is committed meanwhile is told together.
RETRY_SECONDS: Final = 1.0
MAX_BYTES: Final = 7000  # PostgreSQL takes less than 8000.

LOGGER: Final = logging.getLogger(__name__)


class Notification(msgspec.Struct, frozen=True, array_like=True):
    """Who says it, and what can be claimed since; None: too much to tell."""

    name: str
    ready: list[tuple[str, str, int]] | None = None


class PostgresNotifier:
    """One connection that tells and hears."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], wakers: CommitHints) -> None:
        self._connect = connect
        self._wakers = wakers
        self._name = secrets.token_hex(8)
        self._is_due = asyncio.Event()
        self._ready: dict[tuple[str, str], int] = {}
        self._is_stopped = False
        self._task: asyncio.Task[None] | None = None

    def announce(self, ready: ReadyCounts) -> None:
        """Something was committed here, and this can be claimed since."""
        for name, count in ready.items():
            self._ready[name] = self._ready.get(name, 0) + count
        self._is_due.set()

    def start(self) -> None:
        """Begin to tell and to hear."""
        self._task = asyncio.create_task(self._run(), name="notifier")

    async def stop(self) -> None:
        """Hang up."""
        self._is_stopped = True
        self._is_due.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        is_told = False
        while not self._is_stopped:
            try:
                await self._tell_and_hear()
                is_told = False
            except (
                OSError,
                TimeoutError,
                asyncpg.PostgresError,
                asyncpg.InterfaceError,
                asyncpg.InternalClientError,
            ) as error:
                if not is_told:
                    LOGGER.warning("other servers cannot be woken: %s; they poll until it goes", error)
                is_told = True
            await asyncio.sleep(RETRY_SECONDS)

    async def _tell_and_hear(self) -> None:
        """For as long as the connection lives."""
        connection = await self._connect()
        try:
            connection.add_termination_listener(lambda _: self._is_due.set())
            await connection.add_listener(CHANNEL, self._hear)
            self._wakers.publish()  # What was told while nobody listened.
            while not self._is_stopped and not connection.is_closed():
                await self._is_due.wait()
                self._is_due.clear()
                await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, self._word())
                await asyncio.sleep(COALESCE_SECONDS)
        finally:
            with suppress(Exception):
                connection.terminate()

    def _word(self) -> str:
        told, self._ready = self._ready, {}
        word = msgspec.json.encode(Notification(self._name, [(*name, count) for name, count in told.items()]))
        return (word if len(word) <= MAX_BYTES else msgspec.json.encode(Notification(self._name))).decode()

    def _hear(self, _connection: object, _pid: int, _channel: str, said: str) -> None:
        try:
            word = msgspec.json.decode(said, type=Notification)
        except msgspec.DecodeError:  # Of another version: all that it says is that there is something.
            word = Notification("")
        if word.name != self._name:
            ready = word.ready
            self._wakers.publish(None if ready is None else {(tenant, key): count for tenant, key, count in ready})
