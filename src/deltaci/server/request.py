"""One HTTP request as the ASGI applications of the server see it: headers, credentials and a body of limited size."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from deltaci.core.errors import Refused
from deltaci.protocol.routes import LEASE_HEADER, MAX_LEASE_CHARS, MAX_OFFSET_DIGITS, OFFSET_HEADER, SHA256_HEADER
from deltaci.server.connection import PEER
from deltaci.server.tls import Peer

MAX_DIGITS: Final = 15
MAX_QUOTED_CHARS: Final = 200  # The limit for a client's text in an error message.
JSON: Final = "application/json"
BODY_SECONDS: Final = 20.0  # The longest wait for the next bytes of a body.

_DIGEST: Final = re.compile("[0-9a-fA-F]{64}")
_LEASE: Final = LEASE_HEADER.lower().encode()
_OFFSET: Final = OFFSET_HEADER.lower().encode()
_SHA256: Final = SHA256_HEADER.lower().encode()

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Request:
    """A request: path, method, headers, client certificate (`peer`), and the body, which is read up to a limit."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.is_tls: bool = scope.get("scheme") == "https"
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.peer: Peer | None = scope.get("state", {}).get(PEER)
        self._receive = receive
        self.id = ""  # Identifies the request in the server's log; empty for requests of runners.

    def header(self, header_name: bytes) -> str:
        """Return the value of a header by its lower-case name, the last one if it is repeated, or an empty string."""
        header_value = b""
        for sent_name, sent_value in self._headers:
            if sent_name == header_name:
                header_value = sent_value
        return header_value.decode("utf-8", "replace")

    def has_header(self, header_name: bytes) -> bool:
        """Return whether the header was sent, even with an empty value."""
        return any(sent_name == header_name for sent_name, _ in self._headers)

    async def body(self, max_bytes: int) -> bytes:
        """Return the whole body. Raises `Refused` like `chunks`."""
        return b"".join([chunk async for chunk in self.chunks(max_bytes)])

    async def chunks(self, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield the body as it arrives.

        Raises `Refused` if it has or announces more than `max_bytes`, stops arriving for `BODY_SECONDS`, or is cut off.
        """
        received_bytes = 0
        content_length = self.header(b"content-length")
        if (
            content_length.isascii()
            and content_length.isdecimal()
            and (len(content_length) > MAX_DIGITS or int(content_length) > max_bytes)
        ):
            raise _too_large(max_bytes)
        while True:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    message = await self._receive()
            except TimeoutError:
                raise Refused("too_slow", f"no byte of the body came for {BODY_SECONDS:.0f} s; send it again") from None
            if message["type"] == "http.disconnect":
                raise Refused("bad_request", "the request broke off")
            chunk = message.get("body", b"")
            received_bytes += len(chunk)
            if received_bytes > max_bytes:
                raise _too_large(max_bytes)
            yield chunk
            if not message.get("more_body"):
                return

    def check_is_json(self) -> None:
        """Raise `Refused` if the Content-Type is not JSON. A missing Content-Type counts as JSON."""
        content_type = self.header(b"content-type")
        media_type = content_type.partition(";")[0].strip().lower()
        if media_type not in ("", JSON) and not media_type.endswith("+json"):
            raise Refused("wrong_media_type", f"the Content-Type is {content_type[:MAX_QUOTED_CHARS]!r}; send {JSON}")

    def token(self) -> str:
        """Return the bearer token, or an empty string if there is only a client certificate.

        Raises `Refused` if both are missing.
        """
        authorization = self.header(b"authorization")
        if self.peer is not None and not authorization:
            return ""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Refused("bad_credential", "no credential; send 'Authorization: Bearer …'")
        return token

    def lease_id(self) -> str:
        """Return the lease id in the header. Raises `Refused` if it is missing or too long."""
        lease_id = self.header(_LEASE)
        if not 0 < len(lease_id) <= MAX_LEASE_CHARS:
            raise Refused("bad_request", f"{LEASE_HEADER} has {len(lease_id)} characters; send the lease id in it")
        return lease_id

    def offset(self) -> int:
        """Return the offset in the header: the byte of the log at which this body begins.

        Raises `Refused` if the header is missing or not a number.
        """
        offset_text = self.header(_OFFSET)
        if not (offset_text.isascii() and offset_text.isdecimal()) or len(offset_text) > MAX_OFFSET_DIGITS:
            raise Refused(
                "bad_request", f"{OFFSET_HEADER} is {offset_text[:20]!r}; give the byte at which this part begins"
            )
        return int(offset_text)

    def digest(self) -> str | None:
        """Return the SHA-256 of the body that the client sent in a header, or None.

        Raises `Refused` if it is malformed.
        """
        if not self.has_header(_SHA256):
            return None
        declared_hash = self.header(_SHA256)
        if not _DIGEST.fullmatch(declared_hash):
            raise Refused(
                "bad_request", f"{SHA256_HEADER} is {declared_hash[:20]!r}; give 64 digits in hex, or leave it out"
            )
        return declared_hash

    async def wait_for_disconnect(self) -> None:
        """Wait until the client has closed the connection. Call it only after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _too_large(max_bytes: int) -> Refused:
    return Refused("too_large", f"the body has more than {max_bytes} bytes; send less at once")
