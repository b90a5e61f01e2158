"""The physical limit of a store: the same statements, replayed without our Python code.

What a store sends to its database is recorded once (PostgreSQL: every byte, through a proxy on a socket; SQLite: every
call with its rows) and then sent to a new, empty database as fast as that answers: the same statements, rows, batches
and transactions, with nothing left to compute. A transaction starts as soon as all that had ended before it began have
ended, so that concurrency is preserved. The reset of connections that asyncpg returns to its pool is left out.

The replay is a loop over blocking sockets in one thread; it costs about 20 µs per round trip.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import sqlite3
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock
from urllib.parse import parse_qs, quote, urlsplit

SOCKET = ".s.PGSQL.5432"
ASKS = b"SQ"  # Sync and Query: the server answers these with ReadyForQuery.
READY = b"Z"
IDLE = ord("I")
HOUSEKEEPING = b"RESET ALL"


# --- PostgreSQL: recording -----------------------------------------------------------------------


class Exchange(NamedTuple):
    """The bytes that were sent up to one ReadyForQuery. `after` transactions had ended before."""

    sent: bytes
    after: int
    opens: bool
    ends: int  # the number of the transaction that this ends; −1: none


class RecordedConnection(NamedTuple):
    """One connection: its startup messages, and everything that it sent."""

    startup: list[bytes]
    exchanges: list[Exchange]


Tape = list[RecordedConnection]


class _Frames:
    """Splits a stream into messages of PostgreSQL's protocol; only the first one of a client has no type byte."""

    def __init__(self, *, has_startup: bool) -> None:
        self._rest = b""
        self._has_startup = has_startup

    def cut(self, data: bytes) -> Iterator[bytes]:
        self._rest += data
        while True:
            start = 0 if self._has_startup else 1
            if len(self._rest) < start + 4:
                return
            size = start + int(struct.unpack_from("!I", self._rest, start)[0])
            if len(self._rest) < size:
                return
            message, self._rest = self._rest[:size], self._rest[size:]
            self._has_startup = False
            yield message


class Recorder:
    """A proxy between a store and its server that records what the store sends."""

    def __init__(self, dsn: str, folder: Path) -> None:
        parts = urlsplit(dsn)
        host = parse_qs(parts.query)["host"][0]
        self.dsn = parts._replace(query=f"host={quote(str(folder))}&port=5432").geturl()
        self.tape: Tape = []
        self._target = str(Path(host) / SOCKET)
        self._path = folder / SOCKET
        self._ended = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Recorder:
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        self._tasks.add(serving)
        server_reader, server_writer = await asyncio.open_unix_connection(self._target)
        recorder = _ConnectionRecorder(self)
        self.tape.append(recorder.recorded)
        try:
            await asyncio.gather(
                _pump(reader, server_writer, recorder.on_sent), _pump(server_reader, writer, recorder.on_answered)
            )
        finally:
            for end in (server_writer, writer):
                end.close()
                with suppress(OSError):
                    await end.wait_closed()

    def end_of_transaction(self) -> int:
        """Count one more ended transaction. Returns its number."""
        self._ended += 1
        return self._ended - 1

    @property
    def ended(self) -> int:
        """The number of ended transactions."""
        return self._ended


class _ConnectionRecorder:
    """Records one connection, and splits what was sent at every ReadyForQuery."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorded = RecordedConnection([], [])
        self._recorder = recorder
        self._client_frames = _Frames(has_startup=True)
        self._server_frames = _Frames(has_startup=False)
        self._sending = b""
        self._pending: list[tuple[bytes, int]] = []
        self._is_open = False
        self._is_greeted = False

    def on_sent(self, data: bytes) -> None:
        for message in self._client_frames.cut(data):
            if not self.recorded.startup:
                self.recorded.startup.append(message)
                continue
            self._sending += message
            if message[:1] in ASKS:
                self._pending.append((self._sending, self._recorder.ended))
                self._sending = b""

    def on_answered(self, data: bytes) -> None:
        for message in self._server_frames.cut(data):
            if message[:1] != READY:
                continue
            if not self._is_greeted:  # The response to the startup message.
                self._is_greeted = True
                continue
            sent, after = self._pending.pop(0)
            was_open, self._is_open = self._is_open, message[5] != IDLE
            if HOUSEKEEPING not in sent:
                ends = -1 if self._is_open else self._recorder.end_of_transaction()
                self.recorded.exchanges.append(Exchange(sent, after, not was_open, ends))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_data: Any) -> None:
    with suppress(ConnectionError):  # A client may close without waiting for the last response.
        while data := await reader.read(1 << 16):
            on_data(data)
            writer.write(data)
            await writer.drain()
    writer.close()


# --- PostgreSQL: replay --------------------------------------------------------------------------


class _ReplayConnection:
    """One connection of the replay."""

    def __init__(self, dsn: str, recorded: RecordedConnection) -> None:
        parts = urlsplit(dsn)
        self.exchanges = recorded.exchanges
        self.next = 0
        self.is_waiting = False
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(Path(parse_qs(parts.query)["host"][0]) / SOCKET))
        texts = recorded.startup[0][8:].rstrip(b"\0").split(b"\0")
        texts[texts.index(b"database") + 1] = parts.path.strip("/").encode()
        body = recorded.startup[0][4:8] + b"\0".join(texts) + b"\0\0"
        self.socket.sendall(struct.pack("!I", len(body) + 4) + body)
        self._frames = _Frames(has_startup=False)
        while not self.is_answered():
            pass

    def send_next(self) -> None:
        self.socket.sendall(self.exchanges[self.next].sent)
        self.is_waiting = True

    def is_answered(self) -> bool:
        """Read what has arrived. Return whether the response is complete."""
        data = self.socket.recv(1 << 20)
        assert data, "the server closed the connection"
        for message in self._frames.cut(data):
            assert message[:1] != b"E", f"the replay failed: {message!r}"
            if message[:1] == READY:
                return True
        return False


def replay(dsn: str, tape: Tape) -> float:
    """Send everything to another database with the same tables. Returns the seconds that this took."""
    connections = [_ReplayConnection(dsn, recorded) for recorded in tape if recorded.exchanges]
    ended: set[int] = set()
    prefix = 0  # Transactions up to this number have ended, in their recorded order.
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        started = time.perf_counter()
        busy = 0
        while True:
            for connection in connections:
                if not connection.is_waiting and connection.next < len(connection.exchanges):
                    exchange = connection.exchanges[connection.next]
                    if not exchange.opens or exchange.after <= prefix:
                        connection.send_next()
                        busy += 1
            if not busy:
                break
            for key, _ in selector.select():
                connection = key.data
                if connection.is_answered():
                    ended.add(connection.exchanges[connection.next].ends)
                    connection.next += 1
                    connection.is_waiting = False
                    busy -= 1
            while prefix in ended:
                prefix += 1
        spent = time.perf_counter() - started
    for connection in connections:
        assert connection.next == len(connection.exchanges), "the replay is stuck"
        connection.socket.close()
    return spent


# --- SQLite --------------------------------------------------------------------------------------


class Call(NamedTuple):
    """One call of the driver with its arguments."""

    sql: str
    rows: list[Any]
    is_many: bool


class _RecordingConnection(sqlite3.Connection):
    """A connection that records its calls."""

    calls: list[Call]

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        self.calls.append(Call(sql, [tuple(parameters)], is_many=False))
        return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        rows = list(parameters)
        self.calls.append(Call(sql, rows, is_many=True))
        return super().executemany(sql, rows)


@contextmanager
def recorded_sqlite() -> Iterator[list[list[Call]]]:
    """Record the calls of all SQLite connections in the block: one list per connection, in order of creation."""
    tapes: list[list[Call]] = []
    connect = sqlite3.connect

    def recording_connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options, factory=_RecordingConnection)
        connection.calls = []
        tapes.append(connection.calls)
        return connection

    with mock.patch("sqlite3.connect", recording_connect):
        yield tapes


def replay_sqlite(path: Path, calls: list[Call]) -> float:
    """Make all calls again on a new file. Returns the seconds after the transaction that creates the tables."""
    connection = sqlite3.connect(path, isolation_level=None)
    ends = [index for index, call in enumerate(calls) if call.sql == "COMMIT"]
    try:
        _call(connection, calls[: ends[0] + 1])
        started = time.perf_counter()
        _call(connection, calls[ends[0] + 1 :])
        return time.perf_counter() - started
    finally:
        connection.close()


def _call(connection: sqlite3.Connection, calls: list[Call]) -> None:
    for sql, rows, is_many in calls:
        if is_many:
            connection.executemany(sql, rows)
        else:
            connection.execute(sql, rows[0]).fetchall()
