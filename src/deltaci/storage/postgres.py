"""The store for any number of servers: PostgreSQL, with bulk statements over arrays.

Every batch is one transaction on one connection. Rows are found with `SKIP LOCKED`, so that several servers take
different work, and every write is guarded by the version that was read. The events of a batch are one row, appended
under a lock that is held until the commit. So seq grows in the order of commits: a reader that has seen a seq has seen
all events before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, cast

import asyncpg
from msgspec.structs import astuple

from deltaci.core.attempt import Attempt
from deltaci.core.machine import Record
from deltaci.core.results import JobResult, ResultKey
from deltaci.core.timers import ready_at
from deltaci.storage import resources
from deltaci.storage.codec import ATTEMPT_KIND, JOB_KIND, LISTED_KINDS, decode_record
from deltaci.storage.commit_hints import CommitHints, ReadyCounts
from deltaci.storage.document_backends import DELETE, document_conflict
from deltaci.storage.list_index import removals
from deltaci.storage.migrate import migrations, pending_migrations
from deltaci.storage.port import (
    CONTENDED,
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
    Load,
    LoadJobs,
    LoadList,
    LockGroup,
    MovedRequest,
    Postpone,
    ReadTransaction,
    Request,
    StoredRecord,
    T,
    Transaction,
    Unavailable,
    Write,
    matches_labels,
    matching_queue_keys,
    ready_counts,
)
from deltaci.storage.postgres_notify import PostgresNotifier
from deltaci.storage.postgres_write import (
    CLOCK,
    PUT_DOCUMENTS,
    document_columns,
    is_single_statement,
    remove_from_lists,
    write_batch,
)
from deltaci.storage.sql import (
    DELETE_GROUP_FENCES,
    GROUP_HOLDER,
    GROUP_IS_FREE,
    JOB_RESULT_COLUMNS,
    ON_LIST,
    POSTPONE,
    QUEUE_KEYS,
    job_result_of,
)
from deltaci.storage.sql_store import SqlStore

MAX_CONCURRENT_TRANSACTIONS: Final = 3
READ_CONNECTIONS: Final = 4
COMMAND_SECONDS: Final = 30.0

# What the driver raises if the database is unreachable, shuts down or has no resources. A statement that meets the
# shutdown message of the server fails with the driver's InternalClientError.
CONNECTION_ERRORS: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
MIGRATE_LOCK: Final = 0x0DE17AC1_0001  # Advisory lock; a number that no other program is likely to use.
TENANT_LOCK: Final = 0x0DE17AC1  # Class of the advisory locks of tenants.
GROUP_LOCK: Final = 0x0DE17AC2  # Class of the advisory locks of groups.
# Each statement has one good plan, along an index in its order. Outdated statistics must not lead to another plan.
PLANNER_SETTINGS: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",  # Chosen while a table is empty, and then kept until it is analyzed.
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

_COLUMNS: Final = "id, kind, version, due_at, body"
# Live and finished records in one query, so that a missing record takes no longer than a finished one.
_LOAD: Final = (
    f"SELECT {_COLUMNS} FROM records WHERE id = ANY($1) "
    "UNION ALL SELECT id, kind, 0::bigint, NULL::bigint, body FROM history WHERE id = ANY($1)"
)
_LOAD_RESOURCES: Final = f"{resources.SELECT} WHERE id = ANY($1)"
_BEGIN: Final = f"SELECT {CLOCK}, r.* FROM (SELECT 1) one LEFT JOIN ({_LOAD}) r ON true"
# The index covers only rows with a run; the last condition tells the planner that it applies for any parameter value.
_OF_RUN: Final = "run_id = $1 AND kind = $2 AND run_id <> ''"
_LOAD_JOBS: Final = (
    f"SELECT {_COLUMNS} FROM records WHERE {_OF_RUN} "
    f"UNION ALL SELECT id, kind, 0::bigint, NULL::bigint, body FROM history WHERE {_OF_RUN}"
)
_LOAD_LIST: Final = f"SELECT {_COLUMNS} FROM records {ON_LIST.format('$1', '$2')}"
# Another transaction that counts the same tenant waits here until this one commits, and then sees its writes.
_LOCK_TENANT: Final = "SELECT pg_advisory_xact_lock($1, hashtext($2))"
_COUNT_LIVE_LEASES: Final = (
    f"SELECT count(*) FROM (SELECT 1 FROM records WHERE tenant = $1 AND kind = {ATTEMPT_KIND} AND due_at IS NOT NULL "
    "ORDER BY priority LIMIT $2) AS found"
)
_KEYS: Final = QUEUE_KEYS.format("$1")
_READY: Final = (
    f"SELECT {_COLUMNS} FROM records r WHERE tenant = $1 AND queue_key = $2 AND ready_at <= $3 "
    "ORDER BY priority DESC, ready_at, id LIMIT $4 FOR UPDATE SKIP LOCKED"
)
# Groups from which this transaction has granted are not held yet in the table, so they are excluded by name.
_READY_EXCLUDING: Final = _READY.replace(
    "ORDER BY", f"AND (group_name IS NULL OR group_name <> ALL($5)) AND {GROUP_IS_FREE.format('$3')} ORDER BY"
)
# Does not wait: if another transaction has the lock, that one takes the group, or a later claim finds it free.
_LOCK_GROUP: Final = "SELECT pg_try_advisory_xact_lock($1, hashtext($2 || ' ' || $3))"
_HOLDER: Final = GROUP_HOLDER.format("$1", "$2", "$3")
# The same for the queue without labels, by the time read in the same statement: saves a claim one round trip.
_BEGIN_CLAIM: Final = (
    f"SELECT c.now, r.* FROM (SELECT {CLOCK} + $2::bigint AS now) c LEFT JOIN LATERAL ("
    f"SELECT {_COLUMNS} FROM records WHERE tenant = $1 AND queue_key = '' AND ready_at <= c.now "
    "ORDER BY priority DESC, ready_at, id LIMIT $3 FOR UPDATE SKIP LOCKED) r ON true"
)
# The operators on `tenant` and `ready_at` keep the planner from using the index of ready attempts instead of the ids.
_READY_BY_IDS: Final = (
    f"SELECT {_COLUMNS} FROM records WHERE id = ANY($1) AND tenant || '' = $2 AND ready_at + 0 <= $3 "
    "FOR UPDATE SKIP LOCKED"
)
_DUE: Final = f"SELECT {_COLUMNS} FROM records WHERE due_at <= $1 ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED"
_POSTPONE: Final = POSTPONE.format("$1::bigint", "$2")
_FIND_MOVED: Final = (
    "SELECT m.record_id, m.request FROM unnest($1::text[], $2::text[]) AS u (record_id, request_id) "
    "JOIN moved_requests m ON m.record_id = u.record_id AND m.request_id = u.request_id"
)
_FIND_GRANTS: Final = (
    "SELECT * FROM claim_grants WHERE tenant = $1 AND worker_id = $2 AND request_id = $3 ORDER BY position"
)
_FIND_JOB_RESULTS: Final = (
    f"SELECT {JOB_RESULT_COLUMNS} FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) "
    "AS u (tenant, project, trust, job, inputs) JOIN job_results r ON r.tenant = u.tenant AND r.project = u.project "
    "AND r.trust = u.trust AND r.job = u.job AND r.inputs = u.inputs"
)
_DELETE_JOB_RESULTS: Final = (
    "DELETE FROM job_results r USING (SELECT tenant, project, trust, job, inputs FROM job_results "
    "WHERE ended_at < $1 ORDER BY ended_at LIMIT $2) o WHERE r.tenant = o.tenant AND r.project = o.project "
    "AND r.trust = o.trust AND r.job = o.job AND r.inputs = o.inputs AND r.ended_at < $1 RETURNING 1"
)
_DELETE_MOVED: Final = "DELETE FROM moved_requests WHERE record_id = ANY($1)"
_DELETE_GRANTS: Final = "DELETE FROM claim_grants WHERE attempt_id = ANY($1)"
_DELETE_DOCUMENT: Final = DELETE.format(m="$")
_DELETE_FINISHED: Final = (
    "DELETE FROM history WHERE id IN (SELECT id FROM history WHERE ended_at < $1 LIMIT $2) RETURNING id, kind, body"
)
_DELETE_GROUP_FENCES: Final = DELETE_GROUP_FENCES.format("$1")
_DELETE_CHUNKS: Final = (
    "WITH old AS (SELECT last_seq FROM chunks WHERE at < $1 ORDER BY last_seq LIMIT $2), "
    "scoped AS (DELETE FROM chunk_scopes s USING old WHERE s.last_seq = old.last_seq) "
    "DELETE FROM chunks c USING old WHERE c.last_seq = old.last_seq"
)


class PostgresStore(SqlStore):
    """Stores everything in one PostgreSQL database, which any number of servers may share."""

    max_concurrent_transactions = MAX_CONCURRENT_TRANSACTIONS

    def __init__(self, dsn: str, *, shift: Callable[[], int] = lambda: 0) -> None:
        super().__init__("$")
        self._dsn = dsn
        self._clock_shift = shift  # Microseconds by which tests shift the database's clock.
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self.commit_hints = CommitHints()
        self._notifier = PostgresNotifier(self._connect, self.commit_hints)

    def _connect(self) -> Awaitable[Any]:
        return asyncpg.connect(self._dsn, command_timeout=COMMAND_SECONDS)

    async def open(self) -> None:
        """Connect to the database and apply pending migrations.

        One server applies them while the others wait.
        """
        try:
            self._pool = await asyncpg.create_pool(
                self._dsn,
                min_size=1,
                max_size=MAX_CONCURRENT_TRANSACTIONS + READ_CONNECTIONS,
                command_timeout=COMMAND_SECONDS,
                server_settings=PLANNER_SETTINGS,
                reset=_keep_session,
            )
            async with self._pool.acquire() as connection, connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATE_LOCK)
                await connection.execute(
                    "CREATE TABLE IF NOT EXISTS migrations (number integer PRIMARY KEY, checksum text NOT NULL)"
                )
                applied_migrations = await connection.fetch("SELECT number, checksum FROM migrations")
                for migration in pending_migrations(
                    migrations("postgres"), [(row[0], row[1]) for row in applied_migrations]
                ):
                    await connection.execute(migration.text)
                    await connection.execute(
                        "INSERT INTO migrations VALUES ($1, $2)", migration.number, migration.checksum
                    )
        except CONNECTION_ERRORS as error:
            raise Unavailable(f"PostgreSQL cannot be reached: {error}") from error
        self._notifier.start()

    async def close(self) -> None:
        """Close all connections."""
        await self._notifier.stop()
        if self._pool is not None:
            await self._pool.close()

    def _require_open(self) -> asyncpg.Pool[asyncpg.Record]:
        if self._pool is None:
            raise Unavailable("the store is not open; call open() first")
        return self._pool

    async def transact(self, work: Callable[[], Transaction[T]]) -> T:
        """Run the transaction on one connection and return its result.

        Raises `Unavailable` if the connection breaks: then it is unknown whether the transaction was committed.
        """
        try:
            async with self._require_open().acquire() as connection:
                result, became_ready = await self._run_transaction(connection, work())
        except CONNECTION_ERRORS as error:
            raise Unavailable(f"PostgreSQL: {error}") from error
        except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.UniqueViolationError) as error:
            raise Conflict(()) from error
        if became_ready is not None:
            self.commit_hints.publish(became_ready)
            self._notifier.announce(became_ready)
        return result

    async def _run_transaction(self, connection: Any, transaction: Transaction[T]) -> tuple[T, ReadyCounts | None]:
        """Run a transaction to its end on a connection, and commit it.

        Reads followed by one writing statement need no BEGIN and COMMIT. Return the result, and how many attempts the
        writes made ready.
        """
        database_transaction: Any = None
        became_ready: ReadyCounts | None = None
        try:
            request, result = _advance(transaction, None)
            while request is not None:
                if database_transaction is None and not _needs_no_transaction(request):
                    database_transaction = connection.transaction()
                    await database_transaction.start()
                if isinstance(request, Write):
                    became_ready = {**(became_ready or {}), **ready_counts(request)}
                request, result = _advance(transaction, await self._answer(connection, request))
            if database_transaction is not None:
                await database_transaction.commit()
        except asyncio.CancelledError:
            connection.terminate()  # The caller does not wait any more; a rollback could swallow the cancellation.
            raise
        except BaseException:
            if database_transaction is not None and not connection.is_closed() and connection.is_in_transaction():
                await database_transaction.rollback()
            raise
        finally:
            transaction.close()
        return cast(T, result), became_ready

    async def _answer(self, connection: Any, request: Request) -> Any:
        if isinstance(request, Begin):
            return await self._begin(connection, request.ids)
        if isinstance(request, Write):
            return await write_batch(connection, request)
        if isinstance(request, Load):
            return await _load(connection.fetch, request.ids)
        if isinstance(request, LoadJobs):
            return _stored_records(await connection.fetch(_LOAD_JOBS, request.run_id, JOB_KIND))
        if isinstance(request, LoadList):
            return _stored_records(await connection.fetch(_LOAD_LIST, request.tenant, request.list))
        if isinstance(request, FindDue):
            return _stored_records(await connection.fetch(_DUE, request.now, request.limit))
        if isinstance(request, CountLiveLeases):
            await connection.execute(_LOCK_TENANT, TENANT_LOCK, request.tenant)
            return await connection.fetchval(_COUNT_LIVE_LEASES, request.tenant, request.limit)
        if isinstance(request, LockGroup):
            return await self._lock_group(connection, request)
        if isinstance(request, Postpone):
            return await connection.executemany(_POSTPONE, [(request.until, id) for id in request.ids])
        if isinstance(request, BeginClaim):
            return await self._begin_claim(connection, request)
        if isinstance(request, FindRequests):
            return [MovedRequest(*row) for row in await connection.fetch(_FIND_MOVED, *zip(*request.keys, strict=True))]
        if isinstance(request, FindClaim):
            rows = await connection.fetch(_FIND_GRANTS, request.tenant, request.worker_id, request.request_id)
            return [ClaimGrant(*row) for row in rows]
        assert isinstance(request, FindReady)
        return await self._find_ready(connection, request)

    @staticmethod
    async def _lock_group(connection: Any, request: LockGroup) -> str:
        """Try to lock a concurrency group. Return the id of the attempt that holds the group, "", or CONTENDED.

        The holder is read in a second statement, which sees what the previous owner of the lock wrote.
        """
        if not await connection.fetchval(_LOCK_GROUP, GROUP_LOCK, request.tenant, request.group):
            return CONTENDED
        return await connection.fetchval(_HOLDER, request.tenant, request.group, request.now) or ""

    async def _begin_claim(self, connection: Any, request: BeginClaim) -> tuple[int, list[StoredRecord]]:
        if request.labels or request.only_ids:
            now, _ = await self._begin(connection, ())
            return now, await self._find_ready(
                connection,
                FindReady(request.tenant, request.labels, now + request.clock_lead, request.limit, request.only_ids),
            )
        shift = self._clock_shift() + request.clock_lead
        rows = await connection.fetch(_BEGIN_CLAIM, request.tenant, shift, request.limit)
        return int(rows[0][0]) - request.clock_lead, _stored_records([row[1:] for row in rows if row[1] is not None])

    @staticmethod
    async def _find_ready(connection: Any, request: FindReady) -> list[StoredRecord]:
        ready_records: list[StoredRecord] = []
        if request.only_ids:
            rows = await connection.fetch(_READY_BY_IDS, list(request.only_ids), request.tenant, request.now)
            ready_records = [
                stored_record
                for stored_record in _stored_records(rows)
                if matches_labels(stored_record, request.labels)
            ]
            ready_records.sort(key=_claim_order)
            return ready_records[: request.limit]
        keys = [row[0] for row in await connection.fetch(_KEYS, request.tenant)] if request.labels else [""]
        matching_keys = matching_queue_keys(keys, request.labels)
        for key in matching_keys:
            parameters = (request.tenant, key, request.now, request.limit)
            if request.excluded_groups is not None:
                ready_records += _stored_records(
                    await connection.fetch(_READY_EXCLUDING, *parameters, list(request.excluded_groups))
                )
            else:
                ready_records += _stored_records(await connection.fetch(_READY, *parameters))
        if len(matching_keys) > 1:
            ready_records.sort(key=_claim_order)
        return ready_records[: request.limit]

    async def _begin(self, connection: Any, ids: tuple[str, ...]) -> tuple[int, list[StoredRecord]]:
        record_ids, resource_ids = resources.split_ids(ids)
        rows = await connection.fetch(_BEGIN, record_ids)
        records = _stored_records([row[1:] for row in rows if row[1] is not None])
        if resource_ids:
            records += _stored_records(await connection.fetch(_LOAD_RESOURCES, resource_ids))
        return int(rows[0][0]) + self._clock_shift(), records

    async def read(self, work: Callable[[], ReadTransaction[T]]) -> T:
        """Run the read-only transaction on one connection and return its result."""
        transaction = work()
        try:
            async with self._require_open().acquire() as connection:
                request, result = _advance(transaction, None)
                while request is not None:
                    request, result = _advance(transaction, await self._answer(connection, request))
        except CONNECTION_ERRORS as error:
            raise Unavailable(f"PostgreSQL: {error}") from error
        finally:
            transaction.close()
        return cast(T, result)

    async def find(self, id: str) -> Record | None:
        """Return the record, also if it is finished, or None."""
        stored_records = await _load(self._fetch, [id])
        return stored_records[0].record if stored_records else None

    async def find_all(self, ids: Sequence[str]) -> list[Record]:
        """Return these records, also finished ones, in this order, without ids that do not exist."""
        unique_ids = list(dict.fromkeys(ids))
        stored_records = await _load(self._fetch, unique_ids)
        record_by_id = {stored_record.record.id: stored_record.record for stored_record in stored_records}
        return [record_by_id[id] for id in unique_ids if id in record_by_id]

    async def put_documents(self, documents: Sequence[Document]) -> None:
        """Write all documents. Raises `Conflict` and writes none if the stored version of one is not its `version`."""
        document_parameters = document_columns(documents)
        try:
            await self._fetch(PUT_DOCUMENTS, *document_parameters, self._clock_shift(), len(documents))
        except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError) as error:
            raise document_conflict(documents) from error

    async def delete_document(self, kind: str, tenant: str, name: str, version: int) -> bool:
        """Delete the document if it still has this version. Return whether it was deleted."""
        return bool(await self._fetch(f"{_DELETE_DOCUMENT} RETURNING 1", kind, tenant, name, version))

    async def find_job_results(self, keys: Sequence[ResultKey]) -> list[JobResult]:
        """Return the stored results with these keys, without keys that have none."""
        columns = [list(column) for column in zip(*map(astuple, dict.fromkeys(keys)), strict=True)]
        return [job_result_of(row) for row in await self._fetch(_FIND_JOB_RESULTS, *columns)] if columns else []

    async def delete_job_results(self, before: int, limit: int) -> int:
        """Delete up to `limit` results of jobs that ended before this time. Return how many."""
        return len(await self._fetch(_DELETE_JOB_RESULTS, before, limit))

    async def now(self) -> int:
        """Return the time of the store's clock, in microseconds."""
        return int((await self._fetch(f"SELECT {CLOCK}"))[0][0]) + self._clock_shift()

    async def _fetch(self, sql: str, *values: Any) -> list[Any]:
        try:
            rows: list[Any] = await self._require_open().fetch(sql, *values)
        except CONNECTION_ERRORS as error:
            raise Unavailable(f"PostgreSQL: {error}") from error
        return rows

    async def prune(self, *, finished_before: int, events_before: int, limit: int) -> int:
        """Delete records that finished, and events that happened, before these times; up to `limit` of each.

        Return how many.
        """
        try:
            async with self._require_open().acquire() as connection, connection.transaction():
                deleted_rows = await connection.fetch(_DELETE_FINISHED, finished_before, limit)
                await connection.execute(_DELETE_GROUP_FENCES, finished_before)
                await remove_from_lists(
                    connection, removals(decode_record(*row) for row in deleted_rows if row[1] in LISTED_KINDS)
                )
                for sql in (_DELETE_MOVED, _DELETE_GRANTS):
                    await connection.execute(sql, [row[0] for row in deleted_rows])
            status_text: str = await self._require_open().execute(_DELETE_CHUNKS, events_before, limit)
        except CONNECTION_ERRORS as error:
            raise Unavailable(f"PostgreSQL: {error}") from error
        return len(deleted_rows) + int(status_text.rpartition(" ")[2])


async def _load(fetch: Callable[..., Awaitable[list[Any]]], ids: Iterable[str]) -> list[StoredRecord]:
    """Return the records with these ids, live and finished ones."""
    record_ids, resource_ids = resources.split_ids(ids)
    rows = await fetch(_LOAD, record_ids) if record_ids else []
    return _stored_records([*rows, *(await fetch(_LOAD_RESOURCES, resource_ids) if resource_ids else [])])


def _stored_records(rows: list[Any]) -> list[StoredRecord]:
    return [StoredRecord(decode_record(id, kind, body), version, due_at) for id, kind, version, due_at, body in rows]


def _claim_order(stored_record: StoredRecord) -> tuple[int, int, str]:
    record = stored_record.record
    if not isinstance(record, Attempt):
        return -(2**63), 0, record.id  # Unreadable: first, so that the engine postpones it.
    return -record.priority, ready_at(record) or 0, record.id


def _advance(transaction: Transaction[T], answer: Any) -> tuple[Request | None, T | None]:
    """Send an answer into the transaction. Return its next request and None, or None and its result at its end."""
    try:
        return transaction.send(answer), None
    except StopIteration as end:
        return None, end.value


def _needs_no_transaction(request: Request) -> bool:
    """Return whether the request is a single statement that takes no lock for later, so that it needs no BEGIN."""
    if isinstance(request, Write):
        return request.is_last and is_single_statement(request)
    return isinstance(request, Begin | Load | LoadJobs | FindRequests | FindClaim)


async def _keep_session(_connection: object) -> None:
    """Do nothing when a connection returns to the pool: sessions change no settings, so there is nothing to reset."""
