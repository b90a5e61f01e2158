"""Parse a stream of server-sent events from the bytes as they arrive, whatever the events contain."""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024


class ServerSentEvent(NamedTuple):
    """One complete event of a stream."""

    event: str
    data: str
    id: str


class EventStreamReader:
    """An incremental parser: bytes in, complete events out.

    An event that was cut off is not returned; the server sends it again after a request with `Last-Event-ID`.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._event = ""
        self._data: list[str] = []
        self._id = ""
        self._size = 0

    def read(self, chunk: bytes) -> list[ServerSentEvent]:
        """Add received bytes. Return the events that are complete now."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        self._size += len(chunk)
        if self._size > MAX_MESSAGE_BYTES:
            raise ValueError(f"one event is longer than {MAX_MESSAGE_BYTES} bytes")
        return [message for line in lines if (message := self._line(line)) is not None]

    def _line(self, raw: bytes) -> ServerSentEvent | None:
        line = raw.removesuffix(b"\r").decode(errors="replace")
        if not line:
            found = ServerSentEvent(self._event or "message", "\n".join(self._data), self._id) if self._data else None
            self._event, self._data, self._size = "", [], len(self._rest)
            return found
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id":
            self._id = value
        return None
