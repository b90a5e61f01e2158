"""The embedded store: one SQLite file, one writer thread, every commit on disk before anyone is answered.

Write-ahead log with `synchronous=FULL`: with less, a power loss takes acknowledged work with it. The batch of
the engine is the group commit.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from deltaci.core.events import Event
from deltaci.core.machine import Record
from deltaci.storage.codec import ATTEMPT_KIND, JOB_KIND, KIND_OF, LISTED_KINDS, decode_record, encode, pack_events
from deltaci.storage.commit_hints import CommitHints, ReadyCounts
from deltaci.storage.document_backends import DELETE, SqlDocumentReader, document_conflict, sorted_for_write
from deltaci.storage.list_index import SqlListReader, added_rows, removals, removed_rows
from deltaci.storage.memory import run_transaction, wall_clock
from deltaci.storage.migrate import migrations, pending_migrations
from deltaci.storage.port import (
    Begin,
    BeginClaim,
    Conflict,
    CountLiveLeases,
    Document,
    FindDue,
    FindReady,
    ListChange,
    ListQuery,
    Load,
    LoadJobs,
    LockGroup,
    Postpone,
    Put,
    ReadTransaction,
    ReadyAttempt,
    RecordPage,
    Request,
    StoredRecord,
    T,
    Transaction,
    Unavailable,
    Write,
    matches_labels,
    matching_queue_keys,
)
from deltaci.storage.sql import (
    GROUP_HOLDER,
    GROUP_IS_FREE,
    POSTPONE,
    QUEUE_KEYS,
    LogReader,
    ReadyAttemptReader,
    insert_values,
)

READERS: Final = 4
BUSY_SECONDS: Final = 10.0
WAL_RETRY_SECONDS: Final = 0.01
CACHE_KIBIBYTES: Final = 16 * 1024  # Of each connection: what leads to a row among millions stays in memory.
MAX_VARIABLES: Final = 500

# An id is given once: what is over keeps its own.
_INSERT: Final = (
    "INSERT INTO records SELECT ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ? "
    "WHERE NOT EXISTS (SELECT 1 FROM history WHERE id = ?) ON CONFLICT DO NOTHING"
)
_UPDATE: Final = (
    "UPDATE records SET version = version + 1, ready_at = ?, due_at = ?, body = ? WHERE id = ? AND version = ?"
)
_KEYS: Final = QUEUE_KEYS.format("?")
_PUT_ASIDE: Final = POSTPONE.format("?", "?")
_DELETE: Final = "DELETE FROM records WHERE id = ? AND version = ?"
_FINISH: Final = (
    "INSERT INTO history SELECT ?, ?, ?, ?, ? WHERE NOT EXISTS (SELECT 1 FROM records WHERE id = ?) "
    "ON CONFLICT DO NOTHING"
)
_CHUNK: Final = "INSERT INTO chunks VALUES (?, ?, ?, ?)"
_SCOPE: Final = "INSERT INTO chunk_scopes VALUES (?, ?)"
_JOIN: Final = "INSERT INTO listed VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_LEAVE: Final = "DELETE FROM listed WHERE tenant = ? AND list = ? AND at = ? AND id = ?"
_COUNT_HELD: Final = (
    f"SELECT count(*) FROM (SELECT 1 FROM records WHERE tenant = ? AND kind = {ATTEMPT_KIND} AND due_at IS NOT NULL "
    "ORDER BY priority LIMIT ?)"
)
_NEW_DOCUMENT: Final = "INSERT INTO documents VALUES (?, ?, ?, 1, ?, ?) ON CONFLICT DO NOTHING"
_OLD_DOCUMENT: Final = (
    "UPDATE documents SET version = version + 1, at = ?, body = ? "
    "WHERE kind = ? AND tenant = ? AND name = ? AND version = ?"
)
_DELETE_DOCUMENT: Final = DELETE.format(m="?")


class SqliteStore:
    """One file. Reads for people go through connections of their own and never wait for the writer."""

    max_concurrent_transactions = 1

    def __init__(self, path: str, clock: Callable[[], int] = wall_clock) -> None:
        self._path = path
        self._clock = clock
        self._writer = ThreadPoolExecutor(1, "sqlite-writer")
        self._readers = ThreadPoolExecutor(READERS, "sqlite-reader")
        self._write_to: sqlite3.Connection | None = None
        self._idle: list[sqlite3.Connection] = []  # As many as there are threads that read, so one is always there.
        self._is_open = False
        self._pages = SqlListReader(self._read, "?", self.find_all)
        self._documents = SqlDocumentReader(self._read, "?")
        self._log = LogReader(self._read, ("?", "?", "?"))
        self._ready = ReadyAttemptReader(self._read, ("?1", "?2", "?3", "?4"))
        self.commit_hints = CommitHints()

    async def open(self) -> None:
        """Create the file if need be, and bring it up to date under its own lock."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._writer, self._open_writer)
        for _ in range(READERS):
            self._idle.append(await loop.run_in_executor(self._readers, self._connect))
        self._is_open = True

    async def close(self) -> None:
        """Close every connection."""
        self._is_open = False
        await asyncio.get_running_loop().run_in_executor(self._writer, self._close)
        self._writer.shutdown()

    def _close(self) -> None:
        self._readers.shutdown()  # Whoever reads right now is waited for.
        for connection in (self._write_to, *self._idle):
            if connection is not None:
                connection.close()
        self._write_to = None
        self._idle.clear()

    def _connect(self) -> sqlite3.Connection:
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        _enable_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIBIBYTES}")
        return connection

    def _open_writer(self) -> None:
        self._write_to = connection = self._connect()
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, checksum TEXT NOT NULL)"
            )
            applied = connection.execute("SELECT number, checksum FROM migrations").fetchall()
            for migration in pending_migrations(migrations("sqlite"), applied):
                for statement in migration.text.split(";"):
                    connection.execute(statement)
                connection.execute("INSERT INTO migrations VALUES (?, ?)", (migration.number, migration.checksum))
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise

    async def transact(self, work: Callable[[], Transaction[T]]) -> T:
        """Run it in the writer thread: one hop, however many requests it makes."""
        result, ready = await asyncio.get_running_loop().run_in_executor(self._writer, self._transact, work)
        if ready is not None:
            self.commit_hints.publish(ready)
        return result

    def _transact(self, work: Callable[[], Transaction[T]]) -> tuple[T, ReadyCounts | None]:
        return self._within(lambda _: run_transaction(work(), self._answer))

    async def _as_writer(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._within, work)

    def _within(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do it in a transaction of the writer: all of it or nothing."""
        connection = self._connected(self._write_to)
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                done = work(connection)
                connection.execute("COMMIT")
                return done
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            raise Unavailable(f"{self._path}: {error}") from error

    @staticmethod
    def _connected(connection: sqlite3.Connection | None) -> sqlite3.Connection:
        if connection is None:
            raise Unavailable("the store is not open; call open() first")
        return connection

    async def read(self, work: Callable[[], ReadTransaction[T]]) -> T:
        """Run it in a reader's thread: one hop, and all that it reads is of one moment."""
        if not self._is_open:
            raise Unavailable("the store is not open; call open() first")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._look, work)

    def _look(self, work: Callable[[], ReadTransaction[T]]) -> T:
        with self._reader() as connection:
            connection.execute("BEGIN")
            try:
                return run_transaction(work(), lambda request: self._read_for(connection, request))[0]
            finally:
                connection.execute("COMMIT")

    def _read_for(self, connection: sqlite3.Connection, request: Request) -> list[StoredRecord]:
        if isinstance(request, Load):
            return self._load(connection, request.ids)
        assert isinstance(request, LoadJobs), request
        values = [request.run_id, JOB_KIND]
        return self._held(connection, f"{_SELECT} {_OF_RUN} UNION ALL {_SELECT_OVER} {_OF_RUN}", values)

    def _answer(self, request: Request) -> Any:
        connection = self._connected(self._write_to)
        if isinstance(request, Load | LoadJobs):
            return self._read_for(connection, request)
        if isinstance(request, Begin):
            return self._clock(), self._load(connection, request.ids)
        if isinstance(request, BeginClaim):
            now = self._clock()
            return now, self._find_ready(
                FindReady(request.tenant, request.labels, now + request.clock_lead, request.limit, request.only_ids)
            )
        if isinstance(request, Write):
            return self._write(request)
        if isinstance(request, FindReady):
            return self._find_ready(request)
        if isinstance(request, CountLiveLeases):
            return connection.execute(_COUNT_HELD, [request.tenant, request.limit]).fetchone()[0]
        if isinstance(request, LockGroup):
            return _only(connection.execute(_HOLDER, [request.tenant, request.group, request.now]).fetchall())
        if isinstance(request, Postpone):
            rows = [(request.until, request.until, id) for id in request.ids]
            connection.executemany(_PUT_ASIDE, rows)
            return None
        assert isinstance(request, FindDue)
        due = f"{_SELECT} WHERE due_at <= ? ORDER BY due_at LIMIT ?"
        return self._held(connection, due, [request.now, request.limit])

    @staticmethod
    def _held(connection: sqlite3.Connection, sql: str, values: list[Any]) -> list[StoredRecord]:
        rows = connection.execute(sql, values)
        return [
            StoredRecord(decode_record(id, kind, body), version, due_at) for id, kind, version, due_at, body in rows
        ]

    def _load(self, connection: sqlite3.Connection, ids: Iterable[str]) -> list[StoredRecord]:
        wanted, found = list(ids), list[StoredRecord]()
        for start in range(0, len(wanted), MAX_VARIABLES):
            some = wanted[start : start + MAX_VARIABLES]
            found += self._held(connection, _these(len(some)), some)
        return found

    def _find_ready(self, request: FindReady) -> list[StoredRecord]:
        """The best of each queue, then the best of those: each is a short walk along the index."""
        found: list[tuple[int, int, str, StoredRecord]] = []
        connection = self._connected(self._write_to)
        if request.only_ids:
            return self._find_only(request)
        keys = [row[0] for row in connection.execute(_KEYS, [request.tenant] * 2)] if request.labels else [""]
        for key in matching_queue_keys(keys, request.labels):
            without = (
                _WITHOUT.format(", ".join("?" * len(request.excluded_groups)))
                if request.excluded_groups is not None
                else ""
            )
            values = [request.tenant, key, request.now, *(request.excluded_groups or ()), request.limit]
            rows = connection.execute(_READY.format(without), values)
            for priority, ready_at, id, kind, version, due_at, body in rows:
                found.append((-priority, ready_at, id, StoredRecord(decode_record(id, kind, body), version, due_at)))
        found.sort(key=lambda entry: entry[:3])
        return [entry[3] for entry in found[: request.limit]]

    def _find_only(self, request: FindReady) -> list[StoredRecord]:
        found: list[tuple[int, int, str, StoredRecord]] = []
        wanted = list(dict.fromkeys(request.only_ids))
        for start in range(0, len(wanted), MAX_VARIABLES):
            some = wanted[start : start + MAX_VARIABLES]
            sql = _ONLY.format(", ".join("?" * len(some)))
            rows = self._connected(self._write_to).execute(sql, [*some, request.tenant, request.now])
            for priority, ready_at, id, kind, version, due_at, body in rows:
                held = StoredRecord(decode_record(id, kind, body), version, due_at)
                if matches_labels(held, request.labels):
                    found.append((-priority, ready_at, id, held))
        found.sort(key=lambda entry: entry[:3])
        return [entry[3] for entry in found[: request.limit]]

    def _write(self, write: Write) -> int:
        connection = self._connected(self._write_to)
        new = [put for put in write.puts if put.version == 0 and not put.is_terminal]
        old = [put for put in write.puts if put.version and not put.is_terminal]
        over = [put for put in write.puts if put.is_terminal]
        self._guarded(connection, _INSERT, [(*insert_values(put), put.record.id) for put in new], new)
        updates = [(put.ready_at, put.due_at, encode(put.record), put.record.id, put.version) for put in old]
        self._guarded(connection, _UPDATE, updates, old)
        leaving = [put for put in over if put.version]
        self._guarded(connection, _DELETE, [(put.record.id, put.version) for put in leaving], leaving)
        self._guarded(connection, _FINISH, [_over_row(put) for put in over], over)
        if write.list_changes:
            self._list(connection, write.list_changes)
        if not write.events:
            return 0
        chunk = pack_events(write.events)
        (last,) = connection.execute("UPDATE log_head SET seq = seq + ? RETURNING seq", (chunk.count,)).fetchone()
        connection.execute(_CHUNK, (last, chunk.count, chunk.at, chunk.body))
        connection.executemany(_SCOPE, [(scope, last) for scope in chunk.scopes])
        return int(last)

    @staticmethod
    def _list(connection: sqlite3.Connection, entries: list[ListChange]) -> None:
        connection.executemany(_LEAVE, removed_rows(entries))
        connection.executemany(_JOIN, added_rows(entries))

    @staticmethod
    def _guarded(connection: sqlite3.Connection, sql: str, rows: list[tuple[Any, ...]], puts: list[Put]) -> None:
        if rows and connection.executemany(sql, rows).rowcount != len(rows):
            raise Conflict(tuple(put.record.id for put in puts))

    async def _read(self, sql: str, *values: Any) -> list[Any]:
        if not self._is_open:
            raise Unavailable("the store is not open; call open() first")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._fetch, sql, values)

    def _fetch(self, sql: str, values: tuple[Any, ...]) -> list[Any]:
        with self._reader() as connection:
            return connection.execute(sql, values).fetchall()

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        connection = self._idle.pop()
        try:
            yield connection
        except sqlite3.OperationalError as error:
            raise Unavailable(f"{self._path}: {error}") from error
        finally:
            self._idle.append(connection)

    async def find(self, id: str) -> Record | None:
        """The record as it is now."""
        for _, kind, _, _, body in await self._read(_THIS, id):
            return decode_record(id, kind, body)
        return None

    async def find_all(self, ids: Sequence[str]) -> list[Record]:
        """These records."""
        wanted, found = list(dict.fromkeys(ids)), dict[str, Record]()
        for start in range(0, len(wanted), MAX_VARIABLES):
            some = wanted[start : start + MAX_VARIABLES]
            rows = await self._read(_these(len(some)), *some)
            found.update({id: decode_record(id, kind, body) for id, kind, _, _, body in rows})
        return [found[id] for id in wanted if id in found]

    async def page(self, search: ListQuery) -> RecordPage:
        """What is on all of these lists."""
        return await self._pages.page(search)

    async def count(self, tenant: str, list: str, limit: int) -> int:
        """How many are on this list."""
        return await self._pages.count(tenant, list, limit)

    async def find_document(self, kind: str, name: str, tenant: str = "") -> Document | None:
        """The document of this name."""
        return await self._documents.find(kind, name, tenant)

    async def put_documents(self, documents: Sequence[Document]) -> None:
        """All of them or none."""
        await self._as_writer(lambda connection: self._put_documents(connection, documents))

    def _put_documents(self, connection: sqlite3.Connection, documents: Sequence[Document]) -> None:
        now = self._clock()
        for each in sorted_for_write(documents):
            name = (each.kind, each.tenant, each.name)
            if each.version:
                done = connection.execute(_OLD_DOCUMENT, (now, each.body, *name, each.version))
            else:
                done = connection.execute(_NEW_DOCUMENT, (*name, now, each.body))
            if not done.rowcount:
                raise document_conflict(documents)

    async def list_documents(
        self, kind: str, tenant: str, *, after: str = "", limit: int = 100, prefix: str = ""
    ) -> list[Document]:
        """The tenant's documents."""
        return await self._documents.list_documents(kind, tenant, after, limit, prefix)

    async def delete_document(self, kind: str, tenant: str, name: str, version: int) -> bool:
        """Drop it, if it is still this version of it."""
        values = (kind, tenant, name, version)
        return bool(await self._as_writer(lambda connection: connection.execute(_DELETE_DOCUMENT, values).rowcount))

    async def now(self) -> int:
        """The clock."""
        return self._clock()

    async def events(self, after: int, limit: int, *, entity_id: str = "", run_id: str = "") -> list[Event]:
        """Committed events, in order."""
        return await self._log.events(after, limit, entity_id, run_id, self.find)

    async def ready_attempts(self, before: int, limit: int) -> list[ReadyAttempt]:
        """What waits since before then."""
        return await self._ready.ready_attempts(before, limit)

    async def queued_attempts(self, tenant: str, limit: int, queues: int) -> list[ReadyAttempt]:
        """What the tenant has in its queues."""
        return await self._ready.queued_attempts(tenant, limit, queues)

    async def group_holder(self, tenant: str, group: str) -> str:
        """Who has it."""
        return _only(await self._read(_HOLDER, tenant, group, self._clock()))

    async def last_seq(self) -> int:
        """The newest seq."""
        return int((await self._read("SELECT seq FROM log_head"))[0][0])

    async def prune(self, *, finished_before: int, events_before: int, limit: int) -> int:
        """Drop finished records and old events."""
        return await self._as_writer(lambda to: self._prune(to, finished_before, events_before, limit))

    def _prune(self, connection: sqlite3.Connection, finished_before: int, events_before: int, limit: int) -> int:
        gone = connection.execute(_DROP_FINISHED, (finished_before, limit)).fetchall()
        self._list(connection, removals(decode_record(*row) for row in gone if row[1] in LISTED_KINDS))
        for table in ("chunk_scopes", "chunks"):
            chunks = connection.execute(_DROP_CHUNKS.format(table), (events_before, limit)).rowcount
        return len(gone) + chunks


_COLUMNS: Final = "id, kind, version, due_at, body"
_READY: Final = (
    f"SELECT priority, ready_at, {_COLUMNS} FROM records r WHERE tenant = ?1 AND queue_key = ?2 AND ready_at <= ?3 "
    "{} ORDER BY priority DESC, ready_at, id LIMIT ?"
)
# Groups that this transaction takes from are not held yet by what is stored.
_WITHOUT: Final = f"AND (group_name IS NULL OR group_name NOT IN ({{}})) AND {GROUP_IS_FREE.format('?3')}"
_HOLDER: Final = GROUP_HOLDER.format("?1", "?2", "?3")
# The ids lead to the rows: without the sign the way to what is ready, which begins with the tenant, might be taken.
_ONLY: Final = (
    f"SELECT priority, ready_at, {_COLUMNS} FROM records WHERE id IN ({{}}) AND +tenant = ? AND +ready_at <= ?"
)
_SELECT: Final = f"SELECT {_COLUMNS} FROM records"
_SELECT_OVER: Final = "SELECT id, kind, 0 AS version, NULL AS due_at, body FROM history"


def _enable_wal(connection: sqlite3.Connection) -> None:
    """Switch the database to WAL mode.

    SQLite reports a lock at once, without its busy timeout, while another connection switches a new database.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(WAL_RETRY_SECONDS)


def _these(count: int) -> str:
    """So many records by their ids, whether they go on or are over: what is nowhere takes no longer to be missed."""
    ids = ", ".join(f"?{n}" for n in range(1, count + 1))
    return f"{_SELECT} WHERE id IN ({ids}) UNION ALL {_SELECT_OVER} WHERE id IN ({ids})"


_THIS: Final = _these(1)
# The index holds only what is of a run, and is taken only by who says so: it cannot know that about a value.
_OF_RUN: Final = "WHERE run_id = ?1 AND kind = ?2 AND run_id <> ''"
_DROP_FINISHED: Final = (
    "DELETE FROM history WHERE id IN (SELECT id FROM history WHERE ended_at < ? LIMIT ?) RETURNING id, kind, body"
)
_DROP_CHUNKS: Final = "DELETE FROM {} WHERE last_seq IN (SELECT last_seq FROM chunks WHERE at < ? ORDER BY at LIMIT ?)"


def _only(rows: Sequence[Any]) -> str:
    return str(rows[0][0]) if rows else ""


def _over_row(put: Put) -> tuple[Any, ...]:
    record = put.record
    return record.id, KIND_OF[type(record)], record.run_id, record.updated_at, encode(record), record.id
