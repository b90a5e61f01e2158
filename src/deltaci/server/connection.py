"""One connection of the server: uvicorn's own, plus what a stranger could otherwise take from it.

It tells the application who is on the other end, answers what is no HTTP with a problem like any other, and hangs up on
whoever begins a request and does not go on. Which of uvicorn's two parsers is below makes no difference.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from deltaci.protocol.messages import Problem, encode
from deltaci.protocol.routes import status_of
from deltaci.server.tls import peer_of

PEER: Final = "deltaci_peer"  # Under this name in the scope's `state`.
MAX_HEAD_BYTES: Final = 64 * 1024
HEAD_SECONDS: Final = 20.0


class Guard:
    """To be mixed with one of uvicorn's protocols."""

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
        self._is_head_begun = False
        self._is_body_coming = False
        self._hang_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Remember who it is."""
        super().connection_made(transport)  # type: ignore[misc]
        peer = peer_of(transport.get_extra_info("ssl_object"))
        if peer is not None:
            self.app_state = {**self.app_state, PEER: peer}
        self._watch(True)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for any more."""
        self._watch(False)
        super().connection_lost(exc)  # type: ignore[misc]

    def data_received(self, data: bytes) -> None:
        """Count what belongs to no request yet: the parsers themselves would keep all of it."""
        was_open = self._is_head_open()
        super().data_received(data)  # type: ignore[misc]
        is_open = self._is_head_open()
        self._head_bytes = self._head_bytes + len(data) if was_open and is_open else 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse("too_large", f"the head of the request has more than {MAX_HEAD_BYTES} bytes; send less")
        self._watch(not self.transport.is_closing() and (is_open or self._is_draining()))

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is refused like everything else. uvicorn calls this."""
        self._refuse("bad_request", "that is no HTTP/1.1 request; see docs/protocol.md")

    # What httptools tells. With h11 its connection knows the same.

    def on_message_begin(self) -> None:
        """The first byte of a head."""
        self._is_head_begun = True
        super().on_message_begin()  # type: ignore[misc]

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._is_head_begun, self._is_body_coming = False, True
        super().on_headers_complete()  # type: ignore[misc]

    def on_message_complete(self) -> None:
        """The body is whole."""
        self._is_body_coming = False
        super().on_message_complete()  # type: ignore[misc]

    def _is_head_open(self) -> bool:
        if hasattr(self, "conn"):
            return self._h11_is("IDLE") and bool(self.conn.trailing_data[0])
        return self._is_head_begun

    def _is_draining(self) -> bool:
        """Whether a body is still coming that was answered already."""
        is_coming = self._h11_is("SEND_BODY") if hasattr(self, "conn") else self._is_body_coming
        return is_coming and self.cycle is not None and self.cycle.response_complete

    def _h11_is(self, state: str) -> bool:
        import h11  # Where httptools is installed, nobody needs it.

        return self.conn.their_state is getattr(h11, state)

    def _watch(self, is_unfinished: bool) -> None:
        """Hang up if this lasts."""
        if not is_unfinished and self._hang_up is not None:
            self._hang_up.cancel()
            self._hang_up = None
        elif is_unfinished and self._hang_up is None:
            self._hang_up = self.loop.call_later(self.head_seconds, self._give_up)

    def _give_up(self) -> None:
        self._hang_up = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._watch(True)  # The request before it is still being answered, and nothing is read meanwhile.
        elif self._is_draining():
            self.transport.close()
        else:
            self._refuse("too_slow", f"no whole request came within {self.head_seconds:.0f} s; send it again")

    def _refuse(self, code: str, message: str) -> None:
        body = encode(Problem(code, message))
        head = (
            f"HTTP/1.1 {status_of(code)} Refused\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "cache-control: no-store\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def connection_class(below: type[asyncio.Protocol] | None = None) -> type[asyncio.Protocol]:
    """What the server makes of each connection, over the parser that uvicorn would choose."""
    if below is None:
        from uvicorn.protocols.http.auto import AutoHTTPProtocol

        below = AutoHTTPProtocol
    return type("Connection", (Guard, below), {})
