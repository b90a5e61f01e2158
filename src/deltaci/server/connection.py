"""Protections for one HTTP connection, mixed into uvicorn's protocol class.

The connection passes the client certificate to the application, answers bytes that are not HTTP with an error like any
other, limits the size of a request's head, and closes the connection of a client that does not finish a head, or a
body that was already answered. It works with both of uvicorn's parsers, httptools and h11.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from deltaci.protocol.messages import Problem, encode
from deltaci.protocol.routes import status_of
from deltaci.server.tls import peer_certificate

PEER: Final = "deltaci_peer"  # The key in the ASGI scope's `state`.
MAX_HEAD_BYTES: Final = 64 * 1024
HEAD_SECONDS: Final = 20.0


class ConnectionGuard:
    """A mixin for uvicorn's HTTP protocol classes: client certificates, error responses, limits and timeouts."""

    head_seconds = HEAD_SECONDS

    if TYPE_CHECKING:
        app_state: dict[str, Any]
        transport: asyncio.Transport
        loop: asyncio.AbstractEventLoop
        cycle: Any
        conn: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._has_head_started = False
        self._is_body_arriving = False
        self._timeout_handle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Put the client certificate into the ASGI scope's `state` and start the timeout of the first head."""
        super().connection_made(transport)  # type: ignore[misc]
        peer = peer_certificate(transport.get_extra_info("ssl_object"))
        if peer is not None:
            self.app_state = {**self.app_state, PEER: peer}
        self._update_receive_timeout(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._update_receive_timeout(False)
        super().connection_lost(exc)  # type: ignore[misc]

    def data_received(self, chunk: bytes) -> None:
        """Parse the bytes, and refuse a request whose unfinished head exceeds `MAX_HEAD_BYTES`.

        The head must be limited here because the parsers buffer it without limit.
        """
        was_head_open = self._is_head_open()
        super().data_received(chunk)  # type: ignore[misc]
        is_head_open = self._is_head_open()
        self._head_bytes = self._head_bytes + len(chunk) if was_head_open and is_head_open else 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse("too_large", f"the head of the request has more than {MAX_HEAD_BYTES} bytes; send less")
        self._update_receive_timeout(not self.transport.is_closing() and (is_head_open or self._is_draining()))

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP with an error and close the connection. uvicorn calls this."""
        self._refuse("bad_request", "this is not an HTTP/1.1 request; see docs/protocol.md")

    # Callbacks of httptools. With h11, its connection object has the same information.

    def on_message_begin(self) -> None:
        """Record that the head of a request has begun."""
        self._has_head_started = True
        super().on_message_begin()  # type: ignore[misc]

    def on_headers_complete(self) -> None:
        """Record that the head is complete and the body follows."""
        self._has_head_started, self._is_body_arriving = False, True
        super().on_headers_complete()  # type: ignore[misc]

    def on_message_complete(self) -> None:
        """Record that the body is complete."""
        self._is_body_arriving = False
        super().on_message_complete()  # type: ignore[misc]

    def _is_head_open(self) -> bool:
        if hasattr(self, "conn"):
            return self._h11_is("IDLE") and bool(self.conn.trailing_data[0])
        return self._has_head_started

    def _is_draining(self) -> bool:
        """Return whether a body is still arriving whose response was already sent."""
        is_arriving = self._h11_is("SEND_BODY") if hasattr(self, "conn") else self._is_body_arriving
        return is_arriving and self.cycle is not None and self.cycle.response_complete

    def _h11_is(self, state_name: str) -> bool:
        import h11  # Needed only if httptools is not installed.

        return self.conn.their_state is getattr(h11, state_name)

    def _update_receive_timeout(self, is_head_or_rest_due: bool) -> None:
        """Start the timeout for a head, or for the rest of a body whose response was sent, unless it is running.

        Cancel it if neither is due. A body that is being handled has no such timeout.
        """
        if not is_head_or_rest_due and self._timeout_handle is not None:
            self._timeout_handle.cancel()
            self._timeout_handle = None
        elif is_head_or_rest_due and self._timeout_handle is None:
            self._timeout_handle = self.loop.call_later(self.head_seconds, self._on_timeout)

    def _on_timeout(self) -> None:
        self._timeout_handle = None
        if self.cycle is not None and not self.cycle.response_complete:
            # The previous request is still being answered, and nothing is read meanwhile.
            self._update_receive_timeout(True)
        elif self._is_draining():
            self.transport.close()
        else:
            self._refuse("too_slow", f"no complete request came within {self.head_seconds:.0f} s; send it again")

    def _refuse(self, code: str, message: str) -> None:
        response_body = encode(Problem(code, message))
        response_head = (
            f"HTTP/1.1 {status_of(code)} Refused\r\ncontent-type: application/json\r\n"
            f"content-length: {len(response_body)}\r\n"
            "cache-control: no-store\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(response_head.encode() + response_body)
        self.transport.close()


def connection_class(parser_class: type[asyncio.Protocol] | None = None) -> type[asyncio.Protocol]:
    """Return a uvicorn protocol class with `ConnectionGuard` mixed in. The default parser is uvicorn's choice."""
    if parser_class is None:
        from uvicorn.protocols.http.auto import AutoHTTPProtocol

        parser_class = AutoHTTPProtocol
    return type("Connection", (ConnectionGuard, parser_class), {})
