"""One connection to NATS that comes back by itself. Whoever uses it can do without it at any time."""

from __future__ import annotations

import asyncio
import importlib
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

if TYPE_CHECKING:
    from nats.aio.client import Client as Connection

RETRY_SECONDS: Final = 1.0
CONNECT_SECONDS: Final = 5
PING_SECONDS: Final = 10
CANCEL_SECONDS: Final = 0.1
SCHEMES: Final = ("nats", "tls", "ws", "wss")

LOGGER: Final = logging.getLogger(__name__)


class NatsAddress(msgspec.Struct, frozen=True):
    """Where NATS is, and how to come in. A URL may carry a user and a password, or a token: it is a secret."""

    url: str
    credentials: str = ""

    def __str__(self) -> str:
        """For people, without the secret."""
        parts = [urlsplit(each.strip()) for each in self.url.split(",")]
        return ", ".join(f"{each.scheme}://{each.netloc.rpartition('@')[2]}" for each in parts)

    def check(self) -> None:
        """Raise `ValueError` for what can never work: no such address, or no library for it."""
        for each in self.url.split(","):
            parts = urlsplit(each.strip())
            if parts.scheme not in SCHEMES or not parts.hostname:
                raise ValueError("the address of NATS is none; give one like nats://host:4222")
        _library("nats", "NATS", "pip install 'deltaci[nats]'")
        if self.credentials:
            _library("nkeys", "credentials for NATS", "pip install nkeys")
            with open(self.credentials, "rb"):
                pass


def _library(name: str, what: str, how: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(f"{what} cannot be used: the library {name!r} is not installed; {how}") from None


class NatsConnection:
    """Connects, again and again for as long as it takes; whoever serves starts anew with each connection."""

    def __init__(self, address: NatsAddress, name: str, inbox: str = "_INBOX") -> None:
        self._address = address
        self._name = name
        self._inbox = inbox

    async def run(self, serve: Callable[[Connection], Awaitable[None]]) -> None:
        """Until it is cancelled. `serve` is cancelled when its connection is gone."""
        self._address.check()
        trouble = ""
        while True:
            try:
                await self._once(serve)
                found = "the connection is gone"
            except Exception as error:
                # Whatever it was: nothing depends on NATS, and it may be back in a moment.
                found = _said(error)
            if found != trouble:
                LOGGER.warning("NATS at %s: %s; going on without it until it is back", self._address, found)
            trouble = found
            # A little disorder keeps a whole fleet from coming back in the same moment.
            await asyncio.sleep(RETRY_SECONDS * random.uniform(0.5, 1.5))

    async def _once(self, serve: Callable[[Connection], Awaitable[None]]) -> None:
        is_closed = asyncio.Event()

        async def closed() -> None:
            is_closed.set()

        connection = await self._connect(closed)
        LOGGER.info("NATS at %s: connected", self._address)
        serving = asyncio.ensure_future(serve(connection))
        closing = asyncio.create_task(is_closed.wait())
        try:
            await asyncio.wait({serving, closing}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        finally:
            closing.cancel()
            while not serving.done():
                serving.cancel()  # Again, because one that comes just when a wait is over may get lost.
                await asyncio.wait({serving}, timeout=CANCEL_SECONDS)
            await _hang_up(connection)

    async def _connect(self, closed: Callable[[], Awaitable[None]]) -> Connection:
        connection: Connection = _library("nats.aio.client", "NATS", "pip install 'deltaci[nats]'").Client()
        options: dict[str, Any] = {"user_credentials": self._address.credentials} if self._address.credentials else {}
        try:
            await connection.connect(
                [each.strip() for each in self._address.url.split(",")],
                name=self._name,
                inbox_prefix=self._inbox,
                allow_reconnect=False,  # We do that ourselves: whoever serves must know that it starts anew.
                connect_timeout=CONNECT_SECONDS,
                ping_interval=PING_SECONDS,
                closed_cb=closed,
                error_cb=_quiet,
                **options,
            )
        except BaseException:
            await _hang_up(connection)
            raise
        return connection


async def _hang_up(connection: Connection) -> None:
    """Close it, also where the library gives up half-way because nobody answers any more."""
    with suppress(Exception):
        await asyncio.wait_for(connection.close(), CONNECT_SECONDS)
    transport = getattr(connection, "_transport", None)
    if transport is not None:
        with suppress(Exception):
            transport.close()


async def _quiet(error: Exception) -> None:
    """What ends the connection is told once, where it is made anew."""
    LOGGER.debug("NATS: %s", type(error).__name__)


def _said(error: BaseException) -> str:
    """In one line, whatever it is; of many the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
