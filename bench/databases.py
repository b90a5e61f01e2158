"""Databases for benchmarks: a new one for every measurement, and meters for time and CPU."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import asyncpg
import msgspec

from deltaci.storage.port import Store, wall_clock
from deltaci.storage.postgres import PostgresStore
from deltaci.storage.sqlite import SqliteStore
from tests.support.postgres_server import PostgresServer

POSTGRES: Final = "PostgreSQL"
SQLITE: Final = "SQLite"
KINDS: Final = (POSTGRES, SQLITE)
_STARTED: Final = time.perf_counter()
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_NUMBERED: Final = "WITH RECURSIVE n (g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM n WHERE g < ?) "
_ID: Final = "'q-' || lpad(to_hex(g), 32, '0')"  # Real ids grow with time, too.
_COLUMNS: Final = "id, kind, version, run_id, queue_key, priority, ready_at, due_at, body"


def log_progress(text: str) -> None:
    """Print the progress."""
    print(f"  {time.perf_counter() - _STARTED:4.0f} s  {text}", file=sys.stderr, flush=True)


class Cost(msgspec.Struct):
    """The cost of a measurement in seconds: wall time, CPU of this process, CPU of the database server."""

    wall: float = 0.0
    own: float = 0.0
    server: float = 0.0

    def each(self, count: int) -> Cost:
        """Return the cost per item."""
        return Cost(self.wall / count, self.own / count, self.server / count)

    @property
    def shares(self) -> str:
        """The use of CPU cores, as text."""
        wall = self.wall or 1.0
        return f"CPU: {self.own / wall:.0%} of a core here, {self.server / wall:.0%} in PostgreSQL"


class BenchDatabase(msgspec.Struct, frozen=True):
    """One PostgreSQL database or SQLite file."""

    kind: str
    url: str

    def store(self, shift: Callable[[], int] = lambda: 0) -> Store:
        """Open a store on it; `shift` moves its clock."""
        if self.kind == POSTGRES:
            return PostgresStore(self.url, shift=shift)
        return SqliteStore(self.url, clock=lambda: wall_clock() + shift())

    async def query(self, sql: str) -> list[tuple[object, ...]]:
        """Run a query without the store."""
        if self.kind == POSTGRES:
            connection = await asyncpg.connect(self.url)
            try:
                return [tuple(row) for row in await connection.fetch(sql)]
            finally:
                await connection.close()
        file = sqlite3.connect(self.url, isolation_level=None)
        try:
            return [tuple(row) for row in file.execute(sql)]
        finally:
            file.close()

    async def multiply(self, total: int) -> None:
        """Copy the only queued attempt, so that there are `total`, each with its own id."""
        if self.kind == POSTGRES:
            await self._multiply_postgres(total)
        else:
            self._multiply_sqlite(total)

    async def _multiply_postgres(self, total: int) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            [(id, body)] = await connection.fetch("SELECT id, body FROM records")
            head, tail = body.split(id.encode())  # The body contains the id once.
            await connection.execute(
                f"INSERT INTO records ({_COLUMNS}) SELECT {_ID}, kind, version, run_id, queue_key, "
                f"priority, ready_at, due_at, $2::bytea || convert_to({_ID}, 'UTF8') || $3::bytea "
                "FROM records, generate_series(1, $1::int) g",
                total - 1,
                head,
                tail,
            )
            await connection.execute("ANALYZE")
            await connection.execute("CHECKPOINT")
        finally:
            await connection.close()

    def _multiply_sqlite(self, total: int) -> None:
        file = sqlite3.connect(self.url, isolation_level=None)
        try:
            file.execute("PRAGMA synchronous = OFF")
            id, body = file.execute("SELECT id, body FROM records").fetchone()
            head, tail = body.split(id.encode())
            # In the order of the ids, which is that of the file, so that each page is written once.
            file.execute(
                f"{_NUMBERED} INSERT INTO records ({_COLUMNS}) SELECT "
                "printf('q-%032x', g), kind, version, run_id, queue_key, priority, ready_at, due_at, "
                "CAST(? || printf('q-%032x', g) || ? AS BLOB) FROM n, records",
                (total - 1, head, tail),
            )
            file.execute("ANALYZE")
            file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            file.close()


class DatabaseFactory:
    """Creates databases on the PostgreSQL server, if there is one, and files in a folder."""

    def __init__(self, server: PostgresServer | None, folder: Path) -> None:
        self.folder = folder
        self._server = server
        self._numbers = count(1)

    def new(self, kind: str) -> BenchDatabase:
        """Create an empty database."""
        if kind == POSTGRES:
            assert self._server is not None
            return BenchDatabase(kind, self._server.create_database())
        return BenchDatabase(kind, str(self.folder / f"{next(self._numbers)}.db"))

    def drop(self, place: BenchDatabase) -> None:
        """Delete a database."""
        if place.kind == POSTGRES:
            assert self._server is not None
            self._server.drop_database(place.url)
            return
        for path in self.folder.glob(f"{Path(place.url).name}*"):
            path.unlink()

    @contextmanager
    def meter(self) -> Iterator[Cost]:
        """Measure the block; the result is filled in at its end."""
        spent = Cost()
        server, own, wall = self._server_cpu(), time.process_time(), time.perf_counter()
        yield spent
        spent.wall = time.perf_counter() - wall
        spent.own = time.process_time() - own
        spent.server = self._server_cpu() - server

    def _server_cpu(self) -> float:
        """Return the CPU seconds of the PostgreSQL server so far, including all its processes."""
        if self._server is None:
            return 0.0
        main = int((self._server.directory / "data" / "postmaster.pid").read_text().split()[0])
        total = sum(_stat(main)[11:15])
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = _stat(int(entry.name))
                except OSError:
                    continue
                if fields[1] == main:
                    total += sum(fields[11:13])
        return total / _TICKS


def _stat(pid: int) -> list[int]:
    """Return the numbers of /proc/PID/stat after name and state: 1 is the parent, 11 to 14 are CPU times."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [0, *map(int, after_name[1:])]
