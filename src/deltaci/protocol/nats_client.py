"""A NATS connection that reconnects by itself.

NATS only carries hints. Its users poll as well, so that they work without NATS at any time.
"""

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
    """Address and credentials of NATS. The URL is a secret: it may contain a password or a token."""

    url: str
    credentials: str = ""

    def __str__(self) -> str:
        """Return the addresses without user, password and token."""
        urls = [urlsplit(url.strip()) for url in self.url.split(",")]
        return ", ".join(f"{url.scheme}://{url.netloc.rpartition('@')[2]}" for url in urls)

    def check(self) -> None:
        """Raise `ValueError` for a malformed URL, a missing library or an unreadable credentials file."""
        for url in self.url.split(","):
            url_parts = urlsplit(url.strip())
            if url_parts.scheme not in SCHEMES or not url_parts.hostname:
                raise ValueError("the address of NATS is malformed; give one like nats://host:4222")
        _import_library("nats", "NATS", "pip install 'deltaci[nats]'")
        if self.credentials:
            _import_library("nkeys", "credentials for NATS", "pip install nkeys")
            with open(self.credentials, "rb"):
                pass


def _import_library(module_name: str, feature: str, install_command: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ImportError:
        raise ValueError(
            f"{feature} cannot be used: the library {module_name!r} is not installed; {install_command}"
        ) from None


class NatsConnection:
    """Connects to NATS and reconnects for ever. Each new connection is passed to a new call of `serve`."""

    def __init__(self, address: NatsAddress, connection_name: str, inbox_prefix: str = "_INBOX") -> None:
        self._address = address
        self._name = connection_name
        self._inbox = inbox_prefix

    async def run(self, serve: Callable[[Connection], Awaitable[None]]) -> None:
        """Connect and call `serve` with the connection, again after each disconnection, until cancelled.

        `serve` is cancelled when its connection closes.
        """
        self._address.check()
        last_failure = ""
        while True:
            try:
                await self._serve_one_connection(serve)
                failure = "the connection is closed"
            except Exception as error:
                # Any error: nothing depends on NATS, and it may be back soon.
                failure = _describe_error(error)
            if failure != last_failure:
                LOGGER.warning("NATS at %s: %s; continuing without it and reconnecting", self._address, failure)
            last_failure = failure
            # Jitter keeps a fleet from reconnecting at the same moment.
            await asyncio.sleep(RETRY_SECONDS * random.uniform(0.5, 1.5))

    async def _serve_one_connection(self, serve: Callable[[Connection], Awaitable[None]]) -> None:
        """Connect once and run `serve` until it returns or the connection closes; then close the connection."""
        is_closed = asyncio.Event()

        async def set_closed() -> None:
            is_closed.set()

        connection = await self._connect(set_closed)
        LOGGER.info("NATS at %s: connected", self._address)
        serve_task = asyncio.ensure_future(serve(connection))
        closed_task = asyncio.create_task(is_closed.wait())
        try:
            await asyncio.wait({serve_task, closed_task}, return_when=asyncio.FIRST_COMPLETED)
            if serve_task.done():
                serve_task.result()
        finally:
            closed_task.cancel()
            while not serve_task.done():
                serve_task.cancel()  # Repeated, because a cancel that coincides with the end of a wait may get lost.
                await asyncio.wait({serve_task}, timeout=CANCEL_SECONDS)
            await _close(connection)

    async def _connect(self, on_closed: Callable[[], Awaitable[None]]) -> Connection:
        connection: Connection = _import_library("nats.aio.client", "NATS", "pip install 'deltaci[nats]'").Client()
        options: dict[str, Any] = {"user_credentials": self._address.credentials} if self._address.credentials else {}
        try:
            await connection.connect(
                [url.strip() for url in self._address.url.split(",")],
                name=self._name,
                inbox_prefix=self._inbox,
                allow_reconnect=False,  # `run` reconnects, so that `serve` starts again with a new state.
                connect_timeout=CONNECT_SECONDS,
                ping_interval=PING_SECONDS,
                closed_cb=on_closed,
                error_cb=_log_error,
                **options,
            )
        except BaseException:
            await _close(connection)
            raise
        return connection


async def _close(connection: Connection) -> None:
    """Close a connection. Also close its transport, which the library leaves open if the server does not answer."""
    with suppress(Exception):
        await asyncio.wait_for(connection.close(), CONNECT_SECONDS)
    transport = getattr(connection, "_transport", None)
    if transport is not None:
        with suppress(Exception):
            transport.close()


async def _log_error(error: Exception) -> None:
    """Log the type of a connection error at debug level. `run` logs the error that ends the connection."""
    LOGGER.debug("NATS: %s", type(error).__name__)


def _describe_error(error: BaseException) -> str:
    """Return type and message of an error as one line; for an exception group those of its first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
