"""The store for any number of servers: PostgreSQL, bulk statements over arrays, guards in SQL and policy never.

Every batch is one transaction on one connection. Rows are found with `SKIP LOCKED`, so that servers side by
side take different work; every write is guarded by the version that was read. The events of a batch are one
row, appended under a lock that is held until the commit: so seq grows in the order of commits, and a reader
who saw one seq has seen all before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

import asyncpg

from deltaci.core.attempt import Attempt
from deltaci.core.events import Event
from deltaci.core.machine import Record
from deltaci.core.timers import ready_at
from deltaci.storage.codec import ATTEMPT_KIND, JOB_KIND, LISTED_KINDS, decode_record
from deltaci.storage.commit_hints import CommitHints, ReadyCounts
from deltaci.storage.document_backends import DELETE, SqlDocumentReader, document_conflict
from deltaci.storage.list_index import SqlListReader, removals
from deltaci.storage.migrate import migrations, pending_migrations
from deltaci.storage.port import (
    CONTENDED,
    Begin,
    BeginClaim,
    Conflict,
    CountLiveLeases,
    Document,
    FindDue,
    FindReady,
    ListQuery,
    Load,
    LoadJobs,
    LockGroup,
    Postpone,
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
from deltaci.storage.sql import GROUP_HOLDER, GROUP_IS_FREE, POSTPONE, QUEUE_KEYS, LogReader, ReadyAttemptReader

MAX_CONCURRENT_TRANSACTIONS: Final = 3
READ_CONNECTIONS: Final = 4
COMMAND_SECONDS: Final = 30.0

# What the driver raises when the database is not there, goes, or has no room: a statement may also meet the farewell of
# a server that is shut down, which the driver calls an error of its own.
CONNECTION_ERRORS: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
MIGRATE_LOCK: Final = 0x0DE17AC1_0001  # A number that nobody else is likely to lock.
TENANT_LOCK: Final = 0x0DE17AC1  # The same, for the locks of tenants.
GROUP_LOCK: Final = 0x0DE17AC2  # And of groups.
# Our statements have one good plan each: along an index, in its order. Statistics that lag behind must not hide it.
PLANNER_SETTINGS: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",  # Good while a table is empty, and remembered until somebody counts its rows.
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

_COLUMNS: Final = "id, kind, version, due_at, body"
# What goes on and what is over, in one question: what is nowhere takes no longer to be found missing.
_LOAD: Final = (
    f"SELECT {_COLUMNS} FROM records WHERE id = ANY($1) "
    "UNION ALL SELECT id, kind, 0::bigint, NULL::bigint, body FROM history WHERE id = ANY($1)"
)
_OPEN: Final = f"SELECT {CLOCK}, r.* FROM (SELECT 1) one LEFT JOIN ({_LOAD}) r ON true"
# The index holds only what is of a run, and is taken only by who says so: it cannot know that about a value.
_OF_RUN: Final = "run_id = $1 AND kind = $2 AND run_id <> ''"
_LOAD_JOBS: Final = (
    f"SELECT {_COLUMNS} FROM records WHERE {_OF_RUN} "
    f"UNION ALL SELECT id, kind, 0::bigint, NULL::bigint, body FROM history WHERE {_OF_RUN}"
)
# Whoever counts the same waits here until the one before has committed, and then sees what that one wrote.
_LOCK_HELD: Final = "SELECT pg_advisory_xact_lock($1, hashtext($2))"
_COUNT_HELD: Final = (
    f"SELECT count(*) FROM (SELECT 1 FROM records WHERE tenant = $1 AND kind = {ATTEMPT_KIND} AND due_at IS NOT NULL "
    "ORDER BY priority LIMIT $2) AS found"
)
_KEYS: Final = QUEUE_KEYS.format("$1")
_READY: Final = (
    f"SELECT {_COLUMNS} FROM records r WHERE tenant = $1 AND queue_key = $2 AND ready_at <= $3 "
    "ORDER BY priority DESC, ready_at, id LIMIT $4 FOR UPDATE SKIP LOCKED"
)
# Groups that this transaction takes from are not held yet by what is stored.
_READY_WITHOUT: Final = _READY.replace(
    "ORDER BY", f"AND (group_name IS NULL OR group_name <> ALL($5)) AND {GROUP_IS_FREE.format('$3')} ORDER BY"
)
# Whoever would wait here for another one goes by: that one takes it, or leaves it to the next who looks.
_LOCK_GROUP: Final = "SELECT pg_try_advisory_xact_lock($1, hashtext($2 || ' ' || $3))"
_HOLDER: Final = GROUP_HOLDER.format("$1", "$2", "$3")
# The same for the queue without labels, by the time that is read on the way: a claim then takes one question less.
_OPEN_READY: Final = (
    f"SELECT c.now, r.* FROM (SELECT {CLOCK} + $2::bigint AS now) c LEFT JOIN LATERAL ("
    f"SELECT {_COLUMNS} FROM records WHERE tenant = $1 AND queue_key = '' AND ready_at <= c.now "
    "ORDER BY priority DESC, ready_at, id LIMIT $3 FOR UPDATE SKIP LOCKED) r ON true"
)
# The ids lead to the rows: a bare `tenant` might lead along the index of all that is ready.
_ONLY: Final = (
    f"SELECT {_COLUMNS} FROM records WHERE id = ANY($1) AND tenant || '' = $2 AND ready_at + 0 <= $3 "
    "FOR UPDATE SKIP LOCKED"
)
_DUE: Final = f"SELECT {_COLUMNS} FROM records WHERE due_at <= $1 ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED"
_PUT_ASIDE: Final = POSTPONE.format("$1::bigint", "$2")
_DELETE_DOCUMENT: Final = DELETE.format(m="$")
_DROP_FINISHED: Final = (
    "DELETE FROM history WHERE id IN (SELECT id FROM history WHERE ended_at < $1 LIMIT $2) RETURNING id, kind, body"
)
_DROP_CHUNKS: Final = (
    "WITH old AS (SELECT last_seq FROM chunks WHERE at < $1 ORDER BY last_seq LIMIT $2), "
    "scoped AS (DELETE FROM chunk_scopes s USING old WHERE s.last_seq = old.last_seq) "
    "DELETE FROM chunks c USING old WHERE c.last_seq = old.last_seq"
)


class PostgresStore:
    """One database, shared by any number of servers."""

    max_concurrent_transactions = MAX_CONCURRENT_TRANSACTIONS

    def __init__(self, dsn: str, *, shift: Callable[[], int] = lambda: 0) -> None:
        self._dsn = dsn
        self._shift = shift  # Microseconds that tests move the database's clock by.
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._log = LogReader(self._fetch, ("$1", "$2", "$3"))
        self._pages = SqlListReader(self._fetch, "$", self.find_all)
        self._documents = SqlDocumentReader(self._fetch, "$")
        self._ready = ReadyAttemptReader(self._fetch, ("$1", "$2", "$3", "$4"))
        self.commit_hints = CommitHints()
        self._notifier = PostgresNotifier(self._connect, self.commit_hints)

    def _connect(self) -> Awaitable[Any]:
        return asyncpg.connect(self._dsn, command_timeout=COMMAND_SECONDS)

    async def open(self) -> None:
        """Connect, and bring the tables up to date; one server does it, the others wait for it."""
        try:
            self._pool = await asyncpg.create_pool(
                self._dsn,
                min_size=1,
                max_size=MAX_CONCURRENT_TRANSACTIONS + READ_CONNECTIONS,
                command_timeout=COMMAND_SECONDS,
                server_settings=PLANNER_SETTINGS,
                reset=_stays_as_it_is,
            )
            async with self._pool.acquire() as connection, connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATE_LOCK)
                await connection.execute(
                    "CREATE TABLE IF NOT EXISTS migrations (number integer PRIMARY KEY, checksum text NOT NULL)"
                )
                applied = await connection.fetch("SELECT number, checksum FROM migrations")
                for migration in pending_migrations(migrations("postgres"), [(row[0], row[1]) for row in applied]):
                    await connection.execute(migration.text)
                    await connection.execute(
                        "INSERT INTO migrations VALUES ($1, $2)", migration.number, migration.checksum
                    )
        except CONNECTION_ERRORS as error:
            raise Unavailable(f"PostgreSQL cannot be reached: {error}") from error
        self._notifier.start()

    async def close(self) -> None:
        """Close every connection."""
        await self._notifier.stop()
        if self._pool is not None:
            await self._pool.close()

    def _connected(self) -> asyncpg.Pool[asyncpg.Record]:
        if self._pool is None:
            raise Unavailable("the store is not open; call open() first")
        return self._pool

    async def transact(self, work: Callable[[], Transaction[T]]) -> T:
        """Run it on one connection. A connection that breaks leaves the outcome unknown: `Unavailable`."""
        try:
            async with self._connected().acquire() as connection:
                result, ready = await self._drive(connection, work())
        except CONNECTION_ERRORS as error:
            raise Unavailable(f"PostgreSQL: {error}") from error
        except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.UniqueViolationError) as error:
            raise Conflict(()) from error
        if ready is not None:
            self.commit_hints.publish(ready)
            self._notifier.announce(ready)
        return result

    async def _drive(self, connection: Any, transaction: Transaction[T]) -> tuple[T, ReadyCounts | None]:
        """Ask and answer. What only reads, and then writes with one statement, needs no BEGIN and no COMMIT."""
        begun: Any = None
        ready: ReadyCounts | None = None
        try:
            request, result = _next(transaction, None)
            while request is not None:
                if begun is None and not _stands_alone(request):
                    begun = connection.transaction()
                    await begun.start()
                if isinstance(request, Write):
                    ready = {**(ready or {}), **ready_counts(request)}
                request, result = _next(transaction, await self._answer(connection, request))
            if begun is not None:
                await begun.commit()
        except asyncio.CancelledError:
            connection.terminate()  # Nobody waits for it any more; asking it to roll back could hide that.
            raise
        except BaseException:
            if begun is not None and not connection.is_closed() and connection.is_in_transaction():
                await begun.rollback()
            raise
        finally:
            transaction.close()
        return cast(T, result), ready

    async def _answer(self, connection: Any, request: Request) -> Any:
        if isinstance(request, Begin):
            return await self._open_batch(connection, request.ids)
        if isinstance(request, Write):
            return await write_batch(connection, request)
        if isinstance(request, Load):
            return _held(await connection.fetch(_LOAD, request.ids))
        if isinstance(request, LoadJobs):
            return _held(await connection.fetch(_LOAD_JOBS, request.run_id, JOB_KIND))
        if isinstance(request, FindDue):
            return _held(await connection.fetch(_DUE, request.now, request.limit))
        if isinstance(request, CountLiveLeases):
            await connection.execute(_LOCK_HELD, TENANT_LOCK, request.tenant)
            return await connection.fetchval(_COUNT_HELD, request.tenant, request.limit)
        if isinstance(request, LockGroup):
            return await self._take_group(connection, request)
        if isinstance(request, Postpone):
            return await connection.executemany(_PUT_ASIDE, [(request.until, id) for id in request.ids])
        if isinstance(request, BeginClaim):
            return await self._open_ready(connection, request)
        assert isinstance(request, FindReady)
        return await self._find_ready(connection, request)

    @staticmethod
    async def _take_group(connection: Any, request: LockGroup) -> str:
        """First the lock, then the look: what the one before us wrote is seen by a statement that comes later."""
        if not await connection.fetchval(_LOCK_GROUP, GROUP_LOCK, request.tenant, request.group):
            return CONTENDED
        return await connection.fetchval(_HOLDER, request.tenant, request.group, request.now) or ""

    async def _open_ready(self, connection: Any, request: BeginClaim) -> tuple[int, list[StoredRecord]]:
        if request.labels or request.only_ids:
            now, _ = await self._open_batch(connection, ())
            return now, await self._find_ready(
                connection,
                FindReady(request.tenant, request.labels, now + request.clock_lead, request.limit, request.only_ids),
            )
        shift = self._shift() + request.clock_lead
        rows = await connection.fetch(_OPEN_READY, request.tenant, shift, request.limit)
        return int(rows[0][0]) - request.clock_lead, _held([row[1:] for row in rows if row[1] is not None])

    @staticmethod
    async def _find_ready(connection: Any, request: FindReady) -> list[StoredRecord]:
        best: list[StoredRecord] = []
        if request.only_ids:
            rows = await connection.fetch(_ONLY, list(request.only_ids), request.tenant, request.now)
            best = [held for held in _held(rows) if matches_labels(held, request.labels)]
            best.sort(key=_claim_order)
            return best[: request.limit]
        keys = [row[0] for row in await connection.fetch(_KEYS, request.tenant)] if request.labels else [""]
        chosen = matching_queue_keys(keys, request.labels)
        for key in chosen:
            values = (request.tenant, key, request.now, request.limit)
            if request.excluded_groups is not None:
                best += _held(await connection.fetch(_READY_WITHOUT, *values, list(request.excluded_groups)))
            else:
                best += _held(await connection.fetch(_READY, *values))
        if len(chosen) > 1:
            best.sort(key=_claim_order)
        return best[: request.limit]

    async def _open_batch(self, connection: Any, ids: tuple[str, ...]) -> tuple[int, list[StoredRecord]]:
        rows = await connection.fetch(_OPEN, ids)
        return int(rows[0][0]) + self._shift(), _held([row[1:] for row in rows if row[1] is not None])

    async def read(self, work: Callable[[], ReadTransaction[T]]) -> T:
        """Run it on one connection."""
        looking = work()
        try:
            async with self._connected().acquire() as connection:
                request, result = _next(looking, None)
                while request is not None:
                    request, result = _next(looking, await self._answer(connection, request))
        except CONNECTION_ERRORS as error:
            raise Unavailable(f"PostgreSQL: {error}") from error
        finally:
            looking.close()
        return cast(T, result)

    async def find(self, id: str) -> Record | None:
        """The record as it is now."""
        found = _held(await self._fetch(_LOAD, [id]))
        return found[0].record if found else None

    async def find_all(self, ids: Sequence[str]) -> list[Record]:
        """These records."""
        wanted = list(dict.fromkeys(ids))
        found = {held.record.id: held.record for held in _held(await self._fetch(_LOAD, wanted))}
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
        columns = document_columns(documents)
        try:
            await self._fetch(PUT_DOCUMENTS, *columns, self._shift(), len(documents))
        except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError) as error:
            raise document_conflict(documents) from error

    async def list_documents(
        self, kind: str, tenant: str, *, after: str = "", limit: int = 100, prefix: str = ""
    ) -> list[Document]:
        """The tenant's documents."""
        return await self._documents.list_documents(kind, tenant, after, limit, prefix)

    async def delete_document(self, kind: str, tenant: str, name: str, version: int) -> bool:
        """Drop it, if it is still this version of it."""
        return bool(await self._fetch(f"{_DELETE_DOCUMENT} RETURNING 1", kind, tenant, name, version))

    async def now(self) -> int:
        """The database's clock."""
        return int((await self._fetch(f"SELECT {CLOCK}"))[0][0]) + self._shift()

    async def _fetch(self, sql: str, *values: Any) -> list[Any]:
        try:
            rows: list[Any] = await self._connected().fetch(sql, *values)
        except CONNECTION_ERRORS as error:
            raise Unavailable(f"PostgreSQL: {error}") from error
        return rows

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
        found = await self._fetch(_HOLDER, tenant, group, await self.now())
        return str(found[0][0]) if found else ""

    async def last_seq(self) -> int:
        """The newest seq."""
        return int((await self._fetch("SELECT seq FROM log_head"))[0][0])

    async def prune(self, *, finished_before: int, events_before: int, limit: int) -> int:
        """Drop finished records and old events."""
        try:
            async with self._connected().acquire() as connection, connection.transaction():
                gone = await connection.fetch(_DROP_FINISHED, finished_before, limit)
                await remove_from_lists(
                    connection, removals(decode_record(*row) for row in gone if row[1] in LISTED_KINDS)
                )
            status: str = await self._connected().execute(_DROP_CHUNKS, events_before, limit)
        except CONNECTION_ERRORS as error:
            raise Unavailable(f"PostgreSQL: {error}") from error
        return len(gone) + int(status.rpartition(" ")[2])


def _held(rows: list[Any]) -> list[StoredRecord]:
    return [StoredRecord(decode_record(id, kind, body), version, due_at) for id, kind, version, due_at, body in rows]


def _claim_order(held: StoredRecord) -> tuple[int, int, str]:
    record = held.record
    if not isinstance(record, Attempt):
        return -(2**63), 0, record.id  # It cannot be read: whoever looks at it next puts it aside.
    return -record.priority, ready_at(record) or 0, record.id


def _next(transaction: Transaction[T], answer: Any) -> tuple[Request | None, T | None]:
    """What it asks next; or, when it has ended, its result."""
    try:
        return transaction.send(answer), None
    except StopIteration as end:
        return None, end.value


def _stands_alone(request: Request) -> bool:
    """Whether it takes no lock that must be held until later, and is one statement."""
    if isinstance(request, Write):
        return request.is_last and is_single_statement(request)
    return isinstance(request, Begin | Load | LoadJobs)


async def _stays_as_it_is(_connection: object) -> None:
    """Our sessions change nothing that the next user of the connection would have to undo."""
