"""The embedded store: one SQLite file and one writer thread. Every commit is on disk before a caller is answered.

It uses the write-ahead log with `synchronous=FULL`: with less, a power loss would lose acknowledged work. The engine's
batch acts as group commit.
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

from msgspec.structs import astuple

from deltaci.core.machine import Record
from deltaci.core.results import JobResult, ResultKey
from deltaci.storage import resources
from deltaci.storage.codec import ATTEMPT_KIND, JOB_KIND, KIND_OF, LISTED_KINDS, decode_record, encode, pack_events
from deltaci.storage.commit_hints import CommitHints, ReadyCounts
from deltaci.storage.document_backends import DELETE, document_conflict, sorted_for_write
from deltaci.storage.list_index import added_rows, removals, removed_rows
from deltaci.storage.migrate import migrations, pending_migrations
from deltaci.storage.port import (
    Begin,
    BeginClaim,
    ClaimGrant,
    Conflict,
    CountLiveLeases,
    Document,
    FindClaim,
    FindDue,
    FindReady,
    FindRequests,
    ListChange,
    Load,
    LoadJobs,
    LoadList,
    LockGroup,
    MovedRequest,
    Postpone,
    Put,
    ReadTransaction,
    Request,
    StoredRecord,
    T,
    Transaction,
    Unavailable,
    Write,
    group_fences,
    matches_labels,
    matching_queue_keys,
    run_transaction,
    wall_clock,
)
from deltaci.storage.sql import (
    DELETE_GROUP_FENCES,
    GROUP_HOLDER,
    GROUP_IS_FREE,
    JOB_RESULT_COLUMNS,
    JOB_RESULT_CONFLICT,
    JOB_RESULT_KEY,
    ON_LIST,
    POSTPONE,
    PUT_GROUP_FENCE,
    QUEUE_KEYS,
    insert_values,
    job_result_of,
    job_result_row,
)
from deltaci.storage.sql_store import SqlStore

READ_CONNECTIONS: Final = 4
BUSY_SECONDS: Final = 10.0
WAL_RETRY_SECONDS: Final = 0.01
CACHE_KIBIBYTES: Final = 16 * 1024  # Per connection: holds the upper index pages of millions of rows.
MAX_VARIABLES: Final = 500

# An id is never used again, not even that of a finished record.
_INSERT: Final = (
    "INSERT INTO records SELECT ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ? "
    "WHERE NOT EXISTS (SELECT 1 FROM history WHERE id = ?) ON CONFLICT DO NOTHING"
)
_UPDATE: Final = (
    "UPDATE records SET version = version + 1, ready_at = ?, due_at = ?, body = ? WHERE id = ? AND version = ?"
)
_KEYS: Final = QUEUE_KEYS.format("?")
_POSTPONE: Final = POSTPONE.format("?", "?")
_PUT_GROUP_FENCE: Final = PUT_GROUP_FENCE.format(*"????")
_DELETE_GROUP_FENCES: Final = DELETE_GROUP_FENCES.format("?")
_DELETE: Final = "DELETE FROM records WHERE id = ? AND version = ?"
_INSERT_HISTORY: Final = (
    "INSERT INTO history SELECT ?, ?, ?, ?, ? WHERE NOT EXISTS (SELECT 1 FROM records WHERE id = ?) "
    "ON CONFLICT DO NOTHING"
)
_INSERT_CHUNK: Final = "INSERT INTO chunks VALUES (?, ?, ?, ?)"
_INSERT_SCOPE: Final = "INSERT INTO chunk_scopes VALUES (?, ?)"
_INSERT_LISTED: Final = "INSERT INTO listed VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_INSERT_MOVED: Final = "INSERT INTO moved_requests VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_INSERT_GRANT: Final = "INSERT INTO claim_grants VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_FIND_MOVED: Final = "SELECT record_id, request FROM moved_requests WHERE record_id = ? AND request_id = ?"
_FIND_GRANTS: Final = (
    "SELECT * FROM claim_grants WHERE tenant = ? AND worker_id = ? AND request_id = ? ORDER BY position"
)
_PUT_JOB_RESULT: Final = f"INSERT INTO job_results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) {JOB_RESULT_CONFLICT}"
_FIND_JOB_RESULT: Final = (
    f"SELECT {JOB_RESULT_COLUMNS} FROM job_results r WHERE {JOB_RESULT_KEY.format(*'?????')}"  # One index probe.
)
_DELETE_JOB_RESULTS: Final = (
    "DELETE FROM job_results WHERE (tenant, project, trust, job, inputs) IN "
    "(SELECT tenant, project, trust, job, inputs FROM job_results WHERE ended_at < ? LIMIT ?)"
)
_DELETE_LISTED: Final = "DELETE FROM listed WHERE tenant = ? AND list = ? AND at = ? AND id = ?"
_COUNT_LIVE_LEASES: Final = (
    f"SELECT count(*) FROM (SELECT 1 FROM records WHERE tenant = ? AND kind = {ATTEMPT_KIND} AND due_at IS NOT NULL "
    "ORDER BY priority LIMIT ?)"
)
_INSERT_DOCUMENT: Final = "INSERT INTO documents VALUES (?, ?, ?, 1, ?, ?) ON CONFLICT DO NOTHING"
_UPDATE_DOCUMENT: Final = (
    "UPDATE documents SET version = version + 1, at = ?, body = ? "
    "WHERE kind = ? AND tenant = ? AND name = ? AND version = ?"
)
_DELETE_DOCUMENT: Final = DELETE.format(m="?")
_INSERT_RESOURCE, _UPDATE_RESOURCE = (sql.format(m="?") for sql in (resources.INSERT, resources.UPDATE))


class SqliteStore(SqlStore):
    """Stores everything in one SQLite file.

    Reads outside transactions have their own connections and never wait for a writer.
    """

    max_concurrent_transactions = 1

    def __init__(self, path: str, clock: Callable[[], int] = wall_clock) -> None:
        super().__init__("?")
        self._path = path
        self._clock = clock
        self._writer = ThreadPoolExecutor(1, "sqlite-writer")
        self._readers = ThreadPoolExecutor(READ_CONNECTIONS, "sqlite-reader")
        self._write_connection: sqlite3.Connection | None = None
        self._idle_readers: list[sqlite3.Connection] = []  # One per reader thread, so one is always available.
        self._is_open = False
        self.commit_hints = CommitHints()

    async def open(self) -> None:
        """Create the file if it does not exist, and apply pending migrations under a write lock."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._writer, self._open_write_connection)
        for _ in range(READ_CONNECTIONS):
            self._idle_readers.append(await loop.run_in_executor(self._readers, self._connect))
        self._is_open = True

    async def close(self) -> None:
        """Close all connections."""
        self._is_open = False
        await asyncio.get_running_loop().run_in_executor(self._writer, self._close)
        self._writer.shutdown()

    def _close(self) -> None:
        self._readers.shutdown()  # This waits for reads in progress.
        for connection in (self._write_connection, *self._idle_readers):
            if connection is not None:
                connection.close()
        self._write_connection = None
        self._idle_readers.clear()

    def _connect(self) -> sqlite3.Connection:
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        _enable_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIBIBYTES}")
        return connection

    def _open_write_connection(self) -> None:
        self._write_connection = connection = self._connect()
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, checksum TEXT NOT NULL)"
            )
            applied_migrations = connection.execute("SELECT number, checksum FROM migrations").fetchall()
            for migration in pending_migrations(migrations("sqlite"), applied_migrations):
                for statement in migration.text.split(";"):
                    connection.execute(statement)
                connection.execute("INSERT INTO migrations VALUES (?, ?)", (migration.number, migration.checksum))
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise

    async def transact(self, work: Callable[[], Transaction[T]]) -> T:
        """Run the transaction and return its result.

        It runs in the writer thread, so that all of its requests need only one thread switch.
        """
        result, became_ready = await asyncio.get_running_loop().run_in_executor(self._writer, self._transact, work)
        if became_ready is not None:
            self.commit_hints.publish(became_ready)
        return result

    def _transact(self, work: Callable[[], Transaction[T]]) -> tuple[T, ReadyCounts | None]:
        return self._in_write_transaction(lambda _: run_transaction(work(), self._answer))

    async def _run_write_transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._in_write_transaction, work)

    def _in_write_transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call `work` in a write transaction and return its result: commit if it returns, roll back if it raises."""
        connection = self._require_open(self._write_connection)
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                work_result = work(connection)
                connection.execute("COMMIT")
                return work_result
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            raise Unavailable(f"{self._path}: {error}") from error

    @staticmethod
    def _require_open(connection: sqlite3.Connection | None) -> sqlite3.Connection:
        if connection is None:
            raise Unavailable("the store is not open; call open() first")
        return connection

    async def read(self, work: Callable[[], ReadTransaction[T]]) -> T:
        """Run the read-only transaction in a reader thread and return its result.

        All of its reads see the same snapshot.
        """
        if not self._is_open:
            raise Unavailable("the store is not open; call open() first")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read_transaction, work)

    def _read_transaction(self, work: Callable[[], ReadTransaction[T]]) -> T:
        with self._borrowed_reader() as connection:
            connection.execute("BEGIN")
            try:
                return run_transaction(work(), lambda request: self._answer_read(connection, request))[0]
            finally:
                connection.execute("COMMIT")

    def _answer_read(self, connection: sqlite3.Connection, request: Request) -> list[StoredRecord]:
        if isinstance(request, Load):
            return self._load(connection, request.ids)
        assert isinstance(request, LoadJobs), request
        values = [request.run_id, JOB_KIND]
        return self._fetch_records(connection, f"{_SELECT} {_OF_RUN} UNION ALL {_SELECT_FINISHED} {_OF_RUN}", values)

    def _answer(self, request: Request) -> Any:
        connection = self._require_open(self._write_connection)
        if isinstance(request, Load | LoadJobs):
            return self._answer_read(connection, request)
        if isinstance(request, Begin):
            return self._clock(), self._load(connection, request.ids)
        if isinstance(request, BeginClaim):
            now = self._clock()
            return now, self._find_ready(
                FindReady(request.tenant, request.labels, now + request.clock_lead, request.limit, request.only_ids)
            )
        if isinstance(request, Write):
            return self._write(request)
        if isinstance(request, LoadList):
            return self._fetch_records(
                connection, f"{_SELECT} {ON_LIST.format('?1', '?2')}", [request.tenant, request.list]
            )
        if isinstance(request, FindReady):
            return self._find_ready(request)
        if isinstance(request, CountLiveLeases):
            return connection.execute(_COUNT_LIVE_LEASES, [request.tenant, request.limit]).fetchone()[0]
        if isinstance(request, LockGroup):
            return _first_value(connection.execute(_HOLDER, [request.tenant, request.group, request.now]).fetchall())
        if isinstance(request, FindRequests):
            rows_of_keys = [connection.execute(_FIND_MOVED, key).fetchall() for key in request.keys]
            return [MovedRequest(*row) for rows in rows_of_keys for row in rows]
        if isinstance(request, FindClaim):
            key = [request.tenant, request.worker_id, request.request_id]
            return [ClaimGrant(*row) for row in connection.execute(_FIND_GRANTS, key)]
        if isinstance(request, Postpone):
            rows = [(request.until, request.until, id) for id in request.ids]
            connection.executemany(_POSTPONE, rows)
            return None
        assert isinstance(request, FindDue)
        due_sql = f"{_SELECT} WHERE due_at <= ? ORDER BY due_at LIMIT ?"
        return self._fetch_records(connection, due_sql, [request.now, request.limit])

    @staticmethod
    def _fetch_records(connection: sqlite3.Connection, sql: str, values: list[Any]) -> list[StoredRecord]:
        rows = connection.execute(sql, values)
        return [
            StoredRecord(decode_record(id, kind, body), version, due_at) for id, kind, version, due_at, body in rows
        ]

    def _load(self, connection: sqlite3.Connection, ids: Iterable[str]) -> list[StoredRecord]:
        records = list[StoredRecord]()
        for sql, part_ids in _selects_by_ids(ids):
            records += self._fetch_records(connection, sql, part_ids)
        return records

    def _find_ready(self, request: FindReady) -> list[StoredRecord]:
        """Return the most urgent of the ready attempts: of those in `only_ids`, or else of all matching queues.

        Without `only_ids`, a short index scan of each of these queues suffices.
        """
        ranked: list[tuple[int, int, str, StoredRecord]] = []
        connection = self._require_open(self._write_connection)
        if request.only_ids:
            return self._find_ready_by_ids(request)
        keys = [row[0] for row in connection.execute(_KEYS, [request.tenant] * 2)] if request.labels else [""]
        for key in matching_queue_keys(keys, request.labels):
            group_condition = (
                _EXCLUDE_GROUPS.format(", ".join("?" * len(request.excluded_groups)))
                if request.excluded_groups is not None
                else ""
            )
            parameters = [request.tenant, key, request.now, *(request.excluded_groups or ()), request.limit]
            rows = connection.execute(_READY.format(group_condition), parameters)
            for priority, ready_at, id, kind, version, due_at, body in rows:
                ranked.append((-priority, ready_at, id, StoredRecord(decode_record(id, kind, body), version, due_at)))
        ranked.sort(key=lambda entry: entry[:3])
        return [entry[3] for entry in ranked[: request.limit]]

    def _find_ready_by_ids(self, request: FindReady) -> list[StoredRecord]:
        ranked: list[tuple[int, int, str, StoredRecord]] = []
        unique_ids = list(dict.fromkeys(request.only_ids))
        for start in range(0, len(unique_ids), MAX_VARIABLES):
            part_ids = unique_ids[start : start + MAX_VARIABLES]
            sql = _READY_BY_IDS.format(", ".join("?" * len(part_ids)))
            rows = self._require_open(self._write_connection).execute(sql, [*part_ids, request.tenant, request.now])
            for priority, ready_at, id, kind, version, due_at, body in rows:
                stored_record = StoredRecord(decode_record(id, kind, body), version, due_at)
                if matches_labels(stored_record, request.labels):
                    ranked.append((-priority, ready_at, id, stored_record))
        ranked.sort(key=lambda entry: entry[:3])
        return [entry[3] for entry in ranked[: request.limit]]

    def _write(self, write: Write) -> int:
        connection = self._require_open(self._write_connection)
        puts, resource_puts = resources.split_puts(write.puts)
        created_puts = [put for put in puts if put.version == 0 and not put.is_terminal]
        changed_puts = [put for put in puts if put.version and not put.is_terminal]
        finished_puts = [put for put in puts if put.is_terminal]
        self._write_guarded(
            connection, _INSERT, [(*insert_values(put), put.record.id) for put in created_puts], created_puts
        )
        updates = [(put.ready_at, put.due_at, encode(put.record), put.record.id, put.version) for put in changed_puts]
        self._write_guarded(connection, _UPDATE, updates, changed_puts)
        moved_puts = [put for put in finished_puts if put.version]
        self._write_guarded(connection, _DELETE, [(put.record.id, put.version) for put in moved_puts], moved_puts)
        self._write_guarded(connection, _INSERT_HISTORY, [_history_values(put) for put in finished_puts], finished_puts)
        for put in resource_puts:
            sql, values = resources.statement_of(put, _INSERT_RESOURCE, _UPDATE_RESOURCE)
            self._write_guarded(connection, sql, [values], [put])
        if fences := group_fences(write):
            connection.executemany(_PUT_GROUP_FENCE, fences)
        if write.list_changes:
            self._write_lists(connection, write.list_changes)
        if write.job_results:
            connection.executemany(_PUT_JOB_RESULT, map(job_result_row, write.job_results))
        if write.moved_requests:
            connection.executemany(_INSERT_MOVED, [(*moved.key, moved.request) for moved in write.moved_requests])
        grants = write.claim_grants
        self._write_guarded(connection, _INSERT_GRANT, [astuple(grant) for grant in grants], created_puts)
        if not write.events:
            return 0
        chunk = pack_events(write.events)
        (last_seq,) = connection.execute("UPDATE log_head SET seq = seq + ? RETURNING seq", (chunk.count,)).fetchone()
        connection.execute(_INSERT_CHUNK, (last_seq, chunk.count, chunk.at, chunk.body))
        connection.executemany(_INSERT_SCOPE, [(scope, last_seq) for scope in chunk.scopes])
        return int(last_seq)

    @staticmethod
    def _write_lists(connection: sqlite3.Connection, entries: list[ListChange]) -> None:
        connection.executemany(_DELETE_LISTED, removed_rows(entries))
        connection.executemany(_INSERT_LISTED, added_rows(entries))

    @staticmethod
    def _write_guarded(connection: sqlite3.Connection, sql: str, rows: list[tuple[Any, ...]], puts: list[Put]) -> None:
        if rows and connection.executemany(sql, rows).rowcount != len(rows):
            raise Conflict(tuple(put.record.id for put in puts))

    async def _fetch(self, sql: str, *values: Any) -> list[Any]:
        if not self._is_open:
            raise Unavailable("the store is not open; call open() first")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._fetch_in_thread, sql, values)

    def _fetch_in_thread(self, sql: str, values: tuple[Any, ...]) -> list[Any]:
        with self._borrowed_reader() as connection:
            return connection.execute(sql, values).fetchall()

    @contextmanager
    def _borrowed_reader(self) -> Iterator[sqlite3.Connection]:
        connection = self._idle_readers.pop()
        try:
            yield connection
        except sqlite3.OperationalError as error:
            raise Unavailable(f"{self._path}: {error}") from error
        finally:
            self._idle_readers.append(connection)

    async def find(self, id: str) -> Record | None:
        """Return the record, also if it is finished, or None."""
        records = await self.find_all([id])
        return records[0] if records else None

    async def find_all(self, ids: Sequence[str]) -> list[Record]:
        """Return these records, also finished ones, in this order, without ids that do not exist."""
        unique_ids, record_by_id = list(dict.fromkeys(ids)), dict[str, Record]()
        for sql, part_ids in _selects_by_ids(unique_ids):
            rows = await self._fetch(sql, *part_ids)
            record_by_id.update({id: decode_record(id, kind, body) for id, kind, _, _, body in rows})
        return [record_by_id[id] for id in unique_ids if id in record_by_id]

    async def put_documents(self, documents: Sequence[Document]) -> None:
        """Write all documents. Raises `Conflict` and writes none if the stored version of one is not its `version`."""
        await self._run_write_transaction(lambda connection: self._put_documents(connection, documents))

    def _put_documents(self, connection: sqlite3.Connection, documents: Sequence[Document]) -> None:
        now = self._clock()
        for document in sorted_for_write(documents):
            document_key = (document.kind, document.tenant, document.name)
            if document.version:
                cursor = connection.execute(_UPDATE_DOCUMENT, (now, document.body, *document_key, document.version))
            else:
                cursor = connection.execute(_INSERT_DOCUMENT, (*document_key, now, document.body))
            if not cursor.rowcount:
                raise document_conflict(documents)

    async def delete_document(self, kind: str, tenant: str, name: str, version: int) -> bool:
        """Delete the document if it still has this version. Return whether it was deleted."""
        parameters = (kind, tenant, name, version)
        return bool(
            await self._run_write_transaction(
                lambda connection: connection.execute(_DELETE_DOCUMENT, parameters).rowcount
            )
        )

    async def find_job_results(self, keys: Sequence[ResultKey]) -> list[JobResult]:
        """Return the stored results with these keys, without keys that have none."""
        if not self._is_open:
            raise Unavailable("the store is not open; call open() first")
        unique_keys = [astuple(key) for key in dict.fromkeys(keys)]
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._find_job_results, unique_keys)

    def _find_job_results(self, keys: list[tuple[Any, ...]]) -> list[JobResult]:
        with self._borrowed_reader() as connection:
            return [job_result_of(row) for key in keys for row in connection.execute(_FIND_JOB_RESULT, key)]

    async def delete_job_results(self, before: int, limit: int) -> int:
        """Delete up to `limit` results of jobs that ended before this time. Return how many."""
        return await self._run_write_transaction(
            lambda connection: connection.execute(_DELETE_JOB_RESULTS, (before, limit)).rowcount
        )

    async def now(self) -> int:
        """Return the time of the store's clock, in microseconds."""
        return self._clock()

    async def prune(self, *, finished_before: int, events_before: int, limit: int) -> int:
        """Delete records that finished, and events that happened, before these times; up to `limit` of each.

        Return how many.
        """
        return await self._run_write_transaction(
            lambda connection: self._prune(connection, finished_before, events_before, limit)
        )

    def _prune(self, connection: sqlite3.Connection, finished_before: int, events_before: int, limit: int) -> int:
        deleted_rows = connection.execute(_DELETE_FINISHED, (finished_before, limit)).fetchall()
        connection.execute(_DELETE_GROUP_FENCES, (finished_before,))
        self._write_lists(connection, removals(decode_record(*row) for row in deleted_rows if row[1] in LISTED_KINDS))
        for sql in (_DELETE_MOVED, _DELETE_GRANTS):
            connection.executemany(sql, [(row[0],) for row in deleted_rows])
        for table in ("chunk_scopes", "chunks"):
            chunk_count = connection.execute(_PRUNE_CHUNKS.format(table), (events_before, limit)).rowcount
        return len(deleted_rows) + chunk_count


_COLUMNS: Final = "id, kind, version, due_at, body"
_READY: Final = (
    f"SELECT priority, ready_at, {_COLUMNS} FROM records r WHERE tenant = ?1 AND queue_key = ?2 AND ready_at <= ?3 "
    "{} ORDER BY priority DESC, ready_at, id LIMIT ?"
)
# Groups from which this transaction has granted are not stored yet in the table, so they are excluded by name.
_EXCLUDE_GROUPS: Final = f"AND (group_name IS NULL OR group_name NOT IN ({{}})) AND {GROUP_IS_FREE.format('?3')}"
_HOLDER: Final = GROUP_HOLDER.format("?1", "?2", "?3")
# Unary plus keeps SQLite from using the index of ready attempts instead of the ids.
_READY_BY_IDS: Final = (
    f"SELECT priority, ready_at, {_COLUMNS} FROM records WHERE id IN ({{}}) AND +tenant = ? AND +ready_at <= ?"
)
_SELECT: Final = f"SELECT {_COLUMNS} FROM records"
_SELECT_FINISHED: Final = "SELECT id, kind, 0 AS version, NULL AS due_at, body FROM history"


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


def _selects_by_ids(ids: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the statements that select the records with these ids, each with its parameters."""
    for all_ids, select in zip(resources.split_ids(ids), (_select_by_ids, resources.select_by_ids), strict=True):
        for start in range(0, len(all_ids), MAX_VARIABLES):
            part_ids = all_ids[start : start + MAX_VARIABLES]
            yield select(len(part_ids)), part_ids


def _select_by_ids(count: int) -> str:
    """Return the SQL that selects `count` records by id, live and finished ones in one query.

    So a missing record takes no longer than a finished one.
    """
    placeholders = ", ".join(f"?{number}" for number in range(1, count + 1))
    return f"{_SELECT} WHERE id IN ({placeholders}) UNION ALL {_SELECT_FINISHED} WHERE id IN ({placeholders})"


# The index covers only rows with a run; the last condition tells SQLite that it applies for any parameter value.
_OF_RUN: Final = "WHERE run_id = ?1 AND kind = ?2 AND run_id <> ''"
_DELETE_FINISHED: Final = (
    "DELETE FROM history WHERE id IN (SELECT id FROM history WHERE ended_at < ? LIMIT ?) RETURNING id, kind, body"
)
_DELETE_MOVED: Final = "DELETE FROM moved_requests WHERE record_id = ?"
_DELETE_GRANTS: Final = "DELETE FROM claim_grants WHERE attempt_id = ?"
_PRUNE_CHUNKS: Final = "DELETE FROM {} WHERE last_seq IN (SELECT last_seq FROM chunks WHERE at < ? ORDER BY at LIMIT ?)"


def _first_value(rows: Sequence[Any]) -> str:
    return str(rows[0][0]) if rows else ""


def _history_values(put: Put) -> tuple[Any, ...]:
    record = put.record
    return record.id, KIND_OF[type(record)], record.run_id, record.updated_at, encode(record), record.id
