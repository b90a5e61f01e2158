"""The physical limit of a store: the very same statements, replayed without any of our Python.

What a store says to its database is recorded once (PostgreSQL: every byte of the wire, through a proxy on a socket;
SQLite: every call with its rows) and then said again to a new, empty database, as fast as the database answers: same
statements, same rows, same batches, same transactions, nothing left to compute. A transaction is said again as soon
as those that ended before it began have ended, so what ran side by side does so again. Left out is how asyncpg resets
a connection that goes back to its pool.

The replay of the wire is a loop over two or more blocking sockets in one thread: it costs about 20 µs a round trip.
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
    """What was sent up to one ReadyForQuery. `after` transactions, counted by their ends, had ended before."""

    sent: bytes
    after: int
    opens: bool
    ends: int  # the place of the transaction that this ends, in the order of ends; −1: it ends none


class Line(NamedTuple):
    """One connection: how it introduced itself, and all that it sent."""

    startup: list[bytes]
    exchanges: list[Exchange]


Tape = list[Line]


class _Frames:
    """Cuts a stream into the messages of PostgreSQL's protocol; only the first of a client has no letter."""

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
    """Stands between a store and its server, and writes down what the store says."""

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
        there, back = await asyncio.open_unix_connection(self._target)
        line = _Ear(self)
        self.tape.append(line.heard)
        try:
            await asyncio.gather(_pump(reader, back, line.said), _pump(there, writer, line.answered))
        finally:
            for end in (back, writer):
                end.close()
                with suppress(OSError):
                    await end.wait_closed()

    def end_of_transaction(self) -> int:
        """The place of one more transaction that ended."""
        self._ended += 1
        return self._ended - 1

    @property
    def ended(self) -> int:
        """How many transactions have ended."""
        return self._ended


class _Ear:
    """Hears one connection, and cuts what was sent at every ReadyForQuery."""

    def __init__(self, recorder: Recorder) -> None:
        self.heard = Line([], [])
        self._recorder = recorder
        self._said = _Frames(has_startup=True)
        self._answered = _Frames(has_startup=False)
        self._sending = b""
        self._asked: list[tuple[bytes, int]] = []
        self._is_open = False
        self._is_greeted = False

    def said(self, data: bytes) -> None:
        for message in self._said.cut(data):
            if not self.heard.startup:
                self.heard.startup.append(message)
                continue
            self._sending += message
            if message[:1] in ASKS:
                self._asked.append((self._sending, self._recorder.ended))
                self._sending = b""

    def answered(self, data: bytes) -> None:
        for message in self._answered.cut(data):
            if message[:1] != READY:
                continue
            if not self._is_greeted:  # The answer to the start of the connection.
                self._is_greeted = True
                continue
            sent, after = self._asked.pop(0)
            was_open, self._is_open = self._is_open, message[5] != IDLE
            if HOUSEKEEPING not in sent:
                ends = -1 if self._is_open else self._recorder.end_of_transaction()
                self.heard.exchanges.append(Exchange(sent, after, not was_open, ends))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Any) -> None:
    with suppress(ConnectionError):  # Whoever closes does not always wait for the last answer.
        while data := await reader.read(1 << 16):
            seen(data)
            writer.write(data)
            await writer.drain()
    writer.close()


# --- PostgreSQL: replay --------------------------------------------------------------------------


class _Wire:
    """One connection of the replay."""

    def __init__(self, dsn: str, line: Line) -> None:
        parts = urlsplit(dsn)
        self.exchanges = line.exchanges
        self.next = 0
        self.is_waiting = False
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(Path(parse_qs(parts.query)["host"][0]) / SOCKET))
        texts = line.startup[0][8:].rstrip(b"\0").split(b"\0")
        texts[texts.index(b"database") + 1] = parts.path.strip("/").encode()
        body = line.startup[0][4:8] + b"\0".join(texts) + b"\0\0"
        self.socket.sendall(struct.pack("!I", len(body) + 4) + body)
        self._frames = _Frames(has_startup=False)
        while not self.is_answered():
            pass

    def say(self) -> None:
        self.socket.sendall(self.exchanges[self.next].sent)
        self.is_waiting = True

    def is_answered(self) -> bool:
        """Read what is there; whether that was all of it."""
        data = self.socket.recv(1 << 20)
        assert data, "the server closed the connection"
        for message in self._frames.cut(data):
            assert message[:1] != b"E", f"the replay failed: {message!r}"
            if message[:1] == READY:
                return True
        return False


def replay(dsn: str, tape: Tape) -> float:
    """Say it all again to another database with the same tables; the seconds that it took."""
    wires = [_Wire(dsn, line) for line in tape if line.exchanges]
    ended: set[int] = set()
    prefix = 0  # So many transactions have ended, counted in the order in which they ended when recorded.
    with selectors.DefaultSelector() as selector:
        for wire in wires:
            selector.register(wire.socket, selectors.EVENT_READ, wire)
        started = time.perf_counter()
        busy = 0
        while True:
            for wire in wires:
                if not wire.is_waiting and wire.next < len(wire.exchanges):
                    exchange = wire.exchanges[wire.next]
                    if not exchange.opens or exchange.after <= prefix:
                        wire.say()
                        busy += 1
            if not busy:
                break
            for key, _ in selector.select():
                wire = key.data
                if wire.is_answered():
                    ended.add(wire.exchanges[wire.next].ends)
                    wire.next += 1
                    wire.is_waiting = False
                    busy -= 1
            while prefix in ended:
                prefix += 1
        spent = time.perf_counter() - started
    for wire in wires:
        assert wire.next == len(wire.exchanges), "the replay stood still"
        wire.socket.close()
    return spent


# --- SQLite --------------------------------------------------------------------------------------


class Call(NamedTuple):
    """One call of the driver with everything that it was given."""

    sql: str
    rows: list[Any]
    is_many: bool


class _Taped(sqlite3.Connection):
    """A connection that writes down its calls."""

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
    """While this lasts, connections write down their calls: one list for each connection, in their order."""
    tapes: list[list[Call]] = []
    connect = sqlite3.connect

    def taped(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options, factory=_Taped)
        connection.calls = []
        tapes.append(connection.calls)
        return connection

    with mock.patch("sqlite3.connect", taped):
        yield tapes


def replay_sqlite(path: Path, calls: list[Call]) -> float:
    """Make all calls again on a new file; the seconds from the first transaction after the tables were made."""
    connection = sqlite3.connect(path, isolation_level=None)
    ends = [place for place, call in enumerate(calls) if call.sql == "COMMIT"]
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
